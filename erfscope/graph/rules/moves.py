"""Operations that only move elements: views, permutations, slices, concatenations, picking by constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import fx

from erfscope.graph.graph import shape_of
from erfscope.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    Reshape,
    Shape,
    Taps,
    Whole,
    aligned,
    dim_of,
    dims_of,
    move,
    picks,
    taps,
)


@move(
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "view_as",
    "reshape_as",
    "_reshape_alias",
    "ravel",
)
def reshape(call: Call) -> list[Edge] | None:
    """The same elements in the same order."""
    return [Edge(source=call.tensor(), steps=(Reshape(call.shape),))]


@move(
    "permute", "transpose", "t", "movedim", "numpy_T", "swapaxes", "swapdims", "moveaxis", "mT", "adjoint", "matrix_H"
)
def permute(call: Call) -> list[Edge] | None:
    """Dimensions in another order."""
    x = call.tensor()
    return [Edge(source=x, steps=(permuted(shape_of(x), order_of(call, len(shape_of(x)))),))]


def order_of(call: Call, rank: int) -> list[int]:
    """The dimension of the input that each dimension of the output is."""
    if call.name == "permute":
        return [dim_of(each, rank) for each in call.args["dims"]]
    order = list(range(rank))
    if call.name in ("movedim", "moveaxis"):
        source, goal = (dims_of(call.args[key], rank) for key in ("source", "destination"))
        order = [each for each in order if each not in source]
        for to, each in sorted(zip(goal, source, strict=True)):
            order.insert(to, each)
        return order
    if rank > 1:
        a, b = (call.args.get(key, default) for key, default in (("dim0", -2), ("dim1", -1)))
        a, b = (dim_of(call.args.get(old, new), rank) for old, new in (("axis0", a), ("axis1", b)))
        order[a], order[b] = order[b], order[a]
    return order


def permuted(shape: Sequence[int], order: Sequence[int]) -> Dims:
    """The step of a permutation."""
    return Dims(tuple(order.index(i) for i in range(len(shape))), tuple(shape[i] for i in order))


def along(call: Call, x: fx.Node, reads: Mapping[int, int | Whole | Taps], shape: Shape | None = None) -> list[Edge]:
    """An edge that keeps every dimension but some."""
    dims: list[int | Whole | Taps] = list(range(len(shape_of(x))))
    for dim, read in reads.items():
        dims[dim] = read
    return [Edge(source=x, steps=(Dims(tuple(dims), call.shape if shape is None else shape),))]


@move("slice", "narrow")
def slice_(call: Call) -> list[Edge] | None:
    """``x[start:end:step]`` along one dimension."""
    x = call.tensor()
    dim, size = dim_of(call.args.get("dim", 0), len(call.shape)), shape_of(x)[call.args.get("dim", 0)]
    start, step = call.args.get("start") or 0, call.args.get("step", 1)
    start = min(max(start + size if start < 0 else start, 0), size)
    return along(call, x, {dim: picks(dim, size, start + step * np.arange(call.shape[dim]), scale=step)})


@move("select")
def select(call: Call) -> list[Edge] | None:
    """``x[:, index]``: one index of one dimension."""
    x = call.tensor()
    rank = len(shape_of(x))
    dim = dim_of(call.args["dim"], rank)
    return [Edge(source=x, steps=(one_of(shape_of(x), dim, call.args["index"] % shape_of(x)[dim]),))]


def one_of(shape: Shape, dim: int, index: int) -> Dims:
    """The step that leaves one index of a dimension."""
    reads = [i if i < dim else i - 1 for i in range(len(shape))]
    lone = picks(None, shape[dim], [index])
    return Dims((*reads[:dim], lone, *reads[dim + 1 :]), (*shape[:dim], *shape[dim + 1 :]))


@move("unbind")
def unbind(call: Call) -> list[Edge] | None:
    """Every index of one dimension."""
    x = call.tensor()
    return [Edge(source=x, steps=(one_of(shape_of(x), dim_of(call.args["dim"], len(shape_of(x))), call.output),))]


@move("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "tensor_split", "unsafe_chunk")
def split(call: Call) -> list[Edge] | None:
    """Consecutive slices."""
    x = call.tensor()
    dim = dim_of(call.args["dim"], len(call.shape))
    start = sum(shape[dim] for shape in call.shapes[: call.output])
    return along(call, x, {dim: picks(dim, shape_of(x)[dim], start + np.arange(call.shape[dim]), scale=1)})


@move("roll")
def roll(call: Call) -> list[Edge] | None:
    """Cyclic shifts; without borders plain ones."""
    x = call.tensor()
    shifts, dims = (
        [each] if isinstance(each, int) else list(each) for each in (call.args["shifts"], call.args["dims"])
    )
    if not dims:
        return None
    reads: dict[int, int | Whole | Taps] = {}
    for dim in dims_of(dims, len(call.shape)):
        size = call.shape[dim]
        shift = sum(by for by, other in zip(shifts, dims_of(dims, len(call.shape)), strict=True) if other == dim)
        moved = np.arange(size)[:, None] - shift
        reads[dim] = taps(dim, size, moved, inside=moved % size, center=(moved[:, 0] % size).astype(float), scale=1)
    return along(call, x, reads)


@move("flip", "fliplr", "flipud")
def flip(call: Call) -> list[Edge] | None:
    """Reversed dimensions."""
    asked = {"fliplr": 1, "flipud": 0}.get(call.name, call.args.get("dims"))
    dims = dims_of(asked, len(call.shape))
    return along(
        call, call.tensor(), {d: picks(d, call.shape[d], np.arange(call.shape[d])[::-1], scale=-1) for d in dims}
    )


@move("rot90")
def rot90(call: Call) -> list[Edge] | None:
    """Quarter turns: a flip, a transposition, or both."""
    x, (a, b), times = call.tensor(), dims_of(call.args["dims"], len(call.shape)), call.args["k"] % 4
    shape, order = shape_of(x), list(range(len(call.shape)))
    flipped = [[], [b], [a, b], [a]][times]  # before the transposition of odd ones
    reads = tuple(picks(d, n, np.arange(n)[::-1], scale=-1) if d in flipped else d for d, n in enumerate(shape))
    order[a], order[b] = (b, a) if times % 2 else (a, b)
    return [Edge(source=x, steps=(Dims(reads, shape), permuted(shape, order)))]


@move("expand", "expand_as", "broadcast_to")
def expand(call: Call) -> list[Edge] | None:
    """Dimensions of one index stretched."""
    return [Edge(source=call.tensor(), steps=aligned(shape_of(call.tensor()), call.shape))]


@move("repeat", "tile")
def repeat(call: Call) -> list[Edge] | None:
    """Copies beside each other."""
    x = call.tensor()
    shape = shape_of(x)
    lead = len(call.shape) - len(shape)
    reads = [
        lead + i
        if n == call.shape[lead + i]
        else Whole()
        if n == 1
        else picks(lead + i, n, np.arange(call.shape[lead + i]) % n)
        for i, n in enumerate(shape)
    ]
    return [Edge(source=x, steps=(Dims(tuple(reads), call.shape),))]


@move("repeat_interleave")
def repeat_interleave(call: Call) -> list[Edge] | None:
    """Every index several times: finer cells where each comes as often as the others."""
    x, times = call.tensor(), call.args["repeats"]
    if not isinstance(times, int) or call.args.get("dim") is None:
        return None
    dim = dim_of(call.args["dim"], len(call.shape))
    fine = np.arange(call.shape[dim])
    finer = picks(dim, shape_of(x)[dim], fine // times, center=(fine + 0.5) / times - 0.5, scale=1 / times)
    return along(call, x, {dim: finer})


@move("cat", "concat", "concatenate")
def cat(call: Call) -> list[Edge] | None:
    """Tensors put behind each other along one dimension: each is read where it stands."""
    dim, start, edges = dim_of(call.args["dim"], len(call.shape)), 0, list[Edge]()
    for each in call.args["tensors"]:
        shape = shape_of(each)
        if len(shape) != len(call.shape) or not shape[dim]:  # PyTorch skips empty lists
            continue
        edges += along(call, each, {dim: part_of(dim, call.shape[dim], start, shape[dim])})
        start += shape[dim]
    return edges


def part_of(dim: int, total: int, start: int, size: int, step: int = 1) -> Taps:
    """Taps of an input that is a slice of the output."""
    own = np.arange(total) - start
    there = (own >= 0) & (own < size * step) & (own % step == 0)
    return picks(dim, size, np.where(there, own // step, ABSENT), scale=1 / step)


@move("stack", "hstack", "vstack", "dstack", "column_stack")
def stack(call: Call) -> list[Edge] | None:
    """Tensors put behind each other along a new dimension."""
    if call.name != "stack":
        return None
    dim, edges = dim_of(call.args["dim"], len(call.shape)), list[Edge]()
    for i, each in enumerate(call.args["tensors"]):
        longer = (*call.shape[:dim], 1, *call.shape[dim + 1 :])
        reads = tuple(part_of(dim, call.shape[dim], i, 1) if d == dim else d for d in range(len(call.shape)))
        edges.append(Edge(source=each, steps=(Reshape(longer), Dims(reads, call.shape))))
    return edges


@move("slice_scatter", "select_scatter")
def scatter_part(call: Call) -> list[Edge] | None:
    """A tensor with a part of it written over."""
    x, source = call.args["self"], call.args["src"]
    dim, size = dim_of(call.args.get("dim", 0), len(call.shape)), call.shape[call.args.get("dim", 0)]
    first = call.args["start" if call.name == "slice_scatter" else "index"] or 0
    start, step = min(first + size if first < 0 else first, size), call.args.get("step", 1)
    rows = (*call.shape[:dim], 1, *call.shape[dim + 1 :]) if call.name == "select_scatter" else shape_of(source)
    written = part_of(dim, size, start, rows[dim], step)
    left = np.where(written.inside[:, 0] < 0, np.arange(size), ABSENT)
    reads = tuple(written if d == dim else d for d in range(len(call.shape)))
    over = Edge(source=source, steps=(Reshape(rows), Dims(reads, call.shape)))
    return [*along(call, x, {dim: picks(dim, size, left, center=np.arange(float(size)), scale=1)}), over]
