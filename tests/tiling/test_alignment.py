"""The alignment of tiles is a period in which every operation treats positions alike; what depends on the size of the
image is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nets import Does
from torch import Tensor, nn
from torch.nn import functional as F

import erfscope

TAPS = torch.linspace(-1.0, 1.0, 8 * 36, dtype=torch.float64)


def written(*places: tuple[slice, ...], value: float = 0.0) -> Callable[[Tensor], Tensor]:
    def write(y: Tensor) -> Tensor:
        y = y.clone()
        for place in places:
            y[(..., *place)] = value
        return y

    return write


def per_tap(side: int, stride: int) -> Callable[[Tensor], Tensor]:
    def fold(y: Tensor) -> Tensor:
        windows = F.unfold(y, side, stride=stride)
        return F.fold(windows * TAPS[: windows.shape[1], None], y.shape[-2:], side, stride=stride)

    return fold


def unpooled(side: int, stride: int, padding: int) -> Callable[[Tensor], Tensor]:
    def unpool(y: Tensor) -> Tensor:
        small, where = F.max_pool2d(y, side, stride, padding, return_indices=True)
        return F.max_unpool2d(small, where, side, stride, padding, output_size=y.shape[-2:])

    return unpool


def every(step: int, first: int = 0) -> slice:
    return slice(first, None, step)


ALL = slice(None)
ALIGNED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, int]]] = {
    "every other row": (written((every(2), ALL)), (2, 1)),
    "every third column": (written((ALL, every(3, 1)), value=1.0), (1, 3)),
    "a cell of four": (written((every(2, 1), every(2))), (2, 2)),
    "a checkerboard": (written((every(2), every(2)), (every(2, 1), every(2, 1))), (2, 2)),
    "rows and columns": (written((every(2), ALL), (ALL, every(3))), (2, 3)),
    "patches of two, each place by itself": (per_tap(2, 2), (2, 2)),
    "patches of three": (per_tap(3, 3), (3, 3)),
    "unpooling": (unpooled(2, 2, 0), (2, 2)),
    "unpooling of windows that overlap": (unpooled(3, 2, 1), (2, 2)),
    "unpooling by three": (unpooled(3, 3, 0), (3, 3)),
    "row by row": (lambda y: torch.stack([2 * y[:, :, i] for i in range(y.shape[2])], 2), (1, 1)),
    "nothing": (lambda y: y.tanh(), (1, 1)),
}


def net_of(between: Callable[[Tensor], Tensor]) -> nn.Module:
    """Two convolutions with something between them."""
    torch.manual_seed(0)
    a, b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
    return Does(lambda m, x: m.b(between(m.a(x))), a=a, b=b).eval().double()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALIGNED)
def test_tiles_begin_where_every_operation_begins_anew(kind: str) -> None:
    between, alignment = ALIGNED[kind]
    net, image = net_of(between), torch.randn(3, 60, 84, dtype=torch.float64)
    plan = erfscope.tile(net, 13, input_size=48, image_size=(60, 84))
    assert plan.possible, plan.blockers
    assert plan.alignment == alignment
    with torch.no_grad():
        torch.testing.assert_close(erfscope.run_tiled(net, image, plan), net(image[None])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (lambda y: y * (y.shape[-1] / 30), "mul takes a number that it makes of the size of its input"),
        (lambda y: y + y.shape[-2], "add takes a number that it makes of the size of its input"),
        (lambda y: F.avg_pool2d(F.pad(y, (0, y.shape[-1] % 2)), 3, 1, 1)[..., : y.shape[-1]], "at another size"),
        (written((slice(3, 9), ALL)), "reads positions at uneven distances"),
    ],
)
def test_what_depends_on_the_size_of_the_image_is_named(between: Callable[[Tensor], Tensor], words: str) -> None:
    plan = erfscope.tile(net_of(between), 13, input_size=48, image_size=(60, 84))
    assert not plan.possible
    assert words in plan.blockers[0]


@pytest.mark.slow
@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 3, 0), (2, 2, 1)])
def test_the_field_behind_unpooling_is_what_changes_of_the_image_reach(window: tuple[int, int, int]) -> None:
    net, unit, side = net_of(unpooled(*window)), (17, 16), 36
    trf = erfscope.theoretical(net, "output", unit, input_size=side)
    assert trf.exact
    reached = torch.zeros(2, side, dtype=torch.bool)
    for seed in range(40):
        torch.manual_seed(seed)
        x = torch.randn(3, side, side, dtype=torch.float64)
        for axis in (0, 1):
            # In every image another row, or column, is another one.
            changed = x.repeat(side, 1, 1, 1)
            for place in range(side):
                changed.select(0, place).select(1 + axis, place).add_(5 * torch.randn(3, side, dtype=torch.float64))
            with torch.no_grad():
                found = net(changed)[..., unit[0], unit[1]], net(x[None])[..., unit[0], unit[1]]
            reached[axis] |= (found[0] - found[1]).abs().sum(1) > 0
    for axis, box in enumerate(trf.box_px):
        there = torch.nonzero(reached[axis]).flatten()
        assert (int(there[0]), int(there[-1])) == box


@pytest.mark.parametrize(
    "change",
    [
        torch.clone,
        torch.detach,
        lambda where: where.to(torch.int32).long(),
        lambda where: where.flatten(2).reshape(where.shape),
    ],
)
def test_unpooling_by_indices_that_were_copied_or_viewed_is_understood(change: Callable[[Tensor], Tensor]) -> None:
    def unpool(y: Tensor) -> Tensor:
        small, where = F.max_pool2d(y, 2, return_indices=True)
        return F.max_unpool2d(small, change(where), 2)

    trf = erfscope.theoretical(net_of(unpool), "output", (17, 16), input_size=36)
    assert trf == erfscope.theoretical(net_of(unpooled(2, 2, 0)), "output", (17, 16), input_size=36)


@pytest.mark.parametrize(("moved", "name"), [(True, "where"), (False, "where"), (False, "max_pool_indices")])
def test_unpooling_by_other_indices_may_read_everything(moved: bool, name: str) -> None:
    class Unpooling(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            where = F.max_pool2d(torch.randn(1, 3, 16, 16), 2, return_indices=True)[1]
            self.register_buffer(name, where)

        def forward(self, x: Tensor) -> Tensor:
            small, where = F.max_pool2d(x, 2, return_indices=True)
            where = where.roll(3, 2) if moved else getattr(self, name).expand_as(where)
            return F.max_unpool2d(small, where, 2)

    assert not erfscope.theoretical(Unpooling(), "output", (7, 7), input_size=16).exact


def test_the_centre_behind_windows_that_are_added_up_is_not_said_to_be_exact() -> None:
    def fold(y: Tensor) -> Tensor:
        return F.fold(F.unfold(y, 3, padding=1), y.shape[-2:], 3, padding=1)

    trf = erfscope.theoretical(net_of(fold), "output", (13, 13), input_size=24)
    assert not trf.center_exact
    assert trf.center_inexact_reason == "the cells of windows are added up"


def test_a_size_of_one_side_is_one_axis_whatever_the_first_convolution_takes() -> None:
    # Takes sound (B, 1, T) and convolves its windows in two axes.
    windows = Does(lambda _, x: x.unfold(-1, 16, 8).transpose(2, 3))
    net = nn.Sequential(windows, nn.Conv2d(1, 4, 3, padding=1)).eval()
    asked = {"samples": 1, "measures": "r50", "input_size": (256,)}
    found = erfscope.analyze(net, **asked)  # type: ignore[arg-type]
    assert (found.status, found.input.size) == ("ok", (256,))
    ready = erfscope.analyze(net, images=torch.randn(1, 1, 256), **asked)  # type: ignore[arg-type]
    assert ready.status == "ok"
    wrapped = erfscope.wrap(net, input_size=(256,))
    assert erfscope.analyze(wrapped, samples=1, measures="r50").ok
