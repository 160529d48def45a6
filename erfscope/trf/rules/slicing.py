"""Operations that pick parts: slices, single cells, splits, rolls, flips, index lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from erfscope.trf.axes.digit_maps import Cut, Regrid
from erfscope.trf.axes.index_maps import Fixed, Flip, IndexMap, Nothing, Roll, Window
from erfscope.trf.axes.place import OTHER, AxisDigit, AxisLayout, Dim, Part, PrefixedTokens, other, renormalise, spatial
from erfscope.trf.graph import Edge, Node, Step
from erfscope.trf.rules.lists import picked
from erfscope.trf.rules.registry import Answer, Call, RuleOutput, depends_on_all, number, numbers, rule, same
from erfscope.trf.rules.windows import Along, moved

VIEWS = frozenset(("view", "_unsafe_view", "reshape"))


def sliced(node: Node, dim: int, start: int, count: int, step: int = 1) -> RuleOutput | None:
    """Cells start, start + step, ... of one dimension, ``count`` of them; None if they cannot be followed."""
    if count == node.shape[dim]:
        return same(node)
    return _sliced(node, dim, start, count, step) or picked(node, dim, start + step * np.arange(count, dtype=np.intp))


def _sliced(node: Node, dim: int, start: int, count: int, step: int) -> RuleOutput | None:
    """The same where what is left are whole digits."""
    shape = tuple(count if i == dim else n for i, n in enumerate(node.shape))
    parts = node.place.dims[dim]
    if len(parts) == 1 and isinstance(parts[0], PrefixedTokens):
        return _unbundled(node, dim, parts[0], start, count) if step == 1 and not parts[0].cells else None
    if len(parts) > 1 and step == 1:
        return _leading(node, dim, start, count)
    if dim == len(shape) - 1 and step == 1 and (made := _straightened(node, start, count)) is not None:
        return made
    made = moved(node, shape, {dim: Along(count, partial(_shift, start=start, step=step), step, start)})
    return made or (_cut(node, dim, start, count) if step == 1 else None)


def _straightened(node: Node, start: int, count: int) -> RuleOutput | None:
    """Rows of relative positions made absolute, as HaloNet and BoTNet do it; None if this is not the last step of that.

    W rows of C columns, as one list with C - 1 - W zeros behind it, are read as W + 1 rows of C - 1, so that row r is shifted by r; of
    the first W rows the columns from W - 1 on, which still belong to row r, are kept.
    """
    chain = [node]
    for names in (("slice",), VIEWS, ("constant_pad_nd",), VIEWS):
        if chain[-1].name not in names or len(chain[-1].edges) != 1:
            return None
        chain.append(chain[-1].edges[0].source)
    _, skewed, padded, listed, square = chain
    rows, columns = square.shape[-2:] if len(square.shape) > 1 else (0, 0)
    shapes = [((rows, columns - 1), node), ((rows + 1, columns - 1), skewed), (((rows + 1) * (columns - 1),), padded)]
    if any(found.shape != (*square.shape[:-2], *shape) for shape, found in [*shapes, ((rows * columns,), listed)]):
        return None
    if start < rows - 1 or spatial(square.place.dims[-1]) or not _starts_the_same(padded):
        return None
    return RuleOutput(square.place.with_dims({len(square.shape) - 1: other(count)}), (Edge(square, None),))


def _starts_the_same(padded: Node) -> bool:
    """Whether nothing was put before a list."""
    (part,) = padded.place.dims[-1] if len(padded.place.dims[-1]) == 1 else (None,)
    if isinstance(part, PrefixedTokens):
        return part.before == 0
    steps = padded.edges[0].steps
    step = steps[part.axis] if isinstance(part, AxisDigit) and steps is not None else None
    return step is not None and step.move is not None and step.move(np.zeros(1, dtype=np.intp)).tolist() == [0]


def _cut(node: Node, dim: int, start: int, count: int) -> RuleOutput | None:
    """A slice of a dimension that is one digit of an axis among others."""
    parts = node.place.dims[dim]
    if len(parts) != 1 or not isinstance(parts[0], AxisDigit) or parts[0].axis == OTHER:
        return None
    digit = parts[0]
    axis = node.place.axes[digit.axis]
    assert axis is not None

    if any(isinstance(part, PrefixedTokens) for parts in node.place.dims for part in parts):
        return None

    def rescaled(part: Part) -> Part:
        if part is digit:
            return AxisDigit(digit.axis, digit.step, count)
        if isinstance(part, PrefixedTokens) or part.axis != digit.axis or part.step < digit.step:
            return part
        return AxisDigit(part.axis, part.step // digit.size * count, part.size)

    axes = list(node.place.axes)
    top = digit.step * digit.size == axis.size
    offset = start * digit.step
    shorter = axis.resampled(axis.size // digit.size * count, shift=offset)
    axes[digit.axis] = shorter if top else shorter.without_lines("cells of every window are left out")
    place = AxisLayout(tuple(axes), tuple(tuple(map(rescaled, parts)) for parts in node.place.dims))
    move: IndexMap = Window(axis.size, 1, 1, -offset) if top else Cut(axis.size, digit.step * digit.size, digit.step * count, offset)
    steps = [None if a is None else Step(i, Regrid(a.size, 1, 1)) for i, a in enumerate(node.place.axes)]
    steps[digit.axis] = Step(digit.axis, move)
    return RuleOutput(place, (Edge(node, tuple(steps)),))


def _shift(size: int, start: int, step: int) -> IndexMap:
    return Window(size, 1, step, -start)


def _unbundled(node: Node, dim: int, bundle: PrefixedTokens, start: int, count: int) -> RuleOutput | None:
    """Part of a list of tokens: the map, with or without tokens beside it, or only those."""
    first, last = bundle.before, bundle.size - bundle.after
    stop = start + count
    if stop <= first or start >= last:
        place = renormalise(node.place.axes, node.place.with_dims({dim: other(count)}).dims)
        steps = tuple(
            None if axis is None else Step(None, Nothing(axis.size)) if place.axes[i] is None else Step(i, Regrid(axis.size, 1, 1))
            for i, axis in enumerate(node.place.axes)
        )
        return RuleOutput(place, (Edge(node, steps, True),))
    if start > first or stop < last:
        return None
    inside: Dim = bundle.inner
    if start < first or stop > last:
        inside = (PrefixedTokens(first - start, bundle.inner, stop - last),)
        return RuleOutput(node.place.with_dims({dim: inside}), (Edge(node, None),))
    return RuleOutput(node.place.with_dims({dim: inside}), (Edge(node, None, False),))


def _leading(node: Node, dim: int, start: int, count: int) -> RuleOutput | None:
    """A slice of a dimension of several digits, where it cuts between values of the first."""
    first, *rest = node.place.dims[dim]
    each = math.prod(part.size for part in rest)
    if not isinstance(first, AxisDigit) or start % each or count % each:
        return None
    split = AxisLayout(node.place.axes, (*node.place.dims[:dim], (first,), tuple(rest), *node.place.dims[dim + 1 :]))
    shape = (*node.shape[:dim], first.size, each, *node.shape[dim + 1 :])
    inner = Node(node.index, node.name, node.module, shape, split)
    made = sliced(inner, dim, start // each, count // each)
    if made is None:
        return None
    dims = made.place.dims
    place = AxisLayout(made.place.axes, (*dims[:dim], (*dims[dim], *dims[dim + 1]), *dims[dim + 2 :]))
    return RuleOutput(place, tuple(edge._replace(source=node) for edge in made.edges))


@rule("slice", "narrow")
def slice_(call: Call) -> Answer:
    """``x[start:end:step]`` along one dimension."""
    node = call.live[0]
    dim = number(call.args.get("dim") or 0, len(node.shape))
    start, step = call.args.get("start") or 0, call.args.get("step") or 1
    start = min(start + node.shape[dim] if start < 0 else start, node.shape[dim])
    return sliced(node, dim, max(start, 0), call.shape[dim], step) or depends_on_all(call)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "tensor_split", "unsafe_chunk")
def split(call: Call) -> Answer:
    """Consecutive slices."""
    node = call.live[0]
    dim = number(call.args["dim"], len(node.shape))
    answers: list[RuleOutput | None] = []
    start = 0
    for i, shape in enumerate(call.shapes):
        answers.append(sliced(node, dim, start, shape[dim]) or depends_on_all(call, i))
        start += shape[dim]
    return answers


@rule("select")
def select(call: Call) -> Answer:
    """One index of a dimension, which disappears."""
    node = call.live[0]
    dim = number(call.args["dim"], len(node.shape))
    return selected(node, dim, call.args["index"] % node.shape[dim]) or depends_on_all(call)


@rule("unbind")
def unbind(call: Call) -> Answer:
    """Every index of a dimension by itself."""
    node = call.live[0]
    dim = number(call.args["dim"], len(node.shape))
    return [selected(node, dim, i) or depends_on_all(call, i) for i in range(len(call.shapes))]


def selected(node: Node, dim: int, index: int) -> RuleOutput | None:
    """One index of a dimension, which disappears; None if it cannot be followed."""
    parts = node.place.dims[dim]
    rest = (*node.place.dims[:dim], *node.place.dims[dim + 1 :])
    if not spatial(parts) or (node.shape[dim] == 1 and not parts):
        return RuleOutput(AxisLayout(node.place.axes, rest), (Edge(node, None),))
    if len(parts) == 1 and isinstance(parts[0], PrefixedTokens):
        made = sliced(node, dim, index, 1)
        return None if made is None else made._replace(place=AxisLayout(made.place.axes, _without(made.place.dims, dim)))
    if len(parts) != 1 or not isinstance(parts[0], AxisDigit):
        return None
    return _digit(node, dim, parts[0], index, rest)


def _without(dims: tuple[Dim, ...], dim: int) -> tuple[Dim, ...]:
    return (*dims[:dim], *dims[dim + 1 :])


def _digit(node: Node, dim: int, factor: AxisDigit, index: int, rest: tuple[Dim, ...]) -> RuleOutput | None:
    """One digit of an axis fixed: the whole coordinate, the lowest digit or the highest."""
    size = node.place.size_of(factor.axis)
    axes = list(node.place.axes)
    if factor.size == size:
        axes[factor.axis] = None
        move, axis = Fixed(size, index), None
        place, step = AxisLayout(tuple(axes), rest), Step(axis, move)
    elif factor.step == 1:
        old = axes[factor.axis]
        assert old is not None
        # What is left of a block stands where its one cell does, not in the middle of the block.
        axes[factor.axis] = old.resampled(size, shift=index - (factor.size - 1) / 2)
        place = renormalise(axes, rest)
        step = Step(factor.axis, Window(size, 1, factor.size, -index))
    elif factor.step * factor.size == size:
        old = axes[factor.axis]
        assert old is not None
        axes[factor.axis] = old.resampled(factor.step, shift=index * factor.step)
        place, step = renormalise(axes, rest), Step(factor.axis, Window(size, 1, 1, -index * factor.step))
    else:
        return None
    if step.axis is not None and place.axes[step.axis] is None:
        return None
    steps = tuple(None if a is None else Step(i, Regrid(a.size, 1, 1)) for i, a in enumerate(node.place.axes))
    return RuleOutput(place, (Edge(node, tuple(step if i == factor.axis else s for i, s in enumerate(steps))),))


@rule("roll")
def roll(call: Call) -> Answer:
    """Cyclic shift."""
    node = call.live[0]
    shifts, dims = call.args["shifts"], numbers(call.args.get("dims"), len(node.shape))
    if not call.args.get("dims") or len(set(dims)) != len(dims):
        return depends_on_all(call)
    changes = {dim: Along(node.shape[dim], partial(Roll, shift=shift), rolled=shift) for dim, shift in zip(dims, shifts, strict=True)}
    return moved(node, call.shape, changes) or depends_on_all(call)


@rule("flip", "rot90")
def flip(call: Call) -> Answer:
    """Reversal of dimensions."""
    node = call.live[0]
    dims = numbers(call.args["dims"], len(node.shape))
    turns = call.args["k"] % 4 if call.name == "rot90" else None
    if turns == 0:
        return same(node)
    if turns in (1, 3):
        made = _flipped(node, node.shape, [dims[1] if turns == 1 else dims[0]])
        order = list(range(len(node.shape)))
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
        return depends_on_all(call) if made is None else made._replace(place=made.place.permuted(order))
    return _flipped(node, call.shape, dims) or depends_on_all(call)


def _flipped(node: Node, shape: Sequence[int], dims: Sequence[int]) -> RuleOutput | None:
    """Some dimensions reversed; None if that cannot be followed."""
    made = moved(node, shape, {dim: Along(node.shape[dim], Flip, 1.0, node.shape[dim] - 1, -1.0) for dim in dims})
    if made is None:
        return None
    (edge,) = made.edges
    axes = {part.axis for dim in dims for part in node.place.dims[dim] if isinstance(part, AxisDigit)}
    steps = (s._replace(kind="mirror") if s is not None and s.axis in axes else s for s in edge.steps or ())
    return made._replace(edges=(edge._replace(steps=tuple(steps) if edge.steps is not None else None),))
