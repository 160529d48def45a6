"""The theoretical receptive fields (TRF) of all units of a layer, and which units share a backward pass: of whole
images by a colouring of the graph whose edges join units whose TRFs overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from erfscope.core.graph.moved import MovedForward
from erfscope.core.run.additions.moved_units import crops_pay, moved_forward
from erfscope.core.run.engine.plan import Plan, Sums
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import Trf, Unit

#: First and last cell along each axis, both included, of one unit's TRF; last < first along an axis where it is empty.
Field = Sequence[tuple[int, int]]
#: Units whose operations are counted for an estimate of those of all.
SAMPLED = 9
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFields:
    """Units of a layer: all of them, or those of some rows and columns. Lists have one entry per unit, in the order of
    ``np.ndindex(space)``."""

    #: How many units there are along each axis.
    space: tuple[int, ...]
    units: list[Unit]
    #: None for a unit that no path leads to.
    trfs: list[Trf | None]
    #: The part of the reference that is kept of each map.
    fields: Sequence[Field]
    #: Units of one group share a backward pass.
    groups: list[list[int]]
    #: Why units with disjoint TRFs share none; "" where they do.
    alone: str = ""
    #: The pass of one group, each unit with a part of the image of its own; None where there is none.
    forward: MovedForward | None = None
    #: Whether each unit is measured by the operations that it needs, and not by those of the whole image.
    by_crops: bool = False

    @property
    def inside(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each TRF lies inside the reference, (*space)."""
        return np.array([trf is not None and _is_inside(trf) for trf in self.trfs]).reshape(self.space)

    def one_by_one(self, reason: str) -> UnitFields:
        """The same with a backward pass for every unit, whose maps are kept whole."""
        reference = next((trf.reference_px for trf in self.trfs if trf is not None), ())
        whole = [() if trf is None else tuple((0, side - 1) for side in reference) for trf in self.trfs]
        groups = [[number] for number, trf in enumerate(self.trfs) if trf is not None]
        return replace(self, fields=whole, groups=groups, alone=reason)


def fields_of(plan: Plan, sums: Sums, along: Sequence[Sequence[int]] | None = None) -> UnitFields:
    """The TRFs of units of the plan's layer, and which share a backward pass.

    Args:
        plan: What is measured: one unit of the layer.
        sums: What its measurement has shown.
        along: The indices of the units along each axis; all of the layer's if None.
    """
    along = along or [range(side) for side in plan.site.space]
    space = [len(indices) for indices in along]
    units = [Unit(index=index, channels=plan.settings.channels) for index in product(*along)]
    trfs = [_field_or_none(plan, unit) for unit in units]
    fields = [() if trf is None else trf.clipped_box_px for trf in trfs]
    seen = [number for number, trf in enumerate(trfs) if trf is not None]
    axes = max((len(field) for field in fields), default=1)
    filled = [field or ((0, -1),) * axes for field in fields]
    groups = [
        kept
        for group in colour_units(filled, space)
        if (kept := [number for number in group if trfs[number] is not None])
    ]
    found = UnitFields(space=tuple(space), units=units, trfs=trfs, fields=fields, groups=groups)
    reason = next(_reasons_apart(plan, sums, [trf for number in seen if (trf := trfs[number]) is not None]), "")
    if reason:
        found = found.one_by_one(reason)
    elif forward := moved_forward(plan, len(seen), len(groups)):
        # Those that the border cuts come together, last, as they take more.
        inside = found.inside.ravel()
        order = sorted(seen, key=lambda number: not inside[number])
        groups = [order[first : first + forward.count] for first in range(0, len(order), forward.count)]
        return replace(found, groups=groups, forward=forward)
    few = [units[seen[place * (len(seen) - 1) // (SAMPLED - 1)]].index for place in range(SAMPLED)] if seen else []
    by_crops = crops_pay(plan, few, len(found.groups) / max(len(seen), 1))
    return replace(found, groups=[[number] for number in seen], by_crops=True) if by_crops else found


def _field_or_none(plan: Plan, unit: Unit) -> Trf | None:
    try:
        return plan.site.trf(unit)
    except ErfscopeError:
        # The reference was found for another unit of the layer: no path leads to this one.
        return None


def _reasons_apart(plan: Plan, sums: Sums, trfs: Sequence[Trf]) -> Iterator[str]:
    """Reasons against sharing a backward pass: what may carry a gradient out of a theoretical receptive field."""
    if plan.site.needs_numbers:
        yield "the theoretical receptive fields (TRFs) are those of one pass with random pixels"
    for found in plan.model.recording.graph.unfaithful[:1]:
        yield f"the recorded operations do not tell the gradient: {found.text}"
    if not plan.site.takes_batches:
        yield "the model takes one image at a time, or mixes those of a batch"
    if names := next((trf.inexact_by for trf in trfs if not trf.exact), ()):
        yield f"the theoretical receptive fields (TRFs) are not known exactly ({', '.join(names[:3])})"
    if any(average.outside_trf for average in sums.averages):
        yield "a gradient was found outside a theoretical receptive field (TRF)"


def _is_inside(trf: Trf) -> bool:
    return all(first >= 0 and last < side for (first, last), side in zip(trf.box_px, trf.reference_px, strict=True))
