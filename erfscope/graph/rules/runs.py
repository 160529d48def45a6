"""How operations compute a part of their output that neither only move elements nor may be run as they are on parts of
their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from erfscope.graph.graph import evaluate, shape_of, value
from erfscope.graph.rules.parts import Step, Values, cut, parts_along, run_as_it_is, run_by_moves, runs, whole
from erfscope.graph.rules.products import shape_only
from erfscope.graph.rules.reading import RULES, Call, Shape, is_tensor
from erfscope.graph.rules.windows import adaptive_pooling, interpolation, window_of


def _pad_input(step: Step, values: Values, fill: float) -> tuple[Tensor, list[int]]:
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
        both.append(min(low, high))
        more = [low - both[-1], high - both[-1], *more]
    tensor = values.of(x)
    return (F.pad(tensor, more, value=fill) if any(more) else tensor), both


@runs("conv1d", "conv2d", "conv3d")
def convolution(step: Step, values: Values) -> Tensor:
    """Convolution of the padded part."""
    call = step.call
    x, padding = _pad_input(step, values, 0.0)
    kernel, shift = values.weights or (values.of(call.args["weight"]), _or_none(call.args["bias"], values))
    _, strides, _, dilations = zip(*window_of(call), strict=True)
    found: Tensor = getattr(F, call.name)(x, kernel, shift, strides, padding, dilations, call.args["groups"])
    return found


def _or_none(node: fx.Node | None, values: Values) -> Tensor | None:
    return None if node is None else values.of(node)


@runs("max_pool1d", "max_pool2d", "max_pool3d")
def max_pooling(step: Step, values: Values) -> Tensor:
    """Maximum pooling of the part padded with what is never the greatest."""
    call = step.call
    x, padding = _pad_input(step, values, -math.inf)
    kernels, strides, _, dilations = zip(*window_of(call), strict=True)
    found: Tensor = getattr(F, call.name)(x, kernels, strides, padding, dilations)
    return found


@runs("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pooling(step: Step, values: Values) -> Tensor:
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


@runs("cat", "concat", "concatenate")
def concatenation(step: Step, values: Values) -> Tensor:
    """The pieces of the part behind each other."""
    found = [(edge.source, parts) for edge in step.edges if (parts := parts_along(edge, step.part))]
    pieces = [cut(values.of(source), step.needed[source], parts[0]) for source, parts in found]
    return torch.cat(pieces, step.call.args["dim"])


@runs("batch_norm", "instance_norm", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(step: Step, values: Values) -> Tensor:
    """A frozen batch norm as the scale and the shift that it is.

    On the CPU, PyTorch's gradient of a batch norm mixes up the positions where the gradient that arrives lies in memory
    in another order than the input (seen in PyTorch 2.15): one by the map's own statistics gets it in the input's.
    """
    call = step.call
    if call.args.get("training", call.args.get("use_input_stats")):
        out = run_as_it_is(step, values)
        if out.requires_grad:
            out.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        return out
    scale, shift = scale_and_shift(call, values.of)
    shape = (1, -1, *(1,) * (len(step.part) - 2))
    x = values.of(call.tensor())
    return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


def scale_and_shift(call: Call, tensor: Callable[[fx.Node], Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and shift of a frozen batch norm, (C,), computed in float64."""
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = (None if (node := call.args.get(name)) is None else tensor(node) for name in names)
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance.double() + call.args["eps"])
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale if bias is None else bias.double() - mean.double() * scale
    return scale.to(variance.dtype), shift.to(variance.dtype)


@runs("pad", "constant_pad_nd")
def padding(step: Step, values: Values) -> Tensor:
    """Padding by moving, with a value where nothing is moved from."""
    return run_by_moves(step, values, float(step.call.args.get("value") or 0.0))


@runs("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(step: Step, values: Values) -> Tensor:
    """Transposed convolution of the part, of which what lies beside the asked cells is cut off, or zero where
    nothing reaches.
    """
    call, part = step.call, step.part
    x, bias = call.tensor("input"), _or_none(call.args["bias"], values)
    windows = window_of(call)
    _, strides, _, dilations = zip(*windows, strict=True)
    weight, groups = values.of(call.args["weight"]), call.args["groups"]
    out: Tensor = getattr(F, call.name)(values.of(x), weight, None, strides, 0, 0, groups, dilations)
    amounts: list[int] = []
    for dim, (_, stride, padding, _) in enumerate(windows, start=2):
        first = int(step.needed[x][dim][0]) * stride - padding
        amounts = [first - int(part[dim][0]), int(part[dim][-1]) + 1 - first - out.shape[dim], *amounts]
    out = F.pad(out, amounts)
    return out if bias is None else out + bias.reshape(-1, *(1,) * len(windows))


@runs(*(name for name, known in RULES.items() if known is shape_only))
def filled(step: Step, values: Values) -> Tensor:
    """A tensor of which the input only says the shape, the dtype and the device."""
    source = step.call.tensor()
    like = torch.empty(shape_of(source), dtype=value(source).dtype, device=values.device)
    return cut(evaluate(step.node, lambda _: like), whole(shape_of(step.node)), step.part)


@runs("fill", "zero")
def overwritten(step: Step, values: Values) -> Tensor:
    """A tensor of one number, of which nothing is left that was there."""
    number, dtype = step.call.args.get("value", 0), value(step.node).dtype
    shape = [len(each) for each in step.part]
    if is_tensor(number):
        return values.of(number).to(dtype).expand(shape)
    return torch.full(shape, number, dtype=dtype, device=values.device)


@runs(*(name for name, known in RULES.items() if known in (interpolation, adaptive_pooling) and "max" not in name))
def resampled(step: Step, values: Values) -> Tensor:
    """Each dimension by the matrix of its weights, which the operation gives for unit vectors."""
    call = step.call
    x = call.tensor()
    out, shape = values.of(x), shape_of(x)
    lead = len(shape) - int(next(letter for letter in call.name if letter.isdigit()))
    for dim in range(lead, len(shape)):
        weights = _weights(call, shape, lead, dim, out)
        index = [torch.as_tensor(each, device=out.device) for each in (step.needed[x][dim], step.part[dim])]
        out = torch.movedim(torch.movedim(out, dim, -1) @ weights[index[0]][:, index[1]], -1, dim)
    return out


def _weights(call: Call, shape: Shape, lead: int, dim: int, like: Tensor) -> Tensor:
    """What each cell of the input weighs in each of the output along one dimension."""
    side, x = shape[dim], call.tensor()
    # Along the others as many cells as one of the output is made of, for an operation that is told a scale.
    sides = [side if d == dim else -(-shape[d] // call.shape[d]) for d in range(lead, len(shape))]
    line = [side if d == dim else 1 for d in range(lead, len(shape))]
    unit = torch.eye(side, dtype=like.dtype, device=like.device).reshape(side, 1, *line).expand(side, 1, *sides)
    found: Tensor = evaluate(call.node, lambda node: unit if node is x else node)
    for other in reversed([d for d in range(lead, len(shape)) if d != dim]):
        found = found.select(2 + other - lead, 0)
    return found[:, 0]
