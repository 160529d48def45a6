"""Operations that pick and rearrange elements: indexing by constants, windows taken apart, channels and positions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from torch import Tensor

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.moves import along, permutation, written_over
from erfscope.core.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    IntArray,
    Reshape,
    Shape,
    Step,
    Taps,
    Whole,
    broadcast,
    dim_of,
    is_tensor,
    move,
    picks,
    rule,
    taps,
)


@move("index_select", "index")
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
    size, numbers, rank = shape_of(x)[dim], call.numbers(entry), len(shape_of(entry))
    flat = (*call.shape[:dim], int(np.prod(shape_of(entry), dtype=int)), *call.shape[dim + rank :])
    chosen: Taps | Whole = Whole(upper_bound=True) if numbers is None else _taps_of(dim, size, _entries(numbers, size))
    (edge,) = along(call, x, {dim: chosen}, flat, mixing=call.name, inexact=call.name if numbers is None else "")
    return [replace(edge, steps=(*edge.steps, *([Reshape(call.shape)] if flat != call.shape else [])))]


def _taps_of(dim: int, size: int, entries: IntArray) -> Taps:
    """Taps of these indices: finer cells where each comes as often as the others, in order."""
    fine, times = np.arange(len(entries)), len(entries) // max(size, 1)
    if times > 1 and np.array_equal(entries, fine // times):
        return picks(dim, size, entries, center=(fine + 0.5) / times - 0.5, scale=1 / times)
    return picks(dim, size, entries)


@rule("embedding")
def embedding(call: Call) -> list[Edge] | None:
    """Rows of a table, by index: their numbers are a new last dimension."""
    ids, table = call.args["indices"], call.args["weight"]
    rank = len(shape_of(ids))
    return [
        Edge(source=ids, steps=(Dims(tuple(range(rank)), call.shape),)),
        Edge(source=table, steps=(Dims((Whole(), rank), call.shape),), secondary=True),
    ]


@move("repeat_interleave")
def repeat_interleave(call: Call) -> list[Edge] | None:
    """Every index several times."""
    x, times = call.tensor(), call.args["repeats"]
    if not isinstance(times, int) or call.args.get("dim") is None:
        return None
    dim = dim_of(call.args["dim"], len(call.shape))
    return along(call, x, {dim: _taps_of(dim, shape_of(x)[dim], np.arange(call.shape[dim]) // times)})


@move("index_copy", "index_put", "_unsafe_index_put")
def written(call: Call) -> list[Edge] | None:
    """A tensor with entries of one dimension written over, whose numbers are at hand."""
    source = call.args["source" if "source" in call.args else "values"]
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
    entries = _entries(numbers, call.shape[used[0]])
    rows = (*call.shape[: used[0]], len(entries), *call.shape[used[0] + 1 :])
    return written_over(call, source, broadcast(shape_of(source), rows), used[0], entries)


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
    if not kept:
        return None
    order = [each for each in call.args.values() if is_tensor(each) and each is not x and len(shape_of(each)) == rank]
    found = along(call, x, {dim: Whole(upper_bound=True)}, mixing=call.name, inexact=call.name)
    return found + [Edge(source=each, steps=broadcast(shape_of(each), call.shape), secondary=True) for each in order]


@move("unfold")
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
    return [Dims(tuple(reads), tuple(long)), Reshape(tuple(apart)), permutation(apart, order)]


@move("im2col")
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
        # Whether a window's cells still stand where they were taken from, or all in its middle, decides.
        reason = "the cells of windows are added up" if kernel[i] > 1 else ""
        reads.append(
            taps(2 + i, kernel[i] * counts[i], spots, center=center, scale=1 / stride[i], inexact_reason=reason)
        )
    apart = (batch, channels, *kernel, *counts)
    paired = permutation(apart, [0, 1, 2, 4, 3, 5])
    long = (batch, channels, kernel[0] * counts[0], kernel[1] * counts[1])
    return [Edge(source=x, steps=(Reshape(apart), paired, Reshape(long), Dims(tuple(reads), call.shape)))]


@move("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
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
    return [Edge(source=x, steps=(Reshape(tuple(apart)), permutation(apart, order), Reshape(call.shape)))]
