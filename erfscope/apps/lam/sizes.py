"""How large an attribution map is: by its canvas, and in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from erfscope.core import FloatArray


def gini(values: FloatArray) -> float:
    """The Gini coefficient of non-negative values x_1 <= ... <= x_n: sum over i of (2 i - n - 1) x_i / (n sum of x).

    It is sum over i, j of abs(x_i - x_j) / (2 n² mean): 0 of equal values, (n - 1) / n where one has everything.
    """
    ordered = np.sort(values, axis=None)
    places = 2 * np.arange(1, ordered.size + 1) - ordered.size - 1
    return float(places @ ordered / (ordered.size * ordered.sum()))


def sizes(values: FloatArray, centre: Sequence[float]) -> dict[str, float]:
    """The sizes of a map (*space); not-a-number of one that is 0 everywhere.

    Args:
        values: The map, non-negative.
        centre: The window's centre, in cells of the map.

    Returns:
        ``di``: the diffusion index 100 (1 - gini). ``r50_px``, ``r90_px``: the distance from the centre within which
        cells hold half and nine tenths of the map. ``area_px``: exp(entropy), the cells of a flat map as spread.
    """
    if not values.any():
        return dict.fromkeys(("di", "r50_px", "r90_px", "area_px"), math.nan)
    shares = values.ravel() / values.sum()
    offsets = [np.arange(side) - middle for side, middle in zip(values.shape, centre, strict=True)]
    distances = np.linalg.norm(np.stack(np.meshgrid(*offsets, indexing="ij")), axis=0).ravel()
    order = np.argsort(distances, kind="stable")
    held = np.cumsum(shares[order])
    r50, r90 = (float(distances[order][np.searchsorted(held, share * held[-1])]) for share in (0.5, 0.9))
    some = shares[shares > 0]
    area = math.exp(-float(some @ np.log(some)))
    return {"di": 100 * (1 - gini(values)), "r50_px": r50, "r90_px": r90, "area_px": area}
