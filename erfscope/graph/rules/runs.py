"""How operations compute a part of their output that neither only move elements nor may be run as they are on parts of
their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from erfscope.graph.graph import shape_of, value
from erfscope.graph.rules.parts import Part, Parts, as_it_is, asked_of, cut, dtype_of, runs, through, whole
from erfscope.graph.rules.products import shape_only
from erfscope.graph.rules.reading import RULES, Call, Shape, is_tensor
from erfscope.graph.rules.windows import adaptive_pooling, interpolation


def _per_dim(values: Any, count: int) -> list[int]:
    entries = [values] if isinstance(values, int) else list(values)
    return entries * count if len(entries) == 1 else entries


def _padded(
    call: Call, part: Part, parts: Parts, window: Sequence[Sequence[int]], fill: float
) -> tuple[Tensor, list[int]]:
    """The input of a window (kernel, stride, padding, dilation along each dimension), and the padding on both sides
    that the operation adds by itself; what lies beyond one border alone is there already.
    """
    x = call.tensor("input", "self")
    more, both = list[int](), list[int]()
    spatial = range(len(call.shape) - len(window), len(call.shape))
    for dim, (kernel, stride, padding, dilation) in zip(spatial, window, strict=True):
        first = int(part[dim][0]) * stride - padding
        last = int(part[dim][-1]) * stride - padding + dilation * (kernel - 1)
        low, high = int(parts.needed[x][dim][0]) - first, last - int(parts.needed[x][dim][-1])
        both.append(min(low, high))
        more = [low - both[-1], high - both[-1], *more]
    return (F.pad(parts[x], more, value=fill) if any(more) else parts[x]), both


@runs("conv1d", "conv2d", "conv3d")
def convolution(call: Call, part: Part, parts: Parts) -> Tensor:
    """Convolution of the padded part."""
    weight, bias = call.args["weight"], call.args["bias"]
    kernels = shape_of(weight)[2:]
    strides, dilations = (_per_dim(call.args[key], len(kernels)) for key in ("stride", "dilation"))
    paddings = call.args["padding"]
    if isinstance(paddings, str):
        paddings = [d * (k - 1) // 2 * (paddings == "same") for k, d in zip(kernels, dilations, strict=True)]
    window = [*zip(kernels, strides, _per_dim(paddings, len(kernels)), dilations, strict=True)]
    x, own = _padded(call, part, parts, window, 0.0)
    function = (F.conv1d, F.conv2d, F.conv3d)[len(kernels) - 1]
    kernel, shift = parts.weights or (parts[weight], None if bias is None else parts[bias])
    return function(x, kernel, shift, strides, own, dilations, call.args["groups"])


@runs("max_pool1d", "max_pool2d", "max_pool3d")
def max_pooling(call: Call, part: Part, parts: Parts) -> Tensor:
    """Maximum pooling of the part padded with what is never the greatest."""
    count = int(call.name[8])
    kernels = _per_dim(call.args["kernel_size"], count)
    strides = _per_dim(call.args["stride"] or kernels, count)
    paddings, dilations = _per_dim(call.args["padding"], count), _per_dim(call.args["dilation"], count)
    x, own = _padded(call, part, parts, [*zip(kernels, strides, paddings, dilations, strict=True)], -math.inf)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[count - 1](x, kernels, strides, own, dilations)


@runs("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pooling(call: Call, part: Part, parts: Parts) -> Tensor:
    """Average pooling: sums over the padded part, divided by how many cells count."""
    count, shape = int(call.name[8]), shape_of(call.tensor())
    kernels = _per_dim(call.args["kernel_size"], count)
    strides, paddings = _per_dim(call.args["stride"] or kernels, count), _per_dim(call.args["padding"], count)
    x, own = _padded(call, part, parts, [*zip(kernels, strides, paddings, [1] * count, strict=True)], 0.0)
    out = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1](x, kernels, strides, own)
    for dim, kernel, stride, padding in zip(
        range(len(part) - count, len(part)), kernels, strides, paddings, strict=True
    ):
        side = shape[dim]
        low, high = (0, side) if not call.args["count_include_pad"] else (-padding, side + padding)
        first = part[dim] * stride - padding
        cells = np.minimum(first + kernel, high) - np.maximum(first, low)
        scale = torch.as_tensor(kernel / cells, dtype=out.dtype, device=out.device)
        out = out * scale.reshape([-1 if d == dim else 1 for d in range(out.dim())])
    return out if (divisor := call.args.get("divisor_override")) is None else out * (math.prod(kernels) / divisor)


@runs("cat", "concat", "concatenate")
def concatenation(call: Call, part: Part, parts: Parts) -> Tensor:
    """The pieces of the part behind each other."""
    asked = [(edge.source, wanted) for edge in RULES[call.name](call) or [] if (wanted := asked_of(edge, part))]
    pieces = [cut(parts[source], parts.needed[source], wanted[0]) for source, wanted in asked]
    return torch.cat(pieces, call.args["dim"])


@runs("batch_norm", "instance_norm", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(call: Call, part: Part, parts: Parts) -> Tensor:
    """A frozen batch norm as the scale and the shift that it is.

    On the CPU, PyTorch's gradient of a batch norm mixes up the positions where the gradient that arrives lies in memory
    in another order than the input (seen in PyTorch 2.15): one by the map's own statistics gets it in the input's.
    """
    if call.args.get("training", call.args.get("use_input_stats")):
        out = as_it_is(call, parts)
        if out.requires_grad:
            out.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        return out
    scale, shift = frozen(call, parts.__getitem__)
    shape = (1, -1, *(1,) * (len(part) - 2))
    x = parts[call.tensor()]
    return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


def frozen(call: Call, tensor: Callable[[fx.Node], Tensor]) -> tuple[Tensor, Tensor]:
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
def padding(call: Call, part: Part, parts: Parts) -> Tensor:
    """Padding by moving, with a value where nothing is moved from."""
    (edge,) = RULES[call.name](call) or []
    number = float(call.args.get("value") or 0.0)
    if asked_of(edge, part) is None:
        return torch.full([len(each) for each in part], number, dtype=dtype_of(call), device=parts.device)
    return through(edge, part, parts, number)


@runs("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(call: Call, part: Part, parts: Parts) -> Tensor:
    """Transposed convolution of the part, of which what lies beside the asked cells is cut off, or zero where
    nothing reaches.
    """
    x, weight, bias = call.tensor("input"), call.args["weight"], call.args["bias"]
    count = len(shape_of(weight)) - 2
    strides, paddings, dilations = (_per_dim(call.args[key], count) for key in ("stride", "padding", "dilation"))
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[count - 1]
    out = function(parts[x], parts[weight], None, strides, 0, 0, call.args["groups"], dilations)
    amounts: list[int] = []
    for i in reversed(range(count)):
        first = int(parts.needed[x][2 + i][0]) * strides[i] - paddings[i]
        amounts += [first - int(part[2 + i][0]), int(part[2 + i][-1]) + 1 - first - out.shape[2 + i]]
    out = F.pad(out, amounts)
    return out if bias is None else out + parts[bias].reshape(-1, *(1,) * count)


@runs(*(name for name, known in RULES.items() if known is shape_only))
def filled(call: Call, part: Part, parts: Parts) -> Tensor:
    """A tensor of which the input only says the shape, the dtype and the device."""
    like = torch.empty(shape_of(call.tensor()), dtype=call.tensor().meta["val"].dtype, device=parts.device)
    args, kwargs = fx.map_arg((call.node.args, dict(call.node.kwargs)), lambda node: like)
    return cut(call.node.target(*args, **kwargs), whole(call.shape), part)  # type: ignore[operator]


@runs("fill", "zero")
def overwritten(call: Call, part: Part, parts: Parts) -> Tensor:
    """A tensor of one number, of which nothing is left that was there."""
    number = call.args.get("value", 0)
    dtype = value(call.node).dtype
    if is_tensor(number):
        return parts[number].to(dtype).expand([len(each) for each in part])
    return torch.full([len(each) for each in part], number, dtype=dtype, device=parts.device)


@runs(*(name for name, known in RULES.items() if known in (interpolation, adaptive_pooling) and "max" not in name))
def resampled(call: Call, part: Part, parts: Parts) -> Tensor:
    """Each dimension by the matrix of its weights, which the operation gives for unit vectors."""
    x = call.tensor()
    out, shape = parts[x], shape_of(x)
    lead = len(shape) - int(next(letter for letter in call.name if letter.isdigit()))
    for dim in range(lead, len(shape)):
        weights = _weights(call, shape, lead, dim, out)
        index = [torch.as_tensor(each, device=out.device) for each in (parts.needed[x][dim], part[dim])]
        out = torch.movedim(torch.movedim(out, dim, -1) @ weights[index[0]][:, index[1]], -1, dim)
    return out


def _weights(call: Call, shape: Shape, lead: int, dim: int, like: Tensor) -> Tensor:
    """What each cell of the input weighs in each of the output along one dimension."""
    side, x = shape[dim], call.tensor()
    # Along the others as many cells as one of the output is made of, for an operation that is told a scale.
    sides = [side if d == dim else -(-shape[d] // call.shape[d]) for d in range(lead, len(shape))]
    line = [side if d == dim else 1 for d in range(lead, len(shape))]
    unit = torch.eye(side, dtype=like.dtype, device=like.device).reshape(side, 1, *line).expand(side, 1, *sides)
    args, kwargs = fx.map_arg((call.node.args, dict(call.node.kwargs)), lambda node: unit if node is x else node)
    found: Tensor = call.node.target(*args, **kwargs)  # type: ignore[operator]
    for other in reversed([d for d in range(lead, len(shape)) if d != dim]):
        found = found.select(2 + other - lead, 0)
    return found[:, 0]
