"""Which units may share a backward pass: a colouring of the graph whose edges join units whose theoretical
receptive fields (TRF) overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: First and last cell along each axis, both included, of one unit's TRF; last < first along an axis where it is empty.
Field = Sequence[tuple[int, int]]
IntArray = NDArray[np.intp]


def colour_units(fields: Sequence[Field], space: Sequence[int]) -> list[list[int]]:
    """Sort units into colours, so that no two units of one colour have overlapping TRFs.

    Where a TRF is a product of intervals, each decided by the unit's index along the same axis, intervals are coloured
    axis by axis, from the first one on: that takes as few colours as one cell has TRFs over it, and no colouring takes
    fewer. Other TRFs are coloured one after the other, each with the first colour that is free.

    Args:
        fields: Of every unit, in the order of ``np.ndindex(space)``.
        space: Spatial size of the layer's map.

    Returns:
        The positions of each colour's units in that order.

    Source: Curtis, Powell & Reid 1974 for a sparse Jacobian; for intervals, the greedy colouring of an interval graph
    is optimal."""
    boxes = np.array([[tuple(side) for side in field] for field in fields], dtype=np.intp).reshape(len(fields), -1, 2)
    colours = _by_axes(boxes, tuple(space))
    if colours is None:
        colours = _one_by_one(boxes)
    order = np.argsort(colours, kind="stable")
    starts = np.flatnonzero(np.diff(colours[order])) + 1
    return [part.tolist() for part in np.split(order, starts) if part.size]


def _by_axes(boxes: IntArray, space: tuple[int, ...]) -> IntArray | None:
    """A colour per unit, from colours of the intervals along every axis; None where TRFs are no products of these."""
    if boxes.shape[1] != len(space):
        return None
    grid = boxes.reshape(*space, len(space), 2)
    colours: IntArray = np.zeros(space, dtype=np.intp)
    for axis, side in enumerate(space):
        along = np.moveaxis(grid[..., axis, :], axis, 0).reshape(side, -1, 2)
        if not (along == along[:, :1]).all():
            return None
        found = _intervals(along[:, 0])
        shape = [side if k == axis else 1 for k in range(len(space))]
        colours = colours * (found.max() + 1) + found.reshape(shape)
    return colours.ravel()


def _intervals(intervals: IntArray) -> IntArray:
    """Colours of intervals (n, 2): each, by its beginning, gets the first colour whose last interval has ended."""
    colours: IntArray = np.zeros(len(intervals), dtype=np.intp)
    ends: list[int] = []
    for number in np.argsort(intervals[:, 0], kind="stable"):
        first, last = (int(end) for end in intervals[number])
        if last < first:
            continue
        colour = next((k for k, end in enumerate(ends) if end < first), len(ends))
        ends[colour : colour + 1] = [last]
        colours[number] = colour
    return colours


def _one_by_one(boxes: IntArray) -> IntArray:
    """Colours of any boxes (n, axes, 2): each gets the first that none of those before it which overlap it has."""
    colours: IntArray = np.zeros(len(boxes), dtype=np.intp)
    first, last = boxes[..., 0], boxes[..., 1]
    exists: NDArray[np.bool_] = np.all(last >= first, axis=1)
    for number in range(1, len(boxes)):
        if not exists[number]:
            continue
        met = np.all((first[:number] <= last[number]) & (first[number] <= last[:number]), axis=1) & exists[:number]
        taken = np.unique(colours[:number][met])
        gaps = np.flatnonzero(taken != np.arange(len(taken)))
        colours[number] = gaps[0] if gaps.size else len(taken)
    return colours
