"""Which share of the paths from a unit to a reference leaves the tensors on the way.

From the unit back, each input of an operation and each tap of a window takes an equal share of what arrives at an
element; what a tap outside of its tensor takes is gone. On average, so does the energy of a gradient at random weights
that keep the variance. What mixes all positions is left out: it has no border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import fx

from erfscope.core.graph.field import Fields, number_cells
from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.places import Place, reshape_numbers
from erfscope.core.graph.rules.reading import ABSENT, Dims, Edge, IntArray, Reshape, Step, Taps, Whole
from erfscope.core.values.layout import Layout

Shares = NDArray[np.float64]


class PathShares(NamedTuple):
    """Where the paths from a unit end along one axis of a reference; shares of those that are known."""

    #: (cells,): at each cell.
    inside: Shares
    #: (2,): before the first cell, and behind the last.
    outside: Shares


def path_shares(fields: Fields, node: fx.Node, layout: Layout, unit: Sequence[int], axis: int) -> PathShares | None:
    """Follow the paths from one unit of a map back to a reference along one of its axes; None where none is known."""
    positions, reference = fields.positions, fields.reference
    if node not in positions or reference not in positions:
        return None
    shares, outside = {node: _start(positions.places(node)[axis], node, layout, unit)}, np.zeros(2)
    for here in reversed(positions.graph.nodes[positions.order[reference] + 1 : positions.order[node] + 1]):
        if here not in shares or here not in positions.edges:
            continue
        share, place = shares.pop(here), positions.places(here)[axis]
        leads = positions.has_leading_input[here][axis]
        pairs = zip(positions.edges[here], positions.before[here], strict=True)
        ways = [
            _Way(edge, [each[axis] for each in before], place, keys=edge.columns if edge.secondary and leads else None)
            for edge, before in pairs
            if edge.source in fields
        ]
        ways = [way for way in ways if way.is_local]
        covers = [np.broadcast_to(way.cover(), share.shape) for way in ways]
        total = np.sum(covers, axis=0) if covers else np.zeros(share.shape)
        for way, cover in zip(ways, covers, strict=True):
            part = np.divide(share * cover, total, out=np.zeros(share.shape), where=total > 0)
            back, lost = way.back(part)
            outside += lost
            shares[way.edge.source] = shares.get(way.edge.source, 0.0) + back
    if reference not in shares:
        return None
    line = positions.places(reference)[axis].dim
    cells = number_cells(shape_of(reference), fields.layout, axis)
    numbers = np.broadcast_to(cells[0], [side if dim == line else 1 for dim, side in enumerate(shape_of(reference))])
    there = np.isfinite(numbers).reshape(-1)
    inside = np.bincount(numbers.reshape(-1)[there].astype(int), shares[reference][there], fields.sizes[axis])
    known = inside.sum() + outside.sum()
    return PathShares(inside / known, outside / known) if known > 0 else None


def _start(place: Place, node: fx.Node, layout: Layout, unit: Sequence[int]) -> Shares:
    """All paths at one unit, along the dimension of an axis."""
    if place.dim is None:
        return np.ones(1)
    share = np.zeros(shape_of(node)[place.dim])
    spots = layout.unit_box(shape_of(node), unit)[place.dim]
    share[spots] = 1 / len(spots)
    return share


class _Way(NamedTuple):
    """How paths go back from an operation to one of its inputs along an axis."""

    edge: Edge
    #: Before each step.
    places: list[Place]
    #: Of the output.
    place: Place
    #: A dimension of keys, which have no say where the output stands.
    keys: int | None

    @property
    def is_local(self) -> bool:
        """Whether positions are kept apart."""
        if not all(place.exists for place in (self.place, *self.places)):
            return False
        return all(self._keeps(step, place, number) for number, (step, place) in enumerate(self._steps()))

    def _steps(self) -> Iterator[tuple[Step, Place]]:
        yield from zip(self.edge.steps, self.places, strict=True)

    def _keeps(self, step: Step, place: Place, number: int) -> bool:
        if place.dim is None or len(place.table) == 1 or isinstance(step, Reshape):
            return True
        if number == 0 and self.keys == place.dim:
            return False
        read = step.reads[place.dim]
        goes_on = not isinstance(read, Whole) or read.same is not None
        is_last = number == len(self.edge.steps) - 1
        return goes_on and not (is_last and step.goals[place.dim] != self.place.dim and len(self.place.table) > 1)

    def cover(self) -> Shares:
        """The share of the output's elements that read this input, along the dimension of the axis."""
        found = np.ones(1)
        for number, step in enumerate(self.edge.steps):
            for read in step.reads if isinstance(step, Dims) else ():
                if isinstance(read, Taps):
                    reads = (read.unbounded != ABSENT).any(1)
                    is_line = number == len(self.edge.steps) - 1 and read.dim == self.place.dim
                    found = found * (reads if is_line and len(reads) > 1 else reads.mean())
        return found

    def back(self, share: Shares) -> tuple[Shares, Shares]:
        """The shares at the input's elements, and what is lost on both sides."""
        lost, shape = np.zeros(2), shape_of(self.edge.source)
        shapes = [shape, *(step.shape for step in self.edge.steps)]
        after = [*self.places[1:], self.place]
        for (step, place), line, old in reversed([*zip(self._steps(), after, shapes, strict=False)]):
            if place.dim is None or len(place.table) == 1:
                share = share.sum(keepdims=True)
                continue
            read = step.reads[place.dim] if isinstance(step, Dims) else None
            if isinstance(read, Taps):
                share, gone = _back_through_taps(share, read.unbounded, read.inside, old[place.dim])
                lost += gone if place.slope >= 0 else gone[::-1]
            elif read is None:
                spots = _spots(place, line, old, step.shape)
                share, _ = _back_through_taps(share, spots, spots, old[place.dim])
        return share, lost


def _spots(place: Place, line: Place, old: Sequence[int], new: Sequence[int]) -> IntArray:
    """(outputs, inputs): the indices of a dimension that each index of one of a reshaped tensor holds."""
    assert place.dim is not None
    numbers = np.arange(old[place.dim], dtype=float).reshape(
        [1, *(-1 if dim == place.dim else 1 for dim in range(len(old)))]
    )
    made = reshape_numbers(numbers, tuple(old), tuple(new))[0]
    made = made[np.newaxis] if line.dim is None else np.moveaxis(made, line.dim, 0)
    found: IntArray = made.reshape(len(made), -1).astype(np.intp)
    return found


def _back_through_taps(share: Shares, unbounded: IntArray, inside: IntArray, size: int) -> tuple[Shares, Shares]:
    """The shares of outputs, given to what they read in equal parts: at each of so many inputs, and on both sides."""
    count = len(unbounded)
    share = np.full(count, share.sum() / count) if len(share) != count else share
    reads = unbounded != ABSENT
    parts = np.where(reads, (share / np.maximum(reads.sum(1), 1))[:, np.newaxis], 0.0)
    there = inside >= 0
    back = np.bincount(inside[there], parts[there], size).astype(np.float64)
    gone = parts * ~there
    return back, np.array([gone[unbounded < 0].sum(), gone[unbounded >= 0].sum()])
