"""How large a map is: radii and squares that hold a share of it, its spread, and the sides that these are divided
by."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfscope.core.answer.maps.erf_map import FloatArray

#: Masses that differ by less are the same: where the enclosed mass stays flat at the share asked for, the flat part's
#: inner end counts.
FLAT = 1e-12


class Ring(NamedTuple):
    """The cells that radii between k - 1/2 and k + 1/2 enclose in part, in the order of where that begins or ends."""

    cells: NDArray[np.intp]
    #: Of each 1 where such a radius begins to enclose it, -1 where one encloses it whole; and these alone.
    signs: FloatArray
    ending: NDArray[np.intp]
    #: k - 1/2, those radii, and k + 1/2; and the differences.
    knots: FloatArray
    steps: FloatArray


class Rings:
    """The cells of a map by the integer part of their distance to the unit's centre. Shared by all maps of one unit.

    Args:
        distance: (*space), distance of every cell to the unit's centre.
        width: Side of a cell, the geometric mean where its sides differ: the width of a ring.
    """

    def __init__(self, distance: FloatArray, width: float = 1.0) -> None:
        self.width = width
        #: (cells,), in rings.
        self.distance: FloatArray = distance.ravel() / width
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
            cells, begins, knots = cells[order], begins[order], np.concatenate([[k - 0.5], radii[order], [k + 0.5]])
            self._found[k] = Ring(cells, np.where(begins, 1.0, -1.0), cells[~begins], knots, np.diff(knots))
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
            weights: (*space), non-negative, sum 1.
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
            The radius, in the unit of the distances; 0 for every share where all mass is on the one cell at the unit's
            centre.

        Source: erfscope; a sorted sum without the spread is 3 % off for a Gaussian of sigma 3.65.
        """
        if self._is_point:
            return 0.0
        k = int(np.searchsorted(self._enclosed, share - FLAT))
        cells, signs, ending, knots, steps = self._rings.ring(k)
        # The enclosed mass rises by the weights of the cells that have begun and not ended.
        slopes = np.empty(len(steps))
        slopes[0], slopes[1:] = self._weights[ending].sum(), self._weights[cells] * signs
        inner = float(self._enclosed[k - 1]) if k else 0.0
        mass = inner + np.cumsum(np.cumsum(slopes) * steps)
        index = min(int(np.searchsorted(mass, share - FLAT)), len(mass) - 1)
        inner = float(mass[index - 1]) if index else inner
        low, high, outer = float(knots[index]), float(knots[index + 1]), float(mass[index])
        step = (share - inner) / (outer - inner) if outer > inner else 1.0
        return self._rings.width * max(low + (high - low) * min(max(step, 0.0), 1.0), 0.0)


def edge_weights(offsets: FloatArray, half_side: float) -> FloatArray:
    """Share of every cell of one axis that an interval around the unit covers: clip(a + 1/2 - abs(d), 0, 1).

    Args:
        offsets: (N,), signed distance of every cell to the unit's centre along the axis, in cells.
        half_side: Half of the interval's length, a.
    """
    # Not np.clip, which takes twice as long for as few numbers as an axis has.
    return np.minimum(np.maximum(half_side + 0.5 - np.abs(offsets), 0.0), 1.0)


def mass_inside(weights: FloatArray, offsets: Sequence[FloatArray], half_sides: Sequence[float]) -> float:
    """Mass inside a box around the unit, with continuous edges.

    Args:
        weights: (*space), non-negative, sum 1.
        offsets: Of each axis (N,), signed distance of every cell to the unit's centre, in cells.
        half_sides: Half of the box's side along each axis, in cells.
    """
    return mass_of_box(weights, [edge_weights(*each) for each in zip(offsets, half_sides, strict=True)])


def mass_of_box(weights: FloatArray, covered: Sequence[FloatArray]) -> float:
    """The same for a box of which it is known what share of every cell of each axis it covers."""
    for shares in covered[:-1]:
        # Not `@`, whose threads go on waiting for more beside those of PyTorch.
        weights = np.einsum("i,i...->...", shares, weights)
    return float(weights @ covered[-1])


def side(weights: FloatArray, offsets: Sequence[FloatArray], spacing: Sequence[float], share: float) -> float:
    """Side of the smallest square (cube, interval), centred on the unit, that holds ``share`` of the mass.

    The mass is a polynomial of the side between the knots where an edge enters or leaves a cell, so a bisection over
    the knots and one equation give the exact answer. The square may reach beyond the map.

    Args:
        weights: (*space), non-negative, sum 1.
        offsets: Of each axis (N,), signed distance of every cell to the unit's centre, in cells.
        spacing: Side of a cell along each axis.
        share: Fraction of the mass, in (0, 1).

    Returns:
        The side 2a in the unit of the spacing, at least 0.

    Source: Ding et al. 2022, arXiv:2203.06717; theirs takes log10(x + 1) first, odd whole sides, and the image's
    centre."""

    def held(half_side: float) -> float:
        return mass_inside(weights, offsets, [half_side / step for step in spacing])

    ends = [step * (np.abs(places) + end) for places, step in zip(offsets, spacing, strict=True) for end in (-0.5, 0.5)]
    knots = np.unique(np.concatenate([[0.0], *ends]))
    knots = knots[knots >= 0]
    index = bisect_left(knots, share - FLAT, key=held)
    if index == 0:
        return 0.0
    low, high = float(knots[index - 1]), float(knots[min(index, len(knots) - 1)])
    if len(offsets) > 2 and low < high and held(low) < share < held(high):
        from scipy.optimize import brentq  # late, as for fits

        return 2 * float(brentq(lambda half_side: held(half_side) - share, low, high))
    start, middle, end = held(low), held((low + high) / 2), held(high)
    return 2 * (low + (high - low) * _rise(start, middle, end, share))


def _rise(start: float, middle: float, end: float, target: float) -> float:
    """Where in [0, 1] the increasing parabola through three equally spaced values reaches ``target``."""
    square = 2 * (start + end - 2 * middle)
    slope = end - start - square
    missing = target - start
    divisor = slope + np.sqrt(max(slope**2 + 4 * square * missing, 0.0))
    return float(np.clip(2 * missing / divisor, 0.0, 1.0)) if divisor > 0 else 1.0


def area_inside(sides_px: Sequence[float], center_px: Sequence[float], shape: Sequence[int]) -> float:
    """Part of a box around the unit that lies inside the map, as a share of the map.

    Args:
        sides_px: Sides of the box, in cells.
        center_px: The unit's centre.
        shape: Of the map. Cells reach half a cell beyond their centres.

    Returns:
        The share, in [0, 1].
    """
    share = 1.0
    for center, size, side_px in zip(center_px, shape, sides_px, strict=True):
        first, last = max(center - side_px / 2, -0.5), min(center + side_px / 2, size - 0.5)
        share *= max(last - first, 0.0) / size
    return share


#: Variances and covariances below this share of the total variance are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class MapMoments:
    """Moments around the centroid, in the unit of the offsets; one number per axis."""

    #: Centroid, as an offset from the unit's centre.
    mean: tuple[float, ...]
    variance: tuple[float, ...]
    #: Of each pair of axes, (0, 1) first, then (0, 2), (1, 2).
    covariance: tuple[float, ...]
    #: Fourth central moments of the marginals.
    fourth: tuple[float, ...]

    @property
    def sigma(self) -> tuple[float, ...]:
        """Standard deviation along each axis."""
        return tuple(map(math.sqrt, self.variance))

    @property
    def principal(self) -> tuple[float, float]:
        """Standard deviations along the major and the minor axis; along a line the second is 0."""
        if len(self.variance) == 1:
            return self.sigma[0], 0.0
        if len(self.variance) == 3:
            matrix = np.diag(self.variance)
            matrix[[0, 0, 1], [1, 2, 2]] = matrix[[1, 2, 2], [0, 0, 1]] = self.covariance
            minor, _, major = np.linalg.eigvalsh(matrix).tolist()
            return math.sqrt(major), math.sqrt(minor) if minor > ROUNDING * sum(self.variance) else 0.0
        half_sum, half_difference = sum(self.variance) / 2, (self.variance[0] - self.variance[1]) / 2
        reach = math.hypot(half_difference, self.covariance[0])
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
        directions, and where there are not two axes."""
        if len(self.variance) != 2:
            return None
        rounding = ROUNDING * sum(self.variance)
        covariance = self.covariance[0] if abs(self.covariance[0]) > rounding else 0.0
        difference = self.variance[1] - self.variance[0]
        if covariance == 0 and abs(difference) <= rounding:
            return None
        return math.degrees(math.atan2(2 * covariance, difference)) / 2

    @property
    def excess_kurtosis(self) -> tuple[float | None, ...]:
        """Excess kurtosis of the marginals: 0 for a Gaussian, -1.2 for a box, 3 for a Laplace; None along an axis
        without spread."""
        return tuple(
            fourth / variance**2 - 3 if variance > 0 else None
            for fourth, variance in zip(self.fourth, self.variance, strict=True)
        )


def along(weights: FloatArray, kept: Sequence[int]) -> FloatArray:
    """A map summed over all axes but some."""
    left = tuple(axis for axis in range(weights.ndim) if axis not in kept)
    return np.asarray(weights.sum(axis=left), dtype=np.float64)


def moments(weights: FloatArray, offsets: Sequence[FloatArray]) -> MapMoments:
    """Moments of a map around its centroid.

    Args:
        weights: (*space), non-negative, sum 1.
        offsets: Of each axis (N,), signed distance of every cell to the unit's centre.
    """
    lines = [along(weights, [axis]) for axis in range(weights.ndim)]
    mean = [float(line @ places) for line, places in zip(lines, offsets, strict=True)]
    from_mean = [places - at for places, at in zip(offsets, mean, strict=True)]
    pairs = itertools.combinations(range(weights.ndim), 2)
    return MapMoments(
        mean=tuple(mean),
        variance=tuple(_spread(*each) for each in zip(lines, from_mean, mean, strict=True)),
        covariance=tuple(float(from_mean[a] @ along(weights, (a, b)) @ from_mean[b]) for a, b in pairs),
        fourth=tuple(float(line @ np.power(places, 4)) for line, places in zip(lines, from_mean, strict=True)),
    )


def _spread(weights: FloatArray, offsets: FloatArray, mean: float) -> float:
    """Variance along an axis; 0 where it is what the rounding of the mean leaves."""
    variance = float(weights @ offsets**2)
    return variance if variance > ROUNDING**2 * max(1.0, mean**2) else 0.0


#: Kinds of measures that have ratios: lengths to a side, areas to its square (to the side itself along a line).
SIZED = ("radius", "width", "sigma", "area")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides that sizes of one unit are compared with, in the unit of the spacing."""

    #: Side of the square (cube) as large as the reference, sqrt(HW); the length of a one-dimensional one.
    reference: float
    #: Side of the square as large as the whole theoretical receptive field, whatever of it lies outside the reference;
    #: None if it is global or unknown.
    field: float | None
    #: Axes on which the reference has more than one cell, at least 1: its area is the side to this power.
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


@lru_cache
def extended_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of more than one cell; the first where there is none."""
    return tuple(axis for axis, length in enumerate(shape) if length > 1) or (0,)


def sides_of(reference: Sequence[int], field: Sequence[int] | None, spacing: Sequence[float]) -> Sides:
    """The sides that sizes are compared with.

    Args:
        reference: Spatial size of the reference, along the axes that distances are taken over.
        field: That of the theoretical receptive field; None if it is global or unknown.
        spacing: Side of a cell along each axis.
    """
    axes = extended_axes(tuple(reference))

    def mean(lengths: Sequence[int]) -> float:
        """Geometric mean."""
        return float(math.prod([lengths[axis] * spacing[axis] for axis in axes]) ** (1 / len(axes)))

    return Sides(reference=mean(reference), field=mean(field) or None if field else None, rank=len(axes))
