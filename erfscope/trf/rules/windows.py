"""The common form of all operations that move along axes: convolution, pooling, padding, interpolation, slicing, rolling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from erfscope.trf.axes.digit_maps import Raster, Regrid, Within
from erfscope.trf.axes.index_maps import Chain, IndexMap
from erfscope.trf.axes.place import (
    OTHER,
    Axis,
    AxisDigit,
    AxisLayout,
    Dim,
    Part,
    PrefixedTokens,
    factors,
    other,
    renormalise,
    reshaped,
    spatial,
)
from erfscope.trf.graph import Edge, Node, Step
from erfscope.trf.relate import related
from erfscope.trf.rules.registry import RuleOutput


class Along(NamedTuple):
    """What happens along one dimension."""

    #: Cells of the output.
    size: int
    #: From the number of input cells to the move.
    move: Callable[[int], IndexMap]
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

    def applied(self, axis: Axis, size: int) -> Axis:
        """The axis after the change, ``size`` cells long."""
        if self.rolled:
            return axis.rolled_by(self.rolled)
        return axis.resampled(size, scale=self.scale, step=self.step, shift=self.shift, doubt=self.doubt)


def moved(
    node: Node, shape: Sequence[int], changes: Mapping[int, Along], *, mixed: Sequence[int] = (), words: str = ""
) -> RuleOutput | None:
    """Place and edge of an operation that moves along some dimensions and reads some others in full.

    Args:
        node: The input.
        shape: Shape of the output, as many dimensions as the input.
        changes: What happens along each dimension that positions move along.
        mixed: Dimensions that are read in full (channels).
        words: Name of the operation where it mixes.

    Returns:
        None if a dimension that positions move along is not one axis by itself.
    """
    moves: dict[int, tuple[int, Along, int]] = {}  # axis -> (lowest digit's step, change, cells of the input)
    dims: dict[int, Dim] = {dim: other(shape[dim]) for dim in mixed}
    for dim, change in changes.items():
        parts = node.place.dims[dim]
        if not spatial(parts):
            dims[dim] = other(change.size)
            continue
        factor = parts[0]
        if len(parts) != 1 or not isinstance(factor, AxisDigit) or factor.axis in moves:
            return None
        if not _movable(node, factor, mixed):
            return moved_within(node, shape, changes, mixed=mixed, words=words)
        moves[factor.axis] = (factor.step, change, factor.size)
        dims[dim] = (AxisDigit(factor.axis, 1, change.size),)
    axes = list(node.place.axes)
    for number, (step, change, size) in moves.items():
        axis = axes[number]
        assert axis is not None
        axes[number] = change.applied(axis.resampled(size, scale=step, shift=(step - 1) / 2), change.size)
    place = renormalise(axes, node.place.with_dims(dims).dims)
    edge = related(place, node, [None if i in dims else i for i in range(len(shape))])
    steps: list[Step | None] = list(edge.steps) if edge.steps is not None else [None] * len(axes)
    for number, (step, change, size) in moves.items():
        move = change.move(size)
        steps[number] = Step(number, move if step == 1 else Chain(move, Regrid(node.place.size_of(number), 1, step)))
    return RuleOutput(place, (Edge(node, tuple(steps), edge.beside),), words)


def moved_within(
    node: Node, shape: Sequence[int], changes: Mapping[int, Along], *, mixed: Sequence[int] = (), words: str = ""
) -> RuleOutput | None:
    """The same where a dimension is one digit of an axis and the others are elsewhere, as with windows in the batch.

    Every digit keeps its place; the axis becomes longer or shorter by what happens inside each block.
    """
    if any(spatial(node.place.dims[dim]) for dim in mixed) or any(
        isinstance(part, PrefixedTokens) for dim in node.place.dims for part in dim
    ):
        return None
    axes, dims = list(node.place.axes), [other(shape[i]) if i in mixed else dim for i, dim in enumerate(node.place.dims)]
    steps = [None if axis is None else Step(i, Regrid(axis.size, 1, 1)) for i, axis in enumerate(axes)]
    touched: set[int] = set()
    for dim, change in changes.items():
        if not spatial(dims[dim]):
            dims[dim] = other(change.size)
            continue
        (digit,) = dims[dim] if len(dims[dim]) == 1 else (None,)
        if not isinstance(digit, AxisDigit) or digit.axis in touched or (axis := axes[digit.axis]) is None:
            return None
        touched.add(digit.axis)
        dims = [tuple(_resized(part, digit, change.size) for part in parts) for parts in dims]
        axes[digit.axis] = _applied_within(axis, digit, change)
        part = digit.step * digit.size < axis.size
        move = Within(axis.size, change.move(digit.size), digit.step, digit.size, change.size, part)
        steps[digit.axis] = Step(digit.axis, move)
    return RuleOutput(AxisLayout(tuple(axes), tuple(dims)), (Edge(node, tuple(steps)),), words)


def _applied_within(axis: Axis, digit: AxisDigit, change: Along) -> Axis:
    """An axis after a change of one of its digits, the same in every block."""
    made = change.applied(axis, axis.size // digit.size * change.size)
    top = digit.step * digit.size == axis.size
    stays = (change.scale, change.shift) == (1.0, 0.0) and change.size == digit.size
    even = digit.step == 1 and digit.size == change.size * change.scale
    return made if stays or even or (top and digit.step == 1) else made.without_lines("cells of every window are left out or added")


def along_list(node: Node, dim: int, count: int, kernel: int, stride: int) -> RuleOutput | None:
    """A window that slides along a list of all positions, as NextViT's pooling of tokens does.

    Where windows are whole digits these are mixed. Else what comes out is a list again, which stands on the first of its axes.
    """
    digits = [part for part in node.place.dims[dim] if isinstance(part, AxisDigit)]
    if len(digits) < len(node.place.dims[dim]) or any(f.axis == OTHER or f.size != node.place.size_of(f.axis) for f in digits):
        return None
    if kernel == stride and count * kernel == node.shape[dim]:
        split = reshaped(node.place, node.shape, (*node.shape[:dim], count, kernel, *node.shape[dim + 1 :]))
        if split is not None:
            place = renormalise(split.axes, (*split.dims[: dim + 1], *split.dims[dim + 2 :]))
            return _pooled(node, split, place, dim)
    axes, steps = list(node.place.axes), [None if a is None else Step(i, Regrid(a.size, 1, 1)) for i, a in enumerate(node.place.axes)]
    first, low = digits[0].axis, node.shape[dim]
    for factor in digits:
        low //= factor.size
        axes[factor.axis] = None
        steps[factor.axis] = Step(first, Raster(factor.size, low, node.shape[dim], kernel, stride), "window")
    old = node.place.axes[first]
    assert old is not None
    axes[first] = Axis(count, old.scale * old.size / count, doubt="a list of positions was pooled as a list")
    place = AxisLayout(tuple(axes), node.place.with_dims({dim: (AxisDigit(first, 1, count),)}).dims)
    return RuleOutput(place, (Edge(node, tuple(steps)),), "pooling of a list of positions")


def _pooled(node: Node, split: AxisLayout, place: AxisLayout, dim: int) -> RuleOutput:
    """Edge of an operation that mixes one digit of a dimension, given the place with that digit in the dimension behind."""
    inner = Node(node.index, node.name, node.module, (*node.shape[: dim + 1], 0, *node.shape[dim + 1 :]), split)
    pairs = [i if i <= dim else None if i == dim + 1 else i - 1 for i in range(len(split.dims))]
    return RuleOutput(place, (related(place, inner, pairs)._replace(source=node),), "pooling of a list of positions")


def _resized(part: Part, digit: AxisDigit, size: int) -> Part:
    """A digit of an axis one of whose digits has got another size."""
    if part == digit:
        return AxisDigit(digit.axis, digit.step, size)
    if isinstance(part, PrefixedTokens) or part.axis != digit.axis or part.step < digit.step:
        return part
    return AxisDigit(part.axis, part.step // digit.size * size, part.size)


def _movable(node: Node, factor: AxisDigit, mixed: Sequence[int]) -> bool:
    """Whether positions along the axis are this digit alone, lower digits being read in full."""
    if factor.step * factor.size != node.place.size_of(factor.axis):
        return False
    digits = [(i, f) for i, dim in enumerate(node.place.dims) for f in factors(dim) if f.axis == factor.axis and f is not factor]
    return all(i in mixed for i, f in digits if f.step < factor.step)
