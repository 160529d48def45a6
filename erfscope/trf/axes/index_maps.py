"""Which cells of an operation's input one cell of its output needs, along one axis.

An index map is a function of a set of output cells. Called, it takes the map as if it had no borders (indices may be
negative or beyond the end); ``in_bounds`` gives the cells that exist. The two differ only where a border does
something: wraps around, reflects, clamps, ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.intp]
NOTHING: IntArray = np.empty(0, dtype=np.intp)


class IndexSet(NamedTuple):
    """Cells along one axis."""

    #: Sorted cells as if there were no borders.
    unbounded: IntArray
    #: Sorted cells that exist and are read.
    in_bounds: IntArray
    #: Everything, whatever the other two say.
    whole: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no cell is meant at all."""
        return not self.whole and self.unbounded.size == 0 and self.in_bounds.size == 0


WHOLE = IndexSet(NOTHING, NOTHING, True)


def single(cell: int) -> IndexSet:
    """The index set of one cell."""
    cells = np.array([cell], dtype=np.intp)
    return IndexSet(cells, cells)


def distinct(cells: IntArray) -> IntArray:
    """Sorted distinct values, in time linear in their range."""
    if cells.size <= 1:
        return cells.reshape(-1)
    first = cells.min()
    seen = np.zeros(cells.max() - first + 1, dtype=bool)
    seen[cells - first] = True
    found: IntArray = np.flatnonzero(seen) + first
    return found


def run_of(cells: IntArray) -> tuple[int, int] | None:
    """First and last of sorted distinct cells between which none is missing; None for any others."""
    if not cells.size:
        return None
    first, last = int(cells[0]), int(cells[-1])
    return (first, last) if last - first + 1 == cells.size else None


def union(one: IndexSet, other: IndexSet) -> IndexSet:
    """Cells that are in either span."""
    if one is other:
        return one
    if one.whole or other.whole:
        return WHOLE
    cells = _join(one.unbounded, other.unbounded)
    same = one.in_bounds is one.unbounded and other.in_bounds is other.unbounded
    return IndexSet(cells, cells if same else _join(one.in_bounds, other.in_bounds))


def _join(one: IntArray, other: IntArray) -> IntArray:
    """Sorted distinct cells of both; one of the two itself where it holds the other."""
    a, b = run_of(one), run_of(other)
    if a is not None and b is not None:
        if a[0] <= b[0] and b[1] <= a[1]:
            return one
        if b[0] <= a[0] and a[1] <= b[1]:
            return other
    return distinct(np.concatenate((one, other)))


class IndexMap(Protocol):
    """Which cells along one axis of an input each cell of the output needs."""

    @property
    def size(self) -> int:
        """Number of cells of the input along the axis."""

    def __call__(self, cells: IntArray) -> IntArray:
        """Input cells that these output cells need, borders ignored; in any order, repeats allowed."""

    def in_bounds(self, cells: IntArray) -> IntArray:
        """The same with borders: existing input cells only."""


def preimage(index_map: IndexMap, span: IndexSet) -> IndexSet:
    """Input span that an output span needs."""
    if span.whole:
        return WHOLE
    if not isinstance(index_map, Clipped):
        return IndexSet(distinct(index_map(span.unbounded)), distinct(index_map.in_bounds(span.in_bounds)))
    unbounded = index_map.reach(span.unbounded)
    in_bounds = unbounded if span.in_bounds is span.unbounded else index_map.reach(span.in_bounds)
    if in_bounds.size and (in_bounds[0] < 0 or in_bounds[-1] >= index_map.size):
        in_bounds = in_bounds[(in_bounds >= 0) & (in_bounds < index_map.size)]
    return IndexSet(unbounded, in_bounds)


class Clipped:
    """An index map that ends at the borders: what lies outside is padding and comes from nowhere."""

    __slots__ = ()
    size: int

    def __call__(self, cells: IntArray) -> IntArray:
        raise NotImplementedError

    def run(self, first: int, last: int) -> tuple[int, int] | None:
        """First and last input cell that a run of output cells needs, borders ignored; None where these are, or may be,
        no run."""
        return None

    def reach(self, cells: IntArray) -> IntArray:
        """Sorted distinct input cells that sorted distinct output cells need, borders ignored."""
        ends = run_of(cells)
        found = None if ends is None else self.run(*ends)
        return distinct(self(cells)) if found is None else np.arange(found[0], found[1] + 1)

    def in_bounds(self, cells: IntArray) -> IntArray:
        reached = self(cells).reshape(-1)
        return reached[(reached >= 0) & (reached < self.size)]


@dataclass(frozen=True, slots=True)
class Window(Clipped):
    """A sliding window: convolution, pooling, slicing, constant padding (kernel 1)."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __call__(self, cells: IntArray) -> IntArray:
        return ((cells * self.stride - self.padding)[:, None] + self.dilation * np.arange(self.kernel)).reshape(-1)

    def run(self, first: int, last: int) -> tuple[int, int] | None:
        reach = 1 + self.dilation * (self.kernel - 1)
        if (self.dilation > 1 and self.kernel > 1) or (first < last and reach < self.stride):
            return None
        return first * self.stride - self.padding, last * self.stride - self.padding + reach - 1


@dataclass(frozen=True, slots=True)
class TransposedWindow(Clipped):
    """A transposed sliding window: input cell i is added to the output cells i * stride - padding + dilation * (0 ..
    kernel - 1)."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __call__(self, cells: IntArray) -> IntArray:
        ends = ((cells + self.padding)[:, None] - self.dilation * np.arange(self.kernel)).reshape(-1)
        sources: IntArray = ends[ends % self.stride == 0] // self.stride
        return sources


@dataclass(frozen=True, slots=True)
class Roll:
    """Cyclic shift by ``shift``; without borders a plain shift."""

    size: int
    shift: int

    def __call__(self, cells: IntArray) -> IntArray:
        return cells - self.shift

    def in_bounds(self, cells: IntArray) -> IntArray:
        return (cells - self.shift) % self.size


@dataclass(frozen=True, slots=True)
class Flip(Clipped):
    """Reversal of the axis."""

    size: int

    def __call__(self, cells: IntArray) -> IntArray:
        return self.size - 1 - cells


@dataclass(frozen=True, slots=True)
class Border:
    """Padding that repeats cells of the map: ``reflect`` or ``replicate``; without borders a plain shift."""

    size: int
    padding: int
    reflect: bool

    def __call__(self, cells: IntArray) -> IntArray:
        return cells - self.padding

    def in_bounds(self, cells: IntArray) -> IntArray:
        last = self.size - 1
        shifted = cells - self.padding
        return last - np.abs(last - np.abs(shifted)) if self.reflect else np.clip(shifted, 0, last)


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """The input is a slice of the output, as of a concatenation: its cells from ``start`` on, every ``step``-th,
    ``size`` of them.

    ``before`` and ``after`` say whether the axis would go on beyond that end of the slice if there were no borders.
    """

    size: int
    start: int
    step: int = 1
    before: bool = False
    after: bool = False

    def _own(self, cells: IntArray) -> IntArray:
        shifted = cells - self.start
        own: IntArray = shifted[shifted % self.step == 0] // self.step
        return own

    def __call__(self, cells: IntArray) -> IntArray:
        own = self._own(cells)
        return own[(self.before | (own >= 0)) & (self.after | (own < self.size))]

    def in_bounds(self, cells: IntArray) -> IntArray:
        own = self._own(cells)
        return own[(own >= 0) & (own < self.size)]


@dataclass(frozen=True, slots=True)
class OutsideSlice(Clipped):
    """The same axis outside a slice that was overwritten: every ``step``-th cell from ``start`` to before ``stop``."""

    size: int
    start: int
    stop: int
    step: int = 1

    def __call__(self, cells: IntArray) -> IntArray:
        gone = (cells >= self.start) & (cells < self.stop) & ((cells - self.start) % self.step == 0)
        left: IntArray = cells[~gone]
        return left


@dataclass(frozen=True, slots=True)
class Fixed(Clipped):
    """One cell of the input, whatever the output cell."""

    size: int
    cell: int

    def __call__(self, cells: IntArray) -> IntArray:
        return np.full(min(cells.size, 1), self.cell, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Cumulative(Clipped):
    """All cells up to this one, as in a running sum."""

    size: int

    def __call__(self, cells: IntArray) -> IntArray:
        return np.arange(int(cells.max()) + 1) if cells.size else NOTHING


@dataclass(frozen=True, slots=True)
class Nothing(Clipped):
    """No cell at all, as extra tokens read of the map beside them."""

    size: int

    def __call__(self, cells: IntArray) -> IntArray:
        return NOTHING


@dataclass(frozen=True, slots=True)
class Adaptive(Clipped):
    """Adaptive pooling to ``out`` cells: cell i reads floor(i S / out) to ceil((i + 1) S / out), the last excluded."""

    size: int
    out: int

    def __call__(self, cells: IntArray) -> IntArray:
        first = cells * self.size // self.out
        stop = -(-(cells + 1) * self.size // self.out)
        grid = first[:, None] + np.arange(-(-self.size // self.out) + 1)
        read: IntArray = grid[grid < stop[:, None]]
        return read


@dataclass(frozen=True, slots=True)
class Chain:
    """Two index maps in a row, the one nearer to the output first."""

    outer: IndexMap
    inner: IndexMap

    @property
    def size(self) -> int:
        """Cells of the innermost input."""
        return self.inner.size

    def __call__(self, cells: IntArray) -> IntArray:
        return self.inner(distinct(self.outer(cells)))

    def in_bounds(self, cells: IntArray) -> IntArray:
        return self.inner.in_bounds(distinct(self.outer.in_bounds(cells)))
