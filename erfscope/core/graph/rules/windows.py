"""Operations with a window of a fixed size along each dimension: convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.few_channels import pays, strided_convolution
from erfscope.core.graph.rules.moves import along, reshape
from erfscope.core.graph.rules.parts import PartStep, PartValues, runs
from erfscope.core.graph.rules.reading import (
    ABSENT,
    COPIES,
    Call,
    Dims,
    Edge,
    Taps,
    Whole,
    call_of,
    others_read_whole,
    read_whole,
    rule,
    taps,
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


@rule("convolution", "_convolution")
@rule("conv1d", "conv2d", "conv3d", dense=True)
@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", dense=True)
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
        *(read_whole(call, each, "weights computed from the whole map") for each in more),
    ]


@rule("deform_conv2d")
def deformable_convolution(call: Call) -> list[Edge] | None:
    """Deformable convolution: offsets and masks (B, kernel, h, w) say where each unit reads."""
    lines = []
    for kernel, axis in zip(shape_of(call.args["weight"])[2:], "hw", strict=True):
        stride, padding, dilation = (call.args[f"{key}_{axis}"] for key in ("stride", "pad", "dilation"))
        lines.append((dilation * (kernel - 1) / 2 - padding, float(stride)))
    given = [each for key in ("offset", "mask") if len(shape_of(each := call.args[key])) == 4]
    points = [Edge(source=each, steps=(Dims((0, Whole(), 2, 3), call.shape),), secondary=True) for each in given]
    return [*sampled(call, Whole(), lines), *points, *(read_whole(call, call.args[key]) for key in ("weight", "bias"))]


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(call: Call) -> list[Edge] | None:
    """Sampling of a map at points (B, *space, axes)."""
    lines = []
    for size, out in zip(shape_of(call.args["input"])[2:], call.shape[2:], strict=True):
        step = (size - 1) / max(out - 1, 1) if call.args["align_corners"] else size / out
        lines.append((0.0 if call.args["align_corners"] else (step - 1) / 2, step))
    reads = (0, *range(2, len(call.shape)), Whole())
    grid = Edge(source=call.args["grid"], steps=(Dims(reads, call.shape),), secondary=True)
    return [*sampled(call, 1, lines), grid]


def sampled(call: Call, channels: Whole | int, lines: Sequence[tuple[float, float]]) -> list[Edge]:
    """Edges to a map of which an operation reads points that other tensors give: its units stand on the regular grid,
    of which each axis is a line (first place, step), and may read everything."""
    x, reads = call.tensor("input"), list[int | Whole | Taps]([0, channels])
    why = f"{call.name} reads at points that it is given"
    for dim, (first, step) in enumerate(lines, start=2):
        center, size = first + step * np.arange(call.shape[dim]), shape_of(x)[dim]
        nearest = np.clip(np.round(center).astype(np.intp), 0, size - 1)[:, None]
        reads.append(taps(dim, size, nearest, center=center, scale=step, inexact_reason=why))
    anywhere = (0, channels, *(Whole(upper_bound=True) for _ in lines))
    return [
        Edge(source=x, steps=(Dims(tuple(reads), call.shape),)),
        Edge(source=x, steps=(Dims(anywhere, call.shape),), secondary=True, mixing=call.name, inexact=call.name),
    ]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", dense=True)
@rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def pooling(call: Call) -> list[Edge] | None:
    """Average and maximum pooling; ceil mode only makes the output longer."""
    x, windows = call.tensor(), window_of(call)
    dims = range(len(call.shape) - len(windows), len(call.shape))
    sides = zip(dims, shape_of(x)[dims.start :], call.shape[dims.start :], windows, strict=True)
    return along(call, x, {dim: sliding_taps(dim, size, out, *window) for dim, size, out, window in sides})


@rule("max_unpool2d", "max_unpool3d")
def unpooling(call: Call) -> list[Edge] | None:
    """Values put back to where a maximum pooling found them: anywhere in its window."""
    x, indices = call.tensor("self"), call.args["indices"]
    pool = indices
    while pool.op == "call_function" and (call_of(pool).name in COPIES or call_of(pool).operation.reads is reshape):
        pool = call_of(pool).tensor()
    is_pool = pool.op == "call_function" and call_of(pool).name.startswith("max_pool")
    if not is_pool or shape_of(pool) != shape_of(indices) or len(shape_of(pool)) != len(call.shape):
        return None
    windows = window_of(call_of(pool))
    lead = len(call.shape) - len(windows)
    sides = zip(range(lead, len(call.shape)), shape_of(x)[lead:], call.shape[lead:], windows, strict=True)
    reads = {dim: transposed_taps(dim, size, out, *window) for dim, size, out, window in sides}
    return [*along(call, x, reads), *along(call, indices, reads, secondary=True)]


@rule("stft")
def spectrogram(call: Call) -> list[Edge] | None:
    """Windows along time, each of which becomes frequencies; padding is an operation before it."""
    x, (first, width, hop) = call.tensor(), _frames(call)
    if call.args.get("center") or call.args.get("align_to_window"):
        return None
    lead, size = len(shape_of(x)) - 1, shape_of(x)[-1]
    starts = np.arange(call.shape[lead + 1]) * hop + first
    read = taps(lead + 1, size, starts[:, None] + np.arange(width), scale=hop)
    return [Edge(source=x, steps=(Dims((*range(lead), read), call.shape),)), *others_read_whole(call, x)]


@rule("istft")
def inverse_spectrogram(call: Call) -> list[Edge] | None:
    """Windows along time that are added up, each made of all frequencies."""
    x, (first, width, hop) = call.tensor(), _frames(call)
    lead, frames = len(call.shape) - 1, shape_of(x)[-1]
    padding = (call.args["n_fft"] // 2 if call.args.get("center", True) else 0) - first
    read = transposed_taps(lead, frames, call.shape[-1], width, hop, padding, 1)
    return [Edge(source=x, steps=(Dims((*range(lead), Whole(), read), call.shape),)), *others_read_whole(call, x)]


def _frames(call: Call) -> tuple[int, int, int]:
    """Where the window of a frame begins in it, how long it is without zeros at its ends, and the step from frame to
    frame."""
    size, window = call.args["n_fft"], call.args.get("window")
    width = call.args.get("win_length") or size
    first, hop = (size - width) // 2, call.args.get("hop_length") or size // 4
    numbers = None if window is None else call.numbers(window)
    there = np.arange(width) if numbers is None else np.flatnonzero(numbers.detach().cpu().numpy())
    return (first + int(there[0]), int(there[-1] - there[0]) + 1, hop) if there.size else (first, width, hop)


def _pad_input(step: PartStep, values: PartValues, fill: float) -> tuple[Tensor, list[int]]:
    """The input of a window, and the padding on both sides that the operation adds by itself; what lies beyond one
    border alone is there already.
    """
    call = step.call
    x = call.tensor("input", "self")
    windows = window_of(call)
    more, both = list[int](), list[int]()
    for dim, (kernel, stride, padding, dilation) in enumerate(windows, start=len(step.part) - len(windows)):
        first = int(step.part[dim][0]) * stride - padding
        last = int(step.part[dim][-1]) * stride - padding + dilation * (kernel - 1)
        low, high = int(step.needed[x][dim][0]) - first, last - int(step.needed[x][dim][-1])
        both.append(min(low, high, padding))
        more = [low - both[-1], high - both[-1], *more]
    tensor = values.of(x)
    return (F.pad(tensor, more, value=fill) if any(more) else tensor), both


@runs("conv1d", "conv2d", "conv3d")
def run_convolution(step: PartStep, values: PartValues) -> Tensor:
    """Convolution of the padded part."""
    call = step.call
    (x, padding), bias = _pad_input(step, values, 0.0), call.args["bias"]
    kernel, shift = values.weights or (values.of(call.args["weight"]), None if bias is None else values.of(bias))
    _, strides, _, dilations = zip(*window_of(call), strict=True)
    if call.args["groups"] == max(dilations) == 1 and pays(x, kernel, strides):
        return strided_convolution(x, kernel, shift, strides, padding)
    found: Tensor = getattr(F, call.name)(x, kernel, shift, strides, padding, dilations, call.args["groups"])
    return found


@runs("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def run_transposed(step: PartStep, values: PartValues) -> Tensor:
    """Transposed convolution of the part, of which what lies beside the asked cells is cut off, or zero where
    nothing reaches.
    """
    call, part = step.call, step.part
    x, bias = call.tensor("input"), call.args["bias"]
    windows = window_of(call)
    _, strides, _, dilations = zip(*windows, strict=True)
    weight, groups = values.of(call.args["weight"]), call.args["groups"]
    out: Tensor = getattr(F, call.name)(values.of(x), weight, None, strides, 0, 0, groups, dilations)
    amounts: list[int] = []
    for dim, (_, stride, padding, _) in enumerate(windows, start=2):
        first = int(step.needed[x][dim][0]) * stride - padding
        amounts = [first - int(part[dim][0]), int(part[dim][-1]) + 1 - first - out.shape[dim], *amounts]
    out = F.pad(out, amounts)
    return out if bias is None else out + values.of(bias).reshape(-1, *(1,) * len(windows))


@runs("max_pool1d", "max_pool2d", "max_pool3d")
def run_max_pooling(step: PartStep, values: PartValues) -> Tensor:
    """Maximum pooling of the part padded with what is never the greatest."""
    call = step.call
    x, padding = _pad_input(step, values, -math.inf)
    kernels, strides, _, dilations = zip(*window_of(call), strict=True)
    found: Tensor = getattr(F, call.name)(x, kernels, strides, padding, dilations)
    return found


@runs("avg_pool1d", "avg_pool2d", "avg_pool3d")
def run_average_pooling(step: PartStep, values: PartValues) -> Tensor:
    """Average pooling: sums over the padded part, divided by how many cells count."""
    call = step.call
    windows, shape = window_of(call), shape_of(call.tensor())
    x, own = _pad_input(step, values, 0.0)
    kernels, strides, _, _ = zip(*windows, strict=True)
    out: Tensor = getattr(F, call.name)(x, kernels, strides, own)
    for dim, (kernel, stride, padding, _) in enumerate(windows, start=len(step.part) - len(windows)):
        side = shape[dim]
        low, high = (0, side) if not call.args["count_include_pad"] else (-padding, side + padding)
        first = step.part[dim] * stride - padding
        cells = np.minimum(first + kernel, high) - np.maximum(first, low)
        scale = torch.as_tensor(kernel / cells, dtype=out.dtype, device=out.device)
        out = out * scale.reshape([-1 if d == dim else 1 for d in range(out.dim())])
    return out if (divisor := call.args.get("divisor_override")) is None else out * (math.prod(kernels) / divisor)
