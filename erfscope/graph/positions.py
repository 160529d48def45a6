"""Where a tensor's elements stand on the image, and in which image of the batch: carried forward through the
operations.

Every element of every tensor has a place along each axis: a number of pixels, or none, as class tokens, queries and
pooled values. Views and moves take the places with them, windows give new ones, and where branches meet whose places
differ, all are kept and the first counts. A tensor whose places fill a grid is a map, in whatever order it holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor, fx

from erfscope.geometry.layout import BATCH, CHANNEL, Factor, Layout
from erfscope.graph.carry import arranged, compressed, extended, reshaped
from erfscope.graph.graph import Graph, name_of, shape_of
from erfscope.graph.rules.moves import is_move
from erfscope.graph.rules.products import ATTENTION, TOKEN_MIXING
from erfscope.graph.rules.reading import (
    Dims,
    Edge,
    FloatArray,
    Reshape,
    Shape,
    Step,
    Taps,
    Whole,
    edges_of,
    groups_of,
    is_tensor,
)

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
    doubt: str = ""
    #: Why places are not known that there may be; "" where those that stand nowhere stand nowhere.
    why: str = ""
    #: Whether elements may come from other places than they stand at, by what ``why`` names.
    astray: bool = False
    #: Operations since one place was picked of many; -1 where that was not so.
    age: int = -1
    #: Of frequencies: the place of what was transformed.
    under: Place | None = None

    @property
    def exists(self) -> bool:
        """Whether any element stands somewhere."""
        return bool(np.isfinite(self.centers[0]).any())

    @property
    def is_picked(self) -> bool:
        """Whether all elements stand at one place that was picked of many."""
        return self.age >= 0 and self.exists and self.centers[0].size == 1

    def ends_with(self, dim: int) -> bool:
        """Whether a border of this dimension is one of the map, and none of a window in it."""
        first = self.centers[0]
        if all(side == 1 for i, side in enumerate(first.shape) if i != dim):
            return True
        return bool(abs(self.slope[dim]) * first.shape[dim] > np.nanmax(first) - np.nanmin(first))


class Reading(NamedTuple):
    """What the operations say of a tensor's positions."""

    #: "known"; "none": no image position, as of queries and pooled values; "holes": its places form no grid; "open": an
    #: operation on the way is not understood.
    status: Literal["known", "none", "holes", "open"]
    layout: Layout | None = None
    #: Open: why, in words.
    why: str = ""


class Positions:
    """The places of all tensors of a graph.

    Args:
        graph: One recorded pass.
        numbers: The numbers of a tensor that does not depend on the input, such as an index; None where they
        are not at hand. image: The input whose axes are meant: (B, C, *space).
    """

    def __init__(
        self, graph: Graph, numbers: Callable[[fx.Node], Tensor | None] = lambda _: None, image: fx.Node | None = None
    ) -> None:
        self.graph = graph
        self.numbers = numbers
        self.image = graph.inputs[0] if image is None else image
        shape = shape_of(self.image)
        #: Spatial size of the image; the axis after the last is the batch's.
        self.space = shape[2:]
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        _note_modules(graph, self.order)
        #: What every node reads of those that depend on the image.
        self.edges: dict[fx.Node, list[Edge]] = {}
        self._places: dict[fx.Node, tuple[Place, ...]] = {}
        #: For every axis, whether an input stands somewhere along it whose elements are where the output's are.
        self.led: dict[fx.Node, tuple[bool, ...]] = {}
        #: The places before each step of each edge.
        self.before: dict[fx.Node, list[list[tuple[Place, ...]]]] = {}
        dims = [*range(2, len(shape)), 0]
        self._places[self.image] = tuple(_numbered(shape, dim) for dim in dims)
        for node in graph.nodes:
            # Empty tensors, as of a detector that has found nothing, have no element that stands anywhere.
            if node in graph.live and node.op == "call_function" and is_tensor(node) and 0 not in shape_of(node):
                self._visit(node, numbers)

    def places(self, node: fx.Node) -> tuple[Place, ...]:
        """Where a tensor's elements stand along each axis of the image, and last in which image of the batch."""
        return self._places[node]

    def __contains__(self, node: fx.Node) -> bool:
        return node in self._places

    def _visit(self, node: fx.Node, numbers: Callable[[fx.Node], Tensor | None]) -> None:
        edges = [edge for edge in edges_of(node, numbers) if edge.source in self._places]
        if not edges:
            return
        edges = [_named(edge) for edge in edges] if len(edges) == 1 else edges
        self.edges[node], self.before[node] = edges, []
        found: list[tuple[Place, ...]] = []
        for edge in edges:
            here, shape = self._places[edge.source], shape_of(edge.source)
            before = []
            for step in edge.steps:
                before.append(here)
                after = tuple(_through(place, step, shape, edge, node) for place in here)
                here, shape = (_finer(after, shape, step.shape) if isinstance(step, Reshape) else after), step.shape
            self.before[node].append(before)
            found.append(here)
        found = self._beside(found, edges, node)
        edges = self.edges[node] = _turned(edges, found)
        led = [
            any(each[axis].exists for each, edge in zip(found, edges, strict=True) if not edge.follows)
            for axis in range(len(self.space) + 1)
        ]
        self.led[node] = tuple(led)
        found = self._side_by_side(found, edges, node)
        self._places[node] = tuple(
            _joined([each[axis] for each in found], edges, node) for axis in range(len(self.space) + 1)
        )

    def _beside(self, found: list[tuple[Place, ...]], edges: Sequence[Edge], node: fx.Node) -> list[tuple[Place, ...]]:
        """The places that edges give an output; where the leading input is the same in all windows, those of
        what it is compared with.
        """
        leading = [each for each, edge in zip(found, edges, strict=True) if not edge.follows]
        for edge in edges if leading else ():
            step = edge.twin
            if step is None or not any(place.exists for place in leading[0]):
                continue
            twin = tuple(
                _through(place, step, shape_of(edge.source), edge, node) for place in self._places[edge.source]
            )
            axes = range(len(self.space))
            windows = [d for d in range(len(step.shape) - 2) if any(twin[a].centers.shape[1 + d] > 1 for a in axes)]
            if windows and not any(leading[0][a].centers.shape[1 + d] > 1 for a in axes for d in windows):
                return [
                    twin if k == next(i for i, edge in enumerate(edges) if not edge.follows) else each
                    for k, each in enumerate(found)
                ]
        return found

    def _side_by_side(
        self, found: list[tuple[Place, ...]], edges: Sequence[Edge], node: fx.Node
    ) -> list[tuple[Place, ...]]:
        """The places that a concatenation of channels gives, each for all of them: only the parts of one tensor
        stand side by side.
        """
        last = [edge.steps[-1] if edge.steps else None for edge in edges]
        dims = {read.dim for step in last if isinstance(step, Dims) for read in step.reads if isinstance(read, Taps)}
        if (
            len(edges) < 2
            or len(dims) != 1
            or None in dims
            or len({self._moved_from(edge.source) for edge in edges}) == 1
        ):
            return found
        dim, made = next(iter(dims)) or 0, [list(each) for each in found]
        for axis in range(len(self.space)):
            before = [places[-1][axis] for places in self.before[node]]
            if all(place.is_picked or not place.exists for place in before) or any(
                place.centers.shape[1 + dim] > 1 for place in before
            ):
                continue
            for each in made:
                centers = each[axis].centers
                there = np.flatnonzero(
                    np.isfinite(np.moveaxis(centers[0], dim, 0)).reshape(centers.shape[1 + dim], -1).any(1)
                )
                if len(there):
                    each[axis] = each[axis]._replace(centers=centers.take(there[:1], 1 + dim))
        return [tuple(each) for each in made]

    def _moved_from(self, node: fx.Node) -> fx.Node:
        """The tensor of which another is a view or a part."""
        while len(edges := self.edges.get(node, [])) == 1 and is_move(node):
            node = edges[0].source
        return node

    def reading(self, node: fx.Node) -> Reading:
        """How a tensor holds a map, or why it holds none."""
        return _read(self._places[node], shape_of(node)) if node in self._places else Reading("none")

    def ancestors(self, node: fx.Node) -> set[fx.Node]:
        """A tensor and all that depend on the image that it was computed from."""
        stack, seen = [node], set[fx.Node]()
        while stack:
            here = stack.pop()
            if here not in seen:
                seen.add(here)
                stack.extend(edge.source for edge in self.edges.get(here, []))
        return seen

    def has_path_around(self, node: fx.Node, goal: fx.Node) -> bool:
        """Whether some path from the image to a tensor does not pass through another."""
        stack, seen = [node], {goal}
        while stack:
            here = stack.pop()
            if here is self.image:
                return True
            if here not in seen:
                seen.add(here)
                stack.extend(edge.source for edge in self.edges.get(here, []))
        return False

    def own_resizing(self, node: fx.Node) -> tuple[Shape, Shape] | None:
        """The sizes between which a model resizes its input itself on every way to a tensor; None where it does not."""
        for each in self.edges:
            if "upsample" in name_of(each) and self._keeps_pixels(self.edges[each][0].source):
                before, after = shape_of(self.edges[each][0].source)[2:], shape_of(each)[2:]
                if before != after and each in self.ancestors(node) and not self.has_path_around(node, each):
                    return before, after
        return None

    def _keeps_pixels(self, node: fx.Node) -> bool:
        """Whether a tensor is the image, normalised at most."""
        while node is not self.image:
            edges = self.edges[node]
            if len(edges) != 1 or edges[0].steps or edges[0].mixing:
                return False
            node = edges[0].source
        return True

    def unit_box(
        self, node: fx.Node, layout: Layout, unit: Sequence[int]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], ...]:
        """The indices along each dimension of a tensor that one unit of its map is."""
        return unit_box(shape_of(node), layout, unit)


def _named(edge: Edge) -> Edge:
    """A product with weights mixes tokens."""
    return replace(edge, mixing=TOKEN_MIXING) if edge.mixing == ATTENTION else edge


def _turned(edges: list[Edge], found: Sequence[tuple[Place, ...]]) -> list[Edge]:
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


def _numbered(shape: Shape, dim: int) -> Place:
    """The place along an axis that is one dimension of the image."""
    centers = np.arange(shape[dim], dtype=float).reshape(1, *(shape[dim] if i == dim else 1 for i in range(len(shape))))
    return Place(centers, tuple(float(i == dim) for i in range(len(shape))), 1.0)


def _through(place: Place, step: Step, shape: Shape, edge: Edge, node: fx.Node) -> Place:
    """The place after a step."""
    if isinstance(step, Reshape):
        centers = reshaped(place.centers, shape, step.shape)
        return place._replace(centers=centers, slope=_slopes(place, centers, shape, step.shape), under=None)
    if edge.transform == "back" and place.under is not None:
        return place.under
    goals: list[int | None] = []
    slope = [0.0] * len(step.shape)
    merged = [i for i, read in enumerate(step.reads) if isinstance(read, Whole) and read.same is None]
    before = place
    place = _over(place, merged, step, edge, node, shape)
    for i, read in enumerate(step.reads):
        goal = read.same if isinstance(read, Whole) else read.dim if isinstance(read, Taps) else read
        if isinstance(read, Taps):
            place = _tapped(place, i, shape[i], read, node)
        goals.append(goal)
        if goal is not None and i not in merged:
            slope[goal] = place.slope[i] * (read.scale if isinstance(read, Taps) else 1)
    centers = arranged(place.centers, step, goals)
    lost = before.exists and not np.isfinite(centers[0]).any()
    # As many cells as before may well be the same cells: a matrix over tokens.
    like = lost and not place.why and (shape == step.shape or edge.transform) and edge.mixing not in (ATTENTION, "")
    why = f"{describe(node, edge.mixing)} is not understood" if like else place.why
    picked = any(
        isinstance(read, Taps) and read.unbounded.size == 1 and before.centers.shape[1 + i] > 1
        for i, read in enumerate(step.reads)
    )
    under = before if edge.transform == "forth" else place.under
    return Place(centers, tuple(slope), place.step, place.doubt, why, place.astray, 0 if picked else place.age, under)


def _finer(places: tuple[Place, ...], old: Shape, new: Shape) -> tuple[Place, ...]:
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
    return tuple(_refined(place, *times[axis], folded) if axis in times else place for axis, place in enumerate(places))


def _refined(place: Place, dim: int, times: int, folded: bool) -> Place:
    """The place with so many finer cells in each."""
    size = place.centers.shape[1 + dim]
    gap = float(place.centers[0].flat[times] - place.centers[0].flat[0])
    within = ((np.arange(size) % times + 0.5) / times - 0.5) * gap
    centers = place.centers + within.reshape([size if i == dim else 1 for i in range(place.centers.ndim - 1)])
    slope = tuple(gap / times if i == dim else each for i, each in enumerate(place.slope))
    doubt = "channels were folded into its cells, and whether these are finer cells is not known" if folded else ""
    return place._replace(centers=centers, slope=slope, step=abs(gap) / times, doubt=place.doubt or doubt)


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


def _over(place: Place, dims: Sequence[int], step: Dims, edge: Edge, node: fx.Node, shape: Shape) -> Place:
    """The place after dimensions were mixed away: a coarser cell's where they held the cells of one, else nowhere."""
    centers = place.centers
    varying = [dim for dim in dims if centers.shape[1 + dim] > 1]
    if not varying:
        return place
    if any(read.blind for read in step.reads if isinstance(read, Whole)):
        return place._replace(centers=_lost(centers, varying), why=place.why or _why_blind(edge, node), astray=True)
    answers, size = list[FloatArray](), place.step
    doubt = place.doubt
    for answer in centers:
        rows = _distinct(answer, varying, place.step)
        if len(rows) > 1 and (size := _cell_of(rows, place.step)):
            rows = [np.mean(rows, axis=0)] if size > 0 else rows
        elif len(rows) > 1:
            rows = [np.full_like(rows[0], np.nan)]
        answers += rows
    step_size = size if size and size > 0 else place.step
    kept = _few(answers, step_size)
    if len(kept) > len(centers) and not doubt:
        doubt = f"branches that meet in {describe(node)} disagree: {_both(kept)}"
    return place._replace(centers=compressed(np.stack(kept)), step=step_size, doubt=doubt)


def _lost(centers: FloatArray, dims: Sequence[int]) -> FloatArray:
    """No place at all, with one index along some dimensions."""
    return np.full([1, *(1 if i in dims else n for i, n in enumerate(centers.shape[1:]))], np.nan)


def _distinct(answer: FloatArray, dims: Sequence[int], step: float) -> list[FloatArray]:
    """The different places along some dimensions, the first first, each as an array with one index there."""
    sides = [1 if i in dims else n for i, n in enumerate(answer.shape)]
    table = np.moveaxis(answer, dims, range(len(dims))).reshape(-1, math.prod(sides))
    keys = np.where(np.isnan(table), np.inf, np.round(table / (SAME * step)))
    table = table[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
    some = table[~np.isnan(table).all(1)]
    return [row.reshape(sides) for row in (some if len(some) else table[:1])]


def _cell_of(rows: Sequence[FloatArray], step: float) -> float:
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
        if not any(_alike(answer, other, step) for other in found):
            found.append(answer)
    if len(found) > MOST:
        means = [float(np.nanmean(each)) for each in found[1:]]
        found = [found[0], found[1 + int(np.argmin(means))], found[1 + int(np.argmax(means))]]
    return [np.broadcast_to(each, np.broadcast_shapes(*(other.shape for other in found))) for each in found]


def _alike(one: FloatArray, other: FloatArray, step: float) -> bool:
    return bool(((np.abs(one - other) <= SAME * abs(step)) | (np.isnan(one) & np.isnan(other))).all())


def _tapped(place: Place, dim: int, size: int, read: Taps, node: fx.Node) -> Place:
    """The place after taps along one dimension; its slope is still that before them."""
    centers, slope, doubt = place.centers, place.slope[dim], place.doubt
    moves = slope or centers.shape[1 + dim] > 1
    if moves:
        lone = np.isnan(read.center)
        low = np.floor(np.where(lone, 0, read.center)).astype(np.intp)
        part = np.where(lone, 0, read.center - low).reshape(-1, *(1,) * (centers.ndim - 2 - dim))
        each = np.full(len(centers), slope)
        one, other = (extended(centers, 1 + dim, spots, each, np.nan) for spots in (low, low + (part.reshape(-1) > 0)))
        if ((part > 0) & (np.abs(other - one - slope) > SAME * place.step)).any():
            doubt = doubt or f"cells that are no neighbours on the image meet in {describe(node)}"
        centers = np.where(part > 0, one + part * (other - one), one)
    if np.isnan(read.center).any():
        lone = np.isnan(read.center).reshape(-1, *(1,) * (centers.ndim - 2 - dim))
        centers = np.where(lone, np.nan, centers)
    is_new = moves and (read.unbounded.shape[1] > 1 or 0 < abs(read.scale) < 1) and read.scale
    others = [n for i, n in enumerate(place.centers.shape[1:]) if i != dim and n > 1]
    step = (
        place.step if not is_new else abs(slope * read.scale) if slope and not others else place.step * abs(read.scale)
    )
    return place._replace(centers=compressed(centers), step=step, doubt=doubt or (read.doubt if moves else ""))


def _joined(places: Sequence[Place], edges: Sequence[Edge], node: fx.Node) -> Place:
    """The place of an operation's output, given those of its inputs in its own dimensions."""
    leading = [place for place, edge in zip(places, edges, strict=True) if not edge.follows]
    some = [place for place in leading if place.exists] or [place for place in places if place.exists]
    lost = next((place for place in places if place.why), None)
    if not some:
        return places[0] if lost is None else places[0]._replace(why=lost.why, astray=lost.astray)
    if len(some) > 1 and all(place.is_picked for place in some):
        some = [min(some, key=lambda place: place.age)]  # a step of a recurrence, and the state before it
    base = some[0]._replace(age=some[0].age + (some[0].age >= 0))
    doubt = next((place.doubt for place in some if place.doubt), "")
    if lost is not None and lost.astray:
        doubt = doubt or f"{lost.why.partition(' is not')[0].partition(' picks')[0]} may lead elsewhere"
    if len(some) == 1:
        return base._replace(doubt=doubt, why="", astray=False)
    answers = base.centers
    for place in some[1:]:
        answers = np.where(np.isnan(answers), place.centers[:1], answers)
    kept = list(answers)
    for place in some[1:]:
        kept += [np.where(np.isnan(each), answers[0], each) for each in place.centers]
    kept = _few(kept, base.step)
    if len(kept) > len(base.centers) and len(kept) > 1 and not doubt:
        named = [f"{describe(edge.source)}" for edge in edges]
        doubt = f"branches that meet in {describe(node)} disagree: {_both(kept, named)}"
    slope = tuple(next(filter(None, each), 0.0) for each in zip(*(place.slope for place in some), strict=True))
    return Place(compressed(np.stack(kept)), slope, base.step, doubt)


def _both(kept: Sequence[FloatArray], names: Sequence[str] = ("one", "another")) -> str:
    """What the first two of some answers say."""
    said = []
    for answer, name in zip(kept[:2], [*names[:1], *names[-1:]], strict=True):
        values = np.unique(answer[np.isfinite(answer)])
        step = float(values[1] - values[0]) if values.size > 1 else 0.0
        said.append(f"{name} puts unit 0 at {values[0]:g} px and a unit every {step:g} px")
    return "; ".join(said)


def _why_blind(edge: Edge, node: fx.Node) -> str:
    """What is to be said of an operation behind which positions are not known."""
    picking = ("index", "index_select", "gather", "masked_select", "take_along_dim")
    what = describe(node, edge.mixing)
    return (
        f"{what} picks positions by numbers that are not followed"
        if edge.mixing in picking
        else f"{what} is not understood"
    )


def describe(node: fx.Node, name: str = "") -> str:
    """An operation, or another name for it, with the module that it ran in."""
    made = node.args[0] if name_of(node).endswith("getitem>") and isinstance(node.args[0], fx.Node) else node
    module, words = module_of(made), name or name_of(made).rstrip("_")
    return f"{words} in {module}" if module else words


def module_of(node: fx.Node) -> str:
    """The innermost module that an operation ran in; "" for the model itself."""
    return str(node.meta.get("module", ""))


def _note_modules(graph: Graph, order: dict[fx.Node, int]) -> None:
    """Note at every operation the innermost module that it ran in."""
    for name in sorted(graph.marks, key=lambda name: name.count(".")):
        mark = graph.marks[name]
        first = max((order[node] for node in mark.inputs.values()), default=len(order))
        stack = [*mark.outputs.values()]
        seen = set(mark.inputs.values())
        while stack:
            node = stack.pop()
            if node not in seen and order[node] > first:
                seen.add(node)
                node.meta["module"] = name.partition("@")[0]
                stack.extend(node.all_input_nodes)


# --- layouts


def _read(places: Sequence[Place], shape: Shape) -> Reading:
    *space, batch = places
    why = next((place.why for place in places if place.why and not place.exists), "")
    if why:
        return Reading("open", why=why)
    gone = [not place.exists for place in space]
    if not batch.exists or (any(gone) and not any(_count(place) > 1 for place in space)) or all(gone):
        return Reading("none")
    found = _factors(places, shape)
    for dim in range(len(shape)) if isinstance(found, str) else ():
        if isinstance(found, str) and (windows := _windows_along(places, dim)) is not None:
            found = _factors(windows, shape)
    if isinstance(found, str):
        return Reading("holes" if found == "holes" else "open", why="" if found == "holes" else found)
    return Reading("known", layout=found)


def _windows_along(places: Sequence[Place], dim: int) -> list[Place] | None:
    """The places of windows that slide, their cells being the entries of a dimension; None where these are none."""
    found, changed = list(places), False
    for axis, place in enumerate(places[:-1]):
        rows = _distinct(place.centers[0], [dim], place.step) if place.exists else []
        if len(rows) > 1 and (size := _cell_of(rows, place.step)) > 0:
            found[axis], changed = place._replace(centers=compressed(np.mean(rows, axis=0)[None]), step=size), True
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


def _factors(places: Sequence[Place], shape: Shape) -> Layout | str:
    """The layout of a tensor whose positions lie in any order over its dimensions; words where they form no grid."""
    cells = [cells_of(place) if place.exists else np.zeros([1] * len(shape)) for place in places]
    if any((each == -1).any() for each in cells):
        return "holes"
    picked: list[tuple[int, ...] | None] = []
    for dim, side in enumerate(shape):
        entries = _inner(cells, dim, side)
        picked.append(None if entries == tuple(range(side)) else entries)
        cells = [compressed(each.take(entries, dim)[None])[0] if each.shape[dim] > 1 else each for each in cells]
    sizes = tuple(side if entries is None else len(entries) for side, entries in zip(shape, picked, strict=True))
    if any(np.isnan(each).any() for each in cells):
        return "holes"
    grid = [int(each.max()) + 1 for each in cells]
    dims = [_digits(cells, dim, side) for dim, side in enumerate(sizes)]
    if None in dims:  # cells may wrap around, in windows of a map that was rolled
        cells = [(each - each.flat[0]) % side for each, side in zip(cells, grid, strict=True)]
        dims = [_digits(cells, dim, side) for dim, side in enumerate(sizes)]
    if None in dims:
        return "its positions lie in no order that is understood"
    roles = _as_channels([list(dim) for dim in dims if dim is not None])
    for axis, side in enumerate(grid):
        own = sorted((f.step, f.size) for dim in roles for f in dim if f.role == axis)
        low = own[0][0] if own else 1
        if own and [step for step, _ in own] != [low * math.prod(size for _, size in own[:i]) for i in range(len(own))]:
            return "holes"
        if own and low * math.prod(size for _, size in own) != side:
            return "holes"
    return _layout(roles, picked, sizes, shape, len(places) - 1)


def _inner(cells: Sequence[FloatArray], dim: int, size: int) -> tuple[int, ...]:
    """The entries of a dimension that stand on the image, in the order of their cells where they are a list in
    another one.
    """
    own = [each for each in (cells[-1], *cells[:-1]) if each.shape[dim] > 1]
    there = np.arange(size)
    for each in own:
        others = tuple(i for i in range(each.ndim) if i != dim)
        there = there[~np.isnan(each).all(others)[there]]
    inner = [each for each in (compressed(each.take(there, dim)[None])[0] for each in own) if each.shape[dim] > 1]
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
    if plain and len(shape) == rank + 2 and not any(each is not None for each in picked):
        for order, channel, first in (("channels_first", 1, 2), ("channels_last", rank + 1, 1)):
            if lone(channel, CHANNEL) and all(lone(first + i, i) and len(roles[first + i]) < 2 for i in range(rank)):
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


def unit_box(
    shape: Shape, layout: Layout, unit: Sequence[int]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], ...]:
    """The indices along each dimension of a tensor of this shape that one unit of its map is."""
    found = [np.arange(side) for side in shape]
    if layout.order == "tokens":
        found[1] = np.array([layout.prefix + int(np.ravel_multi_index(tuple(unit), layout.grid))])
    elif layout.order != "factors":
        for i, index in enumerate(unit):
            found[i + (2 if layout.order == "channels_first" else 1)] = np.array([index])
    else:
        for dim, factors in enumerate(layout.factors):
            found[dim] = _entries(factors, layout, dim, shape[dim], unit)
    return tuple(found)


def _entries(
    factors: Sequence[Factor], layout: Layout, dim: int, size: int, unit: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The entries of a dimension of factors that one unit has."""
    entries = np.arange(size) if layout.picked[dim] is None else np.array(layout.picked[dim])
    rest = math.prod(f.size for f in factors if f.role != BATCH)
    number, there = np.arange(len(entries)), np.ones(len(entries), dtype=bool)
    for factor in reversed(factors):
        side = len(entries) // rest if factor.role == BATCH else factor.size
        number, digit = np.divmod(number, side)
        if factor.role >= 0:
            there &= digit == unit[factor.role] // factor.step % factor.size
    return np.sort(entries[there])
