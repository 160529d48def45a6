"""Operations that only move elements: views, permutations, slices, concatenations, picking by constants."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, fx

from erfscope.graph.graph import shape_of
from erfscope.graph.rules.reading import (
    ABSENT,
    RULES,
    Call,
    Dims,
    Edge,
    IntArray,
    Reshape,
    Shape,
    Step,
    Taps,
    Whole,
    aligned,
    call_of,
    dim_of,
    dims_of,
    is_tensor,
    picks,
    rule,
    taps,
)  # fmt: skip


def is_move(node: fx.Node) -> bool:
    """Whether an operation, or one of its results, only shows elements of its input elsewhere."""
    call = call_of(node)
    return call is not None and getattr(RULES.get(call.name), "__module__", "") == __name__


@rule(
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


@rule(
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


@rule("slice", "narrow")
def slice_(call: Call) -> list[Edge] | None:
    """``x[start:end:step]`` along one dimension."""
    x = call.tensor()
    dim, size = dim_of(call.args.get("dim", 0), len(call.shape)), shape_of(x)[call.args.get("dim", 0)]
    start, step = call.args.get("start") or 0, call.args.get("step", 1)
    start = min(max(start + size if start < 0 else start, 0), size)
    return along(call, x, {dim: picks(dim, size, start + step * np.arange(call.shape[dim]), scale=step)})


@rule("select")
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


@rule("unbind")
def unbind(call: Call) -> list[Edge] | None:
    """Every index of one dimension."""
    x = call.tensor()
    return [Edge(source=x, steps=(one_of(shape_of(x), dim_of(call.args["dim"], len(shape_of(x))), call.output),))]


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "tensor_split", "unsafe_chunk")
def split(call: Call) -> list[Edge] | None:
    """Consecutive slices."""
    x = call.tensor()
    dim = dim_of(call.args["dim"], len(call.shape))
    start = sum(shape[dim] for shape in call.shapes[: call.output])
    return along(call, x, {dim: picks(dim, shape_of(x)[dim], start + np.arange(call.shape[dim]), scale=1)})


@rule("roll")
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


@rule("flip", "fliplr", "flipud")
def flip(call: Call) -> list[Edge] | None:
    """Reversed dimensions."""
    asked = {"fliplr": 1, "flipud": 0}.get(call.name, call.args.get("dims"))
    dims = dims_of(asked, len(call.shape))
    return along(
        call, call.tensor(), {d: picks(d, call.shape[d], np.arange(call.shape[d])[::-1], scale=-1) for d in dims}
    )


@rule("rot90")
def rot90(call: Call) -> list[Edge] | None:
    """Quarter turns: a flip, a transposition, or both."""
    x, (a, b), times = call.tensor(), dims_of(call.args["dims"], len(call.shape)), call.args["k"] % 4
    shape, order = shape_of(x), list(range(len(call.shape)))
    flipped = [[], [b], [a, b], [a]][times]  # before the transposition of odd ones
    reads = tuple(picks(d, n, np.arange(n)[::-1], scale=-1) if d in flipped else d for d, n in enumerate(shape))
    order[a], order[b] = (b, a) if times % 2 else (a, b)
    return [Edge(source=x, steps=(Dims(reads, shape), permuted(shape, order)))]


@rule("expand", "expand_as", "broadcast_to")
def expand(call: Call) -> list[Edge] | None:
    """Dimensions of one index stretched."""
    return [Edge(source=call.tensor(), steps=aligned(shape_of(call.tensor()), call.shape))]


@rule("repeat", "tile")
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


@rule("repeat_interleave")
def repeat_interleave(call: Call) -> list[Edge] | None:
    """Every index several times: finer cells where each comes as often as the others."""
    x, times = call.tensor(), call.args["repeats"]
    if not isinstance(times, int) or call.args.get("dim") is None:
        return None
    dim = dim_of(call.args["dim"], len(call.shape))
    fine = np.arange(call.shape[dim])
    finer = picks(dim, shape_of(x)[dim], fine // times, center=(fine + 0.5) / times - 0.5, scale=1 / times)
    return along(call, x, {dim: finer})


@rule("cat", "concat", "concatenate")
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


@rule("stack", "hstack", "vstack", "dstack", "column_stack")
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


@rule("slice_scatter", "select_scatter")
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


@rule("index_select", "index")
def index(call: Call) -> list[Edge] | None:
    """Picking by one list of indices: exact where its numbers are at hand, or the dimension has no positions."""
    x = call.tensor()
    given = call.args["indices"] if call.name == "index" else None
    used = (
        [i for i, each in enumerate(given) if each is not None]
        if given is not None
        else [dim_of(call.args["dim"], len(call.shape))]
    )
    lists = [given[i] for i in used] if given is not None else [call.args["index"]]
    if len(used) != 1 or "bool" in str(lists[0].meta["val"].dtype):
        return None
    (dim,), (entry,) = used, lists
    size, numbers = shape_of(x)[dim], call.numbers(entry)
    rank = len(shape_of(entry))
    flat = (*call.shape[:dim], int(np.prod(shape_of(entry), dtype=int)), *call.shape[dim + rank :])
    chosen: Taps | Whole = Whole(blind=True) if numbers is None else _chosen(dim, size, _entries(numbers, size))
    (edge,) = along(call, x, {dim: chosen}, flat)
    inexact = call.name if numbers is None else ""
    return [
        Edge(
            source=x,
            steps=(*edge.steps, *([Reshape(call.shape)] if flat != call.shape else [])),
            mixing=call.name,
            inexact=inexact,
        )
    ]


def _chosen(dim: int, size: int, entries: IntArray) -> Taps:
    """Taps of these indices: finer cells where each comes as often as the others, in order."""
    fine, times = np.arange(len(entries)), len(entries) // max(size, 1)
    if times > 1 and np.array_equal(entries, fine // times):
        return picks(dim, size, entries, center=(fine + 0.5) / times - 0.5, scale=1 / times)
    return picks(dim, size, entries)


@rule("index_copy", "index_put", "_unsafe_index_put")
def written(call: Call) -> list[Edge] | None:
    """A tensor with entries of one dimension written over, whose numbers are at hand."""
    x, source = call.args["self"], call.args["source" if "source" in call.args else "values"]
    given = (
        call.args["indices"]
        if "indices" in call.args
        else {dim_of(call.args["dim"], len(call.shape)): call.args["index"]}
    )
    used = [i for i, each in enumerate(given) if each is not None] if isinstance(given, list | tuple) else list(given)
    numbers = call.numbers(given[used[0]]) if len(used) == 1 and len(shape_of(given[used[0]])) == 1 else None
    if (
        numbers is None
        or call.args.get("accumulate")
        or numbers.dtype.is_floating_point
        or str(numbers.dtype) == "torch.bool"
    ):
        return None
    (dim,), size = used, call.shape[used[0]]
    entries, spots = _entries(numbers, size), np.full(size, ABSENT)
    spots[entries] = np.arange(len(entries))
    rows = (*call.shape[:dim], len(entries), *call.shape[dim + 1 :])
    left = np.where(spots == ABSENT, np.arange(size), ABSENT)
    reads = tuple(picks(dim, len(entries), spots) if d == dim else d for d in range(len(rows)))
    over = Edge(source=source, steps=(*aligned(shape_of(source), rows), Dims(reads, call.shape)))
    return [*along(call, x, {dim: picks(dim, size, left, center=np.arange(float(size)), scale=1)}), over]


def _entries(numbers: Tensor, size: int) -> IntArray:
    """Indices counted from the front."""
    found = numbers.cpu().numpy().astype(np.intp).reshape(-1)
    return np.where(found < 0, found + size, found)


@rule("gather", "take_along_dim", "sort", "argsort", "msort", "topk", "kthvalue", "mode")
def picked(call: Call) -> list[Edge] | None:
    """Picking along one dimension, by numbers of the image or for every position of the others."""
    x = call.tensor()
    rank = len(shape_of(x))
    dim = 0 if call.name == "msort" else dim_of(call.args.get("dim", -1), rank)
    others = [i for i in range(rank) if i != dim]
    kept = len(call.shape) == rank and all(shape_of(x)[i] == call.shape[i] for i in others)
    edges = along(call, x, {dim: Whole(blind=True)}) if kept else None
    if edges is None or (call.name == "topk" and call.output):
        return edges and [Edge(source=x, steps=edges[0].steps, mixing=call.name, inexact=call.name)]
    order = [each for each in tensors_after(call, x) if len(shape_of(each)) == rank]
    found = [Edge(source=x, steps=edges[0].steps, mixing=call.name, inexact=call.name)]
    return found + [Edge(source=each, steps=aligned(shape_of(each), call.shape), follows=True) for each in order]


def tensors_after(call: Call, x: fx.Node) -> list[fx.Node]:
    """The tensors among the arguments besides the first."""
    return [each for each in call.args.values() if is_tensor(each) and each is not x]


@rule("unfold")
def unfold(call: Call) -> list[Edge] | None:
    """``Tensor.unfold``: windows along one dimension, their indices last."""
    x = call.tensor()
    shape, rank = shape_of(x), len(shape_of(x))
    dim, size, step = dim_of(call.args["dimension"], rank), call.args["size"], call.args["step"]
    return [Edge(source=x, steps=tuple(windows(shape, {dim: (call.shape[dim], size, step, 0, 1)}, last=True)))]


def windows(shape: Shape, dims: dict[int, tuple[int, int, int, int, int]], *, last: bool = False) -> list[Step]:
    """Steps that take apart windows (count, kernel, stride, padding, dilation) along dimensions: (..., count, ...,
    kernel, ...).

    The kernels come last where ``last``, else in the order of the dimensions before all counts.
    """
    reads: list[int | Whole | Taps] = list(range(len(shape)))
    long, apart = list(shape), list[int]()
    for dim, (count, kernel, stride, padding, dilation) in dims.items():
        spots = (np.arange(count) * stride - padding)[:, None] + dilation * np.arange(kernel)
        reads[dim] = picks(dim, shape[dim], spots.reshape(-1))
        long[dim] = count * kernel
    for dim, side in enumerate(long):
        apart += [dims[dim][0], dims[dim][1]] if dim in dims else [side]
    spot = list(itertools.accumulate((2 if dim in dims else 1 for dim in range(len(shape))), initial=0))
    kernels = [spot[dim] + 1 for dim in dims]
    counts = [spot[dim] for dim in range(len(shape))]
    first = counts[: min(dims)]
    order = [*counts, *kernels] if last else [*first, *kernels, *counts[min(dims) :]]
    return [Dims(tuple(reads), tuple(long)), Reshape(tuple(apart)), permuted(apart, order)]


@rule("im2col")
def im2col(call: Call) -> list[Edge] | None:
    """``F.unfold``: every window's cells become channels, windows become one list."""
    x = call.tensor()
    shape = shape_of(x)
    kernel, dilation, padding, stride = (call.args[key] for key in ("kernel_size", "dilation", "padding", "stride"))
    if len(shape) != 4:
        return None
    counts = [(shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    dims = {2 + i: (counts[i], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1)}
    return [Edge(source=x, steps=(*windows(shape, dims), Reshape(call.shape)))]


@rule("col2im")
def col2im(call: Call) -> list[Edge] | None:
    """``F.fold``: every window's cells are added up where they came from."""
    x = call.tensor()
    kernel, dilation, padding, stride = (call.args[key] for key in ("kernel_size", "dilation", "padding", "stride"))
    if len(call.shape) != 4:
        return None
    (batch, channels, *out) = call.shape
    reads: list[int | Whole | Taps] = [0, 1]
    counts = [(out[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    for i in (0, 1):
        ends = np.arange(out[i])[:, None] + padding[i] - dilation[i] * np.arange(kernel[i])
        window, there = ends // stride[i], (ends % stride[i] == 0) & (ends >= 0) & (ends // stride[i] < counts[i])
        spots = np.where(there, np.arange(kernel[i]) * counts[i] + window, ABSENT)
        center = (np.arange(out[i]) + padding[i] - dilation[i] * (kernel[i] - 1) / 2) / stride[i]
        reads.append(taps(2 + i, kernel[i] * counts[i], spots, center=center, scale=1 / stride[i]))
    apart = (batch, channels, *kernel, *counts)
    paired = permuted(apart, [0, 1, 2, 4, 3, 5])
    long = (batch, channels, kernel[0] * counts[0], kernel[1] * counts[1])
    return [Edge(source=x, steps=(Reshape(apart), paired, Reshape(long), Dims(tuple(reads), call.shape)))]


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def pixel_shuffle(call: Call) -> list[Edge] | None:
    """Channels become positions, positions channels, or channels others."""
    x = call.tensor()
    *lead, c, h, w = shape_of(x)
    n = len(lead)
    if call.name == "channel_shuffle":
        batch, channels, *space = shape_of(x)
        apart = (batch, call.args["groups"], channels // call.args["groups"], *space)
        order = [0, 2, 1, *range(3, len(apart))]
    elif call.name == "pixel_shuffle":
        k = call.args["upscale_factor"]
        apart, order = (*lead, c // k**2, k, k, h, w), [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    else:
        k = call.args["downscale_factor"]
        apart, order = (*lead, c, h // k, k, w // k, k), [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return [Edge(source=x, steps=(Reshape(tuple(apart)), permuted(apart, order), Reshape(call.shape)))]
