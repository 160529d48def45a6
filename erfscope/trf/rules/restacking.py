"""Cells that were taken from an axis one by one, and are put in a line again, as recurrent nets and loops over rows do."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.trf.axes.index_maps import Fixed, Piece
from erfscope.trf.axes.place import Axis, AxisDigit, AxisLayout, nowhere
from erfscope.trf.graph import Node, Step
from erfscope.trf.relate import broadcast, widened
from erfscope.trf.rules.registry import RuleOutput

#: Operations to look back through for where a cell was taken from.
FAR = 2000


def restack(entries: Sequence[Node | None], dim: int, shape: Sequence[int]) -> RuleOutput | None:
    """A dimension whose cells are these tensors, each without it; None if they are not cells of one axis of that length.

    Cells of one that are not in order may be anywhere.

    Whatever an entry was computed from, only the unit at its place reads it.

    Args:
        entries: The tensors in order; None for one that does not depend on the image.
        dim: The new dimension.
        shape: The shape with it.
    """
    live = [node for node in entries if node is not None]
    found = _taken_from(live[0], len(entries)) if live and len(entries) > 1 else None
    if found is None or any(node.place.axes[found[0]] is not None for node in live):
        return None
    number, axis = found
    if not all(node is None or _is_cell(node, number, spot) for spot, node in enumerate(entries)):
        return RuleOutput(nowhere(shape, len(live[0].place.axes)), tuple(widened(node) for node in live))
    place, edges = broadcast(live, (*shape[:dim], *shape[dim + 1 :]))
    axes = tuple(axis if i == number else old for i, old in enumerate(place.axes))
    place = AxisLayout(axes, (*place.dims[:dim], (AxisDigit(number, 1, len(entries)),), *place.dims[dim:]))
    spots = [i for i, node in enumerate(entries) if node is not None]
    where = [Step(number, Piece(1, spot, 1)) for spot in spots]
    return RuleOutput(place, tuple(edge._replace(where=step) for edge, step in zip(edges, where, strict=True)))


def _is_cell(node: Node, number: int, cell: int) -> bool:
    """Whether a tensor was computed from this cell of an axis, among others maybe: cells in another order stand elsewhere."""
    stack, seen = [node], {node}
    while stack and len(seen) < FAR:
        for edge in stack.pop(0).edges:
            step = edge.steps[number] if edge.steps is not None else None
            if step is not None and isinstance(step.move, Fixed) and step.move.cell == cell and step.move.size > 1:
                return True
            if edge.source not in seen:
                seen.add(edge.source)
                stack.append(edge.source)
    return False


def _taken_from(node: Node, count: int) -> tuple[int, Axis] | None:
    """The axis of ``count`` cells of which a tensor is, or was computed from, one; None if none is found."""
    stack, seen = [node], {node}
    while stack and len(seen) < FAR:
        here = stack.pop()
        for edge in here.edges:
            for number, step in enumerate(edge.steps or ()):
                axis = edge.source.place.axes[number]
                picked = step is not None and step.axis is None and isinstance(step.move, Fixed)
                if picked and axis is not None and axis.size == count and node.place.axes[number] is None:
                    return number, axis
            if edge.source not in seen:
                seen.add(edge.source)
                stack.append(edge.source)
    return None
