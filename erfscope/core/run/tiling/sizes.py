"""Whether a model does the same at two sizes of its input: two recordings compared, operation by operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from erfscope.core.graph.graph import arguments, name_of, shape_of
from erfscope.core.graph.places import describe
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.rules.reading import COPIES, Dims, Taps, call_of

#: Arguments that say how large a map becomes: which positions it reads then is compared by the fields of its units.
SIZES = {"size", "output_size", "scale_factors", "length"}


def chosen_by_size(one: Recording, other: Recording, layer: str) -> str:
    """An operation on the way to a layer that is another one in another recording of a model, or takes other numbers,
    channels or weights, and not only more positions of the map; "" for none."""
    start = one.known(layer).node
    todo, seen = [(start, other.known(layer).node, start)], set[tuple[fx.Node, fx.Node]]()
    while todo:
        *pair, user = todo.pop()
        mine, theirs = map(_without_copies, pair)
        if (mine, theirs) in seen:
            continue
        seen.add((mine, theirs))
        user = mine if mine in one.graph.live else user
        numbers, others = one.numbers(mine), other.numbers(theirs)
        if isinstance(numbers, Tensor) and isinstance(others, Tensor):
            if not _is_same_table(numbers, others):
                return describe(user)
        elif not _is_same_call(one, mine, other, theirs):
            return describe(user)
        else:
            given, needed = (_nodes((node.args, dict(node.kwargs))) for node in (mine, theirs))
            if len(given) != len(needed):  # such as the rows of a map: all are as the first one
                given, needed = given[:1] * len(needed) + given, needed + needed[:1] * len(given)
            todo += [(*pair, user) for pair in zip(given, needed, strict=True)]
    return ""


def _without_copies(node: fx.Node) -> fx.Node:
    while name_of(node) in COPIES:
        node = node.all_input_nodes[0]
    return node


def _nodes(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(argument, found.append)
    return found


def _is_same_table(numbers: Tensor, others: Tensor) -> bool:
    """Whether two tensors that do not depend on the image are the same, or of two sizes with one number everywhere:
    those that differ from position to position are found in each recording."""
    if numbers.shape == others.shape:
        return torch.equal(numbers, others)
    one, other = torch.unique(numbers), torch.unique(others)
    return len(one) > 1 or len(other) > 1 or torch.equal(one, other)


def _is_same_call(one: Recording, mine: fx.Node, other: Recording, theirs: fx.Node) -> bool:
    """Whether two nodes are the same weight, or the same operation but for sizes and positions."""
    if name_of(mine) != name_of(theirs) or one.graph.held.get(mine) != other.graph.held.get(theirs):
        return False
    given, others = (arguments(node) or {"index": node.args[-1:]} for node in (mine, theirs))
    # In words, since NaN is unlike itself.
    changed = {key for key in given if not _nodes(given[key]) and repr(given[key]) != repr(others[key])} - SIZES
    if mine not in one.graph.live:
        return not changed or shape_of(mine) != shape_of(theirs)
    return not changed or (call_of(mine).operation.moves and _reads(one, mine) == _reads(other, theirs))


def _reads(recording: Recording, node: fx.Node) -> list[tuple[int, list[int]]]:
    """The indices that an operation reads along dimensions in which positions of the image are alike."""
    found, positions = [], recording.positions
    for edge, before in zip(positions.edges.get(node, ()), positions.before.get(node, ()), strict=True):
        for step, places in zip(edge.steps, before, strict=True):
            for dim, read in enumerate(step.reads if isinstance(step, Dims) else ()):
                if isinstance(read, Taps) and not any(place.varies_along(dim) for place in places[:-1]):
                    found.append((dim, read.unbounded.tolist()))
    return found
