"""The recorded operations as a graph, and the walk backwards through it from one unit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from erfscope.trf.axes.index_maps import WHOLE, IndexMap, IndexSet, preimage, single, union
from erfscope.trf.axes.place import AxisLayout

Kind = Literal["local", "mirror", "window", "global", "unknown"]

ONE = single(0)
#: Operations that only show a tensor, or parts of it, in the same or another shape, or copy it.
_VIEWS = frozenset(
    (
        *("slice", "select", "split", "split_with_sizes", "unbind", "narrow", "chunk", "alias", "detach", "clone", "_to_copy"),
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    )
)


class Step(NamedTuple):
    """What one axis of an operation's input owes to its output."""

    #: The output's axis that the span comes from; None if the output has none.
    axis: int | None
    #: None: every cell is read.
    move: IndexMap | None
    #: "mirror" reverses the axis, "window" mixes all positions of a window, "global" all of the axis; "unknown" may do anything.
    kind: Kind = "local"
    #: Whether the output has the input's positions, so that the operation can be left out as if it were the identity (a norm, a softmax).
    stays: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """One value that depends on the image, as it was at one moment."""

    index: int
    #: Name of the operation without its namespace, e.g. "convolution".
    name: str
    #: The innermost module that was running, "" if not known.
    module: str
    shape: tuple[int, ...]
    place: AxisLayout
    #: Left out of the repr, which would otherwise be exponential in the number of shortcuts.
    edges: tuple[Edge, ...] = field(default=(), repr=False)
    #: What the operation is called where it mixes positions.
    words: str = ""
    #: The value that this one is a mere view of, with the same axes.
    twin: Node | None = field(default=None, repr=False)
    #: What else the operation was told: its arguments other than tensors and sizes.
    told: tuple[object, ...] = ()
    #: Shapes and origins of its arguments that do not depend on the image: equal origins are equal numbers.
    constants: tuple[object, ...] = ()


class Edge(NamedTuple):
    """One input of an operation."""

    source: Node
    #: One per axis, None for axes that the source does not have. No tuple at all: everything stays where it is.
    steps: tuple[Step | None, ...] | None
    #: Whether the tokens beside the source's map are read; None: if those beside the output's are.
    beside: bool | None = None
    #: The source is read only where the tokens beside the output's map are.
    aside: bool = False
    #: The source is read only where this step leads to a cell: a source without the axis that was written to some cells of it.
    where: Step | None = None


class Region(NamedTuple):
    """The part of a tensor that is read: a span per axis, None for axes it does not have, and whether tokens beside the map are."""

    spans: tuple[IndexSet | None, ...]
    beside: bool = False


@dataclass(slots=True)
class Walk:
    """What a walk found."""

    #: What is read of the goal; None if no path leads there.
    region: Region | None = None
    #: Operations that mix an axis wholly: (node, axis).
    mixers: list[tuple[Node, int]] = field(default_factory=list)
    #: Operations that mix windows were met.
    windows: bool = False
    #: Operations that are not understood, last first.
    unknown: list[Node] = field(default_factory=list)
    #: Those of them that may lead a unit to other positions than its own.
    displacing: list[Node] = field(default_factory=list)
    #: Operations at which a path ended, since what is left out has no positions of its input.
    ends: list[Node] = field(default_factory=list)
    #: Operations that were met.
    passed: list[Node] = field(default_factory=list)
    #: Their names, with the modules they ran in.
    met: set[tuple[str, str]] = field(default_factory=set)


def trace_back(
    start: Node,
    region: Region,
    goal: Node,
    between: Container[Node] | None,
    left_out: Container[Kind] = (),
    *,
    settle: Callable[[Node, Region], Region] | None = None,
) -> Walk:
    """Follow every path from ``start`` back to ``goal`` and gather what is read on the way.

    Args:
        start: Where the unit is.
        region: The unit.
        goal: The reference.
        between: Nodes that depend on the goal; None if all do.
        left_out: Kinds of mixing to leave out: an operation that keeps positions then counts as the identity, another one as no path.
        settle: Called with every node before its operation is passed, last node first, and what is read of it; what it returns is what
            the walk goes on with.
    """
    found = Walk()
    pending: dict[Node, Region] = {start: region}
    heap = [(-start.index, start)]
    while heap:
        node = heapq.heappop(heap)[1]
        if node is goal:
            found.region = pending[node]
            break
        here = pending.pop(node) if settle is None else settle(node, pending.pop(node))
        found.met.add((node.name, node.module))
        found.passed.append(node)
        for edge in node.edges:
            source = edge.source
            if between is not None and source not in between:
                continue
            there = _through(edge, here, node, found, left_out)
            if there is None:
                found.ends.append(node)
                continue
            if source in pending:
                pending[source] = _joined(pending[source], there)
            else:
                pending[source] = there
                heapq.heappush(heap, (-source.index, source))
    return found


def origin(node: Node) -> Node:
    """The value that ``node`` was made from by operations that leave every position where it is, such as activations."""
    while len(node.edges) == 1:
        edge = node.edges[0]
        if edge.steps is not None or edge.beside is not None or edge.where is not None or edge.aside or edge.source.place != node.place:
            break
        node = edge.source
    return node


def unviewed(node: Node) -> Node:
    """What a tensor is a view of, or a copy."""
    while node.name in _VIEWS and len(node.edges) == 1:
        node = node.edges[0].source
    return node


def depends_on(nodes: list[Node], goal: Node) -> set[Node]:
    """The goal and every node that is computed from it."""
    reached = {goal}
    for node in nodes[goal.index + 1 :]:
        if any(edge.source in reached for edge in node.edges):
            reached.add(node)
    return reached


def avoids(start: Node, goal: Node, root: Node) -> bool:
    """Whether some path from ``start`` back to ``root`` does not pass through ``goal``."""
    stack, seen = [start], {goal}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if node is root:
            return True
        seen.add(node)
        stack.extend(edge.source for edge in node.edges)
    return False


def _through(edge: Edge, region: Region, node: Node, found: Walk, left_out: Container[Kind]) -> Region | None:
    """The part of an edge's source that a part of the node needs; None if nothing."""
    if edge.aside and not region.beside:
        return None
    if edge.where is not None and edge.where.move is not None and preimage(edge.where.move, _span(region, edge.where.axis)).is_empty:
        return None
    if edge.steps is None:
        return region if edge.beside is None else Region(region.spans, edge.beside)
    beside = region.beside if edge.beside is None else edge.beside
    spans: list[IndexSet | None] = []
    for axis, step in enumerate(edge.steps):
        if step is None:
            spans.append(None)
            continue
        if step.kind in left_out:
            if not step.stays:
                return None
            spans.append(_span(region, step.axis))
            beside = region.beside
            continue
        if step.kind not in ("local", "mirror"):
            _note(found, step.kind, node, axis)
            if step.kind == "unknown" and not step.stays:
                found.displacing.append(node)
        spans.append(WHOLE if step.move is None else preimage(step.move, _span(region, step.axis)))
    if not beside and any(span is not None and span.is_empty for span in spans):
        return None
    return Region(tuple(spans), beside)


def _span(region: Region, axis: int | None) -> IndexSet:
    """The span along one axis; one cell where the output has no such axis."""
    span = ONE if axis is None else region.spans[axis]
    if span is None:
        raise AssertionError(f"a rule reads axis {axis}, which its output does not have")
    return span


def _note(found: Walk, kind: Kind, node: Node, axis: int) -> None:
    if kind == "global":
        found.mixers.append((node, axis))
    elif kind == "window":
        found.windows = True
    elif not found.unknown or found.unknown[-1] is not node:
        found.unknown.append(node)


def _joined(one: Region, more: Region) -> Region:
    if one is more:
        return one
    spans = tuple(a if b is None else b if a is None else union(a, b) for a, b in zip(one.spans, more.spans, strict=True))
    return Region(spans, one.beside or more.beside)
