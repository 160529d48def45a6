"""Moves between the digits of an axis: blocks, windows, and what happens inside each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from erfscope.trf.axes.index_maps import NOTHING, Clipped, IndexMap, IntArray


@dataclass(frozen=True, slots=True)
class Regrid(Clipped):
    """Blocks of ``over`` output cells read blocks of ``under`` input cells: (1, k) coarsens, (k, 1) refines, (k, k) mixes windows."""

    size: int
    over: int
    under: int

    def __call__(self, cells: IntArray) -> IntArray:
        return ((cells // self.over * self.under)[:, None] + np.arange(self.under)).reshape(-1)

    def run(self, first: int, last: int) -> tuple[int, int] | None:
        return first // self.over * self.under, last // self.over * self.under + self.under - 1


@dataclass(frozen=True, slots=True)
class Cut(Clipped):
    """A slice of one digit: of every ``old`` input cells the ``new`` from ``start`` on are kept."""

    size: int
    old: int
    new: int
    start: int

    def __call__(self, cells: IntArray) -> IntArray:
        return cells // self.new * self.old + cells % self.new + self.start


@dataclass(frozen=True, slots=True)
class Within:
    """An index map inside one digit of the axis, the same in every block: of ``old`` values times ``low`` cells below it, ``new`` come out.

    A block that is only a part of the axis (``part``) ends where it ends, borders ignored or not.
    """

    size: int
    inner: IndexMap
    low: int
    old: int
    new: int
    part: bool

    def __call__(self, cells: IntArray) -> IntArray:
        return self._read(cells, self.inner.land) if self.part else self._read(cells, self.inner)

    def land(self, cells: IntArray) -> IntArray:
        return self._read(cells, self.inner.land)

    def _read(self, cells: IntArray, inside: Callable[[IntArray], IntArray]) -> IntArray:
        row, low = np.divmod(cells, self.low)
        block, value = np.divmod(row, self.new) if self.part else (np.zeros_like(row), row)
        base = block * self.low * self.old + low
        read = [(base[value == one][:, None] + self.low * inside(np.array([one]))).reshape(-1) for one in np.unique(value)]
        return np.concatenate(read) if read else NOTHING


@dataclass(frozen=True, slots=True)
class Phase(Clipped):
    """Every block of ``over`` * ``count`` output cells shows the same input: a digit tells which ``under`` cells are read."""

    size: int
    over: int
    under: int
    count: int

    def __call__(self, cells: IntArray) -> IntArray:
        return ((cells // self.over % self.count * self.under)[:, None] + np.arange(self.under)).reshape(-1)


@dataclass(frozen=True, slots=True)
class Comb(Clipped):
    """Every output cell reads the ``under`` cells of its digit in all blocks of ``under`` * ``count`` input cells."""

    size: int
    over: int
    under: int
    count: int

    def __call__(self, cells: IntArray) -> IntArray:
        inside = ((cells // self.over * self.under)[:, None] + np.arange(self.under)).reshape(-1)
        return (np.arange(0, self.size, self.under * self.count)[:, None] + inside).reshape(-1)


@dataclass(frozen=True, slots=True)
class Raster(Clipped):
    """A window that slides along the list of all positions: ``total`` of them, the axis being the digit above ``low`` others."""

    size: int
    low: int
    total: int
    kernel: int
    stride: int

    def __call__(self, cells: IntArray) -> IntArray:
        spots = ((cells * self.stride)[:, None] + np.arange(self.kernel)).reshape(-1)
        found: IntArray = spots[(spots >= 0) & (spots < self.total)] // self.low % self.size
        return found
