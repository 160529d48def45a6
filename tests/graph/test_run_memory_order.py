"""Images that lie with channels last in memory: the same maps."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does
from oracle import plain_gradient
from torch import nn

import erfscope
from erfscope.adapters import load
from erfscope.core.run.attribution import forward
from erfscope.core.run.attribution.forward import CHANNELS_LAST_PAYS, faster_order

NETS = {
    "nothing": (lambda y: y, 8),
    "pooling": (lambda y: F.max_pool2d(y, 3, 2, 1), 8),
    "pooling with a ceiling": (lambda y: F.avg_pool2d(y, 3, 2, 1, ceil_mode=True), 8),
    "adaptive pooling": (lambda y: F.adaptive_avg_pool2d(y, (5, 7)), 8),
    "dilated pooling": (lambda y: F.max_pool2d(y, 2, 1, dilation=2), 8),
    "squeeze and excitation": (lambda y: y * y.mean((2, 3), keepdim=True).sigmoid(), 8),
    "concatenation": (lambda y: torch.cat([y.tanh(), y.sin()], 1), 16),
    "groups of channels": (lambda y: torch.cat(y.split(4, 1)[::-1], 1).sin(), 8),
    "a slice": (lambda y: y[:, 2:6, 1:, ::2].tanh(), 4),
    "padding": (lambda y: F.pad(y, (1, 2, 3, 0)), 8),
    "nearest": (lambda y: F.interpolate(y, scale_factor=2), 8),
    "bilinear": (lambda y: F.interpolate(y, size=(21, 30), mode="bilinear"), 8),
    "a frozen norm": (lambda y: F.batch_norm(y, torch.linspace(-1, 1, 8).to(y), torch.linspace(0.5, 2, 8).to(y)), 8),
    "in place": (lambda y: y.mul(2).relu_(), 8),
    "hardswish": (lambda y: F.hardswish(y), 8),
    "a view": (lambda y: y.flatten(2).view(len(y), 8, *y.shape[2:]), 8),
    "strides": (lambda y: y.as_strided(y.shape, y.stride()).tanh(), 8),
    "permuted": (lambda y: y.permute(0, 2, 3, 1).reshape(len(y), *y.shape[2:], 8).permute(0, 3, 1, 2), 8),
    "pixels unshuffled by view": (
        lambda y: y.view(len(y), 8, 12, 2, 13, 2).permute(0, 1, 3, 5, 2, 4).reshape(len(y), 32, 12, 13),
        32,
    ),
    "an instance norm": (lambda y: F.instance_norm(y), 8),
}


def plain_map(net, x, unit):
    """The average map of a unit of ``last``, one image at a time, by autograd on the module itself."""
    total = sum(plain_gradient(net, each, lambda y: y[(..., *unit)].relu()).relu().sum((0, 1)) for each in x.split(1))
    return (total / total.sum()).numpy()


@pytest.fixture
def channels_last(monkeypatch):
    """Small images lie with channels last too."""
    monkeypatch.setattr(forward, "CHANNELS_LAST_PAYS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("channels_last")
def test_maps_are_those_of_autograd(name):
    torch.manual_seed(0)
    what, channels = NETS[name]
    parts = {"first": nn.Conv2d(3, 8, 3, padding=1), "last": nn.Conv2d(channels, 4, 3, padding=1)}
    net, x = Does(lambda m, x: m.last(what(m.first(x))), **parts).eval().double(), torch.randn(2, 3, 24, 26).double()
    result = erfscope.analyze(
        erfscope.wrap(net, input_size=(24, 26)), images=x, layer="last", convention="replknet", measures="r50"
    )
    np.testing.assert_allclose(result.map.values, plain_map(net, x, result.unit.index), rtol=1e-9, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "mobilenetv3_small_100", "test_vit", "hrnet_w18_small"])
def test_zoo_models_have_the_maps_that_they_have_in_the_usual_order(monkeypatch, model):
    adapter = load(model, weights="random", input_size=64)
    asked = {"samples": 1, "measures": "r50", "dtype": "float64"}
    maps = []
    for pays in (0, CHANNELS_LAST_PAYS):
        monkeypatch.setattr(forward, "CHANNELS_LAST_PAYS", pays)
        maps.append(erfscope.analyze(adapter, **asked).map.values)
    np.testing.assert_allclose(*maps, rtol=1e-9, atol=1e-15)


def test_few_pixels_stay_in_the_usual_order():
    one = torch.empty(1, 3, 224, 224)
    assert faster_order(one) == torch.preserve_format
    assert faster_order(one.expand(2, 3, 224, 224)) == torch.channels_last
    assert CHANNELS_LAST_PAYS == 2 * 224 * 224
    assert faster_order(torch.empty(8, 3, 224, 224, device="meta")) == torch.preserve_format
