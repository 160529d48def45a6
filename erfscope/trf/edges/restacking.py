"""Cells that are taken from an axis one by one and stacked again, as recurrent nets and loops over rows do."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.axes.axis_layout import Axis, AxisFactor, layout_without_axes
from erfscope.trf.axes.index_maps import Fixed, OutputSlice
from erfscope.trf.edges.basic import broadcast, unknown_edge
from erfscope.trf.graph import AxisRead, Node, RuleOutput

#: Operations to look back through for where a cell was taken from.
FAR = 2000


def restack(entries: Sequence[Node | None], dim: int, shape: Sequence[int]) -> RuleOutput | None:
    """Stack tensors that were each computed from one cell of an axis, in order; None if they are not cells of one axis
    of that length.

    Only the unit at an entry's cell reads what the entry was computed from. Where the entries are not in order, all may
    be read.

    Args:
        entries: The tensors in order; None for one that does not depend on the image.
        dim: The new dimension.
        shape: The shape with it.
    """
    live = [node for node in entries if node is not None]
    found = _source_axis(live[0], len(entries)) if live and len(entries) > 1 else None
    if found is None or any(node.layout.axes[found[0]] is not None for node in live):
        return None
    number, axis = found
    if not all(node is None or _comes_from_cell(node, number, spot) for spot, node in enumerate(entries)):
        return RuleOutput(
            layout_without_axes(shape, len(live[0].layout.axes)), tuple(unknown_edge(node) for node in live)
        )
    layout, edges = broadcast(live, (*shape[:dim], *shape[dim + 1 :]))
    layout = layout.with_axes({number: axis}).with_new_dim(dim, (AxisFactor(number, 1, len(entries)),))
    spots = [i for i, node in enumerate(entries) if node is not None]
    where = [AxisRead(number, OutputSlice(1, spot, 1)) for spot in spots]
    return RuleOutput(layout, tuple(edge._replace(only_where=read) for edge, read in zip(edges, where, strict=True)))


def _comes_from_cell(node: Node, number: int, cell: int) -> bool:
    """Whether a tensor was computed from this cell of an axis, among others maybe: cells in another order stand
    elsewhere."""
    stack, seen = [node], {node}
    while stack and len(seen) < FAR:
        for edge in stack.pop(0).edges:
            read = edge.reads[number] if edge.reads is not None else None
            if (
                read is not None
                and isinstance(read.index_map, Fixed)
                and read.index_map.cell == cell
                and read.index_map.size > 1
            ):
                return True
            if edge.source not in seen:
                seen.add(edge.source)
                stack.append(edge.source)
    return False


def _source_axis(node: Node, count: int) -> tuple[int, Axis] | None:
    """The axis of ``count`` cells of which a tensor is, or was computed from, one; None if none is found."""
    stack, seen = [node], {node}
    while stack and len(seen) < FAR:
        here = stack.pop()
        for edge in here.edges:
            for number, read in enumerate(edge.reads or ()):
                axis = edge.source.layout.axes[number]
                is_pick = read is not None and read.axis is None and isinstance(read.index_map, Fixed)
                if is_pick and axis is not None and axis.size == count and node.layout.axes[number] is None:
                    return number, axis
            if edge.source not in seen:
                seen.add(edge.source)
                stack.append(edge.source)
    return None
