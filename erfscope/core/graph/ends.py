"""The first and last cell of a reference that each element of a tensor reads, carried through the steps of an
operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from erfscope.core.graph.places import Place, arrange, compress, extend, reshape_numbers
from erfscope.core.graph.rules.reading import ABSENT, Dims, Edge, FloatArray, Shape, Step, Taps, Whole

#: Rows of an array of ends. Each pair holds the first cell, and the last with its sign changed, so that a join takes
#: the least of both; infinity where nothing is read, minus infinity where everything is. FREE: as if there were no
#: borders; LOCAL: so, without operations that mix all positions; CLIPPED: cells that exist.
FREE, LOCAL, CLIPPED = (slice(2 * i, 2 * i + 2) for i in range(3))
ROWS, SIGNS, NOTHING = 6, np.array([1.0, -1.0]), np.float32(np.inf)
#: What reading dimensions whole does: nothing to positions, mix some, mix all, or any in ways that are not known.
Mixes = Literal["", "some", "all", "upper bound"]
#: What counts of several inputs: :func:`least` or :func:`narrowest`.
Join = Callable[[Sequence[FloatArray]], FloatArray]


def box_of(ends: FloatArray, size: int) -> tuple[int, int] | None:
    """First and last cell; None for none."""
    first, last = ends[0], -ends[1]
    if first == np.inf:
        return None
    return (0, size - 1) if first == -np.inf else (int(np.floor(first + 1e-3)), int(np.ceil(last - 1e-3)))


def least(arrays: Sequence[FloatArray]) -> FloatArray:
    """The ends of what is read by several inputs together."""
    found = arrays[0]
    for more in arrays[1:]:
        found = found if more is found else np.minimum(found, more)
    return found


def may_be_upper_bound(step: Step) -> bool:
    """Whether a step may read less than it says."""
    return isinstance(step, Dims) and any(isinstance(read, Whole) and read.upper_bound for read in step.reads)


def narrowest(arrays: Sequence[FloatArray]) -> FloatArray:
    """The ends of the one of several inputs that reads least; what reads nothing counts for nothing."""
    return _narrowest_along(np.stack(np.broadcast_arrays(*arrays), 1), 1)[:, 0] if len(arrays) > 1 else arrays[0]


def _narrowest_along(ends: FloatArray, dim: int) -> FloatArray:
    """The ends of the index that reads least along one dimension, which is left with that index."""
    found = []
    for rows in (FREE, LOCAL, CLIPPED):
        pair = ends[rows]
        # What reads everything is wider than all others, and still counts before what reads nothing.
        widths = np.where(pair[0] == np.inf, np.inf, np.minimum(-pair.sum(0), np.finfo(np.float32).max))
        found.append(np.take_along_axis(pair, widths.argmin(dim - 1, keepdims=True)[np.newaxis], dim))
    return np.concatenate(found)


def carry_ends(
    ends: FloatArray, edge: Edge, places: Sequence[Place], cell: float, shape: Shape, *, secondary: bool, join: Join
) -> tuple[FloatArray, Mixes]:
    """The ends after the steps of an edge, and whether it mixes all positions. ``join`` is what counts of channels that
    are read together."""
    mixes: Mixes = ""
    for number, (step, place) in enumerate(zip(edge.steps, places, strict=True)):
        if isinstance(step, Dims):
            columns = edge.columns if secondary and number == 0 else None
            reads = [Whole() if i == columns else read for i, read in enumerate(step.reads)]
            if join is narrowest:
                ends = _narrowest_channels(ends, reads, place)
            ends, mixed = _mix(ends, reads, place)
            mixes = mixes or mixed
            for i, read in enumerate(reads):
                if isinstance(read, Taps):
                    ends = _tap(ends, i, read, place.slope_along(i) / cell)
            ends = arrange(ends, step._replace(reads=tuple(reads)))
        else:
            ends = reshape_numbers(ends, shape, step.shape)
        shape = step.shape
    return ends, mixes


def _narrowest_channels(ends: FloatArray, reads: Sequence[int | Whole | Taps], place: Place) -> FloatArray:
    """The ends where dimensions without positions that are read whole count by their narrowest index."""
    for i, read in enumerate(reads):
        if isinstance(read, Whole) and ends.shape[1 + i] > 1 and not place.varies_along(i):
            ends = _narrowest_along(ends, 1 + i)
    return ends


def _mix(ends: FloatArray, reads: Sequence[int | Whole | Taps], place: Place) -> tuple[FloatArray, Mixes]:
    """The ends after dimensions were read whole, and whether that mixes all positions."""
    whole = [i for i, read in enumerate(reads) if isinstance(read, Whole)]
    varying = tuple(1 + i for i in whole if ends.shape[1 + i] > 1)
    if not varying:
        return ends, ""
    all_of = any(place.varies_along(i) for i in whole)
    is_upper_bound = any(isinstance(read, Whole) and read.upper_bound for read in reads)
    keeps = all(isinstance(read := reads[i - 1], Whole) and read.same is not None for i in varying)
    least = ends.min(varying, keepdims=True)
    own = ends if keeps else np.full_like(least, np.inf)
    found = np.broadcast_to(least, own.shape).copy()
    if is_upper_bound:
        found[: CLIPPED.start] = np.where(found[: CLIPPED.start] < np.inf, -NOTHING, NOTHING)
    elif all_of:
        found[FREE] = np.where(found[FREE] < np.inf, -NOTHING, NOTHING)
        found[LOCAL] = own[LOCAL]
    return compress(found), "upper bound" if is_upper_bound else "all" if all_of else "some"


def _tap(ends: FloatArray, dim: int, read: Taps, slope: float) -> FloatArray:
    """The ends after taps along one dimension."""
    trailing = (1,) * (ends.ndim - 2 - dim)
    free, there = read.unbounded != ABSENT, read.inside >= 0
    if not slope and ends.shape[1 + dim] == 1:
        if free.any(1).all() and there.any(1).all():
            return ends
        rows = [mask.any(1).reshape(-1, *trailing) for mask in (free, there)]
        parts = [
            np.where(row, part, NOTHING)
            for row, part in zip(rows, (ends[: CLIPPED.start], ends[CLIPPED.start :]), strict=True)
        ]
        return np.concatenate(parts)
    slopes = (slope * np.concatenate((SIGNS, SIGNS))).astype(np.float32)
    unbounded = extend(ends[: CLIPPED.start], 1 + dim, np.where(free, read.unbounded, 0), slopes, np.inf)
    inside = ends[CLIPPED.start :].take(
        np.where(there, read.inside, 0) if ends.shape[1 + dim] > 1 else np.zeros_like(read.inside), 1 + dim
    )
    parts = [
        (part if mask.all() else np.where(mask.reshape(*mask.shape, *trailing), part, NOTHING)).min(2 + dim)
        for mask, part in ((free, unbounded), (there, inside))
    ]
    return compress(np.concatenate(parts))
