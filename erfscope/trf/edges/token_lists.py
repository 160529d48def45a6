"""Lists of tokens: entries taken in any order, lists concatenated, extra tokens without a position among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erfscope.trf.axes.axis_layout import (
    OTHER,
    Axis,
    AxisFactor,
    AxisLayout,
    Dim,
    Part,
    TokenSequence,
    canonical_layout,
    factors_of,
    other,
)
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import IntArray, Nothing, OutputSlice, Window
from erfscope.trf.edges.affine_centers import SAME, with_joined_centers
from erfscope.trf.edges.basic import edge_between
from erfscope.trf.graph import AxisRead, Edge, Node, RuleOutput

#: A longer list is followed only where its order is that of factors.
LONGEST = 1 << 16


class EntryCells(NamedTuple):
    """The cell of the map that each entry of a dimension holds."""

    #: The axes that they are positions of, ascending, and how many cells each has.
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    #: For each entry the number of its cell, row by row over the axes; -1 for an extra token, which has no position.
    of: IntArray


def cells_of(layout: AxisLayout, dim: int) -> EntryCells | None:
    """The cells that the entries of a dimension hold; None if it holds anything but whole axes, with or without extra
    tokens."""
    parts = layout.dims[dim]
    tokens = parts[0] if len(parts) == 1 and isinstance(parts[0], TokenSequence) else None
    inner: Sequence[Part] = parts if tokens is None else tokens.inner
    factors = [part for part in inner if isinstance(part, AxisFactor) and part.axis != OTHER]
    if not factors or len(factors) < len(inner) or math.prod(part.size for part in parts) > LONGEST:
        return None
    numbers = tuple(sorted({factor.axis for factor in factors}))
    sizes = tuple(layout.size_of(number) for number in numbers)
    if math.prod(factor.size for factor in factors) != math.prod(sizes) or math.prod(sizes) > LONGEST:
        return None
    values = np.indices([factor.size for factor in factors]).reshape(len(factors), -1)
    found = np.zeros((len(numbers), values.shape[1]), dtype=np.intp)
    for factor, value in zip(factors, values, strict=True):
        found[numbers.index(factor.axis)] += factor.step * value
    flat: IntArray = np.asarray(np.ravel_multi_index(tuple(found), sizes), dtype=np.intp)
    if tokens is not None and tokens.cells:
        flat = np.array([-1 if cell < 0 else flat[cell] for cell in tokens.cells], dtype=np.intp)
    elif tokens is not None:
        flat = np.pad(flat, (tokens.before, tokens.after), constant_values=-1).astype(np.intp)
    return EntryCells(numbers, sizes, flat)


def pick_entries(node: Node, dim: int, entries: IntArray) -> RuleOutput | None:
    """The entries of a dimension with these numbers, in that order; None if the dimension is no list of positions.

    Where they are the cells of a coarser or smaller grid, they are positions of that.
    """
    found = cells_of(node.layout, dim)
    if found is None or not entries.size or entries.min() < 0 or entries.max() >= found.of.size:
        return None
    return _list_output(node, dim, found, found.of[entries])


def _list_output(node: Node, dim: int, found: EntryCells, cells: IntArray) -> RuleOutput | None:
    if (cells < 0).all():
        return take_extra_tokens(node, dim, cells.size)
    repeated = _repetitions(found, cells)
    if repeated > 1:
        (number,) = found.numbers
        old = node.layout.axis(number)
        finer = old.resample(cells.size, scale=1 / repeated, shift=(1 - repeated) / (2 * repeated))
        part = (AxisFactor(number, 1, cells.size),)
        return _reindex(node, dim, part, {number: finer}, {number: AxisRead(number, Regrid(old.size, repeated, 1))})
    grid = _grid(found, cells)
    if grid is None:
        return None
    axes: dict[int, Axis] = {}
    reads: dict[int, AxisRead] = {}
    for number, size, (first, step, count) in zip(found.numbers, found.sizes, grid.spans, strict=True):
        old = node.layout.axis(number)
        if count != size:
            axes[number] = old.resample(count, scale=step, shift=first)
            reads[number] = AxisRead(number, Window(size, 1, step, -first))
    if axes and any(f.axis in axes for i, d in enumerate(node.layout.dims) if i != dim for f in factors_of(d)):
        return None
    parts = _parts(found.numbers, tuple(count for _, _, count in grid.spans), grid.cells)
    return _reindex(node, dim, parts, axes, reads)


def _reindex(node: Node, dim: int, parts: Dim, axes: dict[int, Axis], reads: dict[int, AxisRead]) -> RuleOutput:
    """The output of an operation that rearranges one dimension: its new factors, the axes that change, and how these
    are read."""
    layout = node.layout.with_axes(axes).with_dims({dim: parts})
    held = any(isinstance(part, TokenSequence) for part in node.layout.dims[dim])
    holds = any(isinstance(part, TokenSequence) and (-1 in part.cells or part.before or part.after) for part in parts)
    extra_tokens = None if held and holds else False
    edge = Edge(node, None, extra_tokens)
    return RuleOutput(layout, (edge.with_reads(reads) if reads else edge,))


def take_extra_tokens(node: Node, dim: int, count: int) -> RuleOutput:
    """Extra tokens alone, ``count`` of them: entries of a list that have no position."""
    layout = canonical_layout(node.layout.axes, node.layout.with_dims({dim: other(count)}).dims)
    gone = [i for i in node.layout.present if layout.axes[i] is None]
    return RuleOutput(
        layout, (Edge(node, None, True).with_reads({i: AxisRead(None, Nothing(node.layout.size_of(i))) for i in gone}),)
    )


def _repetitions(found: EntryCells, cells: IntArray) -> int:
    """How often a list repeats every cell of its only axis, all in order and equally often; 1 where it does not."""
    (size, *more) = found.sizes
    times = cells.size // size
    return times if not more and times > 1 and np.array_equal(cells, np.arange(size * times) // times) else 1


class _Grid(NamedTuple):
    #: First cell, step and number of cells along each axis.
    spans: tuple[tuple[int, int, int], ...]
    #: The entries' cells in that grid.
    cells: IntArray


def _grid(found: EntryCells, cells: IntArray) -> _Grid | None:
    """The smallest grid of even steps that the entries fill, else the whole one; None where a cell comes twice."""
    placed = cells[cells >= 0]
    if np.unique(placed).size < placed.size:
        return None
    coordinates = np.unravel_index(placed, found.sizes)
    spans = []
    for values in map(np.unique, coordinates):
        gaps = np.unique(np.diff(values))
        spans.append((int(values[0]), int(gaps[0]) if gaps.size else 1, int(values.size)) if gaps.size <= 1 else None)
    if None in spans or math.prod(span[2] for span in spans if span is not None) != placed.size:
        return _Grid(tuple((0, 1, size) for size in found.sizes), cells)
    known = [span for span in spans if span is not None]
    moved = [(values - first) // step for values, (first, step, _) in zip(coordinates, known, strict=True)]
    inside = cells.copy()
    inside[cells >= 0] = np.ravel_multi_index(tuple(moved), tuple(count for _, _, count in known))
    return _Grid(tuple(known), inside)


def _parts(numbers: Sequence[int], sizes: Sequence[int], cells: IntArray) -> Dim:
    """A dimension whose entries hold these cells: factors where the order of the cells is that of factors, else a
    list."""
    total, inner = math.prod(sizes), [AxisFactor(number, 1, size) for number, size in zip(numbers, sizes, strict=True)]
    placed = np.flatnonzero(cells >= 0)
    before, after = int(placed[0]), int(cells.size - 1 - placed[-1])
    if placed.size == total == cells.size - before - after:
        table = np.arange(total).reshape(sizes)
        for order in itertools.permutations(range(len(inner))):
            if np.array_equal(table.transpose(order).reshape(-1), cells[before : cells.size - after]):
                factors = tuple(inner[i] for i in order)
                return (TokenSequence(before, factors, after),) if before or after else factors
    return (TokenSequence(0, tuple(inner), 0, tuple(cells.tolist())),)


class ConcatenatedList(NamedTuple):
    """One list of a concatenation."""

    #: None if it does not depend on the image.
    node: Node | None
    size: int


def concatenate_lists(shape: Sequence[int], dim: int, entries: Sequence[ConcatenatedList]) -> RuleOutput | None:
    """Concatenation of lists of positions and of extra tokens along one dimension; None if it cannot be followed."""
    held = [None if entry.node is None else cells_of(entry.node.layout, dim) for entry in entries]
    holders = [
        (entry.node, cells)
        for entry, cells in zip(entries, held, strict=True)
        if entry.node is not None and cells is not None
    ]
    if not holders or len({cells.numbers for _, cells in holders}) > 1:
        return None
    numbers = holders[0][1].numbers
    shifts = _shifts(numbers, [node for node, _ in holders])
    if shifts is None:
        return None
    sizes = tuple(
        max(shift[k] + cells.sizes[k] for shift, (_, cells) in zip(shifts, holders, strict=True))
        for k in range(len(numbers))
    )
    if math.prod(sizes) > LONGEST:
        return None
    moved = iter([_moved(cells, shift, sizes) for shift, (_, cells) in zip(shifts, holders, strict=True)])
    found = [
        next(moved) if cells is not None else np.full(entry.size, -1, dtype=np.intp)
        for entry, cells in zip(entries, held, strict=True)
    ]
    cells = np.concatenate(found)
    placed = cells[cells >= 0]
    if np.unique(placed).size < placed.size:
        return None
    first = holders[0][0].layout
    axes = list(with_joined_centers(first, [node for node, _ in holders]).axes)
    for k, number in enumerate(numbers):
        axes[number] = _common_axis(
            [axis for node, _ in holders if (axis := node.layout.axes[number]) is not None], sizes[k]
        )
    layout = AxisLayout(tuple(axes), first.with_dims({dim: _parts(numbers, sizes, cells)}).dims)
    edges, turn = [], iter(shifts)
    for entry, mine in zip(entries, held, strict=True):
        if entry.node is None:
            continue
        edge = edge_between(layout, entry.node, [None if i == dim else i for i in range(len(shape))])
        if mine is None:
            edges.append(edge._replace(extra_tokens_only=True))
            continue
        shift = next(turn)
        slices = (OutputSlice(size, start, 1, True, True) for size, start in zip(mine.sizes, shift, strict=True))
        reads = {number: AxisRead(number, index_map) for number, index_map in zip(numbers, slices, strict=True)}
        edges.append(edge.with_reads(reads)._replace(extra_tokens=bool((mine.of < 0).any()) and None))
    return RuleOutput(layout, tuple(edges))


def _shifts(numbers: Sequence[int], nodes: Sequence[Node]) -> list[tuple[int, ...]] | None:
    """The cell of a common grid that each tensor's axes begin at; None if their grids do not fit."""
    found: list[list[int]] = [[] for _ in nodes]
    for number in numbers:
        axes = [axis for node in nodes if (axis := node.layout.axes[number]) is not None]
        centers = [axis.centers[0] for axis in axes if len(axis.centers) == 1]
        if len(centers) < len(nodes):
            if len({axis.size for axis in axes}) > 1:
                return None
            offsets = [0.0] * len(nodes)
        else:
            (_, step), low = centers[0], min(centers, key=lambda center: center.offset / (center.step or 1.0)).offset
            if any(abs(center.step - step) > SAME * abs(step) for center in centers):
                return None
            offsets = [(center.offset - low) / step for center in centers]
        for mine, offset in zip(found, offsets, strict=True):
            if abs(offset - round(offset)) > SAME:
                return None
            mine.append(round(offset))
    return [tuple(mine) for mine in found]


def _moved(cells: EntryCells, shift: Sequence[int], sizes: Sequence[int]) -> IntArray:
    """A list's cells in a larger grid."""
    found = cells.of.copy()
    placed = found >= 0
    coordinates = [
        values + start for values, start in zip(np.unravel_index(found[placed], cells.sizes), shift, strict=True)
    ]
    found[placed] = np.ravel_multi_index(tuple(coordinates), tuple(sizes))
    return found


def _common_axis(axes: Sequence[Axis], size: int) -> Axis:
    """The axis of a common grid."""
    centers = [axis.centers[0] for axis in axes if axis.centers]
    center = min(centers, key=lambda each: each.offset / (each.step or 1.0), default=None)
    doubt = next((axis.doubt for axis in axes if axis.doubt), "")
    return Axis(size, axes[0].scale, () if center is None else (center,), doubt)
