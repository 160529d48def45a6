"""Parts of tensors: what a part of an operation's output needs, and how it is computed from that.

A part is given by the indices along each dimension that it has, in order. An operation may make more than it is asked
for, such as all channels of a convolution: :func:`made` says what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from erfscope.graph.graph import shape_of, value
from erfscope.graph.rules.reading import (
    MOVES,
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
    groups_of,
    is_tensor,
)

Part = tuple[IntArray, ...]
#: An operation's second half: its call, the part that it makes, and the parts of its tensors by their nodes, with what
#: they hold.
Run = Callable[[Call, Part, "Parts"], Tensor]
RUNS: dict[str, Run] = {}
CONVOLUTIONS = [f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)]
#: Operations over (B, C, *space) that need what lies between the first and the last index of a part.
DENSE = frozenset([*CONVOLUTIONS, *(f"{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3))])
#: Operations that begin with a state of every image.
STATEFUL = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
#: Operations that make all of the dimension that they work along.
ALONG = frozenset(["cumsum", "cumprod", "logcumsumexp", "glu"])


class Parts:
    """The parts of an operation's inputs that are at hand.

    Args:
        needed: Which part of each input is read.
        tensors: Those parts; of inputs that are not among the needed ones, all.
        weights: Weight and bias of a convolution in the place of its own.
        device: Where they lie.
    """

    def __init__(
        self,
        needed: Mapping[fx.Node, Part],
        tensors: Callable[[fx.Node], Tensor],
        weights: tuple[Tensor, Tensor] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.needed, self.tensors, self.weights, self.device = needed, tensors, weights, device

    def __getitem__(self, node: fx.Node) -> Tensor:
        return self.tensors(node)


def whole(shape: Shape) -> Part:
    """All of a tensor."""
    return tuple(np.arange(side) for side in shape)


def cut(tensor: Tensor, have: Part, want: Part) -> Tensor:
    """The part ``want`` of a tensor that holds the part ``have``."""
    for dim, (mine, asked) in enumerate(zip(have, want, strict=True)):
        if len(mine) != len(asked):
            spots = np.searchsorted(mine, asked)
            if spots[-1] - spots[0] + 1 == len(spots):
                tensor = tensor.narrow(dim, int(spots[0]), len(spots))
            else:
                tensor = tensor.index_select(dim, torch.as_tensor(spots, device=tensor.device))
    return tensor


def united(one: Part | None, other: Part) -> Part:
    """The smallest part that holds two."""
    return other if one is None else tuple(a if a is b else np.union1d(a, b) for a, b in zip(one, other, strict=True))


def before(step: Step, part: Part, shape: Shape) -> Part:
    """The part of a step's input, of this shape, that a part of its output needs."""
    if isinstance(step, Dims):
        return tuple(_read(read, part, side) for read, side in zip(step.reads, shape, strict=True))
    found = [np.arange(side) for side in shape]
    for mine, theirs in groups_of(shape, step.shape):
        if any(len(part[j]) < step.shape[j] for j in theirs) and min(len(mine), len(theirs)) == 1:
            flat = np.ravel_multi_index(np.ix_(*(part[j] for j in theirs)), [step.shape[j] for j in theirs]).reshape(-1)
            for i, indices in zip(mine, np.unravel_index(flat, [shape[i] for i in mine]), strict=True):
                found[i] = np.unique(indices)
    return tuple(found)


def _read(read: int | Whole | Taps, part: Part, side: int) -> IntArray:
    if isinstance(read, Taps):
        inside = read.inside if read.dim is None else read.inside[part[read.dim]]
        return np.unique(inside[inside >= 0])
    return np.arange(side) if isinstance(read, Whole) else part[read]


def asked_of(edge: Edge, part: Part) -> list[Part] | None:
    """The parts before each step of an edge, and last the part of the output, that this needs; None where it needs
    nothing.
    """
    shapes, asked = [shape_of(edge.source), *(step.shape for step in edge.steps)], [part]
    for step, shape in zip(reversed(edge.steps), reversed(shapes[:-1]), strict=True):
        asked.insert(0, before(step, asked[0], shape))
        if not all(len(indices) for indices in asked[0]):
            return None
    return asked


def needs(call: Call, edges: Sequence[Edge], part: Part) -> dict[fx.Node, Part]:
    """The parts of its inputs that a part of an operation's output needs; inputs that it does not need are left out."""
    found: dict[fx.Node, Part] = {}
    for edge in edges:
        asked = asked_of(edge, part) if is_divisible(call, edges) else [whole(shape_of(edge.source))]
        if asked is not None:
            wanted = united(found.get(edge.source), asked[0])
            found[edge.source] = _dense(wanted) if call.name in DENSE else wanted
    return found


def _dense(part: Part) -> Part:
    """The part with all that lies between its indices along the axes of space."""
    return (*part[:2], *(np.arange(each[0], each[-1] + 1) for each in part[2:]))


def is_divisible(call: Call, edges: Sequence[Edge]) -> bool:
    """Whether it is known how a part of an operation's output is computed; else it needs its inputs whole."""
    steps = [step for edge in edges for step in edge.steps]
    reads = [read for step in steps if isinstance(step, Dims) for read in step.reads]
    if call.args.get("is_causal") or call.name in STATEFUL:
        return False
    if any(isinstance(read, Whole) and read.blind for read in reads):
        return False
    plain = all(isinstance(step, Dims) for step in steps) and not any(isinstance(read, Taps) for read in reads)
    return call.name in RUNS or call.name in MOVES or call.name in ALONG or (plain and not call.output)


def made(call: Call, edges: Sequence[Edge], part: Part) -> Part:
    """What an operation makes where a part of its output is asked for."""
    if not is_divisible(call, edges):
        return whole(call.shape)
    found = list(part)
    reads = [read for edge in edges for step in edge.steps if isinstance(step, Dims) for read in step.reads]
    for same in [read.same for read in reads if isinstance(read, Whole) and read.same is not None]:
        found[same] = np.arange(call.shape[same])
    if call.name in DENSE:
        found = [*_dense(tuple(found))]
    if call.name in ALONG:
        found[call.args["dim"]] = np.arange(call.shape[call.args["dim"]])
    if "conv" in call.name:
        found[1] = np.arange(call.shape[1])
    return tuple(found)


def run(call: Call, edges: Sequence[Edge], part: Part, parts: Parts) -> Tensor:
    """The part of an operation's output that it makes."""
    if (known := RUNS.get(call.name)) is not None:
        return known(call, part, parts)
    moves = call.name in MOVES and is_divisible(call, edges)
    return _moved(edges, part, parts, _dtype(call)) if moves else _as_it_is(call, parts)


def _dtype(call: Call) -> torch.dtype:
    """Dtype of the output that is meant."""
    given = value(call.node)
    found: torch.dtype = (given[call.output] if isinstance(given, list | tuple) else given).dtype
    return found


def _as_it_is(call: Call, parts: Parts) -> Tensor:
    """An operation whose parts are computed as the whole is."""
    args, kwargs = fx.map_arg((call.node.args, dict(call.node.kwargs)), parts.__getitem__)
    out: Any = call.node.target(*args, **kwargs)  # type: ignore[operator]
    found: Tensor = out[call.output] if isinstance(out, tuple | list) else out
    return found


def _moved(edges: Sequence[Edge], part: Part, parts: Parts, dtype: torch.dtype) -> Tensor:
    """The elements of the output where they are among the inputs; those that are nowhere are zero."""
    pieces = [_through(edge, part, parts) for edge in edges if asked_of(edge, part) is not None]
    if not pieces:
        return torch.zeros([len(each) for each in part], dtype=dtype, device=parts.device)
    return pieces[0] if len(pieces) == 1 else sum(pieces[1:], pieces[0])


def _through(edge: Edge, part: Part, parts: Parts, fill: float = 0.0) -> Tensor:
    shapes, asked = [shape_of(edge.source), *(step.shape for step in edge.steps)], asked_of(edge, part) or []
    tensor = cut(parts[edge.source], parts.needed[edge.source], asked[0])
    for step, shape, have, want in zip(edge.steps, shapes[:-1], asked[:-1], asked[1:], strict=True):
        tensor = (
            _reshaped(tensor, shape, step.shape, have, want)
            if isinstance(step, Reshape)
            else _arranged(tensor, step, have, want, fill)
        )
    return tensor


def _reshaped(tensor: Tensor, old: Shape, new: Shape, have: Part, want: Part) -> Tensor:
    """A part read as another shape: what its product of indices becomes, cut to what is wanted."""
    found = [np.arange(side) for side in new]
    for mine, theirs in groups_of(old, new):
        if any(len(have[i]) < old[i] for i in mine):
            flat = np.ravel_multi_index(np.ix_(*(have[i] for i in mine)), [old[i] for i in mine]).reshape(-1)
            for j, indices in zip(theirs, np.unravel_index(flat, [new[j] for j in theirs]), strict=True):
                found[j] = np.unique(indices)
    return cut(tensor.reshape([len(each) for each in found]), tuple(found), want)


def _arranged(tensor: Tensor, step: Dims, have: Part, want: Part, fill: float) -> Tensor:
    """A part whose dimensions are read one by one, put where the output has them."""
    order = [-1] * len(step.shape)
    for dim, read in enumerate(step.reads):
        goal = read.dim if isinstance(read, Taps) else None if isinstance(read, Whole) else read
        if isinstance(read, Taps):
            spots = read.inside[want[goal] if goal is not None else [0], 0]
            index = torch.as_tensor(np.searchsorted(have[dim], np.maximum(spots, have[dim][0])), device=tensor.device)
            tensor = tensor.index_select(dim, index)
            if (spots < 0).any():
                gone = torch.as_tensor(spots < 0, device=tensor.device).reshape(
                    [-1 if d == dim else 1 for d in range(tensor.dim())]
                )
                tensor = tensor.masked_fill(gone, fill)
        if goal is not None:
            order[goal] = dim
    kept = [dim for dim in order if dim >= 0]
    lone = [dim for dim in range(tensor.dim()) if dim not in kept]
    tensor = tensor.permute(*lone, *kept).reshape([tensor.shape[dim] for dim in kept])
    for goal, dim in enumerate(order):
        tensor = tensor.unsqueeze(goal) if dim < 0 else tensor
    return tensor.expand([len(each) for each in want])


# --- windows


def runs(*names: str) -> Callable[[Run], Run]:
    """Register the second half of these operations."""

    def register(function: Run) -> Run:
        RUNS.update(dict.fromkeys(names, function))
        return function

    return register


def _per_dim(values: Any, count: int) -> list[int]:
    entries = [values] if isinstance(values, int) else list(values)
    return entries * count if len(entries) == 1 else entries


def _padded(call: Call, part: Part, parts: Parts, window: Sequence[Sequence[int]], fill: float) -> Tensor:
    """The input of a window (kernel, stride, padding, dilation along each dimension) with what lies beyond its
    borders.
    """
    x = call.tensor("input", "self")
    amounts: list[int] = []
    spatial = range(len(call.shape) - len(window), len(call.shape))
    for dim, (kernel, stride, padding, dilation) in reversed([*zip(spatial, window, strict=True)]):
        first, last = (
            int(part[dim][0]) * stride - padding,
            int(part[dim][-1]) * stride - padding + dilation * (kernel - 1),
        )
        have = parts.needed[x][dim]
        amounts += [int(have[0]) - first, last - int(have[-1])]
    return F.pad(parts[x], amounts, value=fill) if any(amounts) else parts[x]


@runs("conv1d", "conv2d", "conv3d")
def convolution(call: Call, part: Part, parts: Parts) -> Tensor:
    """Convolution without padding of the padded part."""
    weight, bias = call.args["weight"], call.args["bias"]
    kernels = shape_of(weight)[2:]
    strides, dilations = (_per_dim(call.args[key], len(kernels)) for key in ("stride", "dilation"))
    paddings = call.args["padding"]
    if isinstance(paddings, str):
        paddings = [d * (k - 1) // 2 * (paddings == "same") for k, d in zip(kernels, dilations, strict=True)]
    window = [*zip(kernels, strides, _per_dim(paddings, len(kernels)), dilations, strict=True)]
    x = _padded(call, part, parts, window, 0.0)
    function = (F.conv1d, F.conv2d, F.conv3d)[len(kernels) - 1]
    kernel, shift = parts.weights or (parts[weight], None if bias is None else parts[bias])
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        # Else the kernel would put them into this order in the forward and in the backward pass.
        kernel = kernel.contiguous(memory_format=torch.channels_last)
    return function(x, kernel, shift, strides, 0, dilations, call.args["groups"])


@runs("max_pool1d", "max_pool2d", "max_pool3d")
def max_pooling(call: Call, part: Part, parts: Parts) -> Tensor:
    """Maximum pooling without padding of the part padded with what is never the greatest."""
    count = int(call.name[8])
    kernels = _per_dim(call.args["kernel_size"], count)
    strides = _per_dim(call.args["stride"] or kernels, count)
    paddings, dilations = _per_dim(call.args["padding"], count), _per_dim(call.args["dilation"], count)
    x = _padded(call, part, parts, [*zip(kernels, strides, paddings, dilations, strict=True)], -math.inf)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[count - 1](x, kernels, strides, 0, dilations)


@runs("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pooling(call: Call, part: Part, parts: Parts) -> Tensor:
    """Average pooling: sums over the padded part, divided by how many cells count."""
    count, shape = int(call.name[8]), shape_of(call.tensor())
    kernels = _per_dim(call.args["kernel_size"], count)
    strides, paddings = _per_dim(call.args["stride"] or kernels, count), _per_dim(call.args["padding"], count)
    x = _padded(call, part, parts, [*zip(kernels, strides, paddings, [1] * count, strict=True)], 0.0)
    out = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1](x, kernels, strides)
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
        out = _as_it_is(call, parts)
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
        return torch.full([len(each) for each in part], number, dtype=_dtype(call), device=parts.device)
    return _through(edge, part, parts, number)


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


@runs(*(name for name, known in RULES.items() if known.__name__ == "shape_only"))
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


RESAMPLING = [name for name in RULES if name.lstrip("_").startswith(("upsample", "adaptive_avg_pool"))]


@runs(*RESAMPLING)
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
