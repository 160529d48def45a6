"""One of several calls of a module, as layer and as reference."""

import copy
import re

import numpy as np
import pytest
import torch
from loaded import adapter_of
from nets import Does
from torch import nn

import erfscope

OPTIONS = {"input_size": 24, "samples": 1, "dtype": "float64", "convention": "luo"}


@pytest.fixture
def net():
    """A convolution that runs twice."""
    first, same, last = (nn.Conv2d(c, 4, 3, padding=1) for c in (3, 4, 4))
    return Does(lambda m, x: m.last(m.same(m.same(m.first(x)).tanh())), first=first, same=same, last=last).eval()


@pytest.mark.parametrize(("layer", "size"), [("same@0", 5), ("same@1", 7), ("last", 9)])
def test_a_call_has_the_field_of_its_own_output(net, layer, size):
    assert erfscope.analyze(net, layer=layer, **OPTIONS).trf.size_px == (size, size)


@pytest.mark.parametrize("wrt", ["same@0", "same@1:in", "same@1"])
def test_a_map_with_respect_to_a_call_is_that_of_plain_autograd(net, wrt):
    x, seen = torch.randn(1, 3, 24, 24, dtype=torch.float64), []
    double = copy.deepcopy(net).double()
    handle = double.same.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
    out = double(x.clone().requires_grad_(True))
    handle.remove()
    tensor = {"same@0": seen[0][1], "same@1:in": seen[1][0], "same@1": seen[1][1]}[wrt]
    expected = torch.autograd.grad(out[0, :, 12, 12].sum(), tensor)[0][0].sum(0).numpy()
    asked = {**OPTIONS, "convention": "signed", "unit": (12, 12), "samples": None}
    found = erfscope.analyze(net, images=x, layer="last", wrt=wrt, **asked).map.values
    np.testing.assert_allclose(found, expected / np.abs(expected).sum(), atol=1e-12)


TWINS = {"model": "twins_svt_small", "wrt": "block.0"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layer": "same"}, r"same@0 to same@1"),
        ({"layer": "last", "wrt": "same:in"}, r"same@0:in to same@1:in"),
        ({"layer": "same@1", "verify": True}, r"one call of a module.*--verify compares with it"),
        ({"layer": "same@1", "unit": "all", "plain": True}, r"one call of a module.*plain was asked for"),
        ({"layer": "same@1", "plain": True}, r"one call of a module.*plain was asked for"),
        # Of a stage that no hook shows, where the model itself is run.
        pytest.param(
            {**TWINS, "verify": True}, r"a stage that is no module's output.*--verify", marks=pytest.mark.slow
        ),
        pytest.param(
            {**TWINS, "plain": True}, r"a stage that is no module's output.*plain was", marks=pytest.mark.slow
        ),
        pytest.param({**TWINS, "trust": True}, r"a stage that is no module's output.*--trust", marks=pytest.mark.slow),
    ],
)
def test_what_a_call_cannot_be_asked_for_is_said(net, options, text):
    model = adapter_of(options["model"], input_size=64) if "model" in options else net
    words = {"samples": 1} if "model" in options else OPTIONS
    (row,) = erfscope.sweep(model, **words, **{name: each for name, each in options.items() if name != "model"})
    assert re.search(text, row.error), row.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wrt": "block.0"}, r"not computed from the map of the stage 'block.0', which is a view"),
        ({"wrt": "stages.1", "verify": True}, r"'stages.1' gives several tensors.*: stages\.1\[0\]"),
        ({"layer": "stages.1"}, r"'stages.1' gives several tensors.*: stages\.1\[0\]"),
    ],
)
def test_a_name_that_means_no_tensor_of_the_pass_is_refused_with_the_true_reason(options, text):
    with pytest.raises(erfscope.ErfscopeError, match=text):
        erfscope.sweep(adapter_of("mvitv2_tiny", input_size=64), samples=1, **options)
