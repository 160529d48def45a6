"""Radii that enclose a share of an ERF, continuous in the radius and exact."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from erfscope.maps.erf_map import FloatArray

#: Masses that differ by less are the same: where the enclosed mass stays flat at the share asked for, the flat part's
#: inner end counts.
FLAT = 1e-12


class Rings:
    """The cells of a map by the integer part of their distance to the unit's centre. Shared by all maps of one unit."""

    def __init__(self, distance: FloatArray) -> None:
        """Sort the cells.

        Args:
            distance: (H, W), distance of every cell to the unit's centre, in cells.
        """
        #: (H W,)
        self.distance: FloatArray = distance.ravel()
        self.count = int(self.distance.max()) + 2
        # Numbers of two bytes are sorted by their digits, in half of the time.
        self.number: NDArray[np.unsignedinteger] = self.distance.astype(np.min_scalar_type(self.count))
        self._cells = np.argsort(self.number, kind="stable").astype(np.min_scalar_type(self.number.size))
        self._first = np.concatenate([[0], np.cumsum(np.bincount(self.number, minlength=self.count))])

    def cells(self, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """The cells in the rings from ``first`` to ``last``."""
        low, high = (int(self._first[min(max(ring, 0), self.count)]) for ring in (first, last + 1))
        return self._cells[low:high]


class RadialMass:
    """Mass enclosed by a radius: sum_i p_i clip(r - d_i + 1/2, 0, 1), each cell's mass being spread over one cell of
    radius.

    At half-integer radii the sum follows from two sums per ring of unit width, which costs one pass over the map and no
    sorting. A share is bracketed between two of them, and inside the bracket the sum is linear between the knots d_i +-
    1/2."""

    def __init__(self, weights: FloatArray, rings: Rings) -> None:
        """Sum the mass per ring.

        Args:
            weights: (H, W), non-negative, sum 1.
            rings: Its cells.
        """
        self._weights, self._rings = weights.ravel(), rings
        moments = self._weights * rings.distance
        mass, moment = (np.bincount(rings.number, terms, rings.count) for terms in (self._weights, moments))
        #: below[k] is the mass with d < k.
        self._below = np.concatenate([[0.0], np.cumsum(mass)])
        #: enclosed[k] is the mass enclosed by r = k + 1/2.
        self._enclosed = self._below[:-1] + np.arange(1, rings.count + 1) * mass - moment
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
        base = self._below[max(k - 1, 0)]
        near = self._rings.cells(k - 1, k)
        distance, weights = self._rings.distance[near], self._weights[near]

        def enclosed(r: float) -> float:
            return float(base + weights @ np.minimum(np.maximum(r - distance + 0.5, 0.0), 1.0))

        knots = np.concatenate([distance - 0.5, distance + 0.5, [k - 0.5, k + 0.5]])
        knots = np.unique(knots[(knots >= k - 0.5) & (knots <= k + 0.5)])
        index = min(max(bisect_left(knots, share - FLAT, key=enclosed), 1), len(knots) - 1)
        low, high = float(knots[index - 1]), float(knots[index])
        inner, outer = enclosed(low), enclosed(high)
        step = (share - inner) / (outer - inner) if outer > inner else 1.0
        return max(low + (high - low) * min(max(step, 0.0), 1.0), 0.0)
