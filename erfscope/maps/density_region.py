"""Highest-density regions of a map: for every cell the share of the whole that lies in cells at least as strong."""

from __future__ import annotations

import numpy as np

from erfscope.maps.erf_map import FloatArray

#: How a cell of such a share is shown, 1 being the brightest; linear between.
SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
BRIGHTNESS = (1.0, 0.86, 0.58, 0.3, 0.1, 0.0)
#: Digits to which weights relative to the strongest are told apart: sums of equal cells differ by rounding.
DIGITS = 12


def shares(weights: FloatArray) -> FloatArray:
    """Share of the whole that lies in cells at least as strong, half of the cells as strong counted; 1 where a cell has nothing.

    Args:
        weights: Non-negative, of any shape and scale.

    Returns:
        Shares in [0, 1], of the same shape; cells below a share hold that share of the whole in the smallest area.
    """
    peak = weights.max(initial=0.0)
    if not peak > 0:
        return np.ones(weights.shape)
    relative = weights / peak
    _, place = np.unique(np.round(relative, DIGITS), return_inverse=True)
    masses = np.bincount(place.ravel(), relative.ravel() / relative.sum())
    found = np.cumsum(masses[::-1])[::-1] - masses / 2
    return np.asarray(np.clip(found, 0.0, 1.0)[place.reshape(weights.shape)], dtype=np.float64)
