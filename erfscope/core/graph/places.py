"""Where a tensor's elements stand along one axis of the image: a number for each index of one of its dimensions,
carried through the steps of an operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import fx

from erfscope.core.graph.graph import name_of
from erfscope.core.graph.rules.products import ATTENTION
from erfscope.core.graph.rules.reading import Dims, Edge, FloatArray, IntArray, Shape, Taps, Whole, groups_of

#: Two numbers of pixels, or of steps, that are closer than this are the same, computed in another order or in float32.
SAME = 1e-5
#: Longest period in which numbers along a dimension go on beyond its ends.
PERIOD = 64


def compress(array: FloatArray) -> FloatArray:
    """The array without dimensions along which nothing varies."""
    for dim in range(1, array.ndim):
        if array.shape[dim] > 1:
            first = array[(slice(None),) * dim + (slice(1),)]
            if ((array == first) | (np.isnan(array) & np.isnan(first))).all():
                array = first
    return array


def reshape_numbers(array: FloatArray, old: Shape, new: Shape) -> FloatArray:
    """The array of a tensor that was reshaped."""
    full, made = [array.shape[0]], [array.shape[0], *new]
    full += [1] * len(old)
    for mine, theirs in groups_of(old, new):
        varies = any(array.shape[1 + i] > 1 for i in mine)
        for i in mine:
            full[1 + i] = old[i] if varies else 1
        for j in theirs:
            made[1 + j] = new[j] if varies else 1
    return compress(np.broadcast_to(array, full).reshape(made))


def arrange(array: FloatArray, step: Dims) -> FloatArray:
    """The array with its dimensions where the output has them; those that go nowhere have one index left."""
    goals = step.goals
    order = [i for i, goal in enumerate(goals) if goal is not None]
    order.sort(key=lambda i: goals[i] or 0)
    gone = [i for i, goal in enumerate(goals) if goal is None]
    moved = array.transpose(0, *(1 + i for i in [*gone, *order])).reshape(
        array.shape[0], *(array.shape[1 + i] for i in order)
    )
    sizes = [1] * len(step.shape)
    for i in order:
        sizes[goals[i] or 0] = array.shape[1 + i]
    return moved.reshape(array.shape[0], *sizes)


def extend(array: FloatArray, dim: int, spots: IntArray, slopes: FloatArray, beyond: float) -> FloatArray:
    """The array at these indices of a dimension, also beyond its ends, where each kind goes on by its slope from
    index to index.

    Numbers that are no straight line, such as those of repeated cells, go on in their period; those without a slope
    are ``beyond``.
    """
    size, trailing = array.shape[dim], (1,) * (array.ndim - dim - 1)
    inside = (spots >= 0) & (spots < size)
    if inside.all():
        return array.take(spots, dim)
    if size > 1 and not slopes.any():
        return np.where(inside.reshape(*inside.shape, *trailing), array.take(np.clip(spots, 0, size - 1), dim), beyond)
    period = _period(array, dim, slopes)
    nearest = np.where(inside, spots, np.where(spots < 0, spots % period, size - period + (spots - size) % period))
    further = (spots - nearest).reshape(*spots.shape, *trailing).astype(array.dtype)
    return array.take(nearest, dim) + further * slopes.reshape(-1, *(1,) * (array.ndim + spots.ndim - 2))


def _period(array: FloatArray, dim: int, slopes: FloatArray) -> int:
    """The smallest number of indices after which the array repeats itself, as many slopes further.

    An uneven staircase, as of adaptive pooling, is taken to repeat itself as a whole, and what is none from its end on.
    """
    size, each = array.shape[dim], slopes.reshape(-1, *(1,) * (array.ndim - 1))
    for period in range(1, min(size // 2, PERIOD) + 1):
        one, other = (array[(slice(None),) * dim + (own,)] for own in (slice(size - period), slice(period, None)))
        with np.errstate(invalid="ignore"):
            near = np.abs(one + period * each - other) <= SAME * float(abs(slopes).max())
        if (near | (one + period * each == other) | (np.isnan(one) & np.isnan(other))).all():
            return period
    if np.isnan(array.take([0, -1], dim)).any():  # tokens beside a map stand nowhere
        return 1
    with np.errstate(invalid="ignore"):
        off = np.abs(array.take([-1], dim) - array.take([0], dim) - (size - 1) * each)
    return size if (np.nan_to_num(off, nan=0.0, posinf=0.0) <= np.abs(each)).all() else 1


NOWHERE = np.array([np.nan])
#: Operations that pick elements by numbers.
PICKS = ("index", "index_select", "gather", "masked_select", "take_along_dim")


class Place(NamedTuple):
    """Where a tensor's elements stand along one axis."""

    #: The dimension along which they stand at one place after another; None where all stand at the same.
    dim: int | None
    #: (n,): pixels of each index of that dimension, or of all elements; NaN for nowhere.
    table: FloatArray
    #: Pixels from one index to the next; 0 where that is not the same for all.
    slope: float = 0.0
    #: Why the places are not exact; "" where they are.
    inexact_reason: str = ""
    #: Why they are unknown, or doubted where there are any; "" where elements without a place have none.
    unknown_reason: str = ""
    #: (m,): of each element that was taken together with others, as by windows: how far it is from their middle; and
    #: the dimensions among which these elements are.
    within: FloatArray | None = None
    inner: frozenset[int] = frozenset()

    @property
    def exists(self) -> bool:
        """Whether any element stands somewhere."""
        return bool(np.isfinite(self.table).any())

    def varies_along(self, dim: int) -> bool:
        """Whether elements stand at different places along a dimension."""
        return self.dim == dim and len(self.table) > 1

    def slope_along(self, dim: int) -> float:
        """Pixels from one index of a dimension to the next."""
        return self.slope if self.dim == dim else 0.0

    def spread(self, rank: int) -> FloatArray:
        """The places as an array of so many dimensions, with one index along all but one."""
        return self.table.reshape([-1 if dim == (self.dim or 0) else 1 for dim in range(rank)])


def carry_place(place: Place, step: Dims, shape: Shape, edge: Edge, node: fx.Node) -> Place:
    """The place after a step in which dimensions are read one by one."""
    place = _carry_inner(place, step)
    if place.dim is None:
        for side, read in zip(shape, step.reads, strict=True):
            if side == 1 and isinstance(read, Taps) and read.dim is not None and np.isnan(read.center).any():
                # One of several that are stacked.
                return place._replace(dim=read.dim, table=np.where(np.isnan(read.center), np.nan, place.table))
        return place
    read = step.reads[place.dim]
    if isinstance(read, Taps):
        return _tap(place, read, node)
    if not isinstance(read, Whole) or read.same is not None or len(place.table) == 1:
        return place._replace(dim=read.same if isinstance(read, Whole) else read)
    why = place.unknown_reason
    # As many cells as before may well be the same cells: a matrix over tokens.
    if read.upper_bound or (shape == step.shape and edge.mixing not in (ATTENTION, "")):
        picks = read.upper_bound and edge.mixing in PICKS
        does = "picks positions by numbers that are not followed" if picks else "is not understood"
        why = why or f"{describe(node, edge.mixing)} {does}"
    return Place(None, NOWHERE, unknown_reason=why)


def _carry_inner(place: Place, step: Dims) -> Place:
    """The place with its inner dimensions where the output has them: what reads them whole leaves none of the elements
    that were taken together, and what moves along them leaves their places unknown."""
    if place.within is None:
        return place
    reads = [step.reads[dim] for dim in place.inner]
    if any(isinstance(read, Whole) and read.same is None for read in reads):
        return place._replace(within=None, inner=frozenset())
    why = place.unknown_reason
    if any(isinstance(r, Taps) and not np.array_equal(r.center, np.arange(len(r.center))) for r in reads):
        why = why or "cells were moved inside windows"
    inner = frozenset(goal for dim in place.inner if (goal := step.goals[dim]) is not None)
    return place._replace(inner=inner, unknown_reason=why)


def _tap(place: Place, read: Taps, node: fx.Node) -> Place:
    """The place after taps along its dimension."""
    moves = bool(place.slope) or len(place.table) > 1
    lone, reason = np.isnan(read.center), place.inexact_reason
    center = np.where(lone, 0, read.center)
    low = np.floor(center).astype(np.intp)
    part = center - low
    spots = np.stack([low, low + (part > 0)])
    first, second = extend(place.table[None], 1, spots, np.array([place.slope]), np.nan)[0]
    if moves and not reason:
        apart = (part > 0) & (np.abs(second - first - place.slope) > SAME * max(abs(place.slope), 1))
        reason = (
            f"cells that are no neighbours on the image meet in {describe(node)}"
            if apart.any()
            else read.inexact_reason
        )
    return place._replace(
        dim=read.dim,
        table=np.where(lone, np.nan, first + part * (second - first)),
        slope=place.slope * read.scale,
        inexact_reason=reason,
    )


def reshape_places(places: Sequence[Place], old: Shape, new: Shape) -> tuple[Place, ...]:
    """The places along each axis, last the batch's, after a reshape.

    Cells that become several dimensions, as in windows and patches, are taken together along the outermost. Where they
    become one again, or all axes are refined alike, as by pixel shuffling, each stands at its own place.
    """
    groups = [(mine, theirs) for mine, theirs in groups_of(old, new) if mine]
    taken = {place.dim for place in places if len(place.table) > 1}
    inner = [_finer(place, old, new, groups, taken) for place in places[:-1]] + [1]
    moving = {by for by, place in zip(inner, places[:-1], strict=False) if len(place.table) > 1}
    found = []
    for place, by in zip(places, inner, strict=True):
        after = place._replace(inner=frozenset(j for mine, theirs in groups for j in theirs if place.inner & {*mine}))
        for mine, theirs in groups:
            if place.dim in mine and len(mine) == len(theirs) == 1:
                after = after._replace(dim=theirs[0])
            elif place.dim in mine:
                at = mine.index(place.dim)
                kept = place.within is not None and len(place.within) == by and mine[at + 1] in place.inner
                fine = _refined(after, by, is_known=kept or (place.within is None and len(moving) == 1))
                after = _regrouped(fine, [old[i] for i in mine], at, theirs, new)
        found.append(after)
    return tuple(found)


def _finer(
    place: Place, old: Shape, new: Shape, groups: Sequence[tuple[list[int], list[int]]], taken: set[int | None]
) -> int:
    """Elements for each cell of a dimension that becomes one with dimensions behind it along which no axis goes."""
    for mine, theirs in groups:
        if place.dim in mine and theirs and len(place.table) > 1:
            behind = mine[mine.index(place.dim) + 1 :]
            ends = next((i for i, dim in enumerate(behind) if dim in taken), len(behind))
            found = math.prod(old[dim] for dim in behind[:ends])
            return found if len(theirs) == 1 or (ends == len(behind) and new[theirs[-1]] % found == 0) else 1
    return 1


def _refined(place: Place, by: int, *, is_known: bool) -> Place:
    """The place with so many elements in each cell."""
    if by == 1:
        return place
    if not is_known:
        reason = "channels were folded into its cells, and whether these are finer cells is not known"
        return place._replace(
            table=np.repeat(place.table, by), slope=0.0, unknown_reason=place.unknown_reason or reason
        )
    within = ((np.arange(by) + 0.5) / by - 0.5) * place.slope if place.within is None else place.within
    table = (place.table[:, None] + within).reshape(-1)
    return place._replace(table=table, slope=_slope(table), within=None, inner=frozenset())


def _regrouped(place: Place, sides: list[int], at: int, theirs: list[int], new: Shape) -> Place:
    """The place along one of the dimensions ``theirs``, which hold the elements of others of these sides."""
    before = math.prod(sides[:at])
    after = math.prod(sides) // before // len(place.table)
    table = np.tile(np.repeat(place.table, after), before) if len(place.table) > 1 else place.table
    if len(table) == 1:
        return place._replace(dim=None)
    if len(theirs) == 1:
        return place._replace(dim=theirs[0], table=table, slope=place.slope if before == after == 1 else 0.0)
    numbers = table.reshape([new[dim] for dim in theirs])
    varying = [i for i in range(numbers.ndim) if not _is_same(numbers, numbers.take([0], i))]
    if not varying:
        return place._replace(dim=None, table=table[:1])
    numbers = numbers.transpose(*varying, *(i for i in range(numbers.ndim) if i not in varying))
    numbers = numbers.reshape(*(numbers.shape[: len(varying)]), -1)[..., 0].reshape(numbers.shape[0], -1)
    middle, within, inner, reason = numbers[:, 0], place.within, place.inner, place.unknown_reason
    if len(varying) > 1:
        inner = frozenset(theirs[i] for i in varying[1:])
        # Of the closest: a map that was rolled begins anew in one of them.
        within = numbers[np.argmin(np.nan_to_num(np.ptp(numbers, 1), nan=np.inf))]
        within = within - within.mean()
        middle = middle - within[0]
        if not _is_same(numbers, middle[:, None] + within):
            reason = reason or "cells that are no neighbours on the image share a window"
        gaps = np.abs(np.diff(middle))
        if (np.ptp(within) >= gaps[gaps > SAME]).any():
            within = None  # windows that overlap have cells several times, which do not become one again
    return place._replace(
        dim=theirs[varying[0]], table=middle, slope=_slope(middle), unknown_reason=reason, within=within, inner=inner
    )


def _is_same(one: FloatArray, other: FloatArray) -> bool:
    return bool(((np.abs(one - other) <= SAME) | (np.isnan(one) & np.isnan(other))).all())


def _slope(table: FloatArray) -> float:
    """The step of a table; 0 where it is not even. A map that was rolled begins anew, once."""
    gaps = np.diff(table)
    if not gaps.size or not np.isfinite(gaps).all():
        return 0.0
    step = float(np.median(gaps))
    off = np.abs(gaps - step) > SAME * max(abs(step), 1)
    anew = np.abs(np.abs(gaps - step) - np.ptp(table) - abs(step)) <= SAME * max(abs(step), 1)
    return step if off.sum() <= 1 and (off <= anew).all() else 0.0


def join_places(places: Sequence[Place], edges: Sequence[Edge], node: fx.Node, *, side_by_side: bool = False) -> Place:
    """The place of an operation's output, given those of its inputs in its own dimensions: of those that are exact the
    first that moves. Channels ``side_by_side`` stand in the middle of all."""
    pairs = [(place, edge) for place, edge in zip(places, edges, strict=True) if place.exists]
    pairs = [(place, edge) for place, edge in pairs if not edge.secondary] or pairs
    if not pairs:
        return places[0]._replace(unknown_reason=next((p.unknown_reason for p in places if p.unknown_reason), ""))
    (base, leading), *others = sorted(pairs, key=lambda pair: (bool(pair[0].unknown_reason), len(pair[0].table) == 1))
    if side_by_side and all(place.dim == base.dim and np.ptp(place.table - base.table) <= SAME for place, _ in pairs):
        return base._replace(table=np.mean([place.table for place, _ in pairs], axis=0))
    table, slope, doubt = base.table, base.slope, base.unknown_reason
    reason = next((place.inexact_reason for place, _ in pairs if place.inexact_reason), "")
    for place, edge in others:
        is_across = len(place.table) > 1 and place.dim != base.dim
        if not is_across and (gaps := np.isnan(table) & np.isfinite(place.table)).any():
            table, doubt = np.where(gaps, place.table, table), doubt or place.unknown_reason
            slope = slope or _slope(table)
        off = is_across or (np.abs(table - place.table) > SAME * max(abs(base.slope), 1)).any()
        if off and not reason and not place.unknown_reason:
            both = f"{_said(base, leading)}; {_said(place, edge)}"
            reason = f"branches that meet in {describe(node)} disagree: {both}"
            if base.dim is None:
                return Place(None, NOWHERE, unknown_reason=reason)
    if np.isnan(table).any():  # of parts without a place some are unknown
        doubt = doubt or next((place.unknown_reason for place in places if place.unknown_reason), "")
    return base._replace(table=table, slope=slope, inexact_reason=reason, unknown_reason=doubt)


def _said(place: Place, edge: Edge) -> str:
    # What a shift moved in from outside stands for nothing.
    first = int(np.flatnonzero(np.isfinite(place.table))[0])
    return f"{describe(edge.source)} puts unit {first} at {place.table[first]:g} px and a unit every {place.slope:g} px"


def go_on(place: Place) -> Place:
    """The place of a buffer without one, of which a part was written over: the rest goes on from it at the same
    step."""
    known = np.flatnonzero(np.isfinite(place.table))
    if not known.size or not place.slope:
        return place
    spots = np.arange(len(place.table))
    before = np.maximum(np.searchsorted(known, spots, "right") - 1, 0)
    return place._replace(table=place.table[known[before]] + (spots - known[before]) * place.slope)


def describe(node: fx.Node, name: str = "") -> str:
    """An operation, or another name for it, with the module that it ran in."""
    made = node.args[0] if name_of(node).endswith("getitem>") and isinstance(node.args[0], fx.Node) else node
    module, words = module_of(made), name or name_of(made).rstrip("_")
    return f"{words} in {module}" if module else words


def module_of(node: fx.Node) -> str:
    """The innermost module that an operation ran in; "" for the model itself."""
    return str(node.meta.get("module", ""))
