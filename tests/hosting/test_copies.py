"""Copies of modules: functions that are kept in them call the copy's parts, and what cannot be copied is shared."""

import functools
import threading

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope.hosting.copies import copy_module


def replaced_by_closure(net):
    def forward(x):
        return net[1](net[0](x).relu())

    net.forward = forward


def wrapped(net):
    inner = net.forward

    @functools.wraps(inner)
    def forward(x, *, scale=2.0):
        return inner(x) * scale

    net.forward = forward


def bound_by_partial(net):
    net.forward = functools.partial(lambda part, x: part[1](part[0](x)), net)


def compiled(net):
    net.forward = torch.compile(net.forward, backend="eager")


def hooked(net):
    net[1].register_forward_hook(lambda _module, _given, y: y * net[0].weight.sum())


def calls_itself(net):
    def forward(x, depth=2):
        return net[0](x).relu().mean(1, keepdim=True) if depth == 0 else forward(x, depth - 1)

    net.forward = forward


def kept_and_added(net):
    feature = None

    def keep(_module, _given, y):
        nonlocal feature
        feature = y * net[0].weight.sum()

    def add(_module, _given, y):
        # It holds nothing of the net but what the other hook has kept.
        return y + feature.mean()

    net[0].register_forward_hook(keep)
    net[1].register_forward_hook(add)


def in_a_list(net):
    parts, scale = [net[0], net[1]], {"last": net[1].weight}

    def forward(x, *, first=net[0]):
        return parts[1](first(x)) * scale["last"].sum()

    net.forward = forward


REPLACED = [kept_and_added, in_a_list, replaced_by_closure, wrapped, bound_by_partial, compiled, hooked, calls_itself]


def net_with(replace):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 5, padding=2)).eval()
    replace(net)
    return net


@pytest.mark.parametrize("replace", REPLACED)
def test_a_copy_runs_on_its_own_parameters(replace):
    net, x = net_with(replace), torch.randn(1, 3, 8, 8)
    copied, expected = copy_module(net), net(x)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    torch.testing.assert_close(copied(x), expected)
    assert not net(x).any()


@pytest.mark.parametrize("replace", REPLACED)
def test_a_replaced_forward_is_measured_in_another_precision(replace):
    net = net_with(replace)
    single, double = (erfscope.analyze(net, samples=2, input_size=24, dtype=dtype).map.values for dtype in ("float32", "float64"))
    np.testing.assert_allclose(single, double, atol=1e-6 * double.max())
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


@pytest.mark.parametrize("replace", [each for each in REPLACED if each is not calls_itself])
def test_a_replaced_forward_is_measured_as_autograd_has_it_every_time(replace):
    net, x = net_with(replace).double(), torch.randn(1, 3, 24, 24, dtype=torch.float64)
    net(x)
    for _ in range(2):
        result = erfscope.analyze(net, images=x, convention="replknet", layer="1", measures="r50")
        leaf = x.clone().requires_grad_(True)
        seen = []
        handle = net[1].register_forward_hook(lambda _module, _given, y: seen.append(y))
        net(leaf)
        handle.remove()
        unit = seen[-1][(0, slice(None), *result.unit.index)]
        plain = torch.autograd.grad(unit.relu().sum(), leaf)[0].relu().sum((0, 1)).numpy()
        np.testing.assert_allclose(result.map.values, plain / plain.sum(), rtol=1e-9, atol=1e-15)


def test_what_holds_nothing_of_the_module_stays_the_same_function():
    net, factor = nn.Conv2d(1, 1, 1), 3.0
    net.scaled = lambda y: y * factor
    assert copy_module(net).scaled is net.scaled


def test_what_cannot_be_copied_is_shared():
    net = nn.Conv2d(1, 1, 1)
    net.lock = threading.Lock()
    copied = copy_module(net)
    assert copied.lock is net.lock
    assert copied.weight is not net.weight
