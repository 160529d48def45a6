"""Where a tensor's elements stand on the image, and in which image of the batch: carried forward through the
operations.

Along each axis a tensor has a table of places for one of its dimensions, or none, as class tokens, queries and pooled
values. Views and moves take the table with them; where branches meet whose places differ, the first counts, and is not
exact. A tensor whose axes go along dimensions of their own is a map.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, fx

from erfscope.core.graph.graph import RecordedGraph, shape_of
from erfscope.core.graph.layouts import NO_PLACE, Reading, read_places
from erfscope.core.graph.places import NOWHERE, Place, carry_place, go_on, join_places, reshape_places
from erfscope.core.graph.rules.products import ATTENTION, TOKEN_MIXING
from erfscope.core.graph.rules.reading import (
    Dims,
    Edge,
    Reshape,
    Shape,
    Taps,
    call_of,
    edges_of,
    is_tensor,
)

#: Operations that write a part of a tensor over.
WRITES = ("slice_scatter", "select_scatter")


class GraphPositions:
    """The places of all tensors of a graph.

    Args:
        graph: One recorded pass.
        numbers: The numbers of a tensor that does not depend on the input, such as an index; None where they
            are not at hand.
        image: The input whose axes count, (B, C, *space); that of the graph if None.
    """

    def __init__(
        self,
        graph: RecordedGraph,
        numbers: Callable[[fx.Node], Tensor | None] = lambda _: None,
        image: fx.Node | None = None,
    ) -> None:
        self.graph, self.numbers = graph, numbers
        #: The input whose axes count.
        self.image = graph.inputs[0] if image is None else image
        shape = shape_of(self.image)
        #: Spatial size of the image; the axis after the last is the batch's.
        self.space = shape[2:]
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        #: What every node reads of those that depend on the image.
        self.edges: dict[fx.Node, list[Edge]] = {}
        self._places: dict[fx.Node, tuple[Place, ...]] = {}
        self._readings: dict[object, Reading] = {}
        #: For every axis, whether an input that leads (its elements are where the output's are) has places along it.
        self.has_leading_input: dict[fx.Node, tuple[bool, ...]] = {}
        #: The places before each step of each edge.
        self.before: dict[fx.Node, list[list[tuple[Place, ...]]]] = {}
        self._places[self.image] = tuple(_numbered(shape, dim) for dim in (*range(2, len(shape)), 0))
        for node in graph.nodes:
            # Empty tensors, as of a detector that has found nothing, have no element that stands anywhere.
            if node in graph.live and node.op == "call_function" and is_tensor(node) and 0 not in shape_of(node):
                self._visit(node)

    def places(self, node: fx.Node) -> tuple[Place, ...]:
        """Where a tensor's elements stand along each axis of the image, and last in which image of the batch; () where
        nothing is known of it."""
        return self._places.get(node, ())

    def __contains__(self, node: fx.Node) -> bool:
        return node in self._places

    def _visit(self, node: fx.Node) -> None:
        edges = [edge for edge in edges_of(node, self.numbers) if edge.source in self._places]
        if not edges:
            return
        if len(edges) == 1 and edges[0].mixing == ATTENTION:  # a product with weights
            edges = [replace(edges[0], mixing=TOKEN_MIXING)]
        self.edges[node], self.before[node] = edges, []
        found: list[tuple[Place, ...]] = []
        for edge in edges:
            here, shape = self._places[edge.source], shape_of(edge.source)
            before = []
            for step in edge.steps:
                before.append(here)
                if isinstance(step, Reshape):
                    here = reshape_places(here, shape, step.shape)
                else:
                    here = tuple(carry_place(place, step, shape, edge, node) for place in here)
                shape = step.shape
            self.before[node].append(before)
            found.append(here)
        leading = [each for each, edge in zip(found, edges, strict=True) if not edge.secondary]
        self.has_leading_input[node] = tuple(
            any(each[axis].exists for each in leading) for axis in range(len(self.space) + 1)
        )
        parts = self._is_parts_of_one(edges)
        found = [_beside(each, found) for each in found]
        joined = [join_places(each, edges, node, side_by_side=parts) for each in zip(*found, strict=True)]
        if call_of(node).name in WRITES and len(edges) == 1 and edges[0].source is not node.args[0]:
            joined = [go_on(place) for place in joined]
        self._places[node] = tuple(joined)

    def _is_parts_of_one(self, edges: Sequence[Edge]) -> bool:
        """Whether parts of one tensor become the channels of another, as where patches are merged."""
        last = [edge.steps[-1] if edge.steps else None for edge in edges]
        dims = {read.dim for step in last if isinstance(step, Dims) for read in step.reads if isinstance(read, Taps)}
        is_cat = len(edges) > 1 and len(dims) == 1 and all(isinstance(step, Dims) for step in last)
        return is_cat and len({self._moved_from(edge.source) for edge in edges}) == 1

    def _moved_from(self, node: fx.Node) -> fx.Node:
        """The tensor of which another is a view or a part."""
        while len(edges := self.edges.get(node, [])) == 1 and call_of(node).operation.moves:
            node = edges[0].source
        return node

    def reading(self, node: fx.Node) -> Reading:
        """How a tensor holds a map, or why it holds none, in words that follow what it is."""
        if node not in self._places:
            return NO_PLACE
        if (asked := self.key(node)) not in self._readings:
            self._readings[asked] = read_places(self._places[node], shape_of(node), shape_of(self.image)[0])
        return self._readings[asked]

    def key(self, node: fx.Node) -> object:
        """A key that tensors of one shape at the same places share, as before and behind an activation."""
        places = self._places.get(node, ())
        return shape_of(node), *((place.table.tobytes(), *place[:1], *place[2:5]) for place in places)

    def ancestors(self, node: fx.Node, without: Container[fx.Node] = ()) -> set[fx.Node]:
        """A tensor and all that depend on the image that it was computed from, on paths that do not pass through
        others.
        """
        stack, seen = [node], set[fx.Node]()
        while stack:
            here = stack.pop()
            if here not in seen and here not in without:
                seen.add(here)
                stack += [edge.source for edge in self.edges.get(here, [])]
        return seen


def _beside(places: tuple[Place, ...], found: Sequence[tuple[Place, ...]]) -> tuple[Place, ...]:
    """The places of an input of an operation, beside those of all its inputs, without those that go along another
    dimension, or through other images, than those of an input with places along more axes.

    The class tokens of a clip's frames beside its tokens are no part of its map, and TimeSformer takes those of the
    first image for all. Whether images see each other is not read here.
    """
    count = sum(place.exists for place in places[:-1])
    fuller = [each for each in found if sum(place.exists for place in each[:-1]) > count]
    kept = []
    for axis, place in enumerate(places):
        others = [each[axis] for each in fuller if each[axis].exists]
        is_across = any(other.dim != place.dim for other in others)
        is_of_others = axis == len(places) - 1 and not all(np.array_equal(place.table, o.table) for o in others)
        is_off = len(place.table) > 1 and (is_across or is_of_others)
        kept.append(place._replace(dim=None, table=NOWHERE, slope=0.0) if is_off else place)
    return tuple(kept)


def _numbered(shape: Shape, dim: int) -> Place:
    """The place along an axis that is one dimension of the image."""
    return Place(dim, np.arange(shape[dim], dtype=float), 1.0)
