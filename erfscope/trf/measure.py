"""From a walk to the result: box, centre, stride, and what is said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from erfscope.errors import ErfscopeError
from erfscope.layout import Layout
from erfscope.trf.field import Trf
from erfscope.trf.graph import Node, Region, Walk, avoids, walk
from erfscope.trf.moves import Span
from erfscope.trf.rules.mixing import SOFTMAX
from erfscope.trf.rules.products import ATTENTION
from erfscope.trf.unit import MapAxis, map_axes, unit_region

Box = tuple[int, int]


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


def field_of(start: Node, layout: Layout, unit: tuple[int, ...], reference: Reference, root: Node) -> Trf:
    """Theoretical receptive field of one unit of the map that ``start`` holds.

    Args:
        start: The value of the layer.
        layout: How to read it as a map.
        unit: Index of the unit.
        reference: What the field is measured in.
        root: The image.

    Raises:
        ErfscopeError: nothing of the reference reaches this unit.
    """
    region = unit_region(start, layout, unit)
    full = walk(start, region, reference.node, reference.below)
    if full.region is None:
        raise ErfscopeError(f"no path leads from {reference.name!r} to unit {unit}")
    local, anchor = _without_mixing(start, region, reference, full)
    frame = _Frame(start, layout, unit, reference)
    boxes = [frame.box(full.region, i) for i in range(len(frame.sizes))]
    local_boxes = [frame.box((local or full.region), i) for i in range(len(frame.sizes))]
    centers = [frame.center(anchor, i) for i in range(len(frame.sizes))]
    lost = tuple(f"layout of {reference.name}" for axis in frame.axes if axis is None and reference.view.place.present)
    names = tuple(dict.fromkeys((*(node.name for node in reversed(full.unknown)), *lost)))
    return Trf(
        size_px=tuple(last - first + 1 for first, last in boxes),
        box_px=tuple(boxes),
        stride_px=tuple(frame.stride(i) for i in range(len(frame.sizes))),
        center_px=tuple(center for center, _ in centers),
        center_exact=all(exact for _, exact in centers),
        global_by=_global_by(full, frame),
        local_size_px=tuple(last - first + 1 for first, last in local_boxes),
        local_box_px=tuple(local_boxes),
        exact=not names,
        inexact_by=names,
        reference_px=frame.sizes,
        all_paths=reference.node is root or not avoids(start, reference.node, root),
    )


def _without_mixing(start: Node, region: Region, reference: Reference, full: Walk) -> tuple[Region | None, Region | None]:
    """What is read with global mixing left out, and with mixing in windows left out as well, which fixes the centre."""
    local = anchor = full.region
    if full.mixers:
        local = walk(start, region, reference.node, reference.below, {"global"}).region
    if full.mixers or full.windows:
        anchor = walk(start, region, reference.node, reference.below, {"global", "window"}).region
    return local, anchor


class _Frame:
    """The reference's axes, and how the layer's axes follow them."""

    def __init__(self, start: Node, layout: Layout, unit: Sequence[int], reference: Reference) -> None:
        self.sizes = tuple(reference.layout.space(reference.view.shape))
        self.axes = map_axes(reference.view, reference.layout)
        self._space = tuple(layout.space(start.shape))
        self._unit = tuple(unit)
        mine = map_axes(start, layout)
        #: For each axis of the reference the axis of the layer's map that follows it.
        self._follows = [next((i for i, m in enumerate(mine) if m and axis and m.axis == axis.axis), None) for axis in self.axes]
        self._scales = [
            _scale(start, mine[i]) / _scale(reference.view, axis) if i is not None and axis is not None else None
            for i, axis in zip(self._follows, self.axes, strict=True)
        ]

    def span(self, region: Region, i: int) -> Span | None:
        """What is read along the reference's axis i; None if that is everything."""
        axis = self.axes[i]
        span = region.spans[axis.axis] if axis is not None else None
        return None if span is None or span.whole else span

    def box(self, region: Region, i: int) -> Box:
        """First and last cell along the reference's axis i."""
        span, axis = self.span(region, i), self.axes[i]
        if span is None or axis is None:
            return 0, self.sizes[i] - 1
        ends = [int(cells[k]) for cells in (span.free, span.real) if cells.size for k in (0, -1)]
        return min(ends) // axis.step, max(ends) // axis.step

    def center(self, anchor: Region | None, i: int) -> tuple[float, bool]:
        """The unit's true centre along the reference's axis i, and whether it is exact."""
        follows = self._follows[i]
        own = self._space[i] if len(self._space) == len(self.sizes) else 1
        if anchor is not None and self.span(anchor, i) is not None:
            first, last = self.box(anchor, i)
            return (first + last) / 2, True
        k = follows if follows is not None else i
        index = self._unit[k] if k < len(self._unit) and (follows is not None or own > 1) else 0
        count = self._space[follows] if follows is not None else own
        return (index + 0.5) * self.sizes[i] / count - 0.5, count == 1

    def stride(self, i: int) -> float:
        """Cells of the reference from one unit to the next."""
        scale = self._scales[i]
        if scale is not None:
            return scale
        return self.sizes[i] / (self._space[i] if len(self._space) == len(self.sizes) else 1)


def _scale(node: Node, axis: MapAxis | None) -> float:
    """Cells of the image per unit along an axis of a map."""
    found = node.place.axes[axis.axis] if axis is not None else None
    return found.scale * axis.step if found is not None and axis is not None else 1.0


def _global_by(full: Walk, frame: _Frame) -> str | None:
    """Name of the first operation that mixes all positions; None unless every axis of the reference is mixed wholly."""
    needed = {axis.axis for axis, size in zip(frame.axes, frame.sizes, strict=True) if axis is not None and size > 1}
    mixed: dict[Node, set[int]] = {}
    for node, axis in full.mixers:
        mixed.setdefault(node, set()).add(axis)
    together = set().union(*mixed.values()) if mixed else set()
    if not needed or not needed <= together:
        return None
    first = min((node for node, axes in mixed.items() if needed <= axes), key=lambda n: n.index, default=None)
    return _called(first or min(mixed, key=lambda n: n.index), full)


def _called(node: Node, full: Walk) -> str:
    """An operation in words, with the module it ran in."""
    words = node.words or node.name
    if words == ATTENTION:
        words = "softmax attention" if _has_softmax(node, full) else "dot-product attention"
    return f"{words} ({node.module})" if node.module else words


def _has_softmax(node: Node, full: Walk) -> bool:
    return any(name in SOFTMAX and module.startswith(node.module) for name, module in full.met)
