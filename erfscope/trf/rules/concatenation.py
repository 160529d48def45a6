"""Concatenation, stacking, and writing a part into a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from erfscope.trf.axes.axis_layout import AxisFactor, AxisLayout, TokenSequence, canonical_layout, other, spatial
from erfscope.trf.axes.index_maps import IndexMap, OutputSlice, OutsideSlice
from erfscope.trf.edges.affine_centers import distinct_centers, join_parts, with_joined_centers
from erfscope.trf.edges.basic import broadcast, edge_between
from erfscope.trf.edges.restacking import restack
from erfscope.trf.edges.token_lists import ConcatenatedList, concatenate_lists
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, dim_index, rule, same


@rule("where", "lerp", "addcmul", "addcdiv", "hardswish", "hardsigmoid", "prelu", "_prelu_kernel", "rrelu_with_noise")
@rule("complex", "polar", "log_sigmoid_forward", "dropout")
def elementwise(call: Call) -> Answer:
    """Elementwise operations, among them those that PyTorch does not mark as such."""
    return RuleOutput(*broadcast(call.live, call.shape))


@rule("stack")
def stack(call: Call) -> Answer:
    """A new dimension without positions."""
    dim = dim_index(call.args["dim"], len(call.shape))
    restacked = restack([entry if isinstance(entry, Node) else None for entry in call.args["tensors"]], dim, call.shape)
    if restacked is not None:
        return restacked
    shape = (*call.shape[:dim], *call.shape[dim + 1 :])
    layout, edges = broadcast(call.live, shape)
    return RuleOutput(layout.with_new_dim(dim, other(call.shape[dim])), edges)


class ConcatenatedPart(NamedTuple):
    """One part of a concatenation."""

    #: None if it does not depend on the image.
    node: Node | None
    start: int
    size: int


@rule("cat", "concatenate")
def cat(call: Call) -> Answer:
    """Concatenation: of channels, of maps side by side, of tokens beside a map."""
    dim = dim_index(call.args["dim"], len(call.shape))
    entries, start = [], 0
    for entry in call.args["tensors"]:
        shape = entry.shape if isinstance(entry, (Node, Tensor)) else ()
        if len(shape) != len(call.shape) or not shape[dim]:  # PyTorch skips empty lists
            continue
        entries.append(ConcatenatedPart(entry if isinstance(entry, Node) else None, start, shape[dim]))
        start += shape[dim]
    if len(entries) == 1 and entries[0].node is not None:
        return same(entries[0].node)
    holders = [e for e in entries if e.node is not None and spatial(e.node.layout.dims[dim])]
    if not holders and (restacked := _concatenate_cells(call, dim, entries)) is not None:
        return restacked
    if not holders or all(e.node is not None and _holds_inner_factors(e.node, dim) for e in holders):
        return _concatenate_channels(call, dim, [e.node for e in entries if e.node is not None])
    learned = any(id(entry) in call.learned for entry in call.args["tensors"])
    if all(e.node is not None and e.node.layout.full_axis(dim) is not None for e in holders) and len(holders) == len(
        call.live
    ):
        made = None if learned else _concatenate_maps(call, dim, holders)
        if made is not None:
            return made
    if (
        len(holders) == 1
        and not _is_irregular(holders[0], dim)
        and (made := with_extra_tokens(call, dim, entries, holders[0])) is not None
    ):
        return made
    return concatenate_lists(
        call.shape, dim, [ConcatenatedList(entry.node, entry.size) for entry in entries]
    ) or depends_on_all(call)


def _is_irregular(entry: ConcatenatedPart, dim: int) -> bool:
    """Whether a list's order is none of factors."""
    return entry.node is not None and any(
        isinstance(part, TokenSequence) and part.cells for part in entry.node.layout.dims[dim]
    )


def _concatenate_cells(call: Call, dim: int, entries: Sequence[ConcatenatedPart]) -> RuleOutput | None:
    """Concatenation of single cells; None if these are not cells of one axis."""
    if any(entry.size != 1 for entry in entries):
        return None
    nodes = [entry.node for entry in entries]
    cells = [
        n and replace(n, shape=(*n.shape[:dim], *n.shape[dim + 1 :]), layout=n.layout.without_dim(dim)) for n in nodes
    ]
    made = restack(cells, dim, call.shape)
    if made is None:
        return None
    sources = [entry.node for entry in entries if entry.node is not None]
    return made._replace(
        edges=tuple(edge._replace(source=node) for edge, node in zip(made.edges, sources, strict=True))
    )


def _concatenate_channels(call: Call, dim: int, nodes: Sequence[Node]) -> RuleOutput:
    """Concatenation along a dimension that is not an axis: elsewhere the parts agree as in an elementwise operation."""
    heads = [
        replace(n, shape=(*n.shape[:dim], 1, *n.shape[dim + 1 :]), layout=_layout_without(n, dim), edges=())
        for n in nodes
    ]
    layout, _ = broadcast(heads, (*call.shape[:dim], 1, *call.shape[dim + 1 :]))
    layout = with_joined_centers(layout.with_dims({dim: other(call.shape[dim])}), nodes)
    return RuleOutput(layout, tuple(_edge_except(layout, node, dim) for node in nodes))


def _holds_inner_factors(node: Node, dim: int) -> bool:
    """Whether a dimension holds inner factors of axes only, as after pixel unshuffling by hand: its axes live on
    without it, coarser."""
    is_kept = _layout_without(node, dim).present == node.layout.present
    return is_kept and not any(isinstance(part, TokenSequence) for part in node.layout.dims[dim])


def _layout_without(node: Node, dim: int) -> AxisLayout:
    """The layout of a tensor after one dimension has been mixed away to size 1."""
    return canonical_layout(node.layout.axes, node.layout.with_dims({dim: ()}).dims)


def _concatenate_maps(call: Call, dim: int, holders: Sequence[ConcatenatedPart]) -> RuleOutput | None:
    """Maps put side by side along one axis, constants between them being padding."""
    first = holders[0].node
    assert first is not None
    number = first.layout.full_axis(dim)
    if number is None or any(e.node is None or e.node.layout.full_axis(dim) != number for e in holders):
        return None
    total = call.shape[dim]
    # The large parts carry the map on beyond its ends; small ones are borders that wrap around.
    large = [i for i, e in enumerate(holders) if 2 * e.size >= max(entry.size for entry in holders)]
    nodes = [entry.node for entry in holders if entry.node is not None]
    joined = join_parts(number, [(nodes[i].layout, holders[i].start) for i in large], total)
    layout = (
        with_joined_centers(first.layout, nodes)
        .with_axes({number: joined})
        .with_dims({dim: (AxisFactor(number, 1, total),)})
    )
    edges = []
    for i, entry in enumerate(holders):
        assert entry.node is not None
        index_map = OutputSlice(entry.size, entry.start, 1, i == large[0], i == large[-1])
        edges.append(_edge_with_map(layout, entry.node, dim, number, index_map))
    return RuleOutput(layout, tuple(edges))


def _edge_with_map(layout: AxisLayout, node: Node, dim: int, number: int, index_map: IndexMap) -> Edge:
    """Edge that keeps every position except along one axis."""
    return _edge_except(layout, node, dim).with_reads({number: AxisRead(number, index_map)})


def _edge_except(layout: AxisLayout, node: Node, dim: int) -> Edge:
    """Edge that keeps every position except along one dimension."""
    return edge_between(layout, node, [None if i == dim else i for i in range(len(node.shape))])


def with_extra_tokens(
    call: Call, dim: int, entries: Sequence[ConcatenatedPart], holder: ConcatenatedPart
) -> RuleOutput | None:
    """Tokens without a position put before or after those of a map."""
    node = holder.node
    assert node is not None
    parts = node.layout.dims[dim]
    before, after = holder.start, call.shape[dim] - holder.start - holder.size
    inner: tuple[AxisFactor, ...]
    if before < 0 or after < 0:
        return None
    if len(parts) == 1 and isinstance(parts[0], TokenSequence):
        before, inner, after = before + parts[0].before, parts[0].inner, after + parts[0].after
    elif any(isinstance(part, TokenSequence) for part in parts):
        return None
    else:
        inner = tuple(part for part in parts if isinstance(part, AxisFactor))
    layout = node.layout.with_dims({dim: (TokenSequence(before, inner, after),)})
    edges = [Edge(node, None, None if isinstance(parts[0], TokenSequence) else False)]
    for entry in entries:
        if entry.node is not None and entry.node is not node:
            edges.append(_edge_except(layout, entry.node, dim)._replace(extra_tokens_only=True))
    return RuleOutput(layout, tuple(edges))


def write_part(
    part: Node, whole: Node | None, shape: Sequence[int], dim: int, start: int, *, step: int = 1
) -> RuleOutput | None:
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
    axis = part.layout.full_axis(dim)
    if spatial(part.layout.dims[dim]) and axis is None:
        return None
    layout = _extend_axis(part.layout, shape, dim, start, step)
    if whole is not None:
        if axis is None and len(whole.layout.present) > len(layout.present):
            layout = whole.layout
        if not _has_axes_of(layout, whole.layout):
            return None
        layout = with_joined_centers(layout, [part, whole]) if axis is None else _with_centers_of(layout, whole.layout)
    along = layout.full_axis(dim)
    large = 2 * count * step >= shape[dim]
    written = OutputSlice(count, start, step, large, large)
    if axis is None:
        where = None if along is None else AxisRead(along, OutputSlice(count, start, step))
        edges = [_edge_except(layout, part, dim)._replace(only_where=where)]
    else:
        edges = [_edge_with_map(layout, part, dim, axis, written)]
    if whole is not None and along is not None and whole.layout.full_axis(dim) == along:
        edges.append(
            _edge_with_map(layout, whole, dim, along, OutsideSlice(shape[dim], start, start + count * step, step))
        )
    elif whole is not None:
        edges.append(edge_between(layout, whole, list(range(len(shape)))))
    return RuleOutput(layout, tuple(edges))


def _extend_axis(layout: AxisLayout, shape: Sequence[int], dim: int, start: int, step: int) -> AxisLayout:
    """The layout of the whole that a part was written into, as far as the part tells."""
    axis = layout.full_axis(dim)
    if axis is None:
        return layout.with_dims({dim: other(shape[dim])})
    longer = layout.axis(axis).resample(shape[dim], scale=1 / step, shift=-start / step)
    return layout.with_axes({axis: longer}).with_dims({dim: (AxisFactor(axis, 1, shape[dim]),)})


def _with_centers_of(layout: AxisLayout, whole: AxisLayout) -> AxisLayout:
    """The layout with the centres of the tensor that is written into beside those of what is written."""
    axes = [
        mine
        if mine is None or theirs is None or mine.size != theirs.size
        else replace(
            mine,
            centers=distinct_centers((*mine.centers, *theirs.centers), mine.size),
            doubt=mine.doubt or theirs.doubt,
        )
        for mine, theirs in zip(layout.axes, whole.axes, strict=True)
    ]
    return AxisLayout(tuple(axes), layout.dims)


def _has_axes_of(layout: AxisLayout, other_layout: AxisLayout) -> bool:
    """Whether a tensor has the layout's axes, or none where it has not."""
    return all(
        mine == theirs or not spatial(theirs) for mine, theirs in zip(layout.dims, other_layout.dims, strict=True)
    )
