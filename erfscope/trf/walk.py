"""The walk backwards through the recorded operations from one unit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from erfscope.trf.axes.index_maps import WHOLE, IndexMap, IndexSet, IntArray, preimage, run_of, single, union
from erfscope.trf.graph import Edge, Kind, Node

ONE = single(0)


class Region(NamedTuple):
    """The part of a tensor that is read: a span per axis, None for axes it does not have, and whether its extra tokens
    are."""

    spans: tuple[IndexSet | None, ...]
    extra_tokens: bool = False


@dataclass(slots=True)
class Walk:
    """What one unit reads of the goal, and which operations its paths pass."""

    #: What is read of the goal; None if no path leads there.
    region: Region | None = None
    #: Operations that mix an axis wholly: (node, axis).
    mixers: list[tuple[Node, int]] = field(default_factory=list)
    #: Operations that mix windows.
    windows: list[Node] = field(default_factory=list)
    #: Operations that are not understood, last first.
    unknown: list[Node] = field(default_factory=list)
    #: Those of them that may lead a unit to other positions than its own.
    displacing: list[Node] = field(default_factory=list)
    #: Operations at which a path ended, since what is left out has no positions of its input.
    ends: list[Node] = field(default_factory=list)
    #: Operations that were met.
    passed: list[Node] = field(default_factory=list)

    @property
    def met(self) -> set[tuple[str, str]]:
        """Names of the operations that were met, with the modules they ran in."""
        return {(node.name, node.module) for node in self.passed}

    @property
    def mixes(self) -> bool:
        """Whether an operation was met that mixes positions, so that a walk which leaves mixing out may find something
        else."""
        return bool(self.mixers or self.windows)


#: The lists of a walk, which grow with every operation that it passes.
_GROWING = ("mixers", "windows", "unknown", "displacing", "ends", "passed")


class Tails:
    """The ends of walks, for later walks towards the same goal with the same kinds left out.

    From a node that every path passes, what a walk finds depends on nothing but the part of it that is read. Walks from
    the layers of one model meet at the sums behind its residual branches with the same parts, and differ in a block or
    two before them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[Node, Hashable], tuple[Walk, tuple[int, ...]]] = {}

    def join(self, node: Node, region: Region, found: Walk) -> bool:
        """Add to a walk what an earlier one found from here on; False if none came by."""
        known = self._known.get((node, _identity(region)))
        if known is None:
            return False
        walk, before = known
        for name, count in zip(_GROWING, before, strict=True):
            getattr(found, name).extend(getattr(walk, name)[count:])
        found.region = walk.region
        return True

    def keep(self, found: Walk, passes: list[tuple[Node, Region, tuple[int, ...]]]) -> None:
        """Keep a walk that has ended: for each node that every path passed, what was read of it and how long the lists
        were before it."""
        for node, region, before in passes:
            self._known[node, _identity(region)] = found, before


def _identity(region: Region) -> Hashable:
    """A value that regions share where they are the same part of a tensor."""
    spans = (
        None if span is None else span.whole or (_cells(span.unbounded), _cells(span.in_bounds))
        for span in region.spans
    )
    return (region.extra_tokens, *spans)


def _cells(cells: IntArray) -> Hashable:
    return ends if (ends := run_of(cells)) is not None else cells.tobytes()


def trace_back(
    start: Node,
    region: Region,
    goal: Node,
    between: Container[Node] | None,
    left_out: Container[Kind] = (),
    *,
    settle: Callable[[Node, Region], Region] | None = None,
    tails: Tails | None = None,
) -> Walk:
    """Follow every path from ``start`` back to ``goal`` and gather what is read on the way.

    Args:
        start: Where the unit is.
        region: The unit.
        goal: The reference.
        between: Nodes that depend on the goal; None if all do.
        left_out: Kinds of mixing to leave out: an operation that keeps positions then counts as the identity, another
            one as no path.
        settle: Called with every node before its operation is passed, last node first, and what is read of it; what it
            returns is what the walk goes on with.
        tails: What earlier walks found, all without ``settle`` and with the same goal, ``between`` and ``left_out``;
            this one is added.
    """
    found = Walk()
    passes: list[tuple[Node, Region, tuple[int, ...]]] = []
    pending: dict[Node, Region] = {start: region}
    heap = [(-start.index, start)]
    while heap:
        node = heapq.heappop(heap)[1]
        if node is goal:
            found.region = pending[node]
            break
        if tails is not None and not heap and len(node.edges) > 1:
            if tails.join(node, pending[node], found):
                break
            passes.append((node, pending[node], tuple(len(getattr(found, name)) for name in _GROWING)))
        here = pending.pop(node) if settle is None else settle(node, pending.pop(node))
        found.passed.append(node)
        for edge in node.edges:
            source = edge.source
            if between is not None and source not in between:
                continue
            there = _read_source(edge, here, node, found, left_out)
            if there is None:
                found.ends.append(node)
                continue
            if source in pending:
                pending[source] = _join_regions(pending[source], there)
            else:
                pending[source] = there
                heapq.heappush(heap, (-source.index, source))
    if tails is not None:
        tails.keep(found, passes)
    return found


def _read_source(edge: Edge, region: Region, node: Node, found: Walk, left_out: Container[Kind]) -> Region | None:
    """The part of an edge's source that a part of the node needs; None if nothing."""
    if edge.extra_tokens_only and not region.extra_tokens:
        return None
    if (
        edge.only_where is not None
        and edge.only_where.index_map is not None
        and preimage(edge.only_where.index_map, _span(region, edge.only_where.axis)).is_empty
    ):
        return None
    if edge.reads is None:
        return region if edge.extra_tokens is None else Region(region.spans, edge.extra_tokens)
    extra_tokens = region.extra_tokens if edge.extra_tokens is None else edge.extra_tokens
    spans: list[IndexSet | None] = []
    done: list[tuple[IndexMap, IndexSet, IndexSet]] = []
    for axis, read in enumerate(edge.reads):
        if read is None:
            spans.append(None)
            continue
        if read.kind in left_out:
            if not read.keeps_positions:
                return None
            spans.append(_span(region, read.axis))
            extra_tokens = region.extra_tokens
            continue
        if read.kind not in ("local", "mirror"):
            _note(found, read.kind, node, axis)
            if read.kind == "unknown" and not read.keeps_positions:
                found.displacing.append(node)
        spans.append(WHOLE if read.index_map is None else _preimage(read.index_map, _span(region, read.axis), done))
    if not extra_tokens and any(span is not None and span.is_empty for span in spans):
        return None
    return Region(tuple(spans), extra_tokens)


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
        found.windows.append(node)
    elif not found.unknown or found.unknown[-1] is not node:
        found.unknown.append(node)


def _preimage(index_map: IndexMap, span: IndexSet, done: list[tuple[IndexMap, IndexSet, IndexSet]]) -> IndexSet:
    """The preimage; the very one of an earlier axis where the same was read along it, as rows and columns mostly
    are."""
    for known, of, found in done:
        if of is span and known == index_map:
            return found
    found = preimage(index_map, span)
    done.append((index_map, span, found))
    return found


def _join_regions(one: Region, more: Region) -> Region:
    if one is more:
        return one
    spans: list[IndexSet | None] = []
    pairs = list(zip(one.spans, more.spans, strict=True))
    for i, (a, b) in enumerate(pairs):
        if a is None or b is None:
            spans.append(b if a is None else a)
            continue
        same = next((k for k in range(i) if pairs[k][0] is a and pairs[k][1] is b), None)
        spans.append(union(a, b) if same is None else spans[same])
    return Region(tuple(spans), one.extra_tokens or more.extra_tokens)
