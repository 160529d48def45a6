"""Layers and references that are measured by the same passes have the maps that each has alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import erfscope
from erfscope import Result
from erfscope.core import OpenModel, Site
from erfscope.core.graph.record import RecordingError
from erfscope.core.graph.run import Forward
from erfscope.core.run.attribution import gradient

pytestmark = pytest.mark.usefixtures("memory_unplanned")

DOUBLE = torch.float64


class Towers(nn.Module):
    """Two images through two gated that are joined."""

    def __init__(self, channels: int = 6, sides: int = 3) -> None:
        super().__init__()
        self.left, self.right, self.both = (
            nn.Sequential(nn.Conv2d(width, channels, sides, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
            for width in (3, 3, 2 * channels)
        )

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.both(torch.cat([self.left(one), self.right(other)], 1))


class Gate(nn.Module):
    """Each cell times the mean of all, so that every unit behind it sees the whole image."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean((2, 3), keepdim=True).sigmoid()


def gated() -> nn.Sequential:
    torch.manual_seed(0)
    kinds = ((3, 1, Gate()), (8, 2, nn.SiLU()), (8, 1, nn.SiLU()), (8, 2, nn.SiLU()))
    parts = [nn.Sequential(nn.Conv2d(width, 8, 3, stride, 1), nn.BatchNorm2d(8), last) for width, stride, last in kinds]
    return nn.Sequential(*parts).eval().to(DOUBLE)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name).eval().to(DOUBLE)


def images(count: int = 5, side: int = 12, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, side, side, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Forward passes of the graph, and backward passes."""
    found = {"forward": 0, "backward": 0}
    forward, backward = Forward.__call__, gradient.backward

    def counted_forward(*given: object, **words: object) -> object:
        found["forward"] += 1
        return forward(*given, **words)

    def counted_backward(*given: object, **words: object) -> object:
        found["backward"] += 1
        return backward(*given, **words)

    with monkeypatch.context() as patch:
        patch.setattr(Forward, "__call__", counted_forward)
        patch.setattr(gradient, "backward", counted_backward)
        yield found


def assert_alike(one: Result, other: Result, off: float) -> None:
    assert [one.layer, one.wrt, one.unit, one.status] == [other.layer, other.wrt, other.unit, other.status]
    if one.map is None or other.map is None:
        assert one.map is other.map
        return
    scale = np.abs(other.map.values).max()
    np.testing.assert_allclose(one.map.values, other.map.values, rtol=0, atol=off * scale)
    assert [each.code for each in one.findings] == [each.code for each in other.findings]
    assert one.input == other.input
    for name, value in one.measures.items():
        assert (value.se or 0) == pytest.approx(other[name].se or 0, rel=1e-6, abs=1e-12), name


def alone(net: nn.Module, layers: list[str], references: list[str], **options: object) -> list[Result]:
    """Each layer and reference in a call of its own, in the order of the rows."""
    return [
        result
        for layer in layers
        for results in zip(*(erfscope.sweep(net, layer=layer, wrt=wrt, **options) for wrt in references), strict=True)
        for result in results
    ]


NETS = {
    "convolutions": (gated, ["0", "1", "2", "3"], ["image"], {"images": images()}),
    "inner references": (gated, ["3"], ["image", "0", "2:in", "1"], {"images": images()}),
    "several units": (gated, ["2", "3"], ["image"], {"images": images(), "unit": "grid:2"}),
    "random signs": (gated, ["1", "3"], ["image", "0"], {"images": images(), "convention": "energy", "draws": 3}),
    "all channels": (
        gated,
        ["2", "3"],
        ["image", "0"],
        {"images": images(2), "convention": "energy", "draws": "all"},
    ),
    "tokens": (lambda: made("test_vit"), ["blocks.1", "blocks.3", "blocks.5"], ["image"], {"images": images(3, 160)}),
    "shifted windows": (
        lambda: (
            timm.create_model(
                "swin_tiny_patch4_window7_224",
                depths=(2, 2),
                embed_dim=12,
                num_heads=(1, 2),
                img_size=56,
                num_classes=0,
            )
            .eval()
            .to(DOUBLE)
        ),
        ["layers.0.blocks.0", "layers.0", "layers.1"],
        ["image"],
        {"images": images(3, 56)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_maps_are_those_of_each_alone(name):
    build, layers, references, options = NETS[name]
    net = build()
    found = erfscope.sweep(net, layer=layers, wrt=references, measures="r50,r90", **options)
    expected = alone(net, layers, references, measures="r50,r90", **options)
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other, 1e-12)


def test_layers_go_through_together_where_that_takes_less(monkeypatch):
    net, asked = gated(), {"images": images(4), "batch_size": 4, "measures": "r50", "convention": "luo"}
    with counted(monkeypatch) as each:
        erfscope.sweep(net, layer="3", **asked)
    with counted(monkeypatch) as found:
        *_, deepest = erfscope.sweep(net, layer=["0", "1", "2", "3"], **asked)
    assert (found["backward"], found["forward"]) == (4 * each["backward"], each["forward"])
    np.testing.assert_array_equal(deepest.map.values, erfscope.analyze(net, layer="3", **asked).map.values)


def test_one_backward_pass_serves_every_reference(monkeypatch):
    net, asked = gated(), {"images": images(4), "layer": "3", "measures": "r50"}
    with counted(monkeypatch) as one:
        erfscope.analyze(net, **asked)
    with counted(monkeypatch) as three:
        assert len(erfscope.sweep(net, wrt=["image", "0", "1"], **asked)) == 3
    assert three == one
    towers = erfscope.wrap(Towers().eval().to(DOUBLE), example_inputs=[images(1), images(1)])
    pair = {"images": {"one": images(4), "other": images(4)}, "layer": "both", "measures": "r50"}
    with counted(monkeypatch) as both:
        left, right = erfscope.sweep(towers, **pair)
    with counted(monkeypatch) as single:
        (right_alone,) = erfscope.sweep(towers, wrt="input:other", **pair)
    assert both == single
    assert (left.wrt, right.wrt) == ("input:one", "input:other")
    np.testing.assert_array_equal(right.map.values, right_alone.map.values)


def test_what_a_shallow_layer_lacks_in_a_deep_units_part_is_not_taken_from_it():
    """Without the gate a deep unit in the corner has no need of the middle of a shallow map."""
    net = gated()
    net[0][2] = nn.ReLU()
    options = {"images": images(3, 64), "measures": "r50"}
    corner = erfscope.sweep(net, layer=["1", "3"], unit=[(0, 0)], **options)
    for layer, result in zip(("1", "3"), corner, strict=True):
        assert_alike(result, erfscope.analyze(net, layer=layer, unit=(0, 0), **options), 1e-12)


def test_a_layer_that_fails_leaves_the_others_their_maps(monkeypatch):
    net, asked = gated(), {"images": images(4), "measures": "r50"}
    expected = erfscope.analyze(net, layer="2", **asked)
    honest = Forward.__call__

    def failing(own: Forward, image: Tensor) -> object:
        if any(target.layer.node.meta["val"].shape[-1] == 3 for target in own.plan.targets):
            raise RuntimeError("the last layer fails")
        return honest(own, image)

    monkeypatch.setattr(Forward, "__call__", failing)
    shallow, deep = erfscope.compare({"net": net}, layer=["2", "3"], **asked)
    np.testing.assert_array_equal(shallow.map.values, expected.map.values)
    assert "the last layer fails" in deep.error


def test_a_layer_whose_operations_are_not_found_leaves_the_others_their_maps(monkeypatch):
    net, asked = gated(), {"images": images(4), "measures": "r50"}
    expected = erfscope.analyze(net, layer="2", **asked)
    honest = OpenModel.crops

    def failing(own: OpenModel, site: Site, units: object, **words: object) -> object:
        if site.layer == "3":
            raise RecordingError("'3' is not found")
        return honest(own, site, units, **words)

    monkeypatch.setattr(OpenModel, "crops", failing)
    shallow, deep = erfscope.compare({"net": net}, layer=["2", "3"], **asked)
    np.testing.assert_array_equal(shallow.map.values, expected.map.values)
    assert "'3' is not found" in deep.error


class Length(nn.Module):
    """The length of the channels of each cell, whose derivative at zero is not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum(1, keepdim=True).sqrt()


def test_cells_that_only_a_deeper_layer_needs_take_no_image_from_a_shallow_one():
    """A patch of zeros lies outside of the shallow unit's field, and inside of the deeper one's."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    net = nn.Sequential(first, Length(), nn.Conv2d(1, 1, 15), nn.Conv2d(1, 1, 3)).eval().to(DOUBLE)
    x = images(2, 33)
    x[1, :, 7:10, 14:19] = 0
    asked = {"images": x, "measures": "r50"}
    shallow, deep = erfscope.sweep(net, layer=["2", "3"], **asked)
    for result in (shallow, deep):
        assert_alike(result, erfscope.analyze(net, layer=result.layer, **asked), 0)
    assert (shallow.input.dead, deep.input.dead) == ((), ("tensor[1]",))


@pytest.mark.parametrize("options", [{"until_se": 0.5}, {"plain": True}])
def test_what_must_run_alone_does(monkeypatch, options):
    net, asked = gated(), {"images": images(6), "measures": "r50", **options}
    found = erfscope.sweep(net, layer=["2", "3"], **asked)
    for layer, result in zip(("2", "3"), found, strict=True):
        np.testing.assert_array_equal(result.map.values, erfscope.analyze(net, layer=layer, **asked).map.values)


class Once:
    """Asks for an end once it was asked a few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_layers_that_were_stopped_together_go_on_together(monkeypatch):
    net, asked = gated(), {"images": images(6), "batch_size": 1, "layer": ["2", "3"], "measures": "r50"}
    begun = erfscope.sweep(net, stop=Once(4), **asked)
    assert len(begun) == 2
    assert all(0 < result.input.n_images < 6 for result in begun)
    for one, other in zip(erfscope.sweep(net, resume=begun, **asked), erfscope.sweep(net, **asked), strict=True):
        np.testing.assert_array_equal(one.map.values, other.map.values)
