"""Operations that pick parts: slices, single cells, splits, rolls, flips, index lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from erfscope.trf.axes.axis_layout import (
    OTHER,
    AxisFactor,
    AxisLayout,
    Dim,
    TokenSequence,
    canonical_layout,
    other,
    spatial,
)
from erfscope.trf.axes.factor_maps import FactorSlice
from erfscope.trf.axes.index_maps import Fixed, Flip, IndexMap, Roll, Window
from erfscope.trf.edges.resampling import Resampling, resample, resize_factor
from erfscope.trf.edges.token_lists import pick_entries, take_extra_tokens
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput
from erfscope.trf.operations import RESHAPES
from erfscope.trf.rules.registry import Answer, Call, depends_on_all, dim_index, dim_indices, rule, same


def slice_dim(node: Node, dim: int, start: int, count: int, step: int = 1) -> RuleOutput | None:
    """Cells start, start + step, ... of one dimension, ``count`` of them; None if they cannot be followed."""
    if count == node.shape[dim]:
        return same(node)
    return _slice_factors(node, dim, start, count, step) or pick_entries(
        node, dim, start + step * np.arange(count, dtype=np.intp)
    )


def _slice_factors(node: Node, dim: int, start: int, count: int, step: int) -> RuleOutput | None:
    """The same where what is left are whole factors."""
    shape = tuple(count if i == dim else n for i, n in enumerate(node.shape))
    parts = node.layout.dims[dim]
    if len(parts) == 1 and isinstance(parts[0], TokenSequence):
        return _slice_tokens(node, dim, parts[0], start, count) if step == 1 and not parts[0].cells else None
    if len(parts) > 1 and step == 1:
        return _slice_outer_factor(node, dim, start, count)
    if dim == len(shape) - 1 and step == 1 and (made := _undo_skew(node, start, count)) is not None:
        return made
    made = resample(node, shape, {dim: Resampling(count, partial(_shift, start=start, step=step), step, start)})
    return made or (_slice_inner_factor(node, dim, start, count) if step == 1 else None)


def _undo_skew(node: Node, start: int, count: int) -> RuleOutput | None:
    """Rows of relative positions made absolute, as HaloNet and BoTNet do it; None if this is not the last step of that.

    W rows of C columns, as one list with C - 1 - W zeros behind it, are read as W + 1 rows of C - 1, so that row r is
    shifted by r; of the first W rows the columns from W - 1 on, which still belong to row r, are kept."""
    chain = [node]
    for names in (("slice",), RESHAPES, ("constant_pad_nd",), RESHAPES):
        if chain[-1].name not in names or len(chain[-1].edges) != 1:
            return None
        chain.append(chain[-1].edges[0].source)
    _, skewed, padded, listed, square = chain
    rows, columns = square.shape[-2:] if len(square.shape) > 1 else (0, 0)
    shapes = [((rows, columns - 1), node), ((rows + 1, columns - 1), skewed), (((rows + 1) * (columns - 1),), padded)]
    if any(found.shape != (*square.shape[:-2], *shape) for shape, found in [*shapes, ((rows * columns,), listed)]):
        return None
    if start < rows - 1 or spatial(square.layout.dims[-1]) or not _starts_the_same(padded):
        return None
    return RuleOutput(square.layout.with_dims({len(square.shape) - 1: other(count)}), (Edge(square, None),))


def _starts_the_same(padded: Node) -> bool:
    """Whether nothing was put before a list."""
    (part,) = padded.layout.dims[-1] if len(padded.layout.dims[-1]) == 1 else (None,)
    if isinstance(part, TokenSequence):
        return part.before == 0
    reads = padded.edges[0].reads
    read = reads[part.axis] if isinstance(part, AxisFactor) and reads is not None else None
    return (
        read is not None and read.index_map is not None and read.index_map(np.zeros(1, dtype=np.intp)).tolist() == [0]
    )


def _slice_inner_factor(node: Node, dim: int, start: int, count: int) -> RuleOutput | None:
    """A slice of a dimension that is one factor of an axis among others."""
    parts = node.layout.dims[dim]
    if len(parts) != 1 or not isinstance(parts[0], AxisFactor) or parts[0].axis == OTHER:
        return None
    factor = parts[0]
    axis = node.layout.axis(factor.axis)
    if any(isinstance(part, TokenSequence) for parts in node.layout.dims for part in parts):
        return None
    top = factor.step * factor.size == axis.size
    offset = start * factor.step
    shorter = axis.resample(axis.size // factor.size * count, shift=offset)
    axes = {factor.axis: shorter if top else shorter.without_centers("cells of every window are left out")}
    dims = {i: tuple(resize_factor(part, factor, count) for part in parts) for i, parts in enumerate(node.layout.dims)}
    old, new = factor.step * factor.size, factor.step * count
    index_map: IndexMap = Window(axis.size, 1, 1, -offset) if top else FactorSlice(axis.size, old, new, offset)
    edge = Edge(node, None).with_reads({factor.axis: AxisRead(factor.axis, index_map)})
    return RuleOutput(node.layout.with_axes(axes).with_dims(dims), (edge,))


def _shift(size: int, start: int, step: int) -> IndexMap:
    return Window(size, 1, step, -start)


def _slice_tokens(node: Node, dim: int, tokens: TokenSequence, start: int, count: int) -> RuleOutput | None:
    """Part of a list of tokens: the map, with or without tokens beside it, or only those."""
    first, last = tokens.before, tokens.size - tokens.after
    stop = start + count
    if stop <= first or start >= last:
        return take_extra_tokens(node, dim, count)
    if start > first or stop < last:
        return None
    inside: Dim = tokens.inner
    if start < first or stop > last:
        inside = (TokenSequence(first - start, tokens.inner, stop - last),)
        return RuleOutput(node.layout.with_dims({dim: inside}), (Edge(node, None),))
    return RuleOutput(node.layout.with_dims({dim: inside}), (Edge(node, None, False),))


def _slice_outer_factor(node: Node, dim: int, start: int, count: int) -> RuleOutput | None:
    """A slice of a dimension of several factors, where it cuts between values of the first."""
    first, *rest = node.layout.dims[dim]
    each = math.prod(part.size for part in rest)
    if not isinstance(first, AxisFactor) or start % each or count % each:
        return None
    split = node.layout.with_dims({dim: tuple(rest)}).with_new_dim(dim, (first,))
    shape = (*node.shape[:dim], first.size, each, *node.shape[dim + 1 :])
    made = slice_dim(replace(node, shape=shape, layout=split, edges=()), dim, start // each, count // each)
    if made is None:
        return None
    dims = made.layout.dims
    layout = made.layout.without_dim(dim).with_dims({dim: (*dims[dim], *dims[dim + 1])})
    return RuleOutput(layout, tuple(edge._replace(source=node) for edge in made.edges))


@rule("slice", "narrow")
def slice_(call: Call) -> Answer:
    """``x[start:end:step]`` along one dimension."""
    node = call.live[0]
    dim = dim_index(call.args.get("dim") or 0, len(node.shape))
    start, step = call.args.get("start") or 0, call.args.get("step") or 1
    start = min(start + node.shape[dim] if start < 0 else start, node.shape[dim])
    return slice_dim(node, dim, max(start, 0), call.shape[dim], step) or depends_on_all(call)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "tensor_split", "unsafe_chunk")
def split(call: Call) -> Answer:
    """Consecutive slices."""
    node = call.live[0]
    dim = dim_index(call.args["dim"], len(node.shape))
    answers: list[RuleOutput | None] = []
    start = 0
    for i, shape in enumerate(call.shapes):
        answers.append(slice_dim(node, dim, start, shape[dim]) or depends_on_all(call, i))
        start += shape[dim]
    return answers


@rule("select")
def select(call: Call) -> Answer:
    """One index of a dimension, which disappears."""
    node = call.live[0]
    dim = dim_index(call.args["dim"], len(node.shape))
    return select_index(node, dim, call.args["index"] % node.shape[dim]) or depends_on_all(call)


@rule("unbind")
def unbind(call: Call) -> Answer:
    """Every index of a dimension by itself."""
    node = call.live[0]
    dim = dim_index(call.args["dim"], len(node.shape))
    return [select_index(node, dim, i) or depends_on_all(call, i) for i in range(len(call.shapes))]


def select_index(node: Node, dim: int, index: int) -> RuleOutput | None:
    """One index of a dimension, which disappears; None if it cannot be followed."""
    parts = node.layout.dims[dim]
    rest = node.layout.without_dim(dim)
    if not spatial(parts) or (node.shape[dim] == 1 and not parts):
        return RuleOutput(rest, (Edge(node, None),))
    if len(parts) == 1 and isinstance(parts[0], TokenSequence):
        made = slice_dim(node, dim, index, 1)
        return None if made is None else made._replace(layout=made.layout.without_dim(dim))
    if len(parts) != 1 or not isinstance(parts[0], AxisFactor):
        return None
    return _fix_factor(node, parts[0], index, rest)


def _fix_factor(node: Node, factor: AxisFactor, index: int, rest: AxisLayout) -> RuleOutput | None:
    """One factor of an axis fixed: the whole coordinate, the innermost or the outermost. ``rest`` is the layout without
    its dimension."""
    number, old = factor.axis, node.layout.axis(factor.axis)
    if factor.size == old.size:
        layout, read = rest.with_axes({number: None}), AxisRead(None, Fixed(old.size, index))
    elif factor.step == 1:
        # What is left of a block stands where its one cell does, not in the middle of the block.
        left = rest.with_axes({number: old.resample(old.size, shift=index - (factor.size - 1) / 2)})
        layout, read = canonical_layout(*left), AxisRead(number, Window(old.size, 1, factor.size, -index))
    elif factor.step * factor.size == old.size:
        left = rest.with_axes({number: old.resample(factor.step, shift=index * factor.step)})
        layout, read = canonical_layout(*left), AxisRead(number, Window(old.size, 1, 1, -index * factor.step))
    else:
        return None
    if read.axis is not None and layout.axes[number] is None:
        return None
    return RuleOutput(layout, (Edge(node, None).with_reads({number: read}),))


@rule("roll")
def roll(call: Call) -> Answer:
    """Cyclic shift."""
    node = call.live[0]
    shifts, dims = call.args["shifts"], dim_indices(call.args.get("dims"), len(node.shape))
    if not call.args.get("dims") or len(set(dims)) != len(dims):
        return depends_on_all(call)
    changes = {
        dim: Resampling(node.shape[dim], partial(Roll, shift=shift), rolled=shift)
        for dim, shift in zip(dims, shifts, strict=True)
    }
    return resample(node, call.shape, changes) or depends_on_all(call)


@rule("flip", "rot90")
def flip(call: Call) -> Answer:
    """Reversal of dimensions."""
    node = call.live[0]
    dims = dim_indices(call.args["dims"], len(node.shape))
    turns = call.args["k"] % 4 if call.name == "rot90" else None
    if turns == 0:
        return same(node)
    if turns in (1, 3):
        made = _flip_dims(node, node.shape, [dims[1] if turns == 1 else dims[0]])
        order = list(range(len(node.shape)))
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
        return depends_on_all(call) if made is None else made._replace(layout=made.layout.permute(order))
    return _flip_dims(node, call.shape, dims) or depends_on_all(call)


def _flip_dims(node: Node, shape: Sequence[int], dims: Sequence[int]) -> RuleOutput | None:
    """Some dimensions reversed; None if that cannot be followed."""
    made = resample(
        node, shape, {dim: Resampling(node.shape[dim], Flip, 1.0, node.shape[dim] - 1, -1.0) for dim in dims}
    )
    if made is None:
        return None
    (edge,) = made.edges
    axes = {part.axis for dim in dims for part in node.layout.dims[dim] if isinstance(part, AxisFactor)}
    return made._replace(edges=(edge.with_kind("mirror", axes),))
