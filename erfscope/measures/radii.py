"""Radii that enclose a share of an ERF, continuous in the radius and exact."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfscope.maps.erf_map import FloatArray

#: Masses that differ by less are the same: where the enclosed mass stays flat at the share asked for, the flat part's
#: inner end counts.
FLAT = 1e-12


class Ring(NamedTuple):
    """The cells that radii between k - 1/2 and k + 1/2 enclose in part."""

    #: Cells that such radii enclose more and more of: all of them from k - 1/2 on, or from a later radius on.
    cells: NDArray[np.intp]
    #: Of each, whether it is from a later radius on; else it is enclosed whole at a radius in between.
    begins: NDArray[np.bool_]
    #: The radius where each begins or ends, in order.
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
