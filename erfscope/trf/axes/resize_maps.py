"""The cells that interpolation reads, as PyTorch computes them (ATen/native/UpSample.h)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erfscope.trf.axes.index_maps import IntArray

Kind = Literal["nearest", "nearest_exact", "linear", "cubic"]
#: Cells to either side of the source point that get a weight.
TAPS: dict[Kind, tuple[int, int]] = {"linear": (0, 1), "cubic": (-1, 2)}


@dataclass(frozen=True, slots=True)
class Resize:
    """Interpolation of ``size`` cells.

    ``scale`` is the number of input cells per output cell. Source points are computed in float32 and float64 and both
    answers are kept: which one the model's dtype gives is not known here, and they differ only where a point falls on
    the edge between two cells."""

    size: int
    scale: float
    kind: Kind
    align_corners: bool = False

    def __call__(self, cells: IntArray) -> IntArray:
        return np.concatenate([self._sources(cells.astype(dtype)) for dtype in (np.float32, np.float64)])

    def in_bounds(self, cells: IntArray) -> IntArray:
        # What lies outside is clamped.
        return np.clip(self(cells), 0, self.size - 1)

    def _sources(self, index: NDArray[Any]) -> IntArray:
        """Cells with a weight, computed in the dtype of ``index``."""
        scale = index.dtype.type(self.scale)
        half = index.dtype.type(0.5)
        if self.kind in ("nearest", "nearest_exact"):
            point = index * scale if self.kind == "nearest" else (index + half) * scale
            nearest: IntArray = np.floor(point).astype(np.intp)
            return nearest
        point = index * scale if self.align_corners else scale * (index + half) - half
        low = np.floor(point)
        first, last = TAPS[self.kind]
        taps = low[point != low].astype(np.intp)[:, None] + np.arange(first, last + 1)
        return np.concatenate((low.astype(np.intp), taps.reshape(-1)))


@dataclass(frozen=True, slots=True)
class SmoothResize:
    """Antialiased interpolation: a window of ``width`` cells, widened by the scale where the map shrinks, around the
    source point."""

    size: int
    scale: float
    width: int

    def __call__(self, cells: IntArray) -> IntArray:
        return np.concatenate([self._sources(cells.astype(dtype)) for dtype in (np.float32, np.float64)])

    def _sources(self, index: NDArray[Any]) -> IntArray:
        """Cells with a weight, computed in the dtype of ``index``."""
        number = index.dtype.type
        widening = number(max(self.scale, 1.0))
        center = number(self.scale) * (index + number(0.5))
        first = np.floor(center - widening * number(self.width / 2) + number(0.5)).astype(np.intp)
        grid = first[:, None] + np.arange(math.ceil(self.width * widening) + 2)
        distance = np.abs(grid.astype(index.dtype) - center[:, None] + number(0.5)) / widening
        read: IntArray = grid[distance < self.width / 2]
        return read

    def in_bounds(self, cells: IntArray) -> IntArray:
        reached = self(cells)
        return reached[(reached >= 0) & (reached < self.size)]
