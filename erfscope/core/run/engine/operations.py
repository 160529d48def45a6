"""The operations with weights of a recorded pass: what each costs, and what it sees of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from erfscope.core.graph.ends import FREE, LOCAL, narrowest
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import RecordedGraph, shape_of
from erfscope.core.graph.places import module_of
from erfscope.core.graph.recording import FIRST, Recording
from erfscope.core.run.engine.cost import multiply_adds

Sides = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation with weights: its module, what it costs for one image, and how much of the input it sees.

    Fields are sides in cells of the input along each axis, as if it had no borders; infinity covers every input."""

    #: The module that it runs in, and the stage around that; "" for none.
    name: str
    stage: str
    #: Parameters that no operation before it has, and multiply-adds of one image in 10^9.
    params: int
    gmacs: float
    #: What its own input sees along the path that sees least.
    shortest_in: Sides
    #: What it sees itself along that path, and along all paths, with operations that mix all positions and without.
    shortest: Sides
    longest: Sides
    local: Sides
    #: Whether it works on all positions at once, behind the last map: the classifier of a net of images.
    is_head: bool

    @property
    def widens(self) -> bool:
        """Whether it sees more than its input does; what has a kernel of 1 does not."""
        return self.shortest != self.shortest_in


def operations_of(recording: Recording, parts: Sequence[str], last: str | None) -> tuple[Operation, ...]:
    """The operations with weights that depend on the image, in order of execution.

    Args:
        recording: The recorded pass of a model of one input.
        parts: Names of modules that are told as the stage of what is inside of them.
        last: The last layer with a map; None where the model has none.
    """
    positions, graph = recording.positions, recording.graph
    longest = recording.fields(positions.image, FIRST, "image")
    shortest = Fields(positions, positions.image, FIRST, join=narrowest)
    seen_last = None if last is None else recording.find(last)
    last_map = None if seen_last is None else seen_last.node

    def has_positions(node: fx.Node) -> bool:
        places = positions.places(node)[: len(positions.space)]
        return any(place.dim is not None and len(place.table) > 1 for place in places)

    found, seen = list[Operation](), set[fx.Node]()
    for node in graph.nodes:
        weights = {each for taken in node.all_input_nodes for each in _weights(taken, graph)}
        inputs = [each for each in node.all_input_nodes if each in shortest]
        count = multiply_adds(node, 1) if weights and inputs and node in longest else 0
        if not count:
            continue
        name, taken, seen_whole = (
            module_of(node),
            _sides(shortest, inputs[0], FREE, min),
            _sides(shortest, node, FREE, min),
        )
        # A kernel of several cells on a map of one stands in for one of a larger input.
        is_head = last_map in positions.ancestors(node) and not has_positions(node)
        is_head = is_head and (taken == seen_whole or has_positions(inputs[0]) or math.inf in seen_whole)
        found.append(
            Operation(
                name=name,
                stage=next((each for each in parts if f"{name}.".startswith(f"{each}.")), ""),
                params=sum(_numel(each) for each in weights - seen),
                gmacs=multiply_adds(node, int(np.prod(shape_of(node)))) / recording.images / 1e9,
                shortest_in=taken,
                shortest=seen_whole,
                longest=_sides(longest, node, FREE, max),
                local=_sides(longest, node, LOCAL, max),
                is_head=is_head,
            )
        )
        seen |= weights
    return tuple(found)


def passed_by(recording: Recording, layer: str, parts: Sequence[str]) -> tuple[str, ...]:
    """Those parts that skip connections pass by: a layer still sees the image without them."""
    positions, seen = recording.positions, recording.find(layer)

    def is_passed_by(part: str) -> bool:
        inside = {each for each in recording.graph.nodes if f"{module_of(each)}.".startswith(f"{part}.")}
        return seen is not None and positions.image in positions.ancestors(seen.node, without=inside)

    return tuple(filter(is_passed_by, parts))


def _weights(node: fx.Node, graph: RecordedGraph) -> Iterator[fx.Node]:
    """The module's own tensors that an argument is computed from, without the image."""
    if node in graph.held:
        yield node
    elif node not in graph.live:
        for each in node.all_input_nodes:
            yield from _weights(each, graph)


def _numel(node: fx.Node) -> int:
    return int(np.prod(shape_of(node)))


def _sides(fields: Fields, node: fx.Node, rows: slice, which: Any) -> Sides:
    """The least or the greatest side of what the elements of a tensor see, along each axis."""
    found = []
    for ends in fields.every_end[node][: len(fields.sizes)]:
        first, last = ends[rows]
        sides = (1 - first - last)[first < np.inf]
        found.append(float(which(sides.min(), sides.max())) if sides.size else math.inf)
    return tuple(found)
