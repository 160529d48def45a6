"""Tiles of other sizes: what each costs, and which one fits a memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from erfscope.geometry.input_size import Size
from erfscope.tiling.plan import TilePlan, sides_of

#: Side of the largest tile of images of any size.
LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCost:
    """What tiles of one size cost. Sizes are in cells of the input, one entry per axis."""

    #: "asked", "largest" of those that fit the memory, "least" computing of them; or the last two.
    names: tuple[str, ...]
    tile: tuple[int, ...]
    step: tuple[int, ...]
    crop: tuple[int, ...]
    #: Of the forward pass of one crop without the weights, in bytes.
    memory: int | None
    #: Tiles of the whole image; None where no image size was given.
    tiles: int | None
    #: Share of the computing that goes into halos and overlaps: of a tile inside the image, or of the whole image where
    #: its size was given.
    wasted: float


def with_tile(plan: TilePlan, tile: Size) -> TilePlan:
    """The plan with tiles of another size; their memory is scaled by the cells of the crops.

    Raises:
        ErfscopeError: a size with another number of axes.
    """
    sides = sides_of(tile, len(plan.axes))
    other = replace(plan, axes=tuple(axis.with_tile(side) for axis, side in zip(plan.axes, sides, strict=True)))
    return replace(other, memory=_scaled(plan, math.prod(other.crop)))


def tile_costs(plan: TilePlan, image_size: Size | None = None, memory: int | None = None) -> tuple[TileCost, ...]:
    """What the tiles that were asked for cost; and, of those that fit a memory in bytes, the largest, and the one that
    computes least for the whole image.

    Raises:
        ErfscopeError: the model treats images of this size differently.
    """
    image = None if image_size is None else sides_of(image_size, len(plan.axes))
    asked = _cost(plan, "asked", image)
    if memory is None or plan.memory is None or (largest := _largest(plan, image, memory)) is None:
        return (asked,)
    found = _cost(largest, "largest", image)
    others = (_cost(each, "least", image) for each in _even(plan, image or ()))
    fit = (each for each in others if (each.memory or 0) <= memory)
    least = min(fit, key=lambda each: each.wasted, default=found)
    if least.wasted >= found.wasted:
        return (asked, replace(found, names=("largest", "least")))
    return (asked, found, least)


def _scaled(plan: TilePlan, cells: int) -> int | None:
    return None if plan.memory is None else round(plan.memory * cells / math.prod(plan.crop))


def _largest(plan: TilePlan, image: tuple[int, ...] | None, memory: int) -> TilePlan | None:
    """The largest tile of equal sides that fits; None where the smallest does not."""
    least = max(plan.alignment)
    sides = range(least, max(image or (LONGEST,)) + least, least)
    fit = bisect_right(sides, memory, key=lambda side: _clipped(plan, side, image).memory or 0)
    return _clipped(plan, sides[fit - 1], image) if fit else None


def _even(plan: TilePlan, image: tuple[int, ...]) -> Iterator[TilePlan]:
    """Plans whose tiles cut the image evenly."""
    most = max(image, default=0)
    for side in {math.ceil(most / number) for number in range(1, most // max(plan.alignment) + 1)}:
        yield _clipped(plan, side, image)


def _clipped(plan: TilePlan, side: int, image: tuple[int, ...] | None) -> TilePlan:
    return with_tile(plan, (side,) * len(plan.axes) if image is None else tuple(min(side, each) for each in image))


def _cost(plan: TilePlan, name: str, image: tuple[int, ...] | None) -> TileCost:
    tiles, wasted, crop = None, plan.wasted, plan.crop
    if image is not None:
        # An image that is no larger than a crop is run in one piece.
        crop = tuple(map(min, crop, image))
        tiles = math.prod(len(axis.windows(side)) for axis, side in zip(plan.axes, image, strict=True))
        wasted = 1 - math.prod(image) / (tiles * math.prod(crop))
    memory = _scaled(plan, math.prod(crop))
    return TileCost(names=(name,), tile=plan.tile, step=plan.step, crop=crop, memory=memory, tiles=tiles, wasted=wasted)
