"""Edges of operations of which it is known which dimensions of an input and of the output have the same positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from erfscope.trf.axes.axis_layout import (
    Axis,
    AxisFactor,
    AxisLayout,
    Dim,
    TokenSequence,
    factors_of,
    lowest_step,
    other,
    spatial,
)
from erfscope.trf.axes.factor_maps import AcrossBlocks, Regrid, Tiled
from erfscope.trf.axes.index_maps import Fixed
from erfscope.trf.edges.affine_centers import with_joined_centers
from erfscope.trf.graph import AxisRead, Edge, Node


def edge_between(out: AxisLayout, source: Node, pairs: Sequence[int | None], *, keeps_positions: bool = False) -> Edge:
    """Edge of an operation that keeps the positions of paired dimensions and reads unpaired dimensions in full.

    Args:
        out: Layout of the output.
        source: The input.
        pairs: For each dimension of the input the dimension of the output that has the same positions, or None.
        keeps_positions: The output has the input's axes, though the operation mixes along the unpaired dimensions.
    """
    layout = source.layout
    if layout is out and not keeps_positions and list(pairs) == list(range(len(pairs))):
        return Edge(source, None)
    twins: dict[int, list[tuple[AxisFactor, AxisFactor | None]]] = {axis: [] for axis in layout.present}
    unclear: set[int] = set()
    extra_tokens: bool | None = None if any(map(_has_tokens, layout.dims)) else False
    for dim, pair in zip(layout.dims, pairs, strict=True):
        partners = _partners(dim, out.dims[pair]) if pair is not None else [None] * len(list(factors_of(dim)))
        if _has_tokens(dim) and (pair is None or not _has_tokens(out.dims[pair])):
            extra_tokens = True
        for i, factor in enumerate(factors_of(dim)):
            if factor.axis == -1:
                continue
            if partners is None:
                unclear.add(factor.axis)
            else:
                twins[factor.axis].append((factor, partners[i]))
    reads = tuple(
        None
        if axis is None
        else AxisRead(None, None, "unknown")
        if i in unclear
        else _axis_read(i, axis, twins[i], out, keeps_positions)
        for i, axis in enumerate(layout.axes)
    )
    return Edge(source, reads, extra_tokens)


def unknown_edge(source: Node) -> Edge:
    """Edge of an operation that is not understood: it may read everything, for reasons not known."""
    reads = tuple(None if axis is None else AxisRead(None, None, "unknown") for axis in source.layout.axes)
    return Edge(source, reads, any(map(_has_tokens, source.layout.dims)))


def full_edge(source: Node) -> Edge:
    """Edge of an operation that is known to read all of this input, wherever its output is."""
    return edge_between(AxisLayout((None,) * len(source.layout.axes), ()), source, [None] * len(source.shape))


def broadcast(sources: Sequence[Node], shape: Sequence[int]) -> tuple[AxisLayout, tuple[Edge, ...]]:
    """Layout and edges of an elementwise operation on inputs that are broadcast to ``shape``."""
    main = max(sources, key=lambda node: len(node.layout.present))
    layout = main.layout if main.shape == tuple(shape) else _stretch(main, shape)
    for node in sources:
        if node is not main:
            layout = _with_missing_axes(layout, node, shape)
    layout = with_joined_centers(layout, sources)
    edges = []
    for node in sources:
        lead = len(shape) - len(node.shape)
        pairs = [lead + i if n == shape[lead + i] else None for i, n in enumerate(node.shape)]
        edges.append(edge_between(layout, node, pairs))
    return layout, tuple(edges)


def _stretch(node: Node, shape: Sequence[int]) -> AxisLayout:
    """The layout of a tensor broadcast to ``shape``: where it is repeated it has no axis any more."""
    lead = len(shape) - len(node.shape)
    dims = [other(n) for n in shape[:lead]]
    gone: set[int] = set()
    for i, n in enumerate(node.shape):
        same = n == shape[lead + i]
        dims.append(node.layout.dims[i] if same else other(shape[lead + i]))
        if not same:
            gone.update(f.axis for f in factors_of(node.layout.dims[i]))
    return AxisLayout(tuple(None if i in gone else axis for i, axis in enumerate(node.layout.axes)), tuple(dims))


def _with_missing_axes(layout: AxisLayout, node: Node, shape: Sequence[int]) -> AxisLayout:
    """The layout with those axes of another operand that it lacks, where its own dimensions are free for them."""
    lead = len(shape) - len(node.shape)
    missing = [axis for axis in node.layout.present if layout.axes[axis] is None]
    for axis in missing:
        spots = {
            lead + i: dim for i, dim in enumerate(node.layout.dims) if any(f.axis == axis for f in factors_of(dim))
        }
        vacant = all(not spatial(layout.dims[i]) and node.shape[i - lead] == shape[i] for i in spots)
        alone = all(f.axis in (axis, -1) for dim in spots.values() for f in factors_of(dim))
        if vacant and alone:
            axes = tuple(node.layout.axes[axis] if i == axis else old for i, old in enumerate(layout.axes))
            layout = AxisLayout(axes, layout.with_dims(spots).dims)
    return layout


def _has_tokens(dim: Dim) -> bool:
    return any(isinstance(part, TokenSequence) for part in dim)


def _partners(dim: Dim, out: Dim) -> list[AxisFactor | None] | None:
    """For each factor of ``dim`` the factor of ``out`` with the same value, None if it has none; no list if the two do
    not line up."""
    if not spatial(out):
        return None if any(f.size > 1 for f in factors_of(dim) if f.axis != -1) else [None] * len(list(factors_of(dim)))
    if len(dim) != len(out):
        return None
    partners: list[AxisFactor | None] = []
    for mine, theirs in zip(dim, out, strict=True):
        if mine.size != theirs.size:
            return None
        if isinstance(mine, TokenSequence):
            if (
                not isinstance(theirs, TokenSequence)
                or not mine.is_arranged_as(theirs)
                or len(mine.inner) != len(theirs.inner)
            ):
                return None
            partners.extend(theirs.inner)
            if any(a.size != b.size for a, b in zip(mine.inner, theirs.inner, strict=True)):
                return None
        elif isinstance(theirs, TokenSequence) or (theirs.axis == -1 and mine.axis != -1 and mine.size > 1):
            return None  # a position that the output does not know of
        else:
            partners.append(theirs if theirs.axis != -1 else None)
    return partners


def _axis_read(
    number: int, axis: Axis, twins: list[tuple[AxisFactor, AxisFactor | None]], out: AxisLayout, keeps_positions: bool
) -> AxisRead:
    """The read of one axis, given each of its factors and the output's factor with the same value (None: read in
    full)."""
    paired = sorted(((mine, theirs) for mine, theirs in twins if theirs is not None), key=lambda pair: -pair[0].step)
    if not paired:
        if axis.size == 1:
            return AxisRead(None, Fixed(1, 0))
        return AxisRead(number if keeps_positions else None, None, "global", keeps_positions)
    numbers = {theirs.axis for _, theirs in paired}
    if len(numbers) != 1:
        return AxisRead(None, None, "unknown")
    (partner,) = numbers
    under, over = lowest_step(mine for mine, _ in paired), lowest_step(theirs for _, theirs in paired)
    count = math.prod(mine.size for mine, _ in paired)
    if under and over and under * count == axis.size and over * count == out.size_of(partner):
        in_order = all(mine.step * over == theirs.step * under for mine, theirs in paired)
        if in_order:
            return AxisRead(partner, Regrid(axis.size, over, under), "window" if over > 1 else "local", keeps_positions)
    if (
        under
        and over
        and under * count == axis.size
        and all(mine.step * over == theirs.step * under for mine, theirs in paired)
    ):
        return AxisRead(
            partner, Tiled(axis.size, over, under, count), "window", keeps_positions
        )  # repeated in every window
    if under and over and over * count == out.size_of(partner) and not axis.size % (under * count):
        low = [mine for mine, theirs in twins if theirs is None and mine.step < under * count]
        if all(mine.step * over == theirs.step * under for mine, theirs in paired) and all(
            mine.step < under for mine in low
        ):
            return AxisRead(
                partner, AcrossBlocks(axis.size, over, under, count), "global", keeps_positions
            )  # mixed over all windows
    mixed = max((mine for mine, theirs in twins if theirs is None), key=lambda f: f.step, default=None)
    if mixed is not None and mixed.step * mixed.size == axis.size:
        return AxisRead(number if keeps_positions else None, None, "global", keeps_positions)
    return AxisRead(None, None, "unknown")
