"""Where a tensor's elements stand along one axis of the image, carried through the steps of an operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import fx

from erfscope.graph.carry import arrange, compress, extend, reshape_numbers
from erfscope.graph.graph import name_of
from erfscope.graph.rules.products import ATTENTION
from erfscope.graph.rules.reading import Dims, Edge, FloatArray, Reshape, Shape, Step, Taps, Whole, groups_of

#: Two places closer than this share of a cell are the same one, computed in another order.
SAME = 1e-6
#: Answers that are kept where branches disagree.
MOST = 4


class Place(NamedTuple):
    """Where a tensor's elements stand along one axis."""

    #: (answers, *dimensions): pixels, NaN for nowhere; several answers where paths from the image disagree, the first
    #: named first.
    centers: FloatArray
    #: From one index to the next along each dimension; 0 where that is not the same for all, or nothing changes.
    slope: tuple[float, ...]
    #: From one cell to the next.
    step: float
    #: Why the centres are not exact; "" where they are.
    inexact_reason: str = ""
    #: Why the places of some elements are unknown; "" where elements without a place have none.
    unknown_reason: str = ""
    #: The operation by which elements may have come from other places than these; "" for none.
    misplaced_by: str = ""
    #: Operations since one place was picked of many; -1 if none was picked.
    steps_since_pick: int = -1
    #: Of frequencies: the place of what was transformed.
    before_transform: Place | None = None

    @property
    def exists(self) -> bool:
        """Whether any element stands somewhere."""
        return bool(np.isfinite(self.centers[0]).any())

    @property
    def is_picked(self) -> bool:
        """Whether all elements stand at one place that was picked of many."""
        return self.steps_since_pick >= 0 and self.exists and self.centers[0].size == 1

    def ends_with(self, dim: int) -> bool:
        """Whether a border of this dimension is one of the map, and none of a window in it."""
        first = self.centers[0]
        if all(side == 1 for i, side in enumerate(first.shape) if i != dim):
            return True
        return bool(abs(self.slope[dim]) * first.shape[dim] > np.nanmax(first) - np.nanmin(first))


def swap_operands(edges: list[Edge], found: Sequence[tuple[Place, ...]]) -> list[Edge]:
    """The edges of a product, the second operand leading where its columns are positions and the rows of the first
    are none.
    """
    if len(edges) != 2 or edges[1].columns is None:
        return edges
    own = [
        {read for read in edge.steps[0].reads if isinstance(read, int)}
        for edge in edges
        if isinstance(edge.steps[0], Dims)
    ]
    varies = [
        any(place.centers.shape[1 + dim] > 1 for place in places[:-1] for dim in mine - theirs)
        for places, mine, theirs in zip(found, own, own[::-1], strict=True)
    ]
    return (
        edges
        if varies[0] or not varies[1]
        else [replace(edges[0], follows=True), replace(edges[1], follows=False, columns=None)]
    )


def carry_place(place: Place, step: Step, shape: Shape, edge: Edge, node: fx.Node) -> Place:
    """The place after a step."""
    if isinstance(step, Reshape):
        centers = reshape_numbers(place.centers, shape, step.shape)
        return place._replace(centers=centers, slope=_slopes(place, centers, shape, step.shape), before_transform=None)
    if edge.transform == "back" and place.before_transform is not None:
        return place.before_transform
    slope = [0.0] * len(step.shape)
    merged = [i for i, read in enumerate(step.reads) if isinstance(read, Whole) and read.same is None]
    before = place
    place = _mix_away(place, merged, step, edge, node)
    for i, (read, goal) in enumerate(zip(step.reads, step.goals, strict=True)):
        if isinstance(read, Taps):
            place = _tap(place, i, read, node)
        if goal is not None:
            slope[goal] = place.slope[i] * (read.scale if isinstance(read, Taps) else 1)
    centers = arrange(place.centers, step)
    lost = before.exists and not np.isfinite(centers[0]).any()
    # As many cells as before may well be the same cells: a matrix over tokens.
    like = (
        lost
        and not place.unknown_reason
        and (shape == step.shape or edge.transform)
        and edge.mixing not in (ATTENTION, "")
    )
    why = f"{describe(node, edge.mixing)} is not understood" if like else place.unknown_reason
    picked = any(
        isinstance(read, Taps) and read.unbounded.size == 1 and before.centers.shape[1 + i] > 1
        for i, read in enumerate(step.reads)
    )
    return place._replace(
        centers=centers,
        slope=tuple(slope),
        unknown_reason=why,
        steps_since_pick=0 if picked else place.steps_since_pick,
        before_transform=before if edge.transform == "forth" else place.before_transform,
    )


def refine_places(places: tuple[Place, ...], old: Shape, new: Shape) -> tuple[Place, ...]:
    """The places after a reshape, a dimension of a whole axis and others inside it read as finer cells, as pixel
    shuffling makes them.

    Channels that were folded into columns look the same: where not all axes are refined alike, or nothing is left
    for channels beside a lone axis, the centres are doubted.
    """
    times: dict[int, tuple[int, int]] = {}
    for mine, theirs in groups_of(old, new):
        inner = old[mine[-1]] if len(mine) == 2 and len(theirs) == 1 and old[mine[0]] > 1 else 1
        for axis, place in enumerate(places[:-1]) if inner > 1 else ():
            runs = (
                place.centers[0].reshape(-1, inner)
                if place.centers[0].size == new[theirs[0]] == place.centers.shape[1 + theirs[0]]
                else None
            )
            others = any(each.centers.shape[1 + theirs[0]] > 1 for each in places if each is not place)
            if (
                runs is not None
                and not others
                and np.unique(runs[:, 0]).size == len(runs)
                and (runs == runs[:, :1]).all()
            ):
                times[axis] = theirs[0], inner
    alike = len({inner for _, inner in times.values()}) == 1 and len(times) == sum(
        place.exists for place in places[:-1]
    )
    folded = not alike or (len(places) == 2 and math.prod(new) == math.prod(place.centers[0].size for place in places))
    return tuple(_refine(place, *times[axis], folded) if axis in times else place for axis, place in enumerate(places))


def _refine(place: Place, dim: int, times: int, folded: bool) -> Place:
    """The place with so many finer cells in each."""
    size = place.centers.shape[1 + dim]
    gap = float(place.centers[0].flat[times] - place.centers[0].flat[0])
    within = ((np.arange(size) % times + 0.5) / times - 0.5) * gap
    centers = place.centers + within.reshape([size if i == dim else 1 for i in range(place.centers.ndim - 1)])
    slope = tuple(gap / times if i == dim else each for i, each in enumerate(place.slope))
    reason = "channels were folded into its cells, and whether these are finer cells is not known" if folded else ""
    return place._replace(
        centers=centers, slope=slope, step=abs(gap) / times, inexact_reason=place.inexact_reason or reason
    )


def _slopes(place: Place, centers: FloatArray, old: Shape, new: Shape) -> tuple[float, ...]:
    """The slopes after a reshape: those of dimensions that stay, and of new ones along which places are a straight
    line.
    """
    slope = [0.0] * len(new)
    for mine, theirs in groups_of(old, new):
        if len(mine) == len(theirs) == 1:
            slope[theirs[0]] = place.slope[mine[0]]
            continue
        for dim in theirs:
            gaps = np.diff(centers[:1], axis=1 + dim)
            if gaps.size and np.isfinite(gaps).all():
                first = float(np.median(gaps))
                # A map that was rolled begins anew, once.
                off = np.abs(gaps - first) > SAME * place.step
                anew = np.abs(np.abs(gaps - first) - np.ptp(centers[0]) - abs(first)) <= SAME * place.step
                straight = (off <= anew).all() and (off.sum(1 + dim) <= 1).all()
                slope[dim] = first if straight else 0.0
    return tuple(slope)


def _mix_away(place: Place, dims: Sequence[int], step: Dims, edge: Edge, node: fx.Node) -> Place:
    """The place after dimensions were mixed away: a coarser cell's where they held the cells of one, else nowhere."""
    centers = place.centers
    varying = [dim for dim in dims if centers.shape[1 + dim] > 1]
    if not varying:
        return place
    if any(read.blind for read in step.reads if isinstance(read, Whole)):
        nowhere = np.full([1, *(1 if i in varying else n for i, n in enumerate(centers.shape[1:]))], np.nan)
        picks = edge.mixing in ("index", "index_select", "gather", "masked_select", "take_along_dim")
        operation = describe(node, edge.mixing)
        why = f"{operation} " + ("picks positions by numbers that are not followed" if picks else "is not understood")
        return place._replace(
            centers=nowhere, unknown_reason=place.unknown_reason or why, misplaced_by=place.misplaced_by or operation
        )
    answers, size = list[FloatArray](), place.step
    reason = place.inexact_reason
    for answer in centers:
        rows = distinct_places(answer, varying, place.step)
        if len(rows) > 1 and (size := cell_of(rows, place.step)):
            rows = [np.mean(rows, axis=0)] if size > 0 else rows
        elif len(rows) > 1:
            rows = [np.full_like(rows[0], np.nan)]
        answers += rows
    step_size = size if size and size > 0 else place.step
    kept = _few(answers, step_size)
    if len(kept) > len(centers) and not reason:
        reason = f"branches that meet in {describe(node)} disagree: {_both(kept)}"
    return place._replace(centers=compress(np.stack(kept)), step=step_size, inexact_reason=reason)


def distinct_places(answer: FloatArray, dims: Sequence[int], step: float) -> list[FloatArray]:
    """The different places along some dimensions, the first first, each as an array with one index there."""
    sides = [1 if i in dims else n for i, n in enumerate(answer.shape)]
    table = np.moveaxis(answer, dims, range(len(dims))).reshape(-1, math.prod(sides))
    keys = np.where(np.isnan(table), np.inf, np.round(table / (SAME * step)))
    table = table[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
    some = table[~np.isnan(table).all(1)]
    return [row.reshape(sides) for row in (some if len(some) else table[:1])]


def cell_of(rows: Sequence[FloatArray], step: float) -> float:
    """Side of the coarser cell that places make up, 0 where they are cells that make up none, -1 where branches
    disagree about one.

    Neighbours make up a coarser cell. Those that come in more than one are windows that slide; two such are taken
    for branches.
    """
    table = np.stack([row.ravel() for row in rows])
    cells = (table - table[:1]) / step
    known = np.isfinite(cells).all(0)
    if not known.any() or np.abs(cells - np.round(cells))[:, known].max() > SAME:
        return -1.0
    numbers = np.round((table[:, known] - table[0, known][0]) / step, 3)
    gaps = np.diff(np.sort(cells[:, known], axis=0), axis=0)
    even = known.sum() > 1 and np.ptp(gaps) <= SAME
    if np.unique(numbers).size < sum(np.unique(row).size for row in numbers):
        return step if even and len(rows) > 2 else -1.0
    return step * len(rows) if even and abs(gaps.flat[0] - 1) <= SAME else 0.0


def _few(answers: Iterable[FloatArray], step: float) -> list[FloatArray]:
    """The different ones of some answers, the first first; of many that and those that lie furthest apart."""
    found: list[FloatArray] = []
    for answer in answers:
        is_known = not found or np.isfinite(answer).any()
        if is_known and not any(_alike(answer, other, step) for other in found):
            found.append(answer)
    if len(found) > MOST:
        means = [float(np.nanmean(each)) for each in found[1:]]
        found = [found[0], found[1 + int(np.argmin(means))], found[1 + int(np.argmax(means))]]
    return [np.broadcast_to(each, np.broadcast_shapes(*(other.shape for other in found))) for each in found]


def _alike(one: FloatArray, other: FloatArray, step: float) -> bool:
    return bool(((np.abs(one - other) <= SAME * abs(step)) | (np.isnan(one) & np.isnan(other))).all())


def _tap(place: Place, dim: int, read: Taps, node: fx.Node) -> Place:
    """The place after taps along one dimension; its slope is still that before them."""
    centers, slope, reason = place.centers, place.slope[dim], place.inexact_reason
    moves = slope or centers.shape[1 + dim] > 1
    if moves:
        lone = np.isnan(read.center)
        low = np.floor(np.where(lone, 0, read.center)).astype(np.intp)
        part = np.where(lone, 0, read.center - low).reshape(-1, *(1,) * (centers.ndim - 2 - dim))
        each = np.full(len(centers), slope)
        one, other = (extend(centers, 1 + dim, spots, each, np.nan) for spots in (low, low + (part.reshape(-1) > 0)))
        if ((part > 0) & (np.abs(other - one - slope) > SAME * place.step)).any():
            reason = reason or f"cells that are no neighbours on the image meet in {describe(node)}"
        centers = np.where(part > 0, one + part * (other - one), one)
    if np.isnan(read.center).any():
        lone = np.isnan(read.center).reshape(-1, *(1,) * (centers.ndim - 2 - dim))
        centers = np.where(lone, np.nan, centers)
    is_new = moves and (read.unbounded.shape[1] > 1 or 0 < abs(read.scale) < 1) and read.scale
    others = [n for i, n in enumerate(place.centers.shape[1:]) if i != dim and n > 1]
    step = (
        place.step if not is_new else abs(slope * read.scale) if slope and not others else place.step * abs(read.scale)
    )
    return place._replace(
        centers=compress(centers), step=step, inexact_reason=reason or (read.inexact_reason if moves else "")
    )


def join_places(places: Sequence[Place], edges: Sequence[Edge], node: fx.Node) -> Place:
    """The place of an operation's output, given those of its inputs in its own dimensions."""
    leading = [place for place, edge in zip(places, edges, strict=True) if not edge.follows]
    some = [place for place in leading if place.exists] or [place for place in places if place.exists]
    lost = next((place for place in places if place.unknown_reason), None)
    if not some:
        return (
            places[0]
            if lost is None
            else places[0]._replace(unknown_reason=lost.unknown_reason, misplaced_by=lost.misplaced_by)
        )
    if len(some) > 1 and all(place.is_picked for place in some):
        some = [min(some, key=lambda place: place.steps_since_pick)]  # a step of a recurrence, and the state before it
    base = some[0]._replace(steps_since_pick=some[0].steps_since_pick + (some[0].steps_since_pick >= 0))
    reason = next((place.inexact_reason for place in some if place.inexact_reason), "")
    if lost is not None and lost.misplaced_by:
        reason = reason or f"{lost.misplaced_by} may lead elsewhere"
    if len(some) == 1:
        return base._replace(inexact_reason=reason, unknown_reason="", misplaced_by="")
    answers = base.centers
    for place in some[1:]:
        answers = np.where(np.isnan(answers), place.centers[:1], answers)
    kept = list(answers)
    for place in some[1:]:
        kept += [np.where(np.isnan(each), answers[0], each) for each in place.centers]
    kept = _few(kept, base.step)
    if len(kept) > len(base.centers) and len(kept) > 1 and not reason:
        named = [f"{describe(edge.source)}" for edge in edges]
        reason = f"branches that meet in {describe(node)} disagree: {_both(kept, named)}"
    slope = tuple(next(filter(None, each), 0.0) for each in zip(*(place.slope for place in some), strict=True))
    return Place(compress(np.stack(kept)), slope, base.step, reason)


def go_on(place: Place) -> Place:
    """The place of a buffer without one, of which a part was written over: the rest goes on from it at the same step,
    along each dimension."""
    centers = place.centers
    if not place.exists or not np.isnan(centers).any():
        return place
    for dim in range(1, centers.ndim):
        lines = np.moveaxis(centers, dim, -1)
        number = np.arange(lines.shape[-1])
        known = np.isfinite(lines)
        before = np.maximum.accumulate(np.where(known, number, -1), -1)
        after = np.minimum.accumulate(np.where(known, number, number.size)[..., ::-1], -1)[..., ::-1]
        nearest = np.where(before >= 0, before, after)
        there = nearest < number.size
        nearest = np.where(there, nearest, 0)
        filled = np.take_along_axis(lines, nearest, -1) + (number - nearest) * place.slope[dim - 1]
        centers = np.moveaxis(np.where(there, filled, np.nan), -1, dim)
    return place._replace(centers=compress(centers))


def _both(kept: Sequence[FloatArray], names: Sequence[str] = ("one", "another")) -> str:
    """Describe the first two of some answers."""
    said = []
    for answer, name in zip(kept[:2], [*names[:1], *names[-1:]], strict=True):
        values = np.unique(answer[np.isfinite(answer)])
        step = float(values[1] - values[0]) if values.size > 1 else 0.0
        said.append(f"{name} puts unit 0 at {values[0]:g} px and a unit every {step:g} px")
    return "; ".join(said)


def describe(node: fx.Node, name: str = "") -> str:
    """An operation, or another name for it, with the module that it ran in."""
    made = node.args[0] if name_of(node).endswith("getitem>") and isinstance(node.args[0], fx.Node) else node
    module, words = module_of(made), name or name_of(made).rstrip("_")
    return f"{words} in {module}" if module else words


def module_of(node: fx.Node) -> str:
    """The innermost module that an operation ran in; "" for the model itself."""
    return str(node.meta.get("module", ""))
