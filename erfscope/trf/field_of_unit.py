"""The theoretical receptive field of one unit, from walks back through the recorded operations."""

from __future__ import annotations

from erfscope.errors import ErfscopeError
from erfscope.geometry.layout import Layout
from erfscope.geometry.receptive_field import Trf
from erfscope.trf.graph import Node, has_path_around
from erfscope.trf.rules.mixing import SOFTMAX
from erfscope.trf.rules.products import ATTENTION
from erfscope.trf.unit_geometry import Reference, UnitGeometry
from erfscope.trf.walk import Walk


def field_of(start: Node, layout: Layout, unit: tuple[int, ...], reference: Reference, root: Node) -> Trf:
    """Theoretical receptive field of one unit of the map that ``start`` holds.

    Args:
        start: The value of the layer.
        layout: How to read it as a map.
        unit: Index of the unit.
        reference: What the TRF is measured in.
        root: The image.

    Raises:
        ErfscopeError: nothing of the reference reaches this unit.
    """
    frame = UnitGeometry(start, layout, reference)
    full = frame.seen_by(unit)
    if full.region is None:
        raise ErfscopeError(f"no path leads from {reference.name!r} to unit {unit}")
    # Where nothing but global mixing leads to the unit, nothing local is left, and the whole stands for it.
    local = frame.seen_by(unit, "global").region if full.mixers else full.region
    count = len(frame.sizes)
    global_by = _global_by(full, frame)
    boxes = [frame.box(full.region, i) for i in range(count)]
    local_boxes = [frame.box(local, i) for i in range(count)]
    centers, doubt = frame.centers(unit)
    names = _not_understood(full, frame, reference)
    return Trf(
        size_px=tuple(last - first + 1 for first, last in boxes),
        box_px=tuple(boxes),
        stride_px=tuple(frame.stride(i) for i in range(count)),
        center_px=centers,
        offset_px=frame.offsets(unit, centers),
        center_exact=not doubt,
        center_doubt=doubt,
        global_by=global_by,
        local_size_px=tuple(last - first + 1 for first, last in local_boxes),
        local_box_px=tuple(local_boxes),
        exact=not names,
        inexact_by=names,
        reference_px=frame.sizes,
        clipped_box_px=tuple(frame.clipped(full.region, i) for i in range(count)),
        all_paths=reference.node is root or not has_path_around(start, reference.node, root),
    )


def _not_understood(full: Walk, frame: UnitGeometry, reference: Reference) -> tuple[str, ...]:
    """Names of the operations without a rule that widened the TRF, in the order of execution."""
    names = [node.name for node in reversed(full.unknown)]
    if None in frame.axes and reference.view.layout.present:
        names.insert(0, f"layout of {reference.name}")
    return tuple(dict.fromkeys(names))


def _global_by(full: Walk, frame: UnitGeometry) -> str | None:
    """Name of the first operation that mixes all positions; None unless every axis of the reference is mixed wholly."""
    needed = {axis.axis for axis, size in zip(frame.axes, frame.sizes, strict=True) if axis is not None and size > 1}
    mixed: dict[Node, set[int]] = {}
    for node, axis in full.mixers:
        mixed.setdefault(node, set()).add(axis)
    reached = set().union(*mixed.values())
    if mixed and full.region is not None and not full.unknown:
        # Mixing a list of all positions, along whatever axis stands for it, mixes every axis.
        reached.update(axis for axis in needed if (span := full.region.spans[axis]) is not None and span.whole)
    if not needed or not needed <= reached:
        return None
    at_once = [node for node, axes in mixed.items() if any(_all_of(edge.source, needed, axes) for edge in node.edges)]
    return _operation_name(min(at_once or mixed, key=lambda node: node.index), full)


def _all_of(source: Node, needed: set[int], mixed: set[int]) -> bool:
    """Whether mixing these axes mixes all that a tensor has of those needed."""
    present = needed & set(source.layout.present)
    return bool(present) and present <= mixed


def _operation_name(node: Node, full: Walk) -> str:
    """An operation in words, with the module it ran in."""
    words = node.mixing_name or node.name
    if words == ATTENTION:
        near = any(name in SOFTMAX and module.startswith(node.module) for name, module in full.met)
        words = "softmax attention" if near else "dot-product attention"
    return f"{words} ({node.module})" if node.module else words
