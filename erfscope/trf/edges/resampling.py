"""Resampling of axes, the common form of convolution, pooling, padding, interpolation, slicing and rolling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from erfscope.trf.axes.axis_layout import (
    OTHER,
    Axis,
    AxisDigit,
    AxisLayout,
    Dim,
    Part,
    TokenSequence,
    digits_of,
    other,
    renormalise,
    reshape_layout,
    spatial,
)
from erfscope.trf.axes.digit_maps import Raster, Regrid, Within
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
    node: Node, shape: Sequence[int], changes: Mapping[int, Resampling], *, mixed: Sequence[int] = (), mixing_name: str = ""
) -> RuleOutput | None:
    """Place and edge of an operation that resamples some dimensions and reads some others in full.

    Args:
        node: The input.
        shape: Shape of the output, as many dimensions as the input.
        changes: The resampling of each dimension that has one.
        mixed: Dimensions that are read in full (channels).
        mixing_name: Name of the operation where it mixes positions.

    Returns:
        None if a resampled dimension is not one axis by itself.
    """
    moves: dict[int, tuple[int, Resampling, int]] = {}  # axis -> (lowest digit's step, change, cells of the input)
    dims: dict[int, Dim] = {dim: other(shape[dim]) for dim in mixed}
    for dim, change in changes.items():
        parts = node.place.dims[dim]
        if not spatial(parts):
            dims[dim] = other(change.size)
            continue
        factor = parts[0]
        if len(parts) != 1 or not isinstance(factor, AxisDigit) or factor.axis in moves:
            return None
        if not _is_movable(node, factor, mixed):
            return resample_within_blocks(node, shape, changes, mixed=mixed, mixing_name=mixing_name)
        moves[factor.axis] = (factor.step, change, factor.size)
        dims[dim] = (AxisDigit(factor.axis, 1, change.size),)
    axes = list(node.place.axes)
    for number, (step, change, size) in moves.items():
        axes[number] = change.resample_axis(node.place.axis(number).resample(size, scale=step, shift=(step - 1) / 2), change.size)
    place = renormalise(axes, node.place.with_dims(dims).dims)
    edge = edge_between(place, node, [None if i in dims else i for i in range(len(shape))])
    reads = {}
    for number, (step, change, size) in moves.items():
        index_map = change.index_map(size)
        reads[number] = AxisRead(number, index_map if step == 1 else Chain(index_map, Regrid(node.place.size_of(number), 1, step)))
    return RuleOutput(place, (edge.with_reads(reads),), mixing_name)


def resample_within_blocks(
    node: Node, shape: Sequence[int], changes: Mapping[int, Resampling], *, mixed: Sequence[int] = (), mixing_name: str = ""
) -> RuleOutput | None:
    """Resample a dimension that is one digit of an axis whose other digits are in other dimensions, as with windows in the batch.

    Every digit keeps its place; the axis becomes longer or shorter by what happens inside each block.
    """
    if any(spatial(node.place.dims[dim]) for dim in mixed) or any(
        isinstance(part, TokenSequence) for dim in node.place.dims for part in dim
    ):
        return None
    axes, dims = list(node.place.axes), [other(shape[i]) if i in mixed else dim for i, dim in enumerate(node.place.dims)]
    reads: dict[int, AxisRead] = {}
    for dim, change in changes.items():
        if not spatial(dims[dim]):
            dims[dim] = other(change.size)
            continue
        (digit,) = dims[dim] if len(dims[dim]) == 1 else (None,)
        if not isinstance(digit, AxisDigit) or digit.axis in reads or (axis := axes[digit.axis]) is None:
            return None
        dims = [tuple(resize_digit(part, digit, change.size) for part in parts) for parts in dims]
        axes[digit.axis] = _resample_digit(axis, digit, change)
        part = digit.step * digit.size < axis.size
        index_map = Within(axis.size, change.index_map(digit.size), digit.step, digit.size, change.size, part)
        reads[digit.axis] = AxisRead(digit.axis, index_map)
    return RuleOutput(AxisLayout(tuple(axes), tuple(dims)), (Edge(node, None).with_reads(reads),), mixing_name)


def _resample_digit(axis: Axis, digit: AxisDigit, change: Resampling) -> Axis:
    """An axis after a change of one of its digits, the same in every block."""
    made = change.resample_axis(axis, axis.size // digit.size * change.size)
    top = digit.step * digit.size == axis.size
    is_unchanged = (change.scale, change.shift) == (1.0, 0.0) and change.size == digit.size
    even = digit.step == 1 and digit.size == change.size * change.scale
    return made if is_unchanged or even or (top and digit.step == 1) else made.without_lines("cells of every window are left out or added")


def resample_list(node: Node, dim: int, count: int, kernel: int, stride: int) -> RuleOutput | None:
    """A window that slides along a list of all positions, as NextViT's pooling of tokens does.

    Where windows are whole digits these are mixed. Else what comes out is a list again, which stands on the first of its axes.
    """
    digits = [part for part in node.place.dims[dim] if isinstance(part, AxisDigit)]
    if len(digits) < len(node.place.dims[dim]) or any(f.axis == OTHER or f.size != node.place.size_of(f.axis) for f in digits):
        return None
    if kernel == stride and count * kernel == node.shape[dim]:
        split = reshape_layout(node.place, node.shape, (*node.shape[:dim], count, kernel, *node.shape[dim + 1 :]))
        if split is not None:
            place = renormalise(split.axes, (*split.dims[: dim + 1], *split.dims[dim + 2 :]))
            return _pool_digit(node, split, place, dim)
    axes, reads = list(node.place.axes), dict[int, AxisRead]()
    first, low = digits[0].axis, node.shape[dim]
    for factor in digits:
        low //= factor.size
        axes[factor.axis] = None
        reads[factor.axis] = AxisRead(first, Raster(factor.size, low, node.shape[dim], kernel, stride), "window")
    old = node.place.axis(first)
    axes[first] = Axis(count, old.scale * old.size / count, doubt="a list of positions was pooled as a list")
    place = AxisLayout(tuple(axes), node.place.with_dims({dim: (AxisDigit(first, 1, count),)}).dims)
    return RuleOutput(place, (Edge(node, None).with_reads(reads),), "pooling of a list of positions")


def _pool_digit(node: Node, split: AxisLayout, place: AxisLayout, dim: int) -> RuleOutput:
    """Edge of an operation that mixes one digit of a dimension, given the place with that digit in the dimension behind."""
    inner = replace(node, shape=(*node.shape[: dim + 1], 0, *node.shape[dim + 1 :]), place=split, edges=())
    pairs = [i if i <= dim else None if i == dim + 1 else i - 1 for i in range(len(split.dims))]
    return RuleOutput(place, (edge_between(place, inner, pairs)._replace(source=node),), "pooling of a list of positions")


def resize_digit(part: Part, digit: AxisDigit, size: int) -> Part:
    """A part of a dimension after ``digit`` of its axis got another size: digits above that digit change their steps."""
    if part == digit:
        return AxisDigit(digit.axis, digit.step, size)
    if isinstance(part, TokenSequence) or part.axis != digit.axis or part.step < digit.step:
        return part
    return AxisDigit(part.axis, part.step // digit.size * size, part.size)


def _is_movable(node: Node, factor: AxisDigit, mixed: Sequence[int]) -> bool:
    """Whether this digit alone says where on its axis a cell is, lower digits being read in full."""
    if factor.step * factor.size != node.place.size_of(factor.axis):
        return False
    digits = [(i, f) for i, dim in enumerate(node.place.dims) for f in digits_of(dim) if f.axis == factor.axis and f is not factor]
    return all(i in mixed for i, f in digits if f.step < factor.step)
