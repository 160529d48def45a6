"""Numbers of cells that an ERF fills: above thresholds, and effective numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from erfscope.core.answer.maps.erf_map import FloatArray

#: Luo et al. call it "two standard deviations": 1 - 0.9545. In two dimensions the contour lies at 2.486 sigma.
LUO_LEVEL = 1 - 0.9545
COVERAGE_LEVEL = 0.01


def value_at(weights: FloatArray, center_px: Sequence[float]) -> float:
    """Mean of the 1, 2, 4 or 8 cells nearest to a position; of the map's nearest ones if it lies outside.

    Args:
        weights: (*space).
        center_px: The position; half-way positions have two nearest cells along that axis.
    """
    nearest = []
    for center, size in zip(center_px, weights.shape, strict=True):
        # 15.5 has the nearest cells 15 and 16, rounding of the centre or not; 15.4 has 15 alone.
        cells = {math.ceil(center - 0.5 - 1e-6), math.floor(center + 0.5 + 1e-6)}
        nearest.append(sorted({min(max(cell, 0), size - 1) for cell in cells}))
    return float(weights[np.ix_(*nearest)].mean())


def luo_size(weights: FloatArray, center_px: Sequence[float]) -> float | None:
    """Square root of the number of cells above 4.55 % of the unit's value, along a line the number, in a volume its
    cube root: 4.406 sigma for a Gaussian in a plane.

    Args:
        weights: (*space), non-negative.
        center_px: The unit's centre.

    Returns:
        The size in cells; None if the unit's value is 0.

    Source: Luo et al. 2016, section 4.
    """
    reference = value_at(weights, center_px)
    if reference <= 0:
        return None
    above = float(np.count_nonzero(weights > LUO_LEVEL * reference))
    rank = sum(side > 1 for side in weights.shape)
    return above if rank < 2 else math.sqrt(above) if rank == 2 else above ** (1 / 3)


def coverage(weights: FloatArray, cells: int) -> float:
    """Share of the cells of a map that are above 1 % of its peak: how many of those that are not zero (*space) are,
    over all ``cells``."""
    return np.count_nonzero(weights > COVERAGE_LEVEL * weights.max()) / cells


def entropy_area(weights: FloatArray) -> float:
    """Effective number of cells exp(-sum p ln p) of a map (*space) with sum 1; H * W for a uniform one."""
    positive = weights[weights > 0]
    return math.exp(-float(np.sum(positive * np.log(positive))))


def participation_area(weights: FloatArray) -> float:
    """Effective number of cells 1 / sum p^2 of a map (*space) with sum 1; 4 pi sigma^2 for a Gaussian."""
    return 1 / float(np.sum(weights**2))
