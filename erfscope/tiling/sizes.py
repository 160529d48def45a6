"""Tiles of other sizes: what each costs, and which one fits a memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from erfscope.geometry.input_size import Size
from erfscope.tiling.plan import TileAxis, TilePlan, sides_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCost:
    """What tiles of one size cost. Sizes are in cells of the input, one entry per axis."""

    #: "asked", "largest" of those that fit the memory, "least" computing of them, or "largest, least".
    name: str
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
    axes = tuple(map(_resized, plan.axes, sides_of(tile, len(plan.axes))))
    other = replace(plan, axes=axes)
    return replace(other, memory=_scaled(plan, math.prod(other.crop)))


def tile_costs(plan: TilePlan, image_size: Size | None = None, memory: int | None = None) -> tuple[TileCost, ...]:
    """What the tiles that were asked for cost; and, of those that fit a memory in bytes, the largest, and the one that
    computes least for the whole image.

    Raises:
        ErfscopeError: the model treats images of this size differently.
    """
    image = None if image_size is None else sides_of(image_size, len(plan.axes))
    costs = [_cost(plan, "asked", image)]
    if memory is not None and plan.memory:
        fits = [each for each in _others(plan, image, memory) if each.memory is not None and each.memory <= memory]
        found = [_cost(each, "largest", image) for each in fits]
        least = [replace(each, name="least") for each in sorted(found, key=lambda each: each.wasted)[:1]]
        same = image is None or [each.tile for each in least] == [each.tile for each in found[-1:]]
        costs += [replace(each, name="largest, least") for each in least] if same else [*found[-1:], *least]
    return tuple(costs)


def _resized(axis: TileAxis, tile: int) -> TileAxis:
    period = axis.units_per_alignment
    units = math.ceil(tile / axis.stride)
    # Tiles of a model without padding end in the phase in which its output ends.
    units += (axis.tile_units - units) % period
    units += period * (units < period)
    return replace(axis, tile_units=units, step_units=units // period * period)


def _scaled(plan: TilePlan, cells: int) -> int | None:
    return None if plan.memory is None else round(plan.memory * cells / math.prod(plan.crop))


def _others(plan: TilePlan, image: tuple[int, ...] | None, memory: int) -> Iterator[TilePlan]:
    """Plans with ascending tiles: all that cut the image evenly; without one, the largest tile of equal sides alone."""
    if image is not None:
        most = max(image)
        sides = sorted({math.ceil(most / number) for number in range(1, most // max(plan.alignment) + 2)})
        yield from (with_tile(plan, tuple(min(side, each) for each in image)) for side in sides)
        return
    low, high, least = 0, 1, max(plan.alignment)
    while (with_tile(plan, high * least).memory or 0) <= memory:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (with_tile(plan, middle * least).memory or 0) <= memory else (low, middle)
    yield with_tile(plan, max(low, 1) * least)


def _cost(plan: TilePlan, name: str, image: tuple[int, ...] | None) -> TileCost:
    tiles, wasted, crop = None, plan.wasted, plan.crop
    if image is not None:
        # An image that is no larger than a crop is run in one piece.
        crop = tuple(map(min, crop, image))
        tiles = math.prod(len(axis.windows(side)) for axis, side in zip(plan.axes, image, strict=True))
        wasted = 1 - math.prod(image) / (tiles * math.prod(crop))
    memory = _scaled(plan, math.prod(crop))
    return TileCost(name=name, tile=plan.tile, step=plan.step, crop=crop, memory=memory, tiles=tiles, wasted=wasted)
