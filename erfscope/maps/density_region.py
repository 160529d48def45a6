"""Highest-density regions of a map: the fewest cells that hold a share of it, and how bright a cell is drawn by the
share it completes."""

from __future__ import annotations

import math

import numpy as np

from erfscope.maps.erf_map import FloatArray

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
