"""Parts of tensors: what a part of an operation's output needs, and how it is computed from that.

A part is given by the indices along each dimension that it has, in order. An operation may make more than it is asked
for, such as all channels of a convolution: :func:`made` says what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from erfscope.graph.graph import shape_of, value
from erfscope.graph.rules.reading import (
    MOVES,
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
)

Part = tuple[IntArray, ...]
#: An operation's second half: its call, the part that it makes, and the parts of its tensors by their nodes, with what
#: they hold.
Run = Callable[[Call, Part, "Parts"], Tensor]
RUNS: dict[str, Run] = {}


def runs(*names: str) -> Callable[[Run], Run]:
    """Register the second half of these operations."""

    def register(function: Run) -> Run:
        RUNS.update(dict.fromkeys(names, function))
        return function

    return register


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
    return _moved(edges, part, parts, dtype_of(call)) if moves else as_it_is(call, parts)


def dtype_of(call: Call) -> torch.dtype:
    """Dtype of the output that is meant."""
    given = value(call.node)
    found: torch.dtype = (given[call.output] if isinstance(given, list | tuple) else given).dtype
    return found


def as_it_is(call: Call, parts: Parts) -> Tensor:
    """An operation whose parts are computed as the whole is."""
    args, kwargs = fx.map_arg((call.node.args, dict(call.node.kwargs)), parts.__getitem__)
    out: Any = call.node.target(*args, **kwargs)  # type: ignore[operator]
    found: Tensor = out[call.output] if isinstance(out, tuple | list) else out
    return found


def _moved(edges: Sequence[Edge], part: Part, parts: Parts, dtype: torch.dtype) -> Tensor:
    """The elements of the output where they are among the inputs; those that are nowhere are zero."""
    pieces = [through(edge, part, parts) for edge in edges if asked_of(edge, part) is not None]
    if not pieces:
        return torch.zeros([len(each) for each in part], dtype=dtype, device=parts.device)
    return pieces[0] if len(pieces) == 1 else sum(pieces[1:], pieces[0])


def through(edge: Edge, part: Part, parts: Parts, fill: float = 0.0) -> Tensor:
    """The part of an output that an edge leads to, made by moves of its input; ``fill`` where nothing is moved from."""
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
