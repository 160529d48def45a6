"""How large a map is: radii and squares that hold a share of it, its spread, and the sides that these are divided
by."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfscope.geometry.unit import Trf
from erfscope.maps.erf_map import FloatArray

#: Masses that differ by less are the same: where the enclosed mass stays flat at the share asked for, the flat part's
#: inner end counts.
FLAT = 1e-12


class Ring(NamedTuple):
    """The cells that radii between k - 1/2 and k + 1/2 enclose in part, in the order of where that begins or ends."""

    cells: NDArray[np.intp]
    #: Of each, whether such a radius begins to enclose it; else one encloses it whole.
    begins: NDArray[np.bool_]
    #: That radius.
    radii: FloatArray


class Rings:
    """The cells of a map by the integer part of their distance to the unit's centre. Shared by all maps of one unit.

    Args:
        distance: (H, W), distance of every cell to the unit's centre, in cells.
    """

    def __init__(self, distance: FloatArray) -> None:
        #: (H W,)
        self.distance: FloatArray = distance.ravel()
        #: The integer part of each, and how many there are of these, with one that holds no cell.
        self.number = self.distance.astype(np.intp)
        self.count = int(self.number.max()) + 2
        self._found: dict[int, Ring] = {}

    def ring(self, k: int) -> Ring:
        """The cells with a distance from k - 1 to below k + 1."""
        if k not in self._found:
            cells = np.flatnonzero((self.number == k) | (self.number == k - 1))
            begins = self.number[cells] == k
            radii = self.distance[cells] + np.where(begins, -0.5, 0.5)
            order = np.argsort(radii)
            self._found[k] = Ring(cells[order], begins[order], radii[order])
        return self._found[k]


class RadialMass:
    """Mass enclosed by a radius: sum_i p_i clip(r - d_i + 1/2, 0, 1), each cell's mass being spread over one cell of
    radius.

    At half-integer radii the sum follows from two sums per ring of unit width, which costs one pass over the map; the
    cells of single rings are sorted. A share is bracketed between two such radii, and inside the bracket the sum is
    linear between the knots d_i +- 1/2."""

    def __init__(self, weights: FloatArray, rings: Rings) -> None:
        """Sum the mass per ring.

        Args:
            weights: (H, W), non-negative, sum 1.
            rings: Its cells.
        """
        self._weights, self._rings = weights.ravel(), rings
        moments = self._weights * rings.distance
        mass, moment = (np.bincount(rings.number, terms, rings.count) for terms in (self._weights, moments))
        # The mass with d < k, and the mass enclosed by r = k + 1/2.
        below = np.cumsum(mass) - mass
        self._enclosed = below + np.arange(1, rings.count + 1) * mass - moment
        self._is_point = not moments.any()

    def radius(self, share: float) -> float:
        """Smallest r >= 0 that encloses ``share`` of the mass.

        Args:
            share: Fraction of the mass, in (0, 1).

        Returns:
            The radius in cells; 0 for every share where all mass is on the one cell at the unit's centre.

        Source: erfscope; a sorted sum without the spread is 3 % off for a Gaussian of sigma 3.65.
        """
        if self._is_point:
            return 0.0
        k = int(np.searchsorted(self._enclosed, share - FLAT))
        cells, begins, radii = self._rings.ring(k)
        weights = self._weights[cells]
        # The enclosed mass rises by the weights of the cells that have begun and not ended.
        knots = np.concatenate([[k - 0.5], radii, [k + 0.5]])
        slopes = np.cumsum(np.concatenate([[weights[~begins].sum()], np.where(begins, weights, -weights)]))
        inner = float(self._enclosed[k - 1]) if k else 0.0
        mass = inner + np.cumsum(slopes * np.diff(knots))
        index = min(int(np.searchsorted(mass, share - FLAT)), len(mass) - 1)
        inner = float(mass[index - 1]) if index else inner
        low, high, outer = float(knots[index]), float(knots[index + 1]), float(mass[index])
        step = (share - inner) / (outer - inner) if outer > inner else 1.0
        return max(low + (high - low) * min(max(step, 0.0), 1.0), 0.0)


def edge_weights(offsets: FloatArray, half_side: float) -> FloatArray:
    """Share of every cell of one axis that an interval around the unit covers: clip(a + 1/2 - abs(d), 0, 1).

    Args:
        offsets: (N,), signed distance of every cell to the unit's centre along the axis, in cells.
        half_side: Half of the interval's length, a.
    """
    # Not np.clip, which takes twice as long for as few numbers as an axis has.
    return np.minimum(np.maximum(half_side + 0.5 - np.abs(offsets), 0.0), 1.0)


def mass_inside(weights: FloatArray, rows: FloatArray, cols: FloatArray, half_sides: tuple[float, float]) -> float:
    """Mass inside a rectangle around the unit, with continuous edges.

    Args:
        weights: (H, W), non-negative, sum 1.
        rows: (H,), signed distance of every row to the unit's centre.
        cols: (W,), the same for the columns.
        half_sides: Half of the rectangle's height and width, in cells.
    """
    row, col = edge_weights(rows, half_sides[0]), edge_weights(cols, half_sides[1])
    # Not `@`, whose threads go on waiting for more beside those of PyTorch.
    return float(np.einsum("h,hw->w", row, weights) @ col)


def side(weights: FloatArray, rows: FloatArray, cols: FloatArray, share: float) -> float:
    """Side of the smallest square, centred on the unit, that holds ``share`` of the mass.

    The mass is quadratic in the side between the knots where an edge enters or leaves a cell, so a bisection over the
    knots and one quadratic equation give the exact answer. The square may reach beyond the map.

    Args:
        weights: (H, W), non-negative, sum 1.
        rows: (H,), signed distance of every row to the unit's centre.
        cols: (W,), the same for the columns.
        share: Fraction of the mass, in (0, 1).

    Returns:
        The side 2a in cells, at least 0.

    Source: Ding et al. 2022, arXiv:2203.06717; theirs takes log10(x + 1) first, odd whole sides, and the image's
    centre."""

    def held(half_side: float) -> float:
        return mass_inside(weights, rows, cols, (half_side, half_side))

    distances = np.abs(np.concatenate([rows, cols]))
    knots = np.unique(np.concatenate([[0.0], distances - 0.5, distances + 0.5]))
    knots = knots[knots >= 0]
    index = bisect_left(knots, share - FLAT, key=held)
    if index == 0:
        return 0.0
    low, high = float(knots[index - 1]), float(knots[min(index, len(knots) - 1)])
    start, middle, end = held(low), held((low + high) / 2), held(high)
    return 2 * (low + (high - low) * _rise(start, middle, end, share))


def _rise(start: float, middle: float, end: float, target: float) -> float:
    """Where in [0, 1] the increasing parabola through three equally spaced values reaches ``target``."""
    square = 2 * (start + end - 2 * middle)
    slope = end - start - square
    missing = target - start
    divisor = slope + np.sqrt(max(slope**2 + 4 * square * missing, 0.0))
    return float(np.clip(2 * missing / divisor, 0.0, 1.0)) if divisor > 0 else 1.0


def area_inside(side_px: float, center_px: tuple[float, float], shape: tuple[int, int]) -> float:
    """Area of a square around the unit that lies inside the map, as a share of the map.

    Args:
        side_px: Side of the square, in cells.
        center_px: The unit's centre (row, col).
        shape: (H, W). Cells reach half a cell beyond their centres.

    Returns:
        The share, in [0, 1].
    """
    share = 1.0
    for center, size in zip(center_px, shape, strict=True):
        first, last = max(center - side_px / 2, -0.5), min(center + side_px / 2, size - 0.5)
        share *= max(last - first, 0.0) / size
    return share


#: Variances and covariances below this share of the total variance are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Moments around the centroid, in cells of the reference; (row, col)."""

    #: Centroid, as an offset from the unit's centre.
    mean: tuple[float, float]
    variance: tuple[float, float]
    covariance: float
    #: Fourth central moments of the two marginals.
    fourth: tuple[float, float]

    @property
    def sigma(self) -> tuple[float, float]:
        """Standard deviations along rows and columns."""
        return math.sqrt(self.variance[0]), math.sqrt(self.variance[1])

    @property
    def principal(self) -> tuple[float, float]:
        """Standard deviations along the major and the minor axis."""
        half_sum, half_difference = sum(self.variance) / 2, (self.variance[0] - self.variance[1]) / 2
        reach = math.hypot(half_difference, self.covariance)
        minor = half_sum - reach
        return math.sqrt(half_sum + reach), math.sqrt(minor) if minor > ROUNDING * half_sum else 0.0

    @property
    def anisotropy(self) -> float | None:
        """Major / minor axis, at least 1; None if the minor axis is 0."""
        major, minor = self.principal
        return major / minor if minor > 0 else None

    @property
    def angle_deg(self) -> float | None:
        """Angle of the major axis from +col towards +row, in (-90, 90]; None if the spread is the same in all
        directions."""
        rounding = ROUNDING * sum(self.variance)
        covariance = self.covariance if abs(self.covariance) > rounding else 0.0
        difference = self.variance[1] - self.variance[0]
        if covariance == 0 and abs(difference) <= rounding:
            return None
        return math.degrees(math.atan2(2 * covariance, difference)) / 2

    @property
    def excess_kurtosis(self) -> tuple[float | None, float | None]:
        """Excess kurtosis of the two marginals: 0 for a Gaussian, -1.2 for a box, 3 for a Laplace; None along an axis
        without spread."""
        row, col = (
            fourth / variance**2 - 3 if variance > 0 else None
            for fourth, variance in zip(self.fourth, self.variance, strict=True)
        )
        return row, col


def moments(weights: FloatArray, rows: FloatArray, cols: FloatArray) -> Moments:
    """Moments of a map around its centroid.

    Args:
        weights: (H, W), non-negative, sum 1.
        rows: (H,), signed distance of every row to the unit's centre, in cells.
        cols: (W,), the same for the columns.
    """
    along_rows, along_cols = weights.sum(axis=1), weights.sum(axis=0)
    mean = float(along_rows @ rows), float(along_cols @ cols)
    row, col = rows - mean[0], cols - mean[1]
    return Moments(
        mean=mean,
        variance=(_spread(along_rows, row, mean[0]), _spread(along_cols, col, mean[1])),
        covariance=float(row @ weights @ col),
        fourth=(float(along_rows @ np.power(row, 4)), float(along_cols @ np.power(col, 4))),
    )


def _spread(weights: FloatArray, offsets: FloatArray, mean: float) -> float:
    """Variance along an axis; 0 where it is what the rounding of the mean leaves."""
    variance = float(weights @ offsets**2)
    return variance if variance > ROUNDING**2 * max(1.0, mean**2) else 0.0


#: Kinds of measures that have ratios: lengths to a side, areas to its square (to the side itself along a line).
SIZED = ("radius", "width", "sigma", "area")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides that sizes of one unit are compared with, in cells of the reference."""

    #: Side of the square as large as the reference's plane, sqrt(HW); the length of a one-dimensional one.
    reference: float
    #: Side of the square as large as the whole theoretical receptive field, whatever of it lies outside the reference;
    #: None if it is global or unknown.
    field: float | None
    #: Axes of the plane on which the reference has more than one cell, at least 1: its area is the side to this power.
    rank: int

    def of_input(self, kind: str, value: object) -> float | None:
        """A size as a share of the reference's side (an area of its area); None for other kinds, and for what is no
        number."""
        return self._ratio(kind, value, self.reference)

    def of_trf(self, kind: str, value: object) -> float | None:
        """A size as a share of the theoretical receptive field's side (an area of its area); None too where that is
        global or unknown."""
        return self._ratio(kind, value, self.field)

    def _ratio(self, kind: str, value: object, side: float | None) -> float | None:
        if kind not in SIZED or not side or not isinstance(value, int | float):
            return None
        return value / side ** (self.rank if kind == "area" else 1)


def sides_of(reference: Sequence[int], trf: Trf | None) -> Sides:
    """The sides that sizes are compared with.

    Args:
        reference: Spatial size of the reference; of three axes the last two count, since sizes are in-plane.
        trf: The theoretical receptive field, with as many axes; None if it is unknown.
    """
    plane = reference[-2:]
    axes = [axis for axis, length in enumerate(plane) if length > 1] or [0]
    field = None if trf is None or trf.is_global else _mean([trf.size_px[-2:][axis] for axis in axes])
    return Sides(reference=_mean([plane[axis] for axis in axes]), field=field or None, rank=len(axes))


def _mean(lengths: Sequence[int]) -> float:
    """Geometric mean."""
    return float(math.prod(lengths) ** (1 / len(lengths)))
