"""Squares centred on the unit: how much they hold, and how large one must be to hold a given share."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from erfscope.maps.erf_map import FloatArray
from erfscope.measures.radii import FLAT


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
