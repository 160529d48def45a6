"""Which dimensions of a tensor are the map's: the layout of the map that it holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erfscope.core.graph.places import SAME, Place
from erfscope.core.graph.rules.reading import FloatArray, Shape
from erfscope.core.values.layout import Layout


class Reading(NamedTuple):
    """How a tensor is read."""

    #: None if it holds no map.
    layout: Layout | None
    #: Of a map, what is assumed about its positions; "" where the operations, the user or the model's library say where
    #: they are. Of what is none, why.
    reason: str = ""
    #: Whether that is since an operation on the way to it is not understood.
    is_open: bool = False


#: Of what has no image position, as queries and pooled values.
NO_PLACE = Reading(None, "whose values have no image position: they are pooled, mixed or queried")


def read_places(places: Sequence[Place], shape: Shape, images: int) -> Reading:
    """How a tensor of this shape holds a map, given the places of its elements along each axis, last the batch's, in a
    pass of so many images."""
    *space, batch = places
    why = next((each.unknown_reason for each in places if each.unknown_reason and np.isnan(each.table).any()), "")
    if why:
        return Reading(None, why, is_open=True)
    moves = any(place.exists and len(place.table) > 1 for place in space)
    if not batch.exists or not all(place.exists or moves for place in space):
        return NO_PLACE
    first: int | None = 0 if batch.dim is None else batch.dim
    found = _plane(space, first, shape) or _tokens(space, first, shape)
    if batch.dim is None and images == 1 and (found is None or shape[0] > 1):  # the image without a batch
        found, first = _plane(space, None, shape) or _tokens(space, None, shape), None
    # Cells that were taken together may be channels; with more dimensions than those of a map they are windows.
    is_windows = (
        found is not None and len(found.channel_dims(len(shape))) > 1 and any(p.within is not None for p in space)
    )
    if found is None or is_windows or not np.array_equal(batch.table, np.arange(1 if first is None else shape[first])):
        return Reading(
            None,
            "whose places on the image form no grid (the batch holds parts of each image, such as frames): wrap the"
            " model so that they are an axis of what it returns, erfscope.wrap(model, forward=lambda m, x:"
            " m.backbone(...).unflatten(0, (len(x), -1)).transpose(1, 2))"
            if any(place.dim == first and len(place.table) > 1 for place in space)
            else "whose places on the image form no grid",
        )
    return Reading(found)


def varying_dim(places: Sequence[Place]) -> int | None:
    """The dimension along which places on the image change; None for none, or several."""
    dims = {place.dim for place in places[:-1] if len(place.table) > 1}
    return dims.pop() if len(dims) == 1 else None


def _plane(space: Sequence[Place], batch: int | None, shape: Shape) -> Layout | None:
    """Where a dimension goes along each axis of the image, in order."""
    # Tokens beside a line look like a plane of it. Places that come again and again are those of queries that are the
    # same in every window, say, or of channels that were put below each other.
    beside = len(space) == 1 and np.isnan(space[0].table).any() and space[0].dim != len(shape) - 1
    if beside or any(2 * np.unique(np.round(each.table / SAME)).size <= len(each.table) for each in space):
        return None
    behind = [dim for dim in range(len(shape)) if dim != batch]
    # Dimensions of one element may belong to axes of one cell: where channels come first, else where they come last.
    for dims in sorted(itertools.combinations(behind, len(space)), key=lambda dims: (dims[-1] < behind[-1], -dims[0])):
        if all(place.dim == dim or shape[dim] == len(place.table) == 1 for place, dim in zip(space, dims, strict=True)):
            is_first = batch == 0 and dims == tuple(range(2, len(shape)))
            return Layout() if is_first else Layout(dims=dims, batch_dim=batch)
    # Rows along columns: the axes are the tensor's, and its units are taken to stand in their order.
    is_crossed = batch == 0 and sorted(place.dim or 0 for place in space) == list(range(2, len(shape)))
    return Layout() if is_crossed else None


def _tokens(space: Sequence[Place], batch: int | None, shape: Shape) -> Layout | None:
    """Where one dimension goes along all axes of the image, one after the other (row by row, or frame by frame at every
    place), maybe with others before and behind."""
    dims = {place.dim for place in space if len(place.table) > 1}
    dim = next(iter(dims), None)
    if len(dims) != 1 or dim is None or dim == batch:
        return None
    # Along an axis that was pooled away there is one row.
    table = np.stack([np.broadcast_to(place.table if place.exists else 0.0, shape[dim]) for place in space])
    there = np.flatnonzero(np.isfinite(table).all(0))
    first, stop = (int(there[0]), int(there[-1]) + 1) if there.size else (0, 0)
    if not 0 < stop - first == len(there):
        return None
    axes = tuple(range(len(space)))
    for order in itertools.permutations(axes):
        if (sides := _grid(table[[*order], first:stop])) is not None:
            grid = tuple(sides[order.index(axis)] for axis in axes)
            # Axes of one cell may stand anywhere.
            in_order = order == axes or [axis for axis in order if grid[axis] > 1] == [a for a in axes if grid[a] > 1]
            own = () if in_order else order
            return Layout(dims=(dim,), batch_dim=batch, grid=grid, order=own, prefix=first, suffix=shape[dim] - stop)
    return None


def _grid(table: FloatArray) -> tuple[int, ...] | None:
    """The grid that places (axes, tokens) form row by row; None for none."""
    grid, left = list[int](), table.shape[1]
    for axis in table:
        moves = np.flatnonzero(np.abs(axis[1:left] - axis[0]) > SAME)
        run = int(moves[0]) + 1 if len(moves) else left
        if left % run:
            return None
        grid.append(left // run)
        left = run
    if left > 1:
        return None
    own = [axis.reshape(grid) for axis in table]
    lines = [each[tuple(slice(None) if i == k else slice(1) for i in range(len(grid)))] for k, each in enumerate(own)]
    even = all((np.abs(each - line) <= SAME).all() for each, line in zip(own, lines, strict=True))
    distinct = all(np.unique(np.round(line / SAME)).size == line.size for line in lines)
    return tuple(grid) if even and distinct else None
