"""What tiles cost: the crops that are run, their memory, and the computing that gives nothing new."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from erfscope.core import Tiling

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


def tile_costs(
    plan: Tiling, image_size: int | str | Sequence[int] | None = None, memory: int | None = None
) -> tuple[TileCost, ...]:
    """What the tiles that were asked for cost; and, of those that fit a memory in bytes, the largest, and the one that
    computes least for the whole image.

    Raises:
        ErfscopeError: the model treats images of this size differently.
    """
    image = None if image_size is None else plan.sides(image_size)
    asked = _cost(plan, "asked", image)
    if memory is None or plan.memory is None or (largest := _largest(plan, image, memory)) is None:
        return (asked,)
    of_largest = _cost(largest, "largest", image)
    others = (_cost(even, "least", image) for even in _even(plan, image or ()))
    fit = (cost for cost in others if (cost.memory or 0) <= memory)
    least = min(fit, key=lambda cost: cost.wasted, default=of_largest)
    if least.wasted >= of_largest.wasted:
        return (asked, replace(of_largest, names=("largest", "least")))
    return (asked, of_largest, least)


def _largest(plan: Tiling, image: tuple[int, ...] | None, memory: int) -> Tiling | None:
    """The largest tile of equal sides that fits; None where the smallest does not."""
    least = max(plan.alignment)
    sides = range(least, max(image or (LONGEST,)) + least, least)
    fit = bisect_right(sides, memory, key=lambda side: _clipped(plan, side, image).memory or 0)
    return _clipped(plan, sides[fit - 1], image) if fit else None


def _even(plan: Tiling, image: tuple[int, ...]) -> Iterator[Tiling]:
    """Plans whose tiles cut the image evenly."""
    most = max(image, default=0)
    for side in {math.ceil(most / number) for number in range(1, most // max(plan.alignment) + 1)}:
        yield _clipped(plan, side, image)


def _clipped(plan: Tiling, side: int, image: tuple[int, ...] | None) -> Tiling:
    return plan.with_tile((side,) * len(plan.axes) if image is None else tuple(min(side, whole) for whole in image))


def _cost(plan: Tiling, name: str, image: tuple[int, ...] | None) -> TileCost:
    tiles, wasted, crop = None, plan.wasted, plan.crop
    if image is not None:
        # An image that is no larger than a crop is run in one piece.
        crop = tuple(map(min, crop, image))
        tiles = math.prod(len(axis.windows(side)) for axis, side in zip(plan.axes, image, strict=True))
        wasted = 1 - math.prod(image) / (tiles * math.prod(crop))
    return TileCost(
        names=(name,),
        tile=plan.tile,
        step=plan.step,
        crop=crop,
        memory=plan.memory_of(crop),
        tiles=tiles,
        wasted=wasted,
    )
