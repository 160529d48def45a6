"""What is drawn of a map: how bright its cells are by the highest-density region that they complete, averages over
larger cells, and the part that a small ERF fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.values.printable import brief


def averaged(values: FloatArray, shape: Sequence[int]) -> FloatArray:
    """Means of values (H, W) over as many equal parts (H', W') as ``shape`` says, fewer or more."""
    rows, columns = (_area_means(whole, shown) for whole, shown in zip(values.shape, shape, strict=True))
    return np.asarray(rows @ values @ columns.T, dtype=np.float64)


def _area_means(whole: int, shown: int) -> FloatArray:
    """Weights (shown, whole) that average ``whole`` cells into ``shown`` equal parts; cells on a border count as far as
    they lie inside."""
    side = whole / shown
    first, cell = np.arange(shown)[:, None] * side, np.arange(whole)[None, :]
    inside = np.minimum(first + side, cell + 1) - np.maximum(first, cell)
    return np.asarray(np.maximum(inside, 0.0) / side, dtype=np.float64)


#: Shares of an ERF, and how bright the cells are drawn that complete them; between two of them brightness is linear.
SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
BRIGHTNESS = (1.0, 0.86, 0.58, 0.3, 0.1, 0.0)
#: Weights relative to the strongest are compared at this many digits: means of equal cells differ by rounding.
DIGITS = 12


def shares(weights: FloatArray) -> FloatArray:
    """Share of a map's mass that lies in cells at least as strong as each: where that is at most 0.5 is its 50 %
    highest-density region.

    Half of what a cell holds, and cells of its strength, counts: so a uniform map is 0.5 everywhere, and not 1.

    Args:
        weights: Any shape and scale, non-negative.

    Returns:
        The same shape, from 0 to 1; 1 where a cell holds nothing. All 1 for a map that is zero or not finite.
    """
    peak = float(weights.max(initial=0.0))
    if not (peak > 0 and math.isfinite(peak)):
        return np.ones(weights.shape)
    relative = weights / peak
    _, place = np.unique(np.round(relative, DIGITS), return_inverse=True)
    masses = np.bincount(place.ravel(), relative.ravel() / relative.sum())
    found = np.cumsum(masses[::-1])[::-1] - masses / 2
    return np.asarray(np.clip(found, 0.0, 1.0)[place.reshape(weights.shape)], dtype=np.float64)


def brightness(weights: FloatArray) -> FloatArray:
    """How bright each cell of a map is drawn on the scale ``share``: from 1 for the strongest to 0 for those that hold
    nothing.

    Args:
        weights: Any shape, non-negative.
    """
    return np.asarray(np.interp(shares(weights), SHARES, BRIGHTNESS), dtype=np.float64)


#: A window holds this share of every ERF, a fifth of its reach more for the rings, and this many cells along each axis.
HELD, FEWEST = 0.999, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUp:
    """The part of a map that is drawn: all of it, or a window around the unit."""

    #: Side of the window, in the unit of the axes; None for the whole map.
    side: float | None
    #: The part as a map. Its values are scaled so that their density is still relative to the uniform whole
    #: map.
    erf: ErfMap
    #: The first cell and the one after the last along each axis, as shares of the whole: exact, so that cells can be
    #: counted by them.
    window: tuple[tuple[Fraction, Fraction], ...]
    #: Cells that the panel shows along each axis: more than the part has beside maps of larger inputs.
    frame: tuple[float, ...]

    @property
    def side_text(self) -> str:
        """The side with its unit; "" for the whole map."""
        return "" if self.side is None else f"{brief(self.side)} {self.erf.axes.units[-1]}"

    @property
    def words(self) -> tuple[str, ...]:
        """The note on the window; none for the whole map."""
        return (f"window {self.side_text}",) if self.side_text else ()

    @property
    def is_narrow(self) -> bool:
        """Whether a scale bar would cover it: beside maps of larger inputs that have one to the same scale."""
        return bool(2 * self.erf.values.shape[-1] < self.frame[-1])

    def limits(self, axis: int) -> tuple[float, float]:
        """Where the panel begins and ends along an axis, in cells of the part, whose first begins at -0.5."""
        beyond = (self.frame[axis] - self.erf.values.shape[axis]) / 2
        return -0.5 - beyond, self.erf.values.shape[axis] - 0.5 + beyond

    def of(self, picture: NDArray[Any]) -> NDArray[Any]:
        """The part of an image, of the map's axes and any size, that shows what this close-up shows of the map."""
        shares = zip(self.window, picture.shape[: len(self.window)], strict=True)
        return picture[tuple(slice(math.floor(first * side), math.ceil(last * side)) for (first, last), side in shares)]

    def inside(self, other: CloseUp) -> tuple[tuple[float, float], ...]:
        """The first cell and the one after the last of this part along each axis, in cells of another part of the same
        map."""
        sides = [
            count / (last - first) for (first, last), count in zip(other.window, other.erf.values.shape, strict=True)
        ]
        return tuple(
            (float((first - begin) * side), float((last - begin) * side))
            for (first, last), (begin, _), side in zip(self.window, other.window, sides, strict=True)
        )


def needed_side(erf: ErfMap) -> float:
    """Side of the window around the unit that its ERF needs, in the unit of the axes; infinite where the unit
    has no place, or the map is zero."""
    weights = erf.magnitude
    if not erf.center_px or not weights.any():
        return math.inf
    step = max(erf.axes.spacing)
    places: Any = zip(np.indices(weights.shape, sparse=True), erf.center_px, erf.axes.spacing, strict=True)
    distances = [np.abs(index - center) * spacing / step for index, center, spacing in places]
    farthest = np.ceil(np.broadcast_to(reduce(np.maximum, distances), weights.shape)).astype(int)
    enclosed = np.cumsum(np.bincount(farthest.ravel(), weights.ravel()))
    reach = int(np.searchsorted(enclosed, HELD))
    return step * max(2 * (reach + -(-reach // 5)) + 1, FEWEST)


def close_up(erf: ErfMap, side: float | None = None) -> CloseUp:
    """The part of a map in a window around the unit and inside the map; all of it where the unit has no place.

    Args:
        erf: A map of any axes.
        side: Of the window, in the unit of the axes, at least a cell; None for the whole map.
    """
    shape = erf.values.shape
    sides = np.multiply(shape, erf.axes.spacing)
    side = None if side is None else max(side, *erf.axes.spacing)
    if side is None or not erf.center_px or side >= max(sides):
        return CloseUp(side=None, erf=erf, window=((Fraction(0), Fraction(1)),) * len(shape), frame=shape)
    # So many cells are a quotient that is whole but for its last digits.
    counts = [math.ceil(round(side / step, DIGITS)) for step in erf.axes.spacing]
    window, trf = tuple(map(_part, shape, erf.center_px, counts)), erf.trf
    if trf is not None:
        boxes = zip(trf.box_px, window, strict=True)
        trf = replace(trf, box_px=tuple((first - part.start, last - part.start) for (first, last), part in boxes))
    center = tuple(place - part.start for place, part in zip(erf.center_px, window, strict=True))
    values = erf.values[window] * (erf.values.size / erf.values[window].size)
    shares = tuple(
        (Fraction(part.start, count), Fraction(part.stop, count)) for part, count in zip(window, shape, strict=True)
    )
    part = replace(erf, values=values, center_px=center, trf=trf)
    return CloseUp(side=side, erf=part, window=shares, frame=values.shape)


def _part(whole: int, center: float, count: int) -> slice:
    """So many cells of an axis, at most all, around a centre and inside the axis."""
    count = min(count, whole)
    first = min(max(round(center - (count - 1) / 2), 0), whole - count)
    return slice(first, first + count)


#: Frames of a clip that are shown one by one, at most.
FRAMES = 7


def cell_at(place: float, side: int) -> int:
    """The cell of an axis through which a map is cut for a unit at this place."""
    return min(max(round(place), 0), side - 1)


def frames_around(own: float, count: int) -> range:
    """Up to :data:`FRAMES` frames around one of ``count``."""
    return range(count)[_part(count, cell_at(own, count), FRAMES)]
