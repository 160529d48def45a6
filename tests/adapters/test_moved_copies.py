"""A module that was edited is recorded anew, and an adapter keeps the copy that another dtype asks for."""

from __future__ import annotations

import copy
import gc
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does
from torch import nn

import erfscope
from erfscope.adapters import recorded

pytestmark = pytest.mark.usefixtures("memory_unplanned")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.then = nn.Conv2d(4, 4, 3, padding=1)
        self.config = types.SimpleNamespace(twice=False, more={"steps": [1, 2]})
        self.unregistered = [nn.Identity()]
        self.register_buffer("order", torch.arange(12))
        self.dilation = 1

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))[:, :, self.order]
        y = F.conv2d(y, self.then.weight, self.then.bias, padding=self.dilation, dilation=self.dilation)
        for _ in range(1 + self.config.twice + len(self.config.more["steps"]) - 2):
            y = self.then(y)
        return self.unregistered[0](y)


def other_parameter(net):
    net.then.weight = nn.Parameter(torch.randn(4, 4, 5, 5))
    net.then.padding = (2, 2)


EDITS = {
    "a hook": lambda net: net.conv.register_forward_hook(lambda module, args, output: output.roll(3, 3)),
    "another part": lambda net: setattr(net, "norm", nn.AvgPool2d(3, 1, 1)),
    "a shape": other_parameter,
    "a flag": lambda net: setattr(net, "dilation", 3),
    "an object's flag": lambda net: setattr(net.config, "twice", True),
    "a list in a dictionary in an object": lambda net: net.config.more["steps"].append(3),
    "a part in a list": lambda net: net.unregistered.__setitem__(0, nn.MaxPool2d(3, 1, 1)),
    "an index, in place": lambda net: net.order.copy_(torch.arange(12).flip(0)),
    "a part's own attribute": lambda net: setattr(net.then, "padding", (0, 0)),
    "a forward of its own": lambda net: setattr(net.norm, "forward", lambda x: F.avg_pool2d(x, 5, 1, 2)),
}


@pytest.fixture
def recordings(monkeypatch):
    made, record = [], recorded._record

    def counted(*args):
        made.append(args)
        return record(*args)

    monkeypatch.setattr(recorded, "_record", counted)
    return made


def analyze(net, **options):
    asked = {"input_size": 12, "synthetic": "noise", "samples": 2, "dtype": "float64", "measures": "r50"}
    return erfscope.analyze(net, **asked | options)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_module_is_recorded_anew(recordings, edit):
    net = Net().double()
    analyze(net)
    times = len(recordings)
    EDITS[edit](net.double())
    net.double()
    found = analyze(net)
    assert len(recordings) > times
    plain = analyze(net, plain=True)
    np.testing.assert_allclose(found.map.values, plain.map.values, atol=1e-12)
    np.testing.assert_array_equal(
        found.map.values, analyze(erfscope.wrap(net, input_size=12, forward=lambda m, x: m(x))).map.values
    )


def test_indices_that_weights_decide_are_followed(recordings):
    parts = {"conv": nn.Conv2d(3, 6, 3, padding=1, groups=3), "scores": nn.Parameter(torch.arange(6.0))}
    net = Does(lambda m, x: m.conv(x)[:, m.scores.topk(2).indices], **parts).double()
    analyze(net)
    with torch.no_grad():
        net.scores.copy_(net.scores.flip(0))
    found = analyze(net)
    np.testing.assert_allclose(found.map.values, analyze(net, plain=True).map.values, atol=1e-12)


def test_a_copy_in_another_dtype_is_kept_and_takes_the_weights_anew(recordings):
    net = Net()
    adapter = erfscope.wrap(net, input_size=12)
    analyze(adapter)
    times = len(recordings)
    with torch.no_grad():
        net.conv.weight.data.normal_()
    again = analyze(adapter)
    assert len(recordings) == times
    np.testing.assert_array_equal(again.map.values, analyze(Net.double(copy.deepcopy(net))).map.values)
    assert net.conv.weight.dtype == torch.float32


def test_a_measured_module_can_be_freed():
    def measured():
        net = Net().double()
        analyze(net)
        erfscope.analyze(erfscope.wrap(net, input_size=12, forward=lambda module, x: net(x)), samples=1)
        return weakref.ref(net)

    gone = measured()
    gc.collect()
    assert gone() is None
