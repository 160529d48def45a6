"""A map averaged over the cells that it is drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from erfscope.maps.erf_map import FloatArray


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
