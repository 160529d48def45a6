"""Operations with a window along each dimension: convolution, pooling, padding, resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from erfscope.graph.graph import shape_of
from erfscope.graph.rules.moves import along
from erfscope.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    FloatArray,
    IntArray,
    Taps,
    Whole,
    rule,
    taps,
    weights,
)


def window_of(call: Call) -> list[tuple[int, int, int, int]]:
    """Kernel, stride, padding and dilation along each spatial dimension of a convolution or a pool."""
    weight = call.args.get("weight")
    kernels = call.args["kernel_size"] if weight is None else shape_of(weight)[2:]
    count = len(shape_of(weight)) - 2 if weight is not None else int(call.name[8])

    def each(values: int | Sequence[int]) -> list[int]:
        entries = [values] if isinstance(values, int) else list(values)
        return entries * count if len(entries) == 1 else entries

    dilations, paddings = each(call.args.get("dilation", 1)), call.args["padding"]
    if isinstance(paddings, str):
        paddings = [d * (k - 1) // 2 * (paddings == "same") for k, d in zip(kernels, dilations, strict=True)]
    strides = call.args["stride"] or kernels
    return [*zip(each(kernels), each(strides), each(paddings), dilations, strict=True)]


def sliding_taps(dim: int, size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps | int:
    """A window that slides along a dimension."""
    if (kernel, stride, padding, out) == (1, 1, 0, size):
        return dim
    first = np.arange(out) * stride - padding
    center = first + dilation * (kernel - 1) / 2
    return taps(dim, size, first[:, None] + dilation * np.arange(kernel), center=center, scale=stride)


def transposed_taps(dim: int, size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """A transposed window: input i is added to the outputs i * stride - padding + dilation * (0 .. kernel - 1)."""
    ends = np.arange(out)[:, None] + padding - dilation * np.arange(kernel)
    center = (np.arange(out) + padding - dilation * (kernel - 1) / 2) / stride
    return taps(dim, size, np.where(ends % stride == 0, ends // stride, ABSENT), center=center, scale=1 / stride)


def channel_taps(size: int, out: int, groups: int) -> Taps | Whole | int:
    """Channels in groups: an output channel reads those of its own."""
    if groups == 1 or groups == size == out:
        return 1 if groups == size == out else Whole()
    each = size // groups
    first = np.arange(out) // (out // groups) * each
    return taps(1, size, first[:, None] + np.arange(each), scale=each * groups / out)


@rule(
    "convolution",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
)
def convolution(call: Call) -> list[Edge] | None:
    """Convolution, grouped, dilated or transposed; weights that depend on the input are read whole."""
    x = call.tensor("input")
    shape = shape_of(x)
    if len(shape) != len(shape_of(call.args["weight"])):
        return None
    taps_of = transposed_taps if call.args.get("transposed", "transpose" in call.name) else sliding_taps
    each = zip(range(2, len(shape)), shape[2:], call.shape[2:], window_of(call), strict=True)
    space = [taps_of(dim, size, out, *window) for dim, size, out, window in each]
    reads = (0, channel_taps(shape[1], call.shape[1], call.args["groups"]), *space)
    more = [call.args[key] for key in ("weight", "bias") if call.args[key] is not None]
    return [
        Edge(source=x, steps=(Dims(reads, call.shape),), mixing="convolution over stacked positions"),
        *(weights(call, each, "weights computed from the whole map") for each in more),
    ]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
@rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def pooling(call: Call) -> list[Edge] | None:
    """Average and maximum pooling; ceil mode only makes the output longer."""
    x, windows = call.tensor(), window_of(call)
    if call.output:
        return None
    dims = range(len(call.shape) - len(windows), len(call.shape))
    sides = zip(dims, shape_of(x)[dims.start :], call.shape[dims.start :], windows, strict=True)
    return along(call, x, {dim: sliding_taps(dim, size, out, *window) for dim, size, out, window in sides})


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_pooling(call: Call) -> list[Edge] | None:
    """Pooling to a given size; to one cell it is global."""
    x, count = call.tensor(), len(call.args["output_size"])
    if call.output:
        return None
    reads = {}
    for dim in range(len(call.shape) - count, len(call.shape)):
        size, out = shape_of(x)[dim], call.shape[dim]
        reads[dim] = dim if size == out else Whole() if out == 1 else _adaptive_taps(dim, size, out)
    return along(call, x, reads, mixing=f"global {'max' if 'max' in call.name else 'average'} pooling")


def _adaptive_taps(dim: int, size: int, out: int) -> Taps:
    """Output i reads floor(i S / out) to ceil((i + 1) S / out), the last excluded; windows of unequal length have
    no even centres.
    """
    i = np.arange(out)
    first, stop = i * size // out, -(-(i + 1) * size // out)
    grid = first[:, None] + np.arange(int((stop - first).max()))
    reason = f"adaptive pooling of {size} to {out} cells has windows of unequal length" if size % out else ""
    center = (i + 0.5) * size / out - 0.5
    return taps(
        dim,
        size,
        np.where(grid < stop[:, None], grid, ABSENT),
        center=center,
        scale=size / out,
        inexact_reason=reason,
    )


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@rule("replication_pad1d", "replication_pad2d", "replication_pad3d", "_pad_circular", "_pad_enum")
def padding(call: Call) -> list[Edge] | None:
    """Padding: with constants the map ends, else it goes on; without borders all are plain shifts. Negative amounts
    crop.
    """
    x, amounts = call.tensor(), call.args["pad" if "pad" in call.args else "padding"]
    mode = call.args.get("mode") or call.name.partition("_")[0]
    reads = {}
    for i in range(len(amounts) // 2):
        dim = len(call.shape) - 1 - i
        size, spots = shape_of(x)[dim], np.arange(call.shape[dim]) - amounts[2 * i]
        if amounts[2 * i] or amounts[2 * i + 1]:
            reads[dim] = taps(
                dim, size, spots[:, None], inside=_around_border(str(mode), spots, size)[:, None], scale=1
            )
    return along(call, x, reads)


def _around_border(mode: str, spots: IntArray, size: int) -> IntArray:
    """The cells that stand at places beyond the borders; -1 for none."""
    if mode.startswith("refle"):
        spots = (size - 1) - np.abs((size - 1) - np.abs(spots))
    elif mode.startswith("repli"):
        spots = np.clip(spots, 0, size - 1)
    elif mode == "circular":
        spots = spots % size
    inside: IntArray = np.where((spots >= 0) & (spots < size), spots, -1)
    return inside


@rule(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
)
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bicubic2d")
@rule("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
def interpolation(call: Call) -> list[Edge] | None:
    """Interpolation of every kind."""
    x, align = call.tensor(), bool(call.args.get("align_corners"))
    count = len(call.shape) - 2
    named = [
        call.args.get(key)
        for key in {1: ("scales",), 2: ("scales_h", "scales_w")}.get(count, ("scales_d", "scales_h", "scales_w"))
    ]
    factors = call.args.get("scale_factors") or named
    reads = {}
    for dim, factor in enumerate(factors, start=2):
        size, out = shape_of(x)[dim], call.shape[dim]
        scale = (size - 1) / (out - 1) if align and out > 1 else 0.0 if align else 1 / factor if factor else size / out
        reads[dim] = _resized_taps(dim, size, out, scale, call.name, align=align)
    return along(call, x, reads)


def _resized_taps(dim: int, size: int, out: int, scale: float, name: str, *, align: bool) -> Taps:
    """One dimension interpolated.

    Source points are computed in float32 and in float64 and both answers are kept: they differ only where a point
    falls on the edge between two cells. What lies outside is clamped.
    """
    shift, reason = (0.0, "") if align else _first_source(out, scale, name)
    found = [_sources(np.arange(out).astype(kind), scale, name, align) for kind in (np.float32, np.float64)]
    spots = np.concatenate(found, 1)
    clamped = np.where(spots == ABSENT, -1, np.clip(spots, 0, size - 1))
    if name.endswith("_aa"):
        clamped = np.where((spots < 0) | (spots >= size), -1, spots)
    center = np.full(out, shift) + scale * np.arange(out)
    return taps(dim, size, spots, inside=clamped, center=center, scale=scale or float(size), inexact_reason=reason)


def _first_source(out: int, scale: float, name: str) -> tuple[float, str]:
    """Where cell 0 of an interpolated axis has its centre, and why that is not exact.

    Half a cell in, and for nearest neighbours what rounding down takes off on the average, which is the same for all
    cells where cells are only repeated or left out.
    """
    if "nearest" not in name:
        return (scale - 1) / 2, ""
    p, q = Fraction(scale).limit_denominator(max(out, 1)).as_integer_ratio()
    reason = f"nearest neighbours repeat cells unevenly, {p} for {q}" if p > 1 and q > 1 else ""
    if "exact" in name:
        return scale / 2 - ((q - 1) / (2 * q) if p % 2 == 0 else 0.5), reason
    return -(q - 1) / (2 * q), reason


def _sources(index: FloatArray, scale: float, name: str, align: bool) -> IntArray:
    """Cells with a weight, (outputs, taps), as PyTorch computes them (ATen/native/UpSample.h)."""
    number = index.dtype.type
    step, half = number(scale), number(0.5)
    if "nearest" in name:
        return np.floor(index * step if "exact" not in name else (index + half) * step).astype(np.intp)[:, None]
    if name.endswith("_aa"):
        width = {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 4}.get(name, 6)
        widening, center = number(max(scale, 1.0)), step * (index + half)
        first = np.floor(center - widening * number(width / 2) + half).astype(np.intp)
        grid = first[:, None] + np.arange(math.ceil(width * widening) + 2)
        distance = np.abs(grid.astype(index.dtype) - center[:, None] + half) / widening
        return np.where(distance < width / 2, grid, ABSENT)
    point = index * step if align else step * (index + half) - half
    low = np.floor(point).astype(np.intp)[:, None]
    offsets = np.arange(-1, 3) if "cubic" in name else np.arange(2)
    return np.where((point[:, None] != low) | (offsets == 0), low + offsets, ABSENT)
