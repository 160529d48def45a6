"""How large an attribution map is: by its canvas, and in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from erfscope.core import MEASURES, Axes, ErfMap, FloatArray, Prepared

#: The sizes of a map: their head, and their meaning.
SIZES = {
    "di": ("DI", "100 (1 - Gini), which falls with the input's size"),
    "r50_px": ("r50", "px around the window that hold half of the map"),
    "r90_px": ("r90", "px around the window that hold nine tenths"),
    "area_px": ("area", "exp(entropy), the px of a flat map as spread"),
}


def gini(values: FloatArray) -> float:
    """The Gini coefficient of non-negative values x_1 <= ... <= x_n: sum over i of (2 i - n - 1) x_i / (n sum of x).

    It is sum over i, j of abs(x_i - x_j) / (2 n² mean): 0 of equal values, (n - 1) / n where one has everything.
    """
    ordered = np.sort(values, axis=None)
    places = 2 * np.arange(1, ordered.size + 1) - ordered.size - 1
    return float(places @ ordered / (ordered.size * ordered.sum()))


def sizes(values: FloatArray, centre: Sequence[float], axes: Axes) -> dict[str, Any]:
    """The sizes of a map (*space) by the names of :data:`SIZES`; None each of one that is 0 everywhere.

    Args:
        values: The map, non-negative.
        centre: The window's centre, in cells of the map.
        axes: What its axes are.

    Returns:
        ``di``: the diffusion index 100 (1 - gini). The others are the measures r50, r90 and entropy_area around the
        window's centre, in cells.
    """
    if not values.any():
        return dict.fromkeys(SIZES)
    cells = Axes.named(axes.names)
    erf = Prepared.of(ErfMap(values=values / values.sum(), center_px=tuple(centre), stride_px=(), axes=cells))
    measured = (MEASURES[name].of(erf) for name in ("r50", "r90", "entropy_area"))
    return dict(zip(SIZES, (100 * (1 - gini(values)), *measured), strict=True))
