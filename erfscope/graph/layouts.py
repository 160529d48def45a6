"""Which grid the places of a tensor's elements fill: the layout of the map that it holds, in whatever order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from erfscope.geometry.layout import BATCH, CHANNEL, Factor, Layout
from erfscope.graph.carry import compress
from erfscope.graph.places import SAME, Place, cell_of, distinct_places
from erfscope.graph.rules.reading import FloatArray, IntArray, Shape


class Reading(NamedTuple):
    """The positions of a tensor as the operations show them."""

    #: "known"; "none": no image position, as of queries and pooled values; "holes": its places form no grid; "open": an
    #: operation on the way is not understood.
    status: Literal["known", "none", "holes", "open"]
    layout: Layout | None = None
    #: Why it is open.
    unknown_reason: str = ""


class Guess(NamedTuple):
    """How a tensor would be read by its shape."""

    #: None if it holds no map of each image.
    layout: Layout | None
    #: Whether the user said so.
    declared: bool = False


class LayerReading(NamedTuple):
    """How a layer is read."""

    #: None if it is no map.
    layout: Layout | None
    #: What is assumed about the positions; "" where the operations, the user or the model's library say where
    #: they are.
    assumed: str = ""
    #: Why it is no map, after the layer's name.
    refusal: str = ""


def read_places(places: Sequence[Place], shape: Shape) -> Reading:
    """How a tensor of this shape holds a map, given the places of its elements along each axis, last the batch's."""
    *space, batch = places
    why = next((place.unknown_reason for place in places if place.unknown_reason and not place.exists), "")
    if why:
        return Reading("open", unknown_reason=why)
    gone = [not place.exists for place in space]
    if not batch.exists or (any(gone) and not any(_count(place) > 1 for place in space)) or all(gone):
        return Reading("none")
    if (plain := _plain(places, shape)) is not None:
        return Reading("known", plain)
    found = _factors(places, shape)
    for dim in range(len(shape)):
        if found.layout is None and (windows := _windows_along(places, dim)) is not None:
            found = _factors(windows, shape)
    return found


def _plain(places: Sequence[Place], shape: Shape) -> Layout | None:
    """Channels first or last, where one dimension goes along each axis of the image, in order, and no other does: a
    unit is an index of the tensor then, whatever stands at its channels."""
    *space, batch = places
    rank = len(space)
    if len(shape) != rank + 2 or not (batch.slope[0] or shape[0] == 1):
        return None
    if rank == 1 and np.isnan(space[0].centers).any():
        return None  # tokens beside a line, which look like a plane of it
    for order, first in (("channels_first", 2), ("channels_last", 1)):
        dims = range(first, first + rank)
        along = all(place.slope[first + axis] or shape[first + axis] == 1 for axis, place in enumerate(space))
        across = any(place.slope[dim] for axis, place in enumerate(space) for dim in dims if dim != first + axis)
        moves = any(place.slope[-1] or place.centers.shape[-1] > 1 for place in space) if first == 1 else False
        if along and not across and not moves and any(shape[dim] > 1 for dim in dims):
            return Layout(order=order)  # type: ignore[arg-type]
    return None


def _windows_along(places: Sequence[Place], dim: int) -> list[Place] | None:
    """The places of windows that slide, their cells being the entries of a dimension; None where these are none."""
    found, changed = list(places), False
    for axis, place in enumerate(places[:-1]):
        rows = distinct_places(place.centers[0], [dim], place.step) if place.exists else []
        if len(rows) > 1 and (size := cell_of(rows, place.step)) > 0:
            found[axis], changed = place._replace(centers=compress(np.mean(rows, axis=0)[None]), step=size), True
    return found if changed else None


def _count(place: Place) -> int:
    """Different places along an axis."""
    values = place.centers[0][np.isfinite(place.centers[0])]
    return int(np.unique(np.round(values / (SAME * place.step))).size)


def cells_of(place: Place) -> FloatArray:
    """The number of each element's cell along an axis, NaN where it stands nowhere: cells are counted in the order
    of the image.
    """
    centers = place.centers[0]
    values, inverse = np.unique(
        np.where(np.isnan(centers), np.inf, np.round(centers / (SAME * place.step))), return_inverse=True
    )
    found = inverse.reshape(centers.shape).astype(float)
    gaps = np.diff(values[np.isfinite(values)])
    if gaps.size and np.ptp(gaps) > 2 + 1e-3 * gaps[0]:
        return np.full_like(found, -1.0)  # no even grid
    return np.where(np.isnan(centers), np.nan, found)


def _factors(places: Sequence[Place], shape: Shape) -> Reading:
    """How a tensor holds a map whose positions lie in any order over its dimensions."""
    cells = [cells_of(place) if place.exists else np.zeros([1] * len(shape)) for place in places]
    if any((each == -1).any() for each in cells):
        return Reading("holes")
    picked: list[tuple[int, ...] | None] = []
    for dim, side in enumerate(shape):
        entries = _inner(cells, dim, side)
        picked.append(None if entries == tuple(range(side)) else entries)
        cells = [compress(each.take(entries, dim)[None])[0] if each.shape[dim] > 1 else each for each in cells]
    sizes = tuple(side if entries is None else len(entries) for side, entries in zip(shape, picked, strict=True))
    if any(np.isnan(each).any() for each in cells):
        return Reading("holes")
    grid = [int(each.max()) + 1 for each in cells]
    dims = [_digits(cells, dim, side) for dim, side in enumerate(sizes)]
    if None in dims:  # cells may wrap around, in windows of a map that was rolled
        cells = [(each - each.flat[0]) % side for each, side in zip(cells, grid, strict=True)]
        dims = [_digits(cells, dim, side) for dim, side in enumerate(sizes)]
    if None in dims:
        return Reading("open", unknown_reason="its positions lie in no order that is understood")
    roles = _as_channels([list(dim) for dim in dims if dim is not None])
    for axis, side in enumerate(grid):
        own = sorted((f.step, f.size) for dim in roles for f in dim if f.role == axis)
        further = [*(step for step, _ in own[1:]), side]
        if any(step * size != after for (step, size), after in zip(own, further, strict=False)):
            return Reading("holes")
    return Reading("known", _layout(roles, picked, sizes, shape, len(places) - 1))


def _inner(cells: Sequence[FloatArray], dim: int, size: int) -> tuple[int, ...]:
    """The entries of a dimension that stand on the image, in the order of their cells where they are a list in
    another one.
    """
    own = [each for each in (cells[-1], *cells[:-1]) if each.shape[dim] > 1]
    there = np.arange(size)
    for each in own:
        others = tuple(i for i in range(each.ndim) if i != dim)
        there = there[~np.isnan(each).all(others)[there]]
    inner = [each for each in (compress(each.take(there, dim)[None])[0] for each in own) if each.shape[dim] > 1]
    lone = all(each.size == each.shape[dim] for each in inner)
    if inner and lone and _digits(inner, dim, len(there)) is None:
        there = there[np.lexsort([each.reshape(-1) for each in inner if each.size > 1][::-1])]
    return tuple(there.tolist())


def _digits(cells: Sequence[FloatArray], dim: int, size: int) -> tuple[Factor, ...] | None:
    """The factors of a dimension, outermost first, each a digit of the cell's number along one axis; None where it
    has none.
    """
    table = []
    for each in cells:
        if each.shape[dim] == 1:
            table.append(np.zeros(size))
            continue
        lines = np.moveaxis(each, dim, -1).reshape(-1, size)
        steps = lines - lines[:, :1]
        if not (steps == steps[:1]).all():
            return None
        table.append(steps[0])
    steps, found = np.stack(table, 1), list[Factor]()
    while len(steps) > 1:
        first = steps[1]
        nonzero = np.flatnonzero(first)
        if nonzero.size > 1 or (nonzero.size and first[nonzero[0]] < 0):
            return None
        count = next((n for n in range(len(steps), 1, -1) if len(steps) % n == 0 and _repeats(steps, first, n)), 0)
        if not count:
            return None
        axis = int(nonzero[0]) if nonzero.size else -1
        role = CHANNEL if axis < 0 else BATCH if axis == len(cells) - 1 else axis
        found.append(Factor(role, count, 1 if axis < 0 else int(first[axis])))
        steps = steps[::count]
    return tuple(found[::-1])


def _repeats(steps: FloatArray, first: FloatArray, count: int) -> bool:
    """Whether entries come in runs of so many, in which each lies one step further than the last."""
    runs = steps.reshape(-1, count, steps.shape[1])
    return bool((runs == runs[:, :1] + np.arange(count)[None, :, None] * first).all())


def _as_channels(dims: list[list[Factor]]) -> list[list[Factor]]:
    """The factors, with inner factors of an axis that stand among channels counted as channels: a patch that was
    made one.
    """
    for axis in {f.role for dim in dims for f in dim if f.role >= 0}:
        spots = sorted((f.step, i, k) for i, dim in enumerate(dims) for k, f in enumerate(dim) if f.role == axis)
        for _, i, k in spots[:-1]:  # the outermost factor is a position
            if not any(f.role == CHANNEL for f in dims[i]):
                break
            dims[i][k] = dims[i][k]._replace(role=CHANNEL)
    return dims


def _layout(
    roles: list[list[Factor]], picked: Sequence[tuple[int, ...] | None], sizes: Shape, shape: Shape, rank: int
) -> Layout:
    """A layout with a name where the tensor has one, else its factors."""

    def lone(dim: int, *allowed: int) -> bool:
        return all(f.role in allowed for f in roles[dim])

    steps = {axis: min((f.step for dim in roles for f in dim if f.role == axis), default=1) for axis in range(rank)}
    grid = tuple(math.prod(f.size for dim in roles for f in dim if f.role == axis) for axis in range(rank))
    plain = lone(0, BATCH) and len(roles[0]) < 2
    if plain and len(shape) == rank + 2 and (rank > 1 or not any(each is not None for each in picked)):
        # A unit is an index of the tensor, in whatever order its places lie, and whatever stands at its channels.
        for order, first in (("channels_first", 2), ("channels_last", 1)):
            along = all(
                (lone(first + i, i, CHANNEL) and not lone(first + i, CHANNEL)) or shape[first + i] == 1
                for i in range(rank)
            )
            if along and (first == 2 or lone(rank + 1, CHANNEL)) and any(map(len, roles[first : first + rank])):
                return Layout(order=order)  # type: ignore[arg-type]
    if plain and len(shape) == 3 and rank > 1 and lone(2, CHANNEL) and picked[0] is picked[2] is None:
        inner = [f.role for f in roles[1]]
        run = picked[1] is None or list(picked[1]) == list(range(picked[1][0], picked[1][0] + len(picked[1])))
        if inner == sorted(inner) and len(set(inner)) == len(inner) and not {BATCH, CHANNEL} & set(inner) and run:
            before = 0 if picked[1] is None else picked[1][0]
            return Layout(order="tokens", grid=grid, prefix=before, suffix=shape[1] - before - sizes[1])
    scaled = tuple(
        tuple(f._replace(step=f.step // steps[f.role]) if f.role >= 0 else f._replace(step=1) for f in dim)
        for dim in roles
    )
    if not any(f.role == BATCH for dim in scaled for f in dim):
        scaled = ((Factor(BATCH, 1), *scaled[0]), *scaled[1:])
    return Layout(order="factors", grid=grid, factors=scaled, picked=tuple(picked))


def by_factors(layout: Layout, shape: Shape) -> Layout:
    """The layout of a tensor of this shape by the factors of its dimensions."""
    if layout.order == "factors":
        return layout
    batch, channels = (Factor(BATCH, 1),), (Factor(CHANNEL, layout.channels(shape)),)
    axes = tuple(Factor(axis, side) for axis, side in enumerate(layout.space(shape)))
    factors: tuple[tuple[Factor, ...], ...]
    picked: tuple[tuple[int, ...] | None, ...] = (None,) * len(shape)
    if layout.order == "tokens":
        factors = (batch, axes, channels)
        picked = (None, tuple(range(layout.prefix, shape[1] - layout.suffix)), None)
    elif layout.order == "channels_first":
        factors = (batch, channels, *((each,) for each in axes))
    else:
        factors = (batch, *((each,) for each in axes), channels)
    return Layout(order="factors", grid=layout.space(shape), factors=factors, picked=picked)


def boxes_of_units(layout: Layout, shape: Shape, units: IntArray) -> list[IntArray]:
    """The indices (units, entries) along each dimension of a tensor of this shape that units (units, axes) of its map
    are, with one row where they are the same for all.
    """
    layout, found = by_factors(layout, shape), list[IntArray]()
    for side, factors, picked in zip(shape, layout.factors, layout.picked, strict=True):
        count = side if picked is None else len(picked)
        rest, stride, numbers = math.prod(f.size for f in factors if f.role != BATCH), 1, np.zeros((1, 1), dtype=int)
        for factor in reversed(factors):
            size = count // rest if factor.role == BATCH else factor.size
            if factor.role >= 0:
                numbers = numbers + units[:, [factor.role]] // factor.step % size * stride
            else:
                outer = np.arange(size)[:, None] * stride
                numbers = (numbers[:, None] + outer).reshape(len(numbers), -1)
            stride *= size
        found.append(numbers if picked is None else np.sort(np.array(picked)[numbers]))
    return found


def unit_box(layout: Layout, shape: Shape, unit: Sequence[int]) -> tuple[IntArray, ...]:
    """The indices along each dimension of a tensor of this shape that one unit of its map is."""
    return tuple(each[0] for each in boxes_of_units(layout, shape, np.array([unit])))


def channels_of_unit(layout: Layout, shape: Shape, part: Tensor) -> Tensor:
    """The channels (B, C) of a unit, given the part of a tensor of this shape that it is."""
    factors = tuple(tuple(f for f in dim if f.role < 0) for dim in by_factors(layout, shape).factors)
    return Layout(order="factors", factors=factors, picked=(None,) * len(factors)).to_map(part)
