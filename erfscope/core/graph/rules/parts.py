"""Parts of tensors: what a part of an operation's output needs, and how it is computed from that.

A part is given by the indices along each dimension that it has, in order. An operation may make more than it is asked
for, such as all channels of a convolution: a :class:`PartStep` has what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import evaluate, shape_of, value
from erfscope.core.graph.rules.reading import (
    Call,
    Dims,
    Edge,
    IntArray,
    Reshape,
    Shape,
    Taps,
    Whole,
    call_of,
    edges_of,
    groups_of,
)

Part = tuple[IntArray, ...]


class PartValues(NamedTuple):
    """The tensors that a step reads."""

    #: The part of an input that the step needs; of inputs that are not among the needed ones, all.
    of: Callable[[fx.Node], Tensor]
    device: torch.device
    #: Weight and bias of a convolution, or scale and shift of a frozen norm, in the place of its own.
    weights: tuple[Tensor, Tensor] | None = None


class PartStep(NamedTuple):
    """One operation, and the part of its output that is made."""

    node: fx.Node
    call: Call
    edges: list[Edge]
    part: Part
    #: Which part of each input is read.
    needed: Mapping[fx.Node, Part]
    #: How the part is computed.
    run: Run
    #: For each edge what :func:`parts_along` returns; none where the operation needs its inputs whole.
    paths: Sequence[list[Part] | None] = ()


#: Computes a part of an operation's output.
Run = Callable[[PartStep, PartValues], Tensor]
RUNS: dict[str, Run] = {}


def runs(*names: str) -> Callable[[Run], Run]:
    """Register how these operations compute a part of their output."""

    def register(function: Run) -> Run:
        RUNS.update(dict.fromkeys(names, function))
        return function

    return register


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


def union(one: Part | None, other: Part) -> Part:
    """The smallest part that holds two."""
    return other if one is None else tuple(a if a is b else np.union1d(a, b) for a, b in zip(one, other, strict=True))


def contains(one: Part, other: Part) -> bool:
    """Whether a part holds another one."""
    return all(a is b or bool(np.isin(b, a).all()) for a, b in zip(one, other, strict=True))


def parts_along(edge: Edge, part: Part) -> list[Part] | None:
    """The parts before each step of an edge, and last the part of the output, that this needs; None where it needs
    nothing.
    """
    shapes, found = [shape_of(edge.source), *(step.shape for step in edge.steps)], [part]
    for step, shape in zip(reversed(edge.steps), reversed(shapes[:-1]), strict=True):
        if isinstance(step, Reshape):
            before = _reread(found[0], step.shape, shape)
        else:
            before = tuple(_read(read, found[0], side) for read, side in zip(step.reads, shape, strict=True))
        if not all(len(indices) for indices in before):
            return None
        found.insert(0, before)
    return found


def _read(read: int | Whole | Taps, part: Part, side: int) -> IntArray:
    if isinstance(read, Taps):
        inside = read.inside if read.dim is None else read.inside[part[read.dim]]
        return np.unique(inside[inside >= 0])
    return np.arange(side) if isinstance(read, Whole) else part[read]


def _reread(part: Part, old: Shape, new: Shape) -> Part:
    """The part of a tensor in which the elements of a part lie when it is read as another shape."""
    found = [np.arange(side) for side in new]
    if all(len(indices) == side for indices, side in zip(part, old, strict=True)):
        return tuple(found)
    for mine, theirs in groups_of(old, new):
        if min(len(mine), len(theirs)) == 1 and any(len(part[i]) < old[i] for i in mine):
            flat = np.ravel_multi_index(np.ix_(*(part[i] for i in mine)), [old[i] for i in mine]).reshape(-1)
            for j, indices in zip(theirs, np.unravel_index(flat, [new[j] for j in theirs]), strict=True):
                found[j] = np.unique(indices)
    return tuple(found)


def plan_step(node: fx.Node, part: Part, numbers: Callable[[fx.Node], Tensor | None]) -> PartStep:
    """What an operation makes where a part of its output is asked for, and the parts of its inputs that this needs;
    inputs that it does not need are left out.
    """
    call, edges = call_of(node, numbers), edges_of(node, numbers)
    inputs = {source: whole(shape_of(source)) for source in call.node.all_input_nodes}
    as_a_whole = RUNS.get(call.name, run_as_it_is) if call.operation.stateful else run_as_it_is
    everything = PartStep(node, call, edges, whole(shape_of(node)), inputs, as_a_whole)
    if not _is_divisible(call, edges):
        return everything
    run = RUNS.get(call.name, run_by_moves if call.operation.moves else run_as_it_is)
    made, needed = _part_made(call, edges, part), dict[fx.Node, Part]()
    paths = [parts_along(edge, made) for edge in edges]
    for edge, found in zip(edges, paths, strict=True):
        if found is None:
            if call.operation.dense:
                return everything  # a window that lies on padding alone
            continue
        before, wanted = needed.get(edge.source), found[0]
        if run is run_as_it_is and before is not None and not all(map(np.array_equal, before, wanted)):
            return everything  # as attention of a tensor on itself: a tensor has one part, and two are needed
        wanted = union(before, wanted)
        needed[edge.source] = _dense(wanted) if call.operation.dense else wanted
    return PartStep(node, call, edges, made, needed, run, paths)


def _is_divisible(call: Call, edges: Sequence[Edge]) -> bool:
    """Whether it is known how a part of an operation's output is computed; else it needs its inputs whole."""
    steps = [step for edge in edges for step in edge.steps]
    reads = [read for step in steps if isinstance(step, Dims) for read in step.reads]
    if call.args.get("is_causal") or call.operation.stateful:
        return False
    if any(isinstance(read, Whole) and read.upper_bound for read in reads):
        return False
    plain = all(isinstance(step, Dims) for step in steps) and not any(isinstance(read, Taps) for read in reads)
    known = call.operation
    return call.name in RUNS or known.moves or known.makes_dim or (plain and not call.output)


def _part_made(call: Call, edges: Sequence[Edge], part: Part) -> Part:
    """What an operation makes where a part of its output is asked for."""
    found = list(_dense(part) if call.operation.dense else part)
    reads = [read for edge in edges for step in edge.steps if isinstance(step, Dims) for read in step.reads]
    full = [read.same for read in reads if isinstance(read, Whole) and read.same is not None]
    full += [call.args["dim"]] if call.operation.makes_dim else [1] if "conv" in call.name else []
    if call.name not in RUNS and not call.operation.moves:
        # A dimension that is no input's, as those that a Fourier transform makes, is made whole.
        last = [edge.steps[-1] if edge.steps else None for edge in edges]
        known = {dim for step in last for dim in (step.goals if isinstance(step, Dims) else range(len(part)))}
        full += [dim for dim in range(len(part)) if dim not in known]
    for dim in full:
        found[dim] = np.arange(call.shape[dim])
    return tuple(found)


def _dense(part: Part) -> Part:
    """The part with all that lies between its indices along the axes of space."""
    return (*part[:2], *(np.arange(each[0], each[-1] + 1) for each in part[2:]))


def run_as_it_is(step: PartStep, values: PartValues) -> Tensor:
    """An operation whose parts are computed as the whole is."""
    out: Any = evaluate(step.call.node, values.of)
    found: Tensor = out[step.call.output] if isinstance(out, tuple | list) else out
    return found


def run_by_moves(step: PartStep, values: PartValues, fill: float = 0.0) -> Tensor:
    """The elements of the output where they are among the inputs; ``fill`` where they are nowhere."""
    paths = zip(step.edges, step.paths, strict=True)
    pieces = [_move(edge, parts, step, values, fill) for edge, parts in paths if parts is not None]
    if not pieces:
        dtype = value(step.node).dtype
        return torch.full([len(each) for each in step.part], fill, dtype=dtype, device=values.device)
    return pieces[0] if len(pieces) == 1 else sum(pieces[1:], pieces[0])


def _move(edge: Edge, parts: list[Part], step: PartStep, values: PartValues, fill: float) -> Tensor:
    """The part of an output that one edge leads to."""
    tensor = cut(values.of(edge.source), step.needed[edge.source], parts[0])
    shapes = [shape_of(edge.source), *(each.shape for each in edge.steps)]
    for each, shape, have, want in zip(edge.steps, shapes[:-1], parts[:-1], parts[1:], strict=True):
        if isinstance(each, Reshape):
            read = _reread(have, shape, each.shape)
            tensor = cut(tensor.reshape([len(indices) for indices in read]), read, want)
        else:
            tensor = _arrange(tensor, each, have, want, fill)
    return tensor


def _arrange(tensor: Tensor, step: Dims, have: Part, want: Part, fill: float) -> Tensor:
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
