"""``output`` is what the call returns: of a function around the module, and in objects."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from nets import Does, conv
from oracle import plain_gradient, support
from torch import Tensor, nn
from torch.nn import functional as F

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")
SIZE = 32
QUICK: dict[str, Any] = {"input_size": SIZE, "samples": 2, "measures": "r50", "device": "cpu", "dtype": "float64"}


@dataclasses.dataclass(frozen=True)
class Frozen:
    features: Tensor
    note: str = ""


class Named(NamedTuple):
    scores: float
    features: Tensor


class NestedTensor:
    """As DETR's."""

    def __init__(self, tensors: Tensor, mask: Any = None) -> None:
        self.tensors, self.mask = tensors, mask


def net(hold: Any) -> nn.Module:
    """A convolution whose pooled map lies in a container that is not the layer before it."""
    return Does(lambda m, x: hold(F.avg_pool2d(m.conv(x), 9, 1, 4)), conv=conv()).eval()


HOLDERS: dict[str, tuple[Any, str]] = {
    "dataclass": (Frozen, "output[features]"),
    "named tuple": (lambda x: Named(0.5, x), "output[1]"),
    "mapping": (lambda x: types.MappingProxyType({"out": x}), "output[out]"),
    "user's mapping": (lambda x: collections.UserDict({"out": x}), "output[out]"),
    "DETR": (NestedTensor, "output[tensors]"),
    "list of objects": (lambda x: [NestedTensor(x)], "output[0][tensors]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOLDERS)
def test_objects_are_searched(kind):
    hold, name = HOLDERS[kind]
    module = net(hold)
    found = erfscope.analyze(module, **QUICK)
    assert (found.layer, found.trf.size_px, found.unit.map_shape) == (name, (11, 11), (4, SIZE, SIZE))
    assert "output_not_read" not in {finding.code for finding in found.findings}
    plan = erfscope.tile(module, 8, input_size=SIZE)
    image = torch.randn(3, 64, 64)
    whole = F.avg_pool2d(module.conv(image[None]), 9, 1, 4)[0]
    torch.testing.assert_close(erfscope.run_tiled(module, image, plan), whole)


def test_an_object_that_is_not_searched_is_said():
    module = net(lambda x: types.SimpleNamespace(map=x))
    found = erfscope.analyze(module, **QUICK)
    assert found.layer == "conv"
    assert [f.text for f in found.findings if f.code == "output_not_read"] == [
        "no tensor is found in what the model returns, so that conv inside it is measured; let"
        " erfscope.wrap(model, forward=lambda m, x: m(x).NAME) return the tensor"
    ]
    wrapped = erfscope.wrap(module, forward=lambda m, x: m(x).map, input_size=SIZE)
    again = erfscope.analyze(wrapped, samples=2, measures="r50")
    assert (again.layer, again.trf.size_px) == ("output", (11, 11))


FORWARDS: dict[str, tuple[Any, tuple[int, int]]] = {
    "pooled": (lambda m, x: F.avg_pool2d(m(x), 4), (8, 8)),
    "twice": (lambda m, x: m(m(x)[:, :3]), (9, 9)),
    "a part alone": (lambda m, x: m[0](x), (3, 3)),
    "two parts": (lambda m, x: m[2](m[0](x)) + m[0](x)[:, :6], (5, 5)),
    "cut": (lambda m, x: m(x)[..., 4:, :], (5, 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORWARDS)
def test_a_function_around_the_module_is_measured_to_its_end(kind):
    forward, size = FORWARDS[kind]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 6, 3, padding=1)).eval().double()
    adapter = erfscope.wrap(net, forward=forward, input_size=SIZE)
    x = torch.randn(1, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    options = {"images": x, "layer": "output", "measures": "r50"}
    found = erfscope.analyze(adapter, convention="kim", verify=True, **options)
    assert found.trf.size_px == size
    assert found.verification.holds
    assert found.unit.map_shape == tuple(forward(net, x).shape[1:])
    called = Does(lambda m, x: forward(m.net, x), net=net)

    def read(y: Tensor) -> Tensor:
        return y[(..., *found.unit.index)]

    there = plain_gradient(called, x, read).abs().sum((0, 1)).numpy() > 0
    assert not (np.asarray(found.map) > 0)[~there].any()
    assert support(called, x, read) == found.trf.box_px
    assert erfscope.sweep(adapter, unit="0x0", **options)[0].layer == "output"
