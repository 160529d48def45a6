"""Concatenation, stacking, and writing a part into a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from erfscope.trf.axes.index_maps import Hole, IndexMap, Piece
from erfscope.trf.axes.place import AxisDigit, AxisLayout, PrefixedTokens, other, renormalise, spatial
from erfscope.trf.graph import Edge, Node, Step
from erfscope.trf.lines import distinct_lines, joined_along, with_joined_lines
from erfscope.trf.relate import broadcast, related
from erfscope.trf.rules.lists import Entry as Listed
from erfscope.trf.rules.lists import put_together
from erfscope.trf.rules.registry import Answer, Call, RuleOutput, depends_on_all, number, rule, same
from erfscope.trf.rules.restacking import restack


@rule("where", "lerp", "addcmul", "addcdiv", "hardswish", "hardsigmoid", "prelu", "_prelu_kernel", "rrelu_with_noise")
@rule("complex", "polar", "log_sigmoid_forward", "dropout")
def elementwise(call: Call) -> Answer:
    """Elementwise operations, among them those that PyTorch does not mark as such."""
    return RuleOutput(*broadcast(call.live, call.shape))


@rule("stack")
def stack(call: Call) -> Answer:
    """A new dimension without positions."""
    dim = number(call.args["dim"], len(call.shape))
    lined = restack([entry if isinstance(entry, Node) else None for entry in call.args["tensors"]], dim, call.shape)
    if lined is not None:
        return lined
    shape = (*call.shape[:dim], *call.shape[dim + 1 :])
    place, edges = broadcast(call.live, shape)
    return RuleOutput(AxisLayout(place.axes, (*place.dims[:dim], other(call.shape[dim]), *place.dims[dim:])), edges)


class Entry(NamedTuple):
    """One part of a concatenation."""

    #: None if it does not depend on the image.
    node: Node | None
    start: int
    size: int


@rule("cat", "concatenate")
def cat(call: Call) -> Answer:
    """Concatenation: of channels, of maps side by side, of tokens beside a map."""
    dim = number(call.args["dim"], len(call.shape))
    entries, start = [], 0
    for entry in call.args["tensors"]:
        shape = entry.shape if isinstance(entry, (Node, Tensor)) else ()
        if len(shape) != len(call.shape) or not shape[dim]:  # PyTorch skips empty lists
            continue
        entries.append(Entry(entry if isinstance(entry, Node) else None, start, shape[dim]))
        start += shape[dim]
    if len(entries) == 1 and entries[0].node is not None:
        return same(entries[0].node)
    holders = [e for e in entries if e.node is not None and spatial(e.node.place.dims[dim])]
    if not holders and (lined := _rows(call, dim, entries)) is not None:
        return lined
    if not holders or all(e.node is not None and _low(e.node, dim) for e in holders):
        return _channels(call, dim, [e.node for e in entries if e.node is not None])
    learned = any(id(entry) in call.learned for entry in call.args["tensors"])
    if all(e.node is not None and e.node.place.full_axis(dim) is not None for e in holders) and len(holders) == len(call.live):
        made = None if learned else _side_by_side(call, dim, holders)
        if made is not None:
            return made
    if len(holders) == 1 and not _is_irregular(holders[0], dim) and (made := beside(call, dim, entries, holders[0])) is not None:
        return made
    return put_together(call.shape, dim, [Listed(entry.node, entry.size) for entry in entries]) or depends_on_all(call)


def _is_irregular(entry: Entry, dim: int) -> bool:
    """Whether a list's order is none of digits."""
    return entry.node is not None and any(isinstance(part, PrefixedTokens) and part.cells for part in entry.node.place.dims[dim])


def _rows(call: Call, dim: int, entries: Sequence[Entry]) -> RuleOutput | None:
    """Concatenation of single cells; None if these are not cells of one axis."""
    if any(entry.size != 1 for entry in entries):
        return None
    cells = [
        None if n is None else Node(n.index, n.name, n.module, (*n.shape[:dim], *n.shape[dim + 1 :]), _squeezed(n.place, dim), n.edges)
        for n in (entry.node for entry in entries)
    ]
    made = restack(cells, dim, call.shape)
    if made is None:
        return None
    sources = [entry.node for entry in entries if entry.node is not None]
    return made._replace(edges=tuple(edge._replace(source=node) for edge, node in zip(made.edges, sources, strict=True)))


def _squeezed(place: AxisLayout, dim: int) -> AxisLayout:
    return AxisLayout(place.axes, (*place.dims[:dim], *place.dims[dim + 1 :]))


def _channels(call: Call, dim: int, nodes: Sequence[Node]) -> RuleOutput:
    """Concatenation along a dimension that is not an axis: elsewhere the parts agree as in an elementwise operation."""
    heads = [
        Node(
            n.index,
            n.name,
            n.module,
            (*n.shape[:dim], 1, *n.shape[dim + 1 :]),
            renormalise(n.place.axes, n.place.with_dims({dim: ()}).dims),
        )
        for n in nodes
    ]
    place, _ = broadcast(heads, (*call.shape[:dim], 1, *call.shape[dim + 1 :]))
    place = with_joined_lines(place.with_dims({dim: other(call.shape[dim])}), nodes)
    return RuleOutput(place, tuple(_along(place, node, dim) for node in nodes))


def _low(node: Node, dim: int) -> bool:
    """Whether a dimension holds no axis but low digits, as after pixel unshuffling by hand: then its axes live on without it, coarser."""
    left = renormalise(node.place.axes, node.place.with_dims({dim: ()}).dims)
    return left.present == node.place.present and not any(isinstance(part, PrefixedTokens) for part in node.place.dims[dim])


def _side_by_side(call: Call, dim: int, holders: Sequence[Entry]) -> RuleOutput | None:
    """Maps put side by side along one axis, constants between them being padding."""
    first = holders[0].node
    assert first is not None
    number_ = first.place.full_axis(dim)
    if number_ is None or any(e.node is None or e.node.place.full_axis(dim) != number_ for e in holders):
        return None
    total = call.shape[dim]
    # The large parts carry the map on beyond its ends; small ones are borders that wrap around.
    large = [i for i, e in enumerate(holders) if 2 * e.size >= max(entry.size for entry in holders)]
    nodes = [entry.node for entry in holders if entry.node is not None]
    line = joined_along(number_, [(nodes[i].place, holders[i].start) for i in large], total)
    axes = tuple(line if i == number_ else axis for i, axis in enumerate(with_joined_lines(first.place, nodes).axes))
    place = AxisLayout(axes, first.place.with_dims({dim: (AxisDigit(number_, 1, total),)}).dims)
    edges = []
    for i, entry in enumerate(holders):
        assert entry.node is not None
        move = Piece(entry.size, entry.start, 1, i == large[0], i == large[-1])
        edges.append(_moved_along(place, entry.node, dim, number_, move))
    return RuleOutput(place, tuple(edges))


def _moved_along(place: AxisLayout, node: Node, dim: int, number_: int, move: IndexMap) -> Edge:
    """Edge that keeps every position except along one axis."""
    edge = _along(place, node, dim)
    steps: list[Step | None] = list(edge.steps) if edge.steps is not None else [None] * len(place.axes)
    steps[number_] = Step(number_, move)
    return edge._replace(steps=tuple(steps))


def _along(place: AxisLayout, node: Node, dim: int) -> Edge:
    """Edge that keeps every position except along one dimension."""
    return related(place, node, [None if i == dim else i for i in range(len(node.shape))])


def beside(call: Call, dim: int, entries: Sequence[Entry], holder: Entry) -> RuleOutput | None:
    """Tokens without a position put before or after those of a map."""
    node = holder.node
    assert node is not None
    parts = node.place.dims[dim]
    before, after = holder.start, call.shape[dim] - holder.start - holder.size
    inner: tuple[AxisDigit, ...]
    if before < 0 or after < 0:
        return None
    if len(parts) == 1 and isinstance(parts[0], PrefixedTokens):
        before, inner, after = before + parts[0].before, parts[0].inner, after + parts[0].after
    elif any(isinstance(part, PrefixedTokens) for part in parts):
        return None
    else:
        inner = tuple(part for part in parts if isinstance(part, AxisDigit))
    place = node.place.with_dims({dim: (PrefixedTokens(before, inner, after),)})
    edges = [Edge(node, None, None if isinstance(parts[0], PrefixedTokens) else False)]
    for entry in entries:
        if entry.node is not None and entry.node is not node:
            edges.append(_along(place, entry.node, dim)._replace(aside=True))
    return RuleOutput(place, tuple(edges))


def written(part: Node, whole: Node | None, shape: Sequence[int], dim: int, start: int, *, step: int = 1) -> RuleOutput | None:
    """The whole after ``part`` was written into it along one dimension; None if it cannot be followed.

    Args:
        part: What was written.
        whole: The rest; None if it does not depend on the image.
        shape: Shape of the whole.
        dim: Dimension along which only some cells were written.
        start: First cell written.
        step: Distance between cells written.
    """
    count = part.shape[dim]
    axis = part.place.full_axis(dim)
    if spatial(part.place.dims[dim]) and axis is None:
        return None
    place = _grown(part.place, shape, dim, start, step)
    if whole is not None:
        if axis is None and len(whole.place.present) > len(place.present):
            place = whole.place
        if not _agrees(place, whole.place):
            return None
        place = with_joined_lines(place, [part, whole]) if axis is None else _with_lines_of(place, whole.place)
    along = place.full_axis(dim)
    large = 2 * count * step >= shape[dim]
    piece = Piece(count, start, step, large, large)
    if axis is None:
        where = None if along is None else Step(along, Piece(count, start, step))
        edges = [_along(place, part, dim)._replace(where=where)]
    else:
        edges = [_moved_along(place, part, dim, axis, piece)]
    if whole is not None and along is not None and whole.place.full_axis(dim) == along:
        edges.append(_moved_along(place, whole, dim, along, Hole(shape[dim], start, start + count * step, step)))
    elif whole is not None:
        edges.append(related(place, whole, list(range(len(shape)))))
    return RuleOutput(place, tuple(edges))


def _grown(place: AxisLayout, shape: Sequence[int], dim: int, start: int, step: int) -> AxisLayout:
    """The place of the whole that a part was written into, as far as the part tells."""
    axis = place.full_axis(dim)
    if axis is None:
        return place.with_dims({dim: other(shape[dim])})
    old = place.axes[axis]
    assert old is not None
    axes = tuple(old.resampled(shape[dim], scale=1 / step, shift=-start / step) if i == axis else a for i, a in enumerate(place.axes))
    return AxisLayout(axes, place.with_dims({dim: (AxisDigit(axis, 1, shape[dim]),)}).dims)


def _with_lines_of(place: AxisLayout, whole: AxisLayout) -> AxisLayout:
    """The place with the lines of the tensor that is written into beside those of what is written."""
    axes = [
        mine
        if mine is None or theirs is None or mine.size != theirs.size
        else replace(mine, lines=distinct_lines((*mine.lines, *theirs.lines), mine.size), doubt=mine.doubt or theirs.doubt)
        for mine, theirs in zip(place.axes, whole.axes, strict=True)
    ]
    return AxisLayout(tuple(axes), place.dims)


def _agrees(place: AxisLayout, other_place: AxisLayout) -> bool:
    """Whether a tensor has the place's axes, or none where it has not."""
    return all(mine == theirs or not spatial(theirs) for mine, theirs in zip(place.dims, other_place.dims, strict=True))
