"""What is drawn of a map: how bright its cells are by the highest-density region that they complete, averages over
larger cells, and the part that a small ERF fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.maps.erf_map import ErfMap, FloatArray


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


#: A map is enlarged at least so many times, where the part that is shown holds this share of it and this many cells
#: along each axis.
LEAST_ZOOM, HELD, FEWEST = 4, 0.999, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUp:
    """The part of a map that is drawn: all of it, or the surroundings of an ERF that would be a dot."""

    #: How many times it is enlarged; 1 for the whole map.
    zoom: int
    #: The part as a map. Its values are scaled so that their density is still relative to the uniform whole
    #: map.
    erf: ErfMap
    #: The first cell and the one after the last along each axis, as shares of the whole.
    window: tuple[tuple[float, float], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The note on the zoom; none for the whole map."""
        return (f"zoom x{self.zoom}",) if self.zoom > 1 else ()

    def of(self, picture: NDArray[Any]) -> NDArray[Any]:
        """The part of an image, of the map's axes and any size, that shows what this close-up shows of the map."""
        shares = zip(self.window, picture.shape[: len(self.window)], strict=True)
        return picture[tuple(slice(math.floor(first * side), math.ceil(last * side)) for (first, last), side in shares)]


def close_up(erf: ErfMap) -> CloseUp:
    """The part of a map to draw: the closest of 4, 8, 16, ... times enlarged around the unit that holds its ERF, else,
    and where the unit has no place, the whole map.

    Args:
        erf: A map of any axes.
    """
    shape, weights = erf.values.shape, erf.magnitude

    def parts(zoom: int) -> tuple[slice, ...]:
        return tuple(_part(side, center, zoom) for side, center in zip(shape, erf.center_px, strict=True))

    zoom, fewest = 1, min((side for side in shape if side > 1), default=0)
    while (
        erf.center_px
        and fewest >= FEWEST * (closer := max(LEAST_ZOOM, 2 * zoom))
        and weights[parts(closer)].sum() >= HELD
    ):
        zoom = closer
    if zoom == 1:
        return CloseUp(zoom=1, erf=erf, window=((0.0, 1.0),) * len(shape))
    window, trf = parts(zoom), erf.trf
    if trf is not None:
        boxes = zip(trf.box_px, window, strict=True)
        trf = replace(trf, box_px=tuple((first - part.start, last - part.start) for (first, last), part in boxes))
    center = tuple(place - part.start for place, part in zip(erf.center_px, window, strict=True))
    values = erf.values[window] * (erf.values.size / erf.values[window].size)
    shares = tuple((part.start / side, part.stop / side) for part, side in zip(window, shape, strict=True))
    return CloseUp(zoom=zoom, erf=replace(erf, values=values, center_px=center, trf=trf), window=shares)


def _part(side: int, center: float, times: int) -> slice:
    """A part of an axis, so many times smaller, around a centre and inside the axis."""
    count = math.ceil(side / times)
    first = min(max(round(center - (count - 1) / 2), 0), side - count)
    return slice(first, first + count)


#: Frames of a clip that are shown one by one, at most.
FRAMES = 7


def cell_at(place: float, side: int) -> int:
    """The cell of an axis through which a map is cut for a unit at this place."""
    return min(max(round(place), 0), side - 1)


def frames_around(own: float, count: int) -> range:
    """Up to :data:`FRAMES` frames around one of ``count``."""
    first = min(max(cell_at(own, count) - FRAMES // 2, 0), max(count - FRAMES, 0))
    return range(first, min(first + FRAMES, count))


def share_outside(erf: ErfMap, window: ErfMap) -> float:
    """Share of a map that lies outside of another one's cells, where their units stand at one place.

    Args:
        erf: The map, not zero; signed values count by their size.
        window: A map of as many axes, whose values do not matter.

    Returns:
        From 0, where all of it lies inside, to 1.
    """
    places = zip(erf.center_px, window.center_px, window.values.shape, strict=True)
    begun = [(round(center - other), side) for center, other, side in places]
    inside = tuple(slice(max(first, 0), max(first + side, 0)) for first, side in begun)
    return max(0.0, 1.0 - float(erf.magnitude[inside].sum()))
