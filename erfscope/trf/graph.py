"""The recorded operations as a graph."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from erfscope.trf.axes.axis_layout import AxisLayout
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import IndexMap
from erfscope.trf.operations import VIEWS_AND_COPIES

Written = Literal["values", "numbers"]
Kind = Literal["local", "mirror", "window", "global", "unknown"]


class AxisRead(NamedTuple):
    """Which cells of one axis of an input are read for given cells of the output."""

    #: The axis of the output whose cells say which are read; None where one set of cells is read for all of them.
    axis: int | None
    #: From cells of the output to those of the input; None where every cell is read.
    index_map: IndexMap | None
    #: "mirror" reverses the axis, "window" mixes all positions of a window, "global" all of the axis; "unknown" may do
    #: anything.
    kind: Kind = "local"
    #: Whether the output has the input's positions, so that the operation can be left out as if it were the identity (a
    #: norm, a softmax).
    keeps_positions: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """One value that depends on the image, as it was at one moment."""

    index: int
    #: Name of the operation without its namespace, e.g. "convolution".
    name: str
    #: The innermost module that was running, "" if not known.
    module: str
    shape: tuple[int, ...]
    #: Which of its dimensions hold which axes of the image.
    layout: AxisLayout
    #: Left out of the repr, which would otherwise be exponential in the number of shortcuts.
    edges: tuple[Edge, ...] = field(default=(), repr=False)
    #: What the operation is called where it mixes positions.
    mixing_name: str = ""
    #: The value that this one is a mere view of, with the same axes.
    view_of: Node | None = field(default=None, repr=False)
    #: The operation's arguments other than tensors and sizes.
    arguments: tuple[object, ...] = ()
    #: Where the numbers of its arguments come from that do not depend on the image: of equal provenance are equal
    #: numbers.
    constants: tuple[object, ...] = ()
    #: What it writes into a part of a tensor: values that depend on the image, numbers that do not; None where it
    #: writes nothing.
    writes: Written | None = None

    def describe(self, name: str = "") -> str:
        """The operation, or another name for it, with the module that it ran in."""
        return f"{name or self.name} in {self.module}" if self.module else name or self.name


def identity_reads(layout: AxisLayout) -> tuple[AxisRead | None, ...]:
    """Reads of an operation that keeps every position of a tensor."""
    return tuple(None if axis is None else AxisRead(i, Regrid(axis.size, 1, 1)) for i, axis in enumerate(layout.axes))


class Edge(NamedTuple):
    """One input of an operation.

    Extra tokens are those beside a map, which have no position: class tokens, registers, prompts.
    """

    source: Node
    #: One per axis, None for axes that the source does not have. No tuple at all: every position is kept.
    reads: tuple[AxisRead | None, ...] | None
    #: Whether the extra tokens of the source are read; None: where those of the output are.
    extra_tokens: bool | None = None
    #: Whether the source is read for extra tokens of the output only.
    extra_tokens_only: bool = False
    #: The source is read only where this gives a cell: it lacks the axis, and was written to some cells of it.
    only_where: AxisRead | None = None

    @property
    def axis_reads(self) -> tuple[AxisRead | None, ...]:
        """The reads, also where every position is kept."""
        return identity_reads(self.source.layout) if self.reads is None else self.reads

    def with_reads(self, changes: Mapping[int, AxisRead]) -> Edge:
        """The edge with the reads of some axes replaced."""
        return self._replace(reads=tuple(changes.get(i, read) for i, read in enumerate(self.axis_reads)))

    def with_kind(self, kind: Kind, axes: Container[int]) -> Edge:
        """The edge with reads of another kind along some axes."""
        return self.with_reads(
            {i: read._replace(kind=kind) for i, read in enumerate(self.axis_reads) if read is not None and i in axes}
        )


class RuleOutput(NamedTuple):
    """Where an output's factors are and what it was computed from."""

    layout: AxisLayout
    edges: tuple[Edge, ...]
    #: What the operation is called if it mixes positions.
    mixing_name: str = ""


def ancestors(start: Node) -> list[Node]:
    """The node and everything it was computed from, in the order of execution."""
    seen, stack = {start}, [start]
    while stack:
        for edge in stack.pop().edges:
            if edge.source not in seen:
                seen.add(edge.source)
                stack.append(edge.source)
    return sorted(seen, key=lambda node: node.index)


def skip_pointwise(node: Node) -> Node:
    """The value that ``node`` was made from by operations that leave every position where it is, such as
    activations."""
    while len(node.edges) == 1:
        edge = node.edges[0]
        if (
            edge.reads is not None
            or edge.extra_tokens is not None
            or edge.only_where is not None
            or edge.extra_tokens_only
            or edge.source.layout != node.layout
        ):
            break
        node = edge.source
    return node


def skip_views(node: Node) -> Node:
    """What a tensor is a view of, or a copy."""
    while node.name in VIEWS_AND_COPIES and len(node.edges) == 1:
        node = node.edges[0].source
    return node


def depends_on(nodes: list[Node], goal: Node) -> set[Node]:
    """The goal and every node that is computed from it."""
    reached = {goal}
    for node in nodes[goal.index + 1 :]:
        if any(edge.source in reached for edge in node.edges):
            reached.add(node)
    return reached


def computed_from(start: Node) -> Iterator[Node]:
    """A value and every value that it was computed from, last first."""
    stack, seen = [start], set[Node]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(edge.source for edge in node.edges)


def has_path_around(start: Node, goal: Node, root: Node) -> bool:
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
