"""The axes of a reference, and the geometry of a layer's units along them."""

from __future__ import annotations

from dataclasses import dataclass

from erfscope.layout import Layout
from erfscope.trf.graph import Kind, Node, Region, Walk, walk
from erfscope.trf.moves import Span
from erfscope.trf.unit import MapAxis, map_axes, unit_region

Box = tuple[int, int]
MIXING: frozenset[Kind] = frozenset(("global", "window"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The tensor that a field is measured in."""

    name: str
    #: The value itself, before mere views.
    node: Node
    #: The view of it that the layout describes.
    view: Node
    layout: Layout
    #: Nodes that depend on it; None if all do.
    below: set[Node] | None


class Frame:
    """A layer's map seen from a reference: boxes, centres and strides in the reference's cells."""

    def __init__(self, start: Node, layout: Layout, reference: Reference) -> None:
        self._start, self._layout, self._reference = start, layout, reference
        #: What is left out where a unit's centre is looked for.
        self._left_out: tuple[Kind, ...] = tuple(MIXING)
        # Asked once for each axis.
        self._locals: dict[tuple[tuple[int, ...], int], Region | None] = {}
        #: Spatial size of the reference.
        self.sizes = tuple(reference.layout.space(reference.view.shape))
        #: For each axis of the reference the axis of the picture that it shows; None where that is not known.
        self.axes = map_axes(reference.view, reference.layout)
        self._space = tuple(layout.space(start.shape))
        mine = map_axes(start, layout)
        #: For each axis of the reference the axis of the layer's map that follows it.
        self._follows = [next((i for i, m in enumerate(mine) if m and axis and m.axis == axis.axis), None) for axis in self.axes]
        self._strides = [
            _scale(start, mine[i]) / _scale(reference.view, axis) if i is not None else None
            for i, axis in zip(self._follows, self.axes, strict=True)
        ]

    def seen_by(self, unit: tuple[int, ...], *left_out: Kind) -> Walk:
        """What one unit reads, with some kinds of mixing left out."""
        reference = self._reference
        return walk(self._start, unit_region(self._start, self._layout, unit), reference.node, reference.below, left_out)

    def box(self, region: Region | None, i: int) -> Box:
        """First and last cell along the reference's axis i; the whole axis where that is all that is known."""
        span, axis = self._span(region, i), self.axes[i]
        if span is None or axis is None:
            return 0, self.sizes[i] - 1
        ends = [int(cells[k]) for cells in (span.free, span.real) if cells.size for k in (0, -1)]
        return min(ends) // axis.step, max(ends) // axis.step

    def clipped(self, region: Region | None, i: int) -> Box:
        """First and last existing cell along the reference's axis i; (0, -1) if there is none."""
        span, axis = self._span(region, i), self.axes[i]
        if span is None or axis is None:
            return 0, self.sizes[i] - 1
        return (int(span.real[0]) // axis.step, int(span.real[-1]) // axis.step) if span.real.size else (0, -1)

    def stride(self, i: int) -> float:
        """Cells of the reference from one unit to the next."""
        exact = self._strides[i]
        return self.sizes[i] / self._count(i) if exact is None else exact

    def centers(self, unit: tuple[int, ...], full: Walk | None = None) -> tuple[tuple[float, ...], bool]:
        """The unit's true centre, and whether it is exact.

        It is the middle of what the unit sees with all mixing left out. That is no answer where no path is understood, where the middle
        does not follow the unit (a recurrent net sees everything from everywhere), or where branches that go down and up again have pulled
        it more than a stride away from (u + 1/2) S / s - 1/2: then that is given. Where the middles of such branches lie half a stride or
        more from each other, the unit has no exact centre either, and the common middle stands for it.
        """
        centers, exact, missed = self._centers(unit, full)
        if missed:
            # Paths that end in the mirror image of the unit have no middle that follows it; the others may have.
            self._left_out, kept, self._locals = (*MIXING, "mirror"), self._left_out, {}
            upright = self._centers(unit)
            if upright[2] < missed:
                return upright[:2]
            self._left_out, self._locals = kept, {}
        return centers, exact

    def _centers(self, unit: tuple[int, ...], full: Walk | None = None) -> tuple[tuple[float, ...], bool, int]:
        """Centre, whether it is exact, and along how many axes there is no middle that is the unit's."""
        missed = 0
        found = full if full is not None and not (full.mixers or full.windows) else self.seen_by(unit, *self._left_out)
        exact = not found.unknown
        region = found.region if exact else self.seen_by(unit, *self._left_out, "unknown").region
        far = tuple(0 if 2 * u >= s - 1 else s - 1 for u, s in zip(unit, self._space, strict=True))
        other = None
        if region is not None and far != unit:
            other = self.seen_by(far, *self._left_out, "unknown").region
        centers = []
        for i, size in enumerate(self.sizes):
            k = self._index(i)
            index, opposite = (unit[k], far[k]) if k is not None else (0, 0)
            center = self._middle(region, i)
            if center is not None and index != opposite:
                moved = self._middle(other, i)
                if moved is None or (center - moved) / (index - opposite) < self.stride(i) / 2:
                    center = None
            natural = (index + 0.5) * size / self._count(i) - 0.5
            if center is not None and abs(center - natural) > self.stride(i) and not self._aligned(unit, i):
                center = None
            if center is None:
                center, missed = natural, missed + 1
                exact = exact and self._count(i) == 1
            elif exact and k is not None and self._space[k] > 1:
                exact = self._spread(unit, i) < max(self.stride(i), 1.0) / 2
            centers.append(center)
        return tuple(centers), exact, missed

    def offsets(self, unit: tuple[int, ...], centers: tuple[float, ...]) -> tuple[float, ...]:
        """Where unit 0 has its centre, given this unit's."""
        indices = [0 if (k := self._index(i)) is None else unit[k] for i in range(len(centers))]
        return tuple(center - u * self.stride(i) for i, (center, u) in enumerate(zip(centers, indices, strict=True)))

    def _aligned(self, unit: tuple[int, ...], i: int) -> bool:
        """Whether the middles of all paths to the unit lie within a stride, and the next unit's lies one stride on, along axis i.

        Without padding the middle is far from where one would look for it, and rightly so; paths that disagree have no common middle, and
        after up-sampling it moves in steps of the coarse map.
        """
        if self._spread(unit, i) >= max(self.stride(i), 1.0):
            return False
        k = self._index(i)
        if k is None or self._space[k] == 1:
            return True
        step = 1 if unit[k] + 1 < self._space[k] else -1
        beside = tuple(u + step * (axis == k) for axis, u in enumerate(unit))
        here, there = self._middle(self._local(unit), i), self._middle(self._local(beside), i)
        return here is None or there is None or abs((there - here) * step - self.stride(i)) < 1e-6

    def _spread(self, unit: tuple[int, ...], i: int) -> float:
        """How far apart the middles of all paths to the unit lie along axis i."""
        low, high = (self._middle(self._local(unit, lean), i) for lean in (-1, 1))
        return 0.0 if low is None or high is None else high - low

    def _local(self, unit: tuple[int, ...], lean: int = 0) -> Region | None:
        """What a unit reads with all mixing and what is not understood left out."""
        if (unit, lean) not in self._locals:
            region, reference = unit_region(self._start, self._layout, unit), self._reference
            found = walk(self._start, region, reference.node, reference.below, (*self._left_out, "unknown"), lean=lean)
            self._locals[unit, lean] = found.region
        return self._locals[unit, lean]

    def _middle(self, region: Region | None, i: int) -> float | None:
        if region is None or self._span(region, i) is None:
            return None
        first, last = self.box(region, i)
        return (first + last) / 2

    def _span(self, region: Region | None, i: int) -> Span | None:
        """What is read along the reference's axis i; None if that is everything."""
        axis = self.axes[i]
        span = region.spans[axis.axis] if region is not None and axis is not None else None
        return None if span is None or span.whole else span

    def _index(self, i: int) -> int | None:
        """The axis of the layer's map along the reference's axis i; where it is not known, the one of the same number."""
        if self._follows[i] is not None:
            return self._follows[i]
        return i if len(self._space) == len(self.sizes) else None

    def _count(self, i: int) -> int:
        """Units along the reference's axis i."""
        k = self._index(i)
        return 1 if k is None else self._space[k]


def _scale(node: Node, axis: MapAxis | None) -> float:
    """Cells of the image per unit along an axis of a map."""
    found = node.place.axes[axis.axis] if axis is not None else None
    return found.scale * axis.step if found is not None and axis is not None else 1.0
