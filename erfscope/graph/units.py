"""Where the units of a map stand on the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx

from erfscope.geometry.layout import Layout
from erfscope.graph.graph import shape_of
from erfscope.graph.layouts import unit_box
from erfscope.graph.positions import Positions
from erfscope.graph.rules.reading import FloatArray, IntArray, is_tensor


def places_of_units(positions: Positions, node: fx.Node, layout: Layout, units: IntArray, axis: int) -> FloatArray:
    """Where units, (units, axes of the map), stand along an axis of the image, in pixels: (answers, units), several
    answers where branches disagree; NaN for nowhere.
    """
    if node not in positions or not is_tensor(node):
        return np.full((1, len(units)), np.nan)
    centers = positions.places(node)[axis].centers
    if layout.order == "factors":
        boxes = [unit_box(shape_of(node), layout, unit) for unit in units.tolist()]
        taken = np.stack([_taken(centers, box) for box in boxes])
    else:
        first = 2 if layout.order == "channels_first" else 1
        dims = {first + i: units[:, i] for i in range(units.shape[1])}
        if layout.order == "tokens":
            dims = {1: layout.prefix + np.ravel_multi_index(tuple(units.T), layout.grid)}
        rest = [i for i in range(centers.ndim) if i - 1 not in dims]
        moved = centers.transpose(*(1 + dim for dim in dims), *rest)
        index = tuple(where if moved.shape[k] > 1 else where * 0 for k, where in enumerate(dims.values()))
        taken = moved[index].reshape(len(units), len(centers), -1)
    return _middle(taken).T


def _taken(centers: FloatArray, box: Sequence[IntArray]) -> FloatArray:
    """The centres (answers, elements) of a part of a tensor."""
    for dim, entries in enumerate(box):
        centers = centers.take(entries, 1 + dim) if centers.shape[1 + dim] > 1 else centers
    return centers.reshape(len(centers), -1)


def _middle(centers: FloatArray) -> FloatArray:
    """The middle (units, answers) of those elements (units, answers, elements) that stand somewhere; NaN for none."""
    there = np.isfinite(centers[:, :1])
    low = np.where(there, centers, np.inf).min(2, initial=np.inf)
    high = np.where(there, centers, -np.inf).max(2, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # inf - inf, where none stands anywhere
        middle: FloatArray = (low + high) / 2
    return middle


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
