"""Channels last in memory: only where every operation takes it, and then the same maps."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import erfscope
from erfscope.adapters import load
from erfscope.cone.memory_order import CHANNELS_LAST_PAYS, faster_order
from erfscope.engine.checks import repeatability


class Does(nn.Module):
    """Convolution, something, convolution."""

    def __init__(self, what, channels=8):
        super().__init__()
        self.first, self.last, self.what = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1), what

    def forward(self, x):
        return self.last(self.what(self.first(x)))


KEPT = {
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
}
NOT_KEPT = {
    "a view": (lambda y: y.flatten(2).view(len(y), 8, *y.shape[2:]), 8),
    "strides": (lambda y: y.as_strided(y.shape, y.stride()).tanh(), 8),
    "permuted": (lambda y: y.permute(0, 2, 3, 1).reshape(len(y), *y.shape[2:], 8).permute(0, 3, 1, 2), 8),
    "an instance norm": (lambda y: F.instance_norm(y), 8),
}


def plain_map(net, x, unit):
    """The average map of a unit of ``last``, one image at a time, by autograd on the module itself."""
    total = 0
    for each in x:
        leaf = each[None].clone().requires_grad_(True)
        y = net(leaf)
        total = total + torch.autograd.grad(y[(..., *unit)].relu().sum(), leaf)[0].relu().sum((0, 1))
    return (total / total.sum()).numpy()


@pytest.fixture
def orders(monkeypatch):
    """Runs whatever takes it with channels last; gives how often that was asked."""
    asked = []
    monkeypatch.setattr(repeatability, "faster_order", lambda _x, images: asked.append(images) or torch.channels_last)
    return asked


@pytest.mark.parametrize("name", [*KEPT, *NOT_KEPT])
def test_maps_are_those_of_autograd_and_only_what_is_known_runs_with_channels_last(orders, name):
    torch.manual_seed(0)
    net, x = Does(*(KEPT | NOT_KEPT)[name]).eval().double(), torch.randn(3, 3, 24, 26, dtype=torch.float64)
    result = erfscope.analyze(
        erfscope.wrap(net, input_size=(24, 26)), images=x, layer="last", convention="replknet", measures="r50"
    )
    np.testing.assert_allclose(result.map.values, plain_map(net, x, result.unit.index), rtol=1e-9, atol=1e-15)
    assert bool(orders) is (name in KEPT)


@pytest.mark.parametrize(
    "model", ["resnet18", "mobilenetv3_small_100", "densenet121", "dla34", "res2net50_14w_8s", "hrnet_w18_small"]
)
def test_zoo_models_have_the_maps_that_they_have_in_the_usual_order(orders, monkeypatch, model):
    adapter = load(model, weights="random", input_size=64)
    asked = {"samples": 2, "measures": "r50", "dtype": "float64"}
    last = erfscope.analyze(adapter, **asked).map.values
    assert 2 in orders
    monkeypatch.setattr(repeatability, "faster_order", lambda _x, _images: torch.preserve_format)
    np.testing.assert_allclose(last, erfscope.analyze(adapter, **asked).map.values, rtol=1e-9, atol=1e-15)


def test_few_pixels_stay_in_the_usual_order():
    one = torch.empty(1, 3, 224, 224)
    assert faster_order(one, 1) == torch.preserve_format
    assert faster_order(one, 2) == torch.channels_last
    assert CHANNELS_LAST_PAYS == 2 * 224 * 224
    assert faster_order(one.to("meta"), 8) == torch.preserve_format


class Renormed(nn.Conv2d):
    """Its weights are bounded before each use, as in EEGNet."""

    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-0.1, 0.1)
        return super().forward(x)


class ByOtherName(nn.BatchNorm2d):
    def forward(self, x):
        return torch.batch_norm(
            x, self.weight, self.bias, self.running_mean, self.running_var, False, 0, self.eps, True
        )


class Branches(nn.Module):
    """What a fold or an order of memory would change, unseen by the recorded operations."""

    def __init__(self, what, conv=nn.Conv2d, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv, self.norm, self.what = conv(3, 8, 3, padding=1), norm(8), what
        self.middle, self.last = nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        return self.last(self.middle(self.what(self, x)))


def by_strides(m, x):
    y = m.norm(m.conv(x))
    return y * (1 + y.stride(1) % 7)


UNSEEN = {
    "bounded weights": partial(Branches, lambda m, x: m.norm(m.conv(x)), conv=Renormed),
    "a norm by another name": partial(Branches, lambda m, x: m.norm(m.conv(x)), norm=ByOtherName),
    "the weight used twice": partial(
        Branches, lambda m, x: m.norm(m.conv(x)) + F.conv2d(x, m.conv.weight, m.conv.bias, padding=1).sin()
    ),
    "the weight used on ones": partial(
        Branches, lambda m, x: m.norm(m.conv(x)) * F.conv2d(torch.ones_like(x[:1]), m.conv.weight, padding=1)
    ),
    "strides read": partial(Branches, by_strides),
}


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_faster_pass_changes_is_run_as_the_model_does(orders, name, count):
    torch.manual_seed(0)
    net = UNSEEN[name]().eval().double()
    with torch.no_grad():
        for tensor in (net.norm.running_mean, net.norm.running_var, net.norm.weight, net.norm.bias):
            tensor.uniform_(0.3, 2.0)
    x = torch.randn(count, 3, 20, 22, dtype=torch.float64)
    result = erfscope.analyze(
        erfscope.wrap(net, input_size=(20, 22)), images=x, layer="last", convention="replknet", measures="r50"
    )
    np.testing.assert_allclose(result.map.values, plain_map(net, x, result.unit.index), rtol=1e-9, atol=1e-15)
    assert not {"one_by_one"} & {finding.code for finding in result.warnings}
