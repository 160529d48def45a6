"""One of several calls of a module, as layer and as reference."""

import numpy as np
import pytest
import torch
from torch import nn

import erfscope


class Twice(nn.Module):
    """A convolution that runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.same, self.last = (nn.Conv2d(c, 4, 3, padding=1) for c in (3, 4, 4))

    def forward(self, x):
        return self.last(self.same(self.same(self.first(x)).tanh()))


OPTIONS = {"input_size": 24, "samples": 1, "dtype": "float64", "convention": "luo"}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Twice().eval()


@pytest.mark.parametrize(("layer", "size"), [("same@0", 5), ("same@1", 7), ("last", 9)])
def test_a_call_has_the_field_of_its_own_output(net, layer, size):
    assert erfscope.analyze(net, layer=layer, **OPTIONS).trf.size_px == (size, size)


@pytest.mark.parametrize("wrt", ["same@0", "same@1:in", "same@1"])
def test_a_map_with_respect_to_a_call_is_that_of_plain_autograd(net, wrt):
    x = torch.randn(1, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    double, seen = Twice().double().eval(), []
    double.load_state_dict({name: tensor.double() for name, tensor in net.state_dict().items()})
    handle = double.same.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
    out = double(x.requires_grad_(True))
    handle.remove()
    tensor = {"same@0": seen[0][1], "same@1:in": seen[1][0], "same@1": seen[1][1]}[wrt]
    (gradient,) = torch.autograd.grad(out[0, :, 12, 12].sum(), tensor)
    expected = gradient[0].sum(0).numpy()
    found = erfscope.analyze(
        net,
        images=x.detach(),
        layer="last",
        unit=(12, 12),
        wrt=wrt,
        convention="signed",
        input_size=24,
        dtype="float64",
    ).map.values
    np.testing.assert_allclose(found, expected / np.abs(expected).sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layer": "same"}, r"same@0 to same@1"),
        ({"layer": "last", "wrt": "same:in"}, r"same@0:in to same@1:in"),
        ({"layer": "same@1", "verify": True}, r"one call of a module.*--verify compares with it"),
        ({"layer": "same@1", "unit": "all", "plain": True}, r"one call of a module.*plain was asked for"),
        ({"layer": "same@1", "plain": True}, r"one call of a module.*plain was asked for"),
    ],
)
def test_what_a_call_cannot_be_asked_for_is_said(net, options, text):
    (row,) = erfscope.sweep(net, **OPTIONS, **options)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(row.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        ("twins_svt_small", {"wrt": "block.0", "verify": True}, r"a stage that is no module's output.*--verify"),
        ("twins_svt_small", {"wrt": "block.0", "plain": True}, r"a stage that is no module's output.*plain was asked"),
        ("twins_svt_small", {"wrt": "block.0", "trust": True}, r"a stage that is no module's output.*--trust"),
    ],
)
def test_a_stage_that_no_hook_shows_is_refused_where_the_model_itself_is_run(model, options, text):
    (row,) = erfscope.sweep(model, weights="random", input_size=64, samples=1, **options)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(row.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        ("mvitv2_tiny", {"wrt": "block.0"}, r"not computed from the map of the stage 'block.0', which is a view"),
        ("mvitv2_tiny", {"wrt": "stages.1", "verify": True}, r"'stages.1' gives several tensors.*: stages\.1\[0\]"),
        ("mvitv2_tiny", {"layer": "stages.1"}, r"'stages.1' gives several tensors.*: stages\.1\[0\]"),
    ],
)
def test_a_name_that_means_no_tensor_of_the_pass_is_refused_with_the_true_reason(model, options, text):
    with pytest.raises(erfscope.ErfscopeError, match=text):
        erfscope.sweep(model, weights="random", input_size=64, samples=1, **options)
