"""Index maps between the factors of an axis: blocks, windows, and what happens inside each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from erfscope.trf.axes.index_maps import NOTHING, Clipped, IndexMap, IntArray


@dataclass(frozen=True, slots=True)
class Regrid(Clipped):
    """Blocks of ``over`` output cells read blocks of ``under`` input cells: (1, k) coarsens, (k, 1) refines, (k, k)
    mixes windows."""

    size: int
    over: int
    under: int

    def __call__(self, cells: IntArray) -> IntArray:
        return ((cells // self.over * self.under)[:, None] + np.arange(self.under)).reshape(-1)

    def run(self, first: int, last: int) -> tuple[int, int] | None:
        return first // self.over * self.under, last // self.over * self.under + self.under - 1


@dataclass(frozen=True, slots=True)
class FactorSlice(Clipped):
    """A slice of one factor: of every ``old`` input cells the ``new`` from ``start`` on are kept."""

    size: int
    old: int
    new: int
    start: int

    def __call__(self, cells: IntArray) -> IntArray:
        return cells // self.new * self.old + cells % self.new + self.start


@dataclass(frozen=True, slots=True)
class BlockwiseMap:
    """An index map of one factor of the axis, the same in every block: of ``old`` values times ``low`` cells below it,
    ``new`` come out.

    A block that is only a part of the axis (``part``) ends where it ends, borders ignored or not.
    """

    size: int
    inner: IndexMap
    low: int
    old: int
    new: int
    part: bool

    def __call__(self, cells: IntArray) -> IntArray:
        return self._read(cells, self.inner.in_bounds) if self.part else self._read(cells, self.inner)

    def in_bounds(self, cells: IntArray) -> IntArray:
        return self._read(cells, self.inner.in_bounds)

    def _read(self, cells: IntArray, inside: Callable[[IntArray], IntArray]) -> IntArray:
        row, low = np.divmod(cells, self.low)
        block, value = np.divmod(row, self.new) if self.part else (np.zeros_like(row), row)
        base = block * self.low * self.old + low
        read = [
            (base[value == one][:, None] + self.low * inside(np.array([one]))).reshape(-1) for one in np.unique(value)
        ]
        return np.concatenate(read) if read else NOTHING


@dataclass(frozen=True, slots=True)
class Tiled(Clipped):
    """The output repeats its input in every block of ``over`` * ``count`` cells: a factor tells which ``under`` cells
    are read."""

    size: int
    over: int
    under: int
    count: int

    def __call__(self, cells: IntArray) -> IntArray:
        return ((cells // self.over % self.count * self.under)[:, None] + np.arange(self.under)).reshape(-1)


@dataclass(frozen=True, slots=True)
class AcrossBlocks(Clipped):
    """Every output cell reads the ``under`` cells that its factor stands for, in all blocks of ``under`` * ``count``
    input cells."""

    size: int
    over: int
    under: int
    count: int

    def __call__(self, cells: IntArray) -> IntArray:
        inside = ((cells // self.over * self.under)[:, None] + np.arange(self.under)).reshape(-1)
        return (np.arange(0, self.size, self.under * self.count)[:, None] + inside).reshape(-1)


@dataclass(frozen=True, slots=True)
class FlattenedWindow(Clipped):
    """A window that slides along flattened positions: ``total`` of them, the axis being the factor with ``low`` cells
    inside it."""

    size: int
    low: int
    total: int
    kernel: int
    stride: int

    def __call__(self, cells: IntArray) -> IntArray:
        spots = ((cells * self.stride)[:, None] + np.arange(self.kernel)).reshape(-1)
        found: IntArray = spots[(spots >= 0) & (spots < self.total)] // self.low % self.size
        return found
