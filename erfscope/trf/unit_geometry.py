"""Boxes, centres and strides of a layer's units along the axes of a reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from erfscope.geometry.layout import Layout
from erfscope.trf.axes.index_maps import IndexSet, IntArray
from erfscope.trf.graph import Kind, Node
from erfscope.trf.map_axes import MapAxis, map_axes, unit_region
from erfscope.trf.positions import MIXING
from erfscope.trf.walk import Region, Tails, Walk, trace_back

Box = tuple[int, int]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The tensor that a TRF is measured in."""

    name: str
    #: The value itself, before mere views.
    node: Node
    #: The view of it that the layout describes.
    view: Node
    layout: Layout
    #: Nodes that depend on it; None if all do.
    below: set[Node] | None
    #: What walks to it have found, by the kinds that they left out.
    tails: dict[frozenset[Kind], Tails] = field(default_factory=dict)


class UnitGeometry:
    """Boxes, centres and strides of the units of a layer, in cells of a reference."""

    def __init__(self, start: Node, layout: Layout, reference: Reference) -> None:
        self._start, self._layout, self._reference = start, layout, reference
        #: Walks in which nothing was left out, by unit.
        self._whole: dict[tuple[int, ...], Walk] = {}
        #: Spatial size of the reference.
        self.sizes = tuple(reference.layout.space(reference.view.shape))
        #: For each axis of the reference the axis of the image that it shows; None where that is not known.
        self.axes = map_axes(reference.view, reference.layout)
        self._space = tuple(layout.space(start.shape))
        self._mine = map_axes(start, layout)
        #: For each axis of the reference the axis of the layer's map that follows it.
        self._follows = [
            next((i for i, m in enumerate(self._mine) if m and axis and m.axis == axis.axis), None)
            for axis in self.axes
        ]
        self._strides = [
            _scale(start, self._mine[i]) / _scale(reference.view, axis) if i is not None else None
            for i, axis in zip(self._follows, self.axes, strict=True)
        ]

    def seen_by(self, unit: tuple[int, ...], *left_out: Kind) -> Walk:
        """What one unit reads, with some kinds of mixing left out."""
        kinds = frozenset(left_out)
        if kinds <= MIXING and unit in self._whole and not self._whole[unit].mixes:
            return self._whole[unit]
        reference, region = self._reference, unit_region(self._start, self._layout, unit)
        tails = reference.tails.setdefault(kinds, Tails())
        found = trace_back(self._start, region, reference.node, reference.below, kinds, tails=tails)
        if not kinds:
            self._whole[unit] = found
        return found

    def box(self, region: Region | None, i: int) -> Box:
        """First and last cell along the reference's axis i; the whole axis where that is all that is known."""
        span, axis = self._span(region, i), self.axes[i]
        if span is None or axis is None:
            return 0, self.sizes[i] - 1
        ends = [int(cells[k]) for cells in (span.unbounded, span.in_bounds) if cells.size for k in (0, -1)]
        return min(ends) // axis.step, max(ends) // axis.step

    def clipped(self, region: Region | None, i: int) -> Box:
        """First and last existing cell along the reference's axis i; (0, -1) if there is none."""
        span, axis = self._span(region, i), self.axes[i]
        if span is None or axis is None:
            return 0, self.sizes[i] - 1
        return (
            (int(span.in_bounds[0]) // axis.step, int(span.in_bounds[-1]) // axis.step)
            if span.in_bounds.size
            else (0, -1)
        )

    def stride(self, i: int) -> float:
        """Cells of the reference from one unit to the next."""
        exact = self._strides[i]
        return self.sizes[i] / self._count(i) if exact is None else exact

    def centers(self, unit: tuple[int, ...]) -> tuple[tuple[float, ...], str]:
        """The unit's true centre, and why it is not exact; "" where it is.

        The affine coordinates of the layer's axes and of the reference's, which the operations carry, say where it is.
        Where branches disagree it is the coordinate of the one that the model's operation names first, or, where that
        lies more than a stride away from (u + 1/2) S / s - 1/2, of the one nearest to this, as in a U-Net whose coarse
        maps drift; where no operation tells, it is this."""
        centers, doubts = [], []
        for i in range(len(self.sizes)):
            k = self._index(i)
            found, doubt = self._centers_along(i, np.array([0 if k is None else unit[k]]))
            centers.append(float(found[0]))
            # The only unit along an axis stands in its middle, whatever it was made from.
            doubts += [doubt] if self._count(i) > 1 else []
        return tuple(centers), next(filter(None, doubts), "") or self._displaced(unit)

    def nearest_unit(self) -> tuple[int, ...]:
        """The unit whose centre is nearest to the reference's, (S - 1) / 2 along each axis; of two alike, the one with
        the larger index.

        The middle one along an axis that follows none of the reference's.
        """
        nearest = [side // 2 for side in self._space]
        for i, size in enumerate(self.sizes):
            if (k := self._index(i)) is not None:
                off = np.abs(self._centers_along(i, np.arange(self._space[k]))[0] - (size - 1) / 2)
                # Rounding must not decide between two.
                nearest[k] = int(np.flatnonzero(off <= off.min() + 1e-9 * self.stride(i))[-1])
        return tuple(nearest)

    def _centers_along(self, i: int, index: IntArray) -> tuple[FloatArray, str]:
        """Centres of units of these indices along the reference's axis i, and why they are not exact."""
        natural = (index + 0.5) * self.sizes[i] / self._count(i) - 0.5
        found, doubt = self._coordinates(index, i)
        if not found:
            return natural, doubt
        off = np.abs(np.stack(found) - natural)
        nearest = np.where(off[0] <= self.stride(i), 0, off.argmin(0))
        return np.stack(found)[nearest, np.arange(len(index))], doubt

    def _displaced(self, unit: tuple[int, ...]) -> str:
        """The operation by which a path may lead to other positions than the unit's own; "" if there is none."""
        if all(side == 1 for side in self._space):
            return ""
        found = self.seen_by(unit, *MIXING).displacing
        return f"{found[-1].name} in {found[-1].module or 'the model'} may lead elsewhere" if found else ""

    def _coordinates(self, index: IntArray, i: int) -> tuple[list[FloatArray], str]:
        """Where units of these indices lie along the reference's axis i by every path, and why that is not exact."""
        k, theirs = self._follows[i], self.axes[i]
        mine = None if k is None else self._mine[k]
        if mine is None or theirs is None:
            return [], "the operations do not tell which of its positions is which of the reference's"
        here, there = self._start.layout.axes[mine.axis], self._reference.view.layout.axes[theirs.axis]
        if here is None or there is None:
            return [], "the operations do not tell where it lies"
        cell = index * mine.step + (mine.step - 1) / 2
        found = [
            ((one.offset + one.step * cell - other.offset) / other.step - (theirs.step - 1) / 2) / theirs.step
            for one in here.centers
            for other in there.centers
        ]
        doubt = here.doubt or there.doubt or ("" if found else "the operations do not tell where it lies")
        if here.rolled or there.rolled:
            doubt = doubt or "the map was rolled, and its cells wrap around"
        return found, doubt or ("the map is reversed" if any(center.step < 0 for center in here.centers) else "")

    def offsets(self, unit: tuple[int, ...], centers: tuple[float, ...]) -> tuple[float, ...]:
        """Where unit 0 has its centre, given this unit's."""
        indices = [0 if (k := self._index(i)) is None else unit[k] for i in range(len(centers))]
        return tuple(center - u * self.stride(i) for i, (center, u) in enumerate(zip(centers, indices, strict=True)))

    def _span(self, region: Region | None, i: int) -> IndexSet | None:
        """What is read along the reference's axis i; None if that is everything."""
        axis = self.axes[i]
        span = region.spans[axis.axis] if region is not None and axis is not None else None
        return None if span is None or span.whole else span

    def _index(self, i: int) -> int | None:
        """The axis of the layer's map along the reference's axis i; where it is not known, the one of the same
        number."""
        if self._follows[i] is not None:
            return self._follows[i]
        return i if len(self._space) == len(self.sizes) else None

    def _count(self, i: int) -> int:
        """Units along the reference's axis i."""
        k = self._index(i)
        return 1 if k is None else self._space[k]


def _scale(node: Node, axis: MapAxis | None) -> float:
    """Cells of the image per unit along an axis of a map."""
    found = node.layout.axes[axis.axis] if axis is not None else None
    return found.scale * axis.step if found is not None and axis is not None else 1.0
