"""Resampling of axes, the common form of convolution, pooling, padding, interpolation, slicing and rolling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from erfscope.trf.axes.axis_layout import (
    OTHER,
    Axis,
    AxisFactor,
    AxisLayout,
    Dim,
    Part,
    TokenSequence,
    canonical_layout,
    factors_of,
    other,
    reshape_layout,
    spatial,
)
from erfscope.trf.axes.factor_maps import BlockwiseMap, FlattenedWindow, Regrid
from erfscope.trf.axes.index_maps import Chain, IndexMap
from erfscope.trf.edges.basic import edge_between
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput


class Resampling(NamedTuple):
    """How an operation changes the cells along one dimension."""

    #: Cells of the output.
    size: int
    #: From the number of input cells to the index map.
    index_map: Callable[[int], IndexMap]
    #: Input cells per output cell.
    scale: float = 1.0
    #: The input cell, or the point between cells, that output cell 0 has its centre at.
    shift: float = 0.0
    #: ``scale`` with a sign, where the dimension is reversed.
    step: float | None = None
    #: Why that is not exact.
    doubt: str = ""
    #: Cells of a cyclic shift.
    rolled: int = 0

    def resample_axis(self, axis: Axis, size: int) -> Axis:
        """The axis after the change, ``size`` cells long."""
        if self.rolled:
            return axis.roll(self.rolled)
        return axis.resample(size, scale=self.scale, step=self.step, shift=self.shift, doubt=self.doubt)


def resample(
    node: Node,
    shape: Sequence[int],
    changes: Mapping[int, Resampling],
    *,
    mixed: Sequence[int] = (),
    mixing_name: str = "",
) -> RuleOutput | None:
    """Layout and edge of an operation that resamples some dimensions and reads some others in full.

    Args:
        node: The input.
        shape: Shape of the output, as many dimensions as the input.
        changes: The resampling of each dimension that has one.
        mixed: Dimensions that are read in full (channels).
        mixing_name: Name of the operation where it mixes positions.

    Returns:
        None if a resampled dimension is not one axis by itself.
    """
    moves: dict[int, tuple[int, Resampling, int]] = {}  # axis -> (innermost factor's step, change, cells of the input)
    dims: dict[int, Dim] = {dim: other(shape[dim]) for dim in mixed}
    for dim, change in changes.items():
        parts = node.layout.dims[dim]
        if not spatial(parts):
            dims[dim] = other(change.size)
            continue
        factor = parts[0]
        if len(parts) != 1 or not isinstance(factor, AxisFactor) or factor.axis in moves:
            return None
        if not _is_movable(node, factor, mixed):
            return resample_within_blocks(node, shape, changes, mixed=mixed, mixing_name=mixing_name)
        moves[factor.axis] = (factor.step, change, factor.size)
        dims[dim] = (AxisFactor(factor.axis, 1, change.size),)
    axes = list(node.layout.axes)
    for number, (step, change, size) in moves.items():
        axes[number] = change.resample_axis(
            node.layout.axis(number).resample(size, scale=step, shift=(step - 1) / 2), change.size
        )
    layout = canonical_layout(axes, node.layout.with_dims(dims).dims)
    edge = edge_between(layout, node, [None if i in dims else i for i in range(len(shape))])
    reads = {}
    for number, (step, change, size) in moves.items():
        index_map = change.index_map(size)
        reads[number] = AxisRead(
            number, index_map if step == 1 else Chain(index_map, Regrid(node.layout.size_of(number), 1, step))
        )
    return RuleOutput(layout, (edge.with_reads(reads),), mixing_name)


def resample_within_blocks(
    node: Node,
    shape: Sequence[int],
    changes: Mapping[int, Resampling],
    *,
    mixed: Sequence[int] = (),
    mixing_name: str = "",
) -> RuleOutput | None:
    """Resample a dimension that is one factor of an axis whose other factors are in other dimensions, as with windows
    in the batch.

    Every factor stays in its dimension; the axis becomes longer or shorter by what happens inside each block.
    """
    if any(spatial(node.layout.dims[dim]) for dim in mixed) or any(
        isinstance(part, TokenSequence) for dim in node.layout.dims for part in dim
    ):
        return None
    axes, dims = (
        list(node.layout.axes),
        [other(shape[i]) if i in mixed else dim for i, dim in enumerate(node.layout.dims)],
    )
    reads: dict[int, AxisRead] = {}
    for dim, change in changes.items():
        if not spatial(dims[dim]):
            dims[dim] = other(change.size)
            continue
        (factor,) = dims[dim] if len(dims[dim]) == 1 else (None,)
        if not isinstance(factor, AxisFactor) or factor.axis in reads or (axis := axes[factor.axis]) is None:
            return None
        dims = [tuple(resize_factor(part, factor, change.size) for part in parts) for parts in dims]
        axes[factor.axis] = _resample_factor(axis, factor, change)
        part = factor.step * factor.size < axis.size
        index_map = BlockwiseMap(axis.size, change.index_map(factor.size), factor.step, factor.size, change.size, part)
        reads[factor.axis] = AxisRead(factor.axis, index_map)
    return RuleOutput(AxisLayout(tuple(axes), tuple(dims)), (Edge(node, None).with_reads(reads),), mixing_name)


def _resample_factor(axis: Axis, factor: AxisFactor, change: Resampling) -> Axis:
    """An axis after a change of one of its factors, the same in every block."""
    made = change.resample_axis(axis, axis.size // factor.size * change.size)
    top = factor.step * factor.size == axis.size
    is_unchanged = (change.scale, change.shift) == (1.0, 0.0) and change.size == factor.size
    even = factor.step == 1 and factor.size == change.size * change.scale
    is_known = is_unchanged or even or (top and factor.step == 1)
    return made if is_known else made.without_centers("cells of every window are left out or added")


def resample_list(node: Node, dim: int, count: int, kernel: int, stride: int) -> RuleOutput | None:
    """A window that slides along a list of all positions, as NextViT's pooling of tokens does.

    Where windows are whole factors these are mixed. Else what comes out is a list again, which stands on the first of
    its axes."""
    factors = [part for part in node.layout.dims[dim] if isinstance(part, AxisFactor)]
    if len(factors) < len(node.layout.dims[dim]) or any(
        f.axis == OTHER or f.size != node.layout.size_of(f.axis) for f in factors
    ):
        return None
    if kernel == stride and count * kernel == node.shape[dim]:
        split = reshape_layout(node.layout, node.shape, (*node.shape[:dim], count, kernel, *node.shape[dim + 1 :]))
        if split is not None:
            layout = canonical_layout(split.axes, (*split.dims[: dim + 1], *split.dims[dim + 2 :]))
            return _pool_factor(node, split, layout, dim)
    axes, reads = list(node.layout.axes), dict[int, AxisRead]()
    first, low = factors[0].axis, node.shape[dim]
    for factor in factors:
        low //= factor.size
        axes[factor.axis] = None
        reads[factor.axis] = AxisRead(
            first, FlattenedWindow(factor.size, low, node.shape[dim], kernel, stride), "window"
        )
    old = node.layout.axis(first)
    axes[first] = Axis(count, old.scale * old.size / count, doubt="a list of positions was pooled as a list")
    layout = AxisLayout(tuple(axes), node.layout.with_dims({dim: (AxisFactor(first, 1, count),)}).dims)
    return RuleOutput(layout, (Edge(node, None).with_reads(reads),), "pooling of a list of positions")


def _pool_factor(node: Node, split: AxisLayout, layout: AxisLayout, dim: int) -> RuleOutput:
    """Edge of an operation that mixes one factor of a dimension, given the layout with that factor in the dimension
    behind."""
    inner = replace(node, shape=(*node.shape[: dim + 1], 0, *node.shape[dim + 1 :]), layout=split, edges=())
    pairs = [i if i <= dim else None if i == dim + 1 else i - 1 for i in range(len(split.dims))]
    return RuleOutput(
        layout, (edge_between(layout, inner, pairs)._replace(source=node),), "pooling of a list of positions"
    )


def resize_factor(part: Part, factor: AxisFactor, size: int) -> Part:
    """A part of a dimension after ``factor`` of its axis got another size: factors above that factor change their
    steps."""
    if part == factor:
        return AxisFactor(factor.axis, factor.step, size)
    if isinstance(part, TokenSequence) or part.axis != factor.axis or part.step < factor.step:
        return part
    return AxisFactor(part.axis, part.step // factor.size * size, part.size)


def _is_movable(node: Node, factor: AxisFactor, mixed: Sequence[int]) -> bool:
    """Whether this factor alone says where on its axis a cell is, inner factors being read in full."""
    if factor.step * factor.size != node.layout.size_of(factor.axis):
        return False
    factors = [
        (i, f)
        for i, dim in enumerate(node.layout.dims)
        for f in factors_of(dim)
        if f.axis == factor.axis and f is not factor
    ]
    return all(i in mixed for i, f in factors if f.step < factor.step)
