"""Where the units of a map stand on the image."""

from __future__ import annotations

import numpy as np
from torch import fx

from erfscope.geometry.layout import Layout
from erfscope.graph.carry import pick_units
from erfscope.graph.graph import shape_of
from erfscope.graph.layouts import boxes_of_units
from erfscope.graph.positions import Positions
from erfscope.graph.rules.reading import FloatArray, IntArray, is_tensor


def places_of_units(positions: Positions, node: fx.Node, layout: Layout, units: IntArray, axis: int) -> FloatArray:
    """Where units, (units, axes of the map), stand along an axis of the image, in pixels: (answers, units), several
    answers where branches disagree: the middle of those of their elements that stand somewhere; NaN for nowhere.
    """
    if node not in positions or not is_tensor(node):
        return np.full((1, len(units)), np.nan)
    centers = pick_units(positions.places(node)[axis].centers, boxes_of_units(layout, shape_of(node), units))
    there = np.isfinite(centers[:1])
    low = np.where(there, centers, np.inf).min(2, initial=np.inf)
    high = np.where(there, centers, -np.inf).max(2, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # inf - inf, where no element of a unit stands anywhere
        return np.broadcast_to((low + high) / 2, (len(centers), len(units)))


def line_of(positions: Positions, node: fx.Node, layout: Layout, axis: int) -> list[tuple[float, float]] | None:
    """Where unit 0 stands along an axis of the image and how far it is from unit to unit, by each branch; None
    where that is not known.
    """
    space = layout.space(shape_of(node))
    if len(space) != len(positions.space):
        return None
    ends = [[index if i == axis else 0 for i in range(len(space))] for index in (0, min(1, space[axis] - 1))]
    first, second = places_of_units(positions, node, layout, np.array(ends), axis).T.tolist()
    if not np.isfinite([*first, *second]).all():
        return None
    if space[axis] == 1:
        place = positions.places(node)[axis]
        slope = next(
            (each for each, side in zip(place.slope, shape_of(node), strict=True) if side == 1 and each), place.step
        )
        return [(center, slope) for center in first]
    found = [(low, high - low) for low, high in zip(first, second, strict=True)]
    return found if all(step for _, step in found) else None
