"""Which layers add no new pixels at an input size, from the recorded operations alone.

A layer is unproductive where its input already sees more than the image, also along the path that sees least: what it
combines are no new pixels (Richter et al. 2021, arXiv:2106.12307; 2022, arXiv:2211.14487)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from erfscope.core.answer.json_values import fields, to_json
from erfscope.core.graph.ends import FREE, LOCAL, narrowest
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import Graph, shape_of
from erfscope.core.graph.places import module_of
from erfscope.core.graph.recording import FIRST
from erfscope.core.run.engine.cost import giga_multiply_adds, multiply_adds
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError

#: A field that covers every input.
ALL = float("inf")
Sides = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerField:
    """One operation with weights, and how much of the input it sees.

    Fields are sides in cells of the input along each axis, as if it had no borders; infinity covers every input."""

    #: The module that it runs in, and the stage around that; "" for none.
    name: str
    stage: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The layers with weights of one model at one input size, in order of execution, and what each of them sees."""

    model: str
    input_size: tuple[int, ...]
    axes: Axes
    layers: tuple[LayerField, ...]
    #: Of the whole model.
    params: int
    gmacs: float

    @property
    def in_place(self) -> tuple[LayerField, ...]:
        """The layers of maps: a classifier, and what stands behind an operation that mixes all positions with no way
        around it, see everything at any size."""
        return tuple(each for each in self.layers if not each.is_head and ALL not in each.shortest_in)

    @property
    def classifies(self) -> bool:
        """Whether a classifier of the whole input follows."""
        return any(each.is_head for each in self.layers)

    def unproductive(self) -> tuple[LayerField, ...]:
        """The layers whose input sees more than the image along every axis, also on the path that sees least."""
        return tuple(each for each in self.in_place if self._exceeds(each.shortest_in, all))

    def partly(self) -> tuple[LayerField, ...]:
        """Those whose input does so along some axes only."""
        found = [each for each in self.in_place if self._exceeds(each.shortest_in, any)]
        return tuple(each for each in found if not self._exceeds(each.shortest_in, all))

    def critical(self) -> tuple[LayerField, ...]:
        """The layers that go beyond the image themselves, and whose input does not: they see little that is new."""
        wasted = {*self.unproductive(), *self.partly()}
        found = (each for each in self.in_place if each not in wasted and ALL not in each.shortest)
        return tuple(each for each in found if self._exceeds(each.shortest, all))

    def border(self) -> LayerField | None:
        """The first layer whose theoretical receptive field exceeds the image along every axis; None for none."""
        found = (each for each in self.in_place if ALL not in each.local)
        return next((each for each in found if self._exceeds(each.local, all)), None)

    def smallest(self) -> Sides:
        """The smallest input without unproductive layers."""
        return self._largest("shortest_in", self.in_place)

    def largest(self) -> Sides:
        """The largest input that some layer sees whole without an operation that mixes all positions."""
        return self._largest("local", self.in_place)

    def mixer(self) -> LayerField | None:
        """The first layer that sees everything by an operation that mixes all positions, and yet works on positions."""
        return next((each for each in self.in_place if ALL in each.longest), None)

    def _exceeds(self, sides: Sides, how: Any) -> bool:
        return bool(how(side > whole for side, whole in zip(sides, self.input_size, strict=True)))

    def _largest(self, name: str, layers: Sequence[LayerField]) -> Sides:
        found = [
            [side for side in each if side < ALL] for each in zip(*(getattr(x, name) for x in layers), strict=True)
        ]
        return tuple(max(sides, default=1.0) for sides in found)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; a field that covers every input is null."""
        names = {name: [each.name for each in getattr(self, name)()] for name in ("unproductive", "partly", "critical")}
        border = self.border()
        rows = [
            {
                name: [None if side == ALL else side for side in v] if isinstance(v, tuple) else v
                for name, v in fields(each).items()
            }
            for each in self.layers
        ]
        document: dict[str, Any] = to_json(
            {
                "model": self.model,
                "input_size": self.input_size,
                "params": self.params,
                "gmacs": self.gmacs,
                "border_layer": border.name if border else None,
                **names,
                "smallest_input": self.smallest(),
                "largest_input": self.largest(),
                "layers": rows,
            }
        )
        return document


def structure_of(model: OpenModel) -> Structure:
    """The layers with weights of a model and their fields, from its recorded pass.

    Raises:
        ErfscopeError: it takes several inputs, or its operations cannot be recorded.
        MeasurementError: it cannot run on an input of its size.
    """
    recording = model.recording
    if model.adapter.preprocess.parts:
        raise ErfscopeError(f"{model.label} takes several inputs; advice is given on models of one")
    positions, graph = recording.positions, recording.graph
    longest = recording.fields(positions.image, FIRST, "image")
    shortest = Fields(positions, positions.image, FIRST, join=narrowest)
    last = _last_map(model)

    def has_positions(node: fx.Node) -> bool:
        places = positions.places(node)[: len(positions.space)]
        return any(place.dim is not None and len(place.table) > 1 for place in places)

    found, seen = list[LayerField](), set[fx.Node]()
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
        is_head = last in positions.ancestors(node) and not has_positions(node)
        is_head = is_head and (taken == seen_whole or has_positions(inputs[0]) or ALL in seen_whole)
        found.append(
            LayerField(
                name=name,
                stage=next((each for each in model.parts if f"{name}.".startswith(f"{each}.")), ""),
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
    if not found:
        raise ErfscopeError(
            f"no operation with weights of {model.label} could be recorded: there is nothing to advise on"
        )
    return Structure(
        model=model.label,
        input_size=model.adapter.preprocess.size,
        axes=model.adapter.preprocess.axes,
        layers=tuple(found),
        params=sum(each.numel() for each in model.adapter.module.parameters()),
        gmacs=giga_multiply_adds(graph),
    )


def bypassed(model: OpenModel, layer: str, parts: Sequence[str]) -> tuple[str, ...]:
    """Those of a model's parts that skip connections pass by: a layer still sees the image without them."""
    recording, positions = model.recording, model.recording.positions
    seen = recording.find(layer)

    def is_bypassed(part: str) -> bool:
        inside = {each for each in recording.graph.nodes if f"{module_of(each)}.".startswith(f"{part}.")}
        return seen is not None and positions.image in positions.ancestors(seen.node, without=inside)

    return tuple(filter(is_bypassed, parts))


def _last_map(model: OpenModel) -> fx.Node | None:
    """The tensor of the layer that is measured by default; None where the model has no map."""
    with contextlib.suppress(ErfscopeError):
        seen = model.recording.find(model.default_layer)
        return None if seen is None else seen.node
    return None


def _weights(node: fx.Node, graph: Graph) -> Iterator[fx.Node]:
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
        found.append(float(which(sides.min(), sides.max())) if sides.size else ALL)
    return tuple(found)
