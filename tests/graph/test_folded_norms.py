"""Norms folded into convolutions, and global operations: what units need gives the maps of plain autograd."""

import numpy as np
import pytest
import timm
import torch
from nets import NETS, Does
from nets.ordinary import FOLDED, Chain, conv
from oracle import load, scrambled
from plain import agrees
from torch import nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")

SPACE = (29, 34)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.InstanceNorm2d(4),
        lambda: Does(lambda m, x: x * m.gate(x.mean((2, 3), keepdim=True)).sigmoid(), gate=conv(k=1)),
    ],
    ids=["group", "instance", "squeeze-excite"],
)
def test_above_a_global_operation_all_of_the_image_is_needed(make):
    torch.manual_seed(0)
    for crop in agrees(scrambled(Chain([conv(), make()])), SPACE, "last"):
        assert crop.image == ((0, SPACE[0]), (0, SPACE[1]))


#: Norms that are not, as something else reads what they take, or as it is no convolution of theirs.
NOT_FOLDED = ("transposed", "read beside")


@pytest.fixture
def folding_pays(monkeypatch):
    monkeypatch.setattr("erfscope.core.graph.run.FOLDING_PAYS", 0)


@pytest.mark.parametrize("net", [net for net in NETS if net.kind == "folded"], ids=lambda net: net.name)
def test_folding_a_norm_changes_nothing(net, folding_pays):
    for crop in agrees(net.build(), net.size, "last", units=[(14, 17), (0, 0)]):
        assert any(convolution for _, convolution in crop.norms) is not net.called.endswith(NOT_FOLDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "count"), [("resnet18", "layer4", 20), ("mobilenetv3_small_100", "blocks.5", 34)]
)
def test_every_norm_of_a_network_can_be_folded(name, layer, count, folding_pays):
    model = load(timm.create_model(name).eval(), (64, 64))
    (crop,) = model.crops(model.site(layer), [(0, 0)])
    assert sum(convolution is not None for _, convolution in crop.norms) == count


@pytest.mark.parametrize("wrt", ["layers.0.0", "layers.0.1", "layers.0.1:in", "layers.0.0:in"])
def test_folding_does_not_touch_the_reference(wrt):
    torch.manual_seed(0)
    agrees(scrambled(Chain([FOLDED["plain"]()])), SPACE, "last", wrt=wrt, units=[(14, 17), (0, 0)])


def test_a_buffer_without_numbers_may_say_its_shape():
    shape = torch.empty(4, 1, 1, device="meta")
    torch.manual_seed(0)
    net = Does(
        lambda m, x: m.conv(x) * (1 + torch.zeros_like(m.shape, device="cpu")), conv=nn.Conv2d(3, 4, 3), shape=shape
    ).double()
    asked = {"synthetic": "noise", "samples": 2, "dtype": "float64"}
    found, plain = (erfscope.analyze(erfscope.wrap(net, input_size=12), **asked, plain=p) for p in (False, True))
    assert (found.computed.path, plain.computed.path) == ("graph", "plain")
    np.testing.assert_allclose(found.map.values, plain.map.values, atol=1e-14)
