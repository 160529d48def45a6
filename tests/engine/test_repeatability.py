"""A model that draws random numbers, or whose images influence each other, has a finding and is measured image by
image; others are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loaded import adapter_of
from nets import Does, conv
from torch import Tensor, nn

import erfscope
from erfscope.core.run.attribution import GraphForward


def net(between: Callable[[Does, Tensor, Tensor], Tensor]) -> nn.Module:
    """Two convolutions, with something between."""
    torch.manual_seed(0)
    return Does(lambda m, x: m.two(between(m, x, m.one(x)).tanh()), one=conv(), two=conv(4))


def pictures(n: int = 6) -> Tensor:
    """Noise of which the later ones are brighter, (n, 3, 12, 12) in float64."""
    steps = torch.arange(n, dtype=torch.float64).view(-1, 1, 1, 1)
    return torch.randn(n, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + steps


def measured(model: nn.Module, batch_size: int | None, x: Tensor | None = None, **settings: object) -> erfscope.Result:
    torch.manual_seed(3)
    words = {"dtype": "float64", "measures": "r50", **settings}
    return erfscope.analyze(model, images=pictures() if x is None else x, batch_size=batch_size, **words)


def texts(result: erfscope.Result) -> dict[str, str]:
    return {finding.code: finding.text for finding in result.findings}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gradient", "input_x_gradient"])
def test_a_model_that_draws_random_numbers_is_said_to(method):
    found = texts(measured(net(lambda _net, _x, y: F.dropout(y, 0.5, training=True)), None, method=method))
    assert "the model draws random numbers in its forward pass" in found["not_repeatable"]
    assert "one_by_one" not in found


BATCHES = {
    "a bright batch": lambda _net, x, y: y.relu() if x.mean() > 1 else y,
    "dark beside bright": lambda _net, x, y: y * x.mean((1, 2, 3), keepdim=True).amax(0).detach(),
}


@pytest.mark.parametrize("name", BATCHES)
def test_images_that_see_each_other_are_measured_one_at_a_time(name):
    x = pictures(9)
    one, six = (measured(net(BATCHES[name]), size, x) for size in (1, 6))
    np.testing.assert_array_equal(one.map.values, six.map.values)
    assert "one image at a time" in texts(six)["one_by_one"]
    assert "not_repeatable" not in texts(six)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["test_resnet", "test_vit"])
def test_healthy_models_are_measured_in_batches_without_a_word(model):
    module = adapter_of(model, input_size=64)
    x = torch.randn(6, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one, six = (measured(module, size, x, draws=1) for size in (1, 6))
    assert not {"one_by_one", "not_repeatable"} & (set(texts(one)) | set(texts(six)))
    np.testing.assert_allclose(six.map.values, one.map.values, rtol=0, atol=1e-9 * one.map.values.max())


@pytest.mark.slow
def test_a_healthy_net_keeps_its_batches(monkeypatch):
    sizes: list[int] = []
    forward = GraphForward.__call__
    monkeypatch.setattr(GraphForward, "__call__", lambda own, x: sizes.append(len(x)) or forward(own, x))
    measured(net(lambda _net, _x, y: y), 3)
    assert sizes == [3, 3]
    measured(net(BATCHES["dark beside bright"]), 3)
    assert sizes[2:] == [1] * 6


@pytest.mark.slow
def test_one_unreadable_picture_first_leaves_the_next_ones_to_compare(tmp_path):
    from PIL import Image

    (tmp_path / "a.png").write_bytes(b"no image")
    for number, name in enumerate("bcd"):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)).save(
            tmp_path / f"{name}.png"
        )
    model = net(BATCHES["dark beside bright"])
    result = erfscope.analyze(model, images=tmp_path, input_size=(16, 16), keep_going=True, measures="r50")
    assert {"one_by_one", "unreadable_images"} <= set(texts(result))
