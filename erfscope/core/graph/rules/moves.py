"""Operations that only move elements: views, permutations, slices, concatenations, picking by constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import evaluate, shape_of
from erfscope.core.graph.rules.parts import PartStep, PartValues, cut, runs
from erfscope.core.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    IntArray,
    Reshape,
    Shape,
    Taps,
    Whole,
    broadcast,
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
    """Dimensions in another order, which the operation gives for strides that number them."""
    x = call.tensor()
    shape = shape_of(x)
    numbered = torch.empty(1).as_strided([1] * len(shape), [*range(len(shape))])
    return [Edge(source=x, steps=(permutation(shape, evaluate(call.node, lambda _: numbered).stride()),))]


def permutation(shape: Sequence[int], order: Sequence[int]) -> Dims:
    """The step of a permutation."""
    return Dims(tuple(order.index(i) for i in range(len(shape))), tuple(shape[i] for i in order))


def along(
    call: Call, x: fx.Node, reads: Mapping[int, int | Whole | Taps], shape: Shape | None = None, **more: Any
) -> list[Edge]:
    """An edge that keeps every dimension but some; ``more`` are other fields of it."""
    dims = tuple(reads.get(dim, dim) for dim in range(len(shape_of(x))))
    return [Edge(source=x, steps=(Dims(dims, call.shape if shape is None else shape),), **more)]


@move("slice", "narrow")
def slice_(call: Call) -> list[Edge] | None:
    """``x[start:end:step]`` along one dimension."""
    x = call.tensor()
    dim, size = dim_of(call.args.get("dim", 0), len(call.shape)), shape_of(x)[call.args.get("dim", 0)]
    start, step = call.args.get("start") or 0, call.args.get("step", 1)
    start = min(max(start + size if start < 0 else start, 0), size)
    return along(call, x, {dim: picks(dim, size, start + step * np.arange(call.shape[dim]), scale=step)})


@move("select", "unbind")
def select(call: Call) -> list[Edge] | None:
    """``x[:, index]``: one index of one dimension, or every index."""
    x = call.tensor()
    shape, dim = shape_of(x), dim_of(call.args["dim"], len(shape_of(x)))
    lone = picks(None, shape[dim], [call.args.get("index", call.output) % shape[dim]])
    reads = (*range(dim), lone, *range(dim, len(shape) - 1))
    return [Edge(source=x, steps=(Dims(reads, call.shape),))]


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
    return [Edge(source=x, steps=(Dims(reads, shape), permutation(shape, order)))]


@move("expand", "broadcast_to", "broadcast_tensors")
def expand(call: Call) -> list[Edge] | None:
    """Dimensions of one index stretched, those of each tensor by itself."""
    x = call.args["tensors"][call.output] if call.name == "broadcast_tensors" else call.tensor()
    return [Edge(source=x, steps=broadcast(shape_of(x), call.shape))]


@move("repeat", "tile")
def repeat(call: Call) -> list[Edge] | None:
    """Copies beside each other."""
    shape = shape_of(x := call.tensor())
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


def part_of(dim: int, total: int, start: int, size: int) -> Taps:
    """Taps of an input that is a slice of the output."""
    own = np.arange(total) - start
    return picks(dim, size, np.where((own >= 0) & (own < size), own, ABSENT), scale=1)


@move("stack")
def stack(call: Call) -> list[Edge] | None:
    """Tensors put behind each other along a new dimension."""
    dim, edges = dim_of(call.args["dim"], len(call.shape)), list[Edge]()
    for i, each in enumerate(call.args["tensors"]):
        longer = (*call.shape[:dim], 1, *call.shape[dim + 1 :])
        reads = tuple(part_of(dim, call.shape[dim], i, 1) if d == dim else d for d in range(len(call.shape)))
        edges.append(Edge(source=each, steps=(Reshape(longer), Dims(reads, call.shape))))
    return edges


@move("slice_scatter", "select_scatter")
def scatter_part(call: Call) -> list[Edge] | None:
    """A tensor with a part of it written over."""
    dim, size = dim_of(call.args.get("dim", 0), len(call.shape)), call.shape[call.args.get("dim", 0)]
    first = call.args["start" if call.name == "slice_scatter" else "index"] or 0
    start, step = min(first + size if first < 0 else first, size), call.args.get("step", 1)
    count = 1 if call.name == "select_scatter" else shape_of(call.args["src"])[dim]
    rows = Reshape((*call.shape[:dim], count, *call.shape[dim + 1 :]))
    return written_over(call, call.args["src"], (rows,), dim, start + step * np.arange(count), scale=1 / step)


def written_over(
    call: Call, source: fx.Node, rows: tuple[Dims | Reshape, ...], dim: int, entries: IntArray, **more: Any
) -> list[Edge]:
    """A tensor with some entries of a dimension written over by the rows that these steps make of another."""
    size, spots = call.shape[dim], np.full(call.shape[dim], ABSENT)
    spots[entries] = np.arange(len(entries))
    reads = tuple(picks(dim, len(entries), spots, **more) if d == dim else d for d in range(len(call.shape)))
    left = np.where(spots == ABSENT, np.arange(size), ABSENT)
    kept = along(call, call.args["self"], {dim: picks(dim, size, left, center=np.arange(float(size)), scale=1)})
    return [*kept, Edge(source=source, steps=(*rows, Dims(reads, call.shape)))]


@runs("cat", "concat", "concatenate")
def run_concatenation(step: PartStep, values: PartValues) -> Tensor:
    """The pieces of the part behind each other."""
    found = [(edge.source, parts) for edge, parts in zip(step.edges, step.paths, strict=True) if parts]
    pieces = [cut(values.of(source), step.needed[source], parts[0]) for source, parts in found]
    return torch.cat(pieces, step.call.args["dim"])
