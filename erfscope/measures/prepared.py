"""A map made ready for measuring: what several measures need is computed once, and only when one of them asks."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import numpy as np

from erfscope.geometry.unit import Trf
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures.shapes import ALIKE, NO_SHAPE, SHAPES, Axis, Fit, Shape, fit
from erfscope.measures.sizes import (
    Moments,
    RadialMass,
    Rings,
    Sides,
    area_inside,
    edge_weights,
    moments,
    side,
    sides_of,
)


class Geometry:
    """Positions of the cells of a two-dimensional map relative to its unit. Shared by all maps of one unit."""

    def __init__(self, plane: ErfMap, *, whole: bool = True) -> None:
        """Take the geometry of a map whose values are (H, W), such as :attr:`ErfMap.plane`.

        Args:
            plane: The map.
            whole: Every cell of it; else the window (h, w) that is not zero, which every measure can be had from in
                less time.
        """
        #: (H, W) of the map, and the rows and columns of it that (h, w) below are.
        self.shape: tuple[int, int] = (plane.values.shape[0], plane.values.shape[1])
        self.trf: Trf | None = plane.trf
        #: Of a unit without a place the origin, and no cell of its own.
        self.has_center = bool(plane.center_px)
        self.center_px, self.stride_px = _two(plane.center_px), _two(plane.stride_px)
        self.window = tuple(slice(0, size) for size in self.shape) if whole else self._window(plane.values)
        #: Signed distance of every row (h,) and every column (w,) to the unit's centre, in cells.
        self.rows, self.cols = (
            np.arange(part.start, part.stop, dtype=np.float64) - center
            for part, center in zip(self.window, self.center_px, strict=True)
        )

    def around(self, offset: tuple[float, float]) -> Geometry:
        """The same cells around a place that is so far from the unit's centre."""
        other = copy.copy(self)
        for name in ("distance", "rings", "outside_own_cell"):
            other.__dict__.pop(name, None)
        other.rows, other.cols = self.rows - offset[0], self.cols - offset[1]
        other.center_px = self.center_px[0] + offset[0], self.center_px[1] + offset[1]
        return other

    @cached_property
    def distance(self) -> FloatArray:
        """(h, w), distance of every cell to the unit's centre, in cells."""
        return np.hypot(self.rows[:, None], self.cols[None, :])

    @cached_property
    def rings(self) -> Rings:
        """The cells by their distance."""
        return Rings(self.distance)

    @cached_property
    def outside_own_cell(self) -> FloatArray:
        """(h, w), share of every cell that lies outside the unit's own stride cell."""
        row, col = (
            edge_weights(offsets, stride / 2)
            for offsets, stride in zip((self.rows, self.cols), self.stride_px, strict=True)
        )
        return 1 - np.outer(row, col)

    @cached_property
    def sides(self) -> Sides:
        """The sides that sizes are divided by."""
        return sides_of(self.shape, self.trf)

    @property
    def center_in_window(self) -> tuple[float, float]:
        """The unit's centre (row, col), counted from the window's first cell."""
        return -float(self.rows[0]), -float(self.cols[0])

    @property
    def support(self) -> tuple[slice, slice]:
        """Rows and columns of the window that the TRF reaches; the whole map if it is global, unknown or empty."""
        rows, cols = (
            slice(low - part.start, high - part.start)
            for (low, high), part in zip(self._reached, self.window, strict=True)
        )
        return rows, cols

    @property
    def _reached(self) -> list[tuple[int, int]]:
        """From which row and column to before which one the TRF reaches."""
        box = () if self.trf is None or self.trf.is_global else self.trf.clipped_box_px
        if not box or any(last < first for first, last in box):
            return [(0, size) for size in self.shape]
        return [(first, last + 1) for first, last in box]

    def _window(self, values: FloatArray) -> tuple[slice, ...]:
        """The rectangle around the cells that are not zero, that the TRF reaches, or that surround the centre."""
        parts = []
        for axis, (low, high) in enumerate(self._reached):
            filled = np.flatnonzero(values.any(axis=1 - axis))
            size, center = self.shape[axis], min(max(self.center_px[axis], 0.0), self.shape[axis] - 1.0)
            lows = [low, math.floor(center) - 1, *filled[:1]]
            highs = [high, math.ceil(center) + 2, *(filled[-1:] + 1)]
            parts.append(slice(max(int(min(lows)), 0), min(int(max(highs)), size)))
        return tuple(parts)


def _two(numbers: tuple[float, ...]) -> tuple[float, float]:
    return (numbers[0], numbers[1]) if numbers else (0.0, 0.0)


class Prepared:
    """One non-negative map with sum 1 in its geometry: what every measure is a function of."""

    def __init__(self, weights: FloatArray, geometry: Geometry, *, whole: Prepared | None = None) -> None:
        """Make a map ready.

        Args:
            weights: (h, w), non-negative, sum 1.
            geometry: Of the unit.
            whole: The map over all images where this one leaves a group of them out: fits start from its fits.
        """
        self.weights, self.geometry = weights, geometry
        self._whole = whole
        self._total = float(weights.sum())
        self._fits: dict[Shape, Fit | None] = {}
        self._sides: dict[float, float] = {}

    @property
    def has_mass(self) -> bool:
        """Whether there is anything to measure: False for a map that is zero or not finite."""
        return self._total > 0 and math.isfinite(self._total)

    @cached_property
    def radial(self) -> RadialMass:
        """Mass enclosed by a radius."""
        return RadialMass(self.weights, self.geometry.rings)

    @cached_property
    def context(self) -> RadialMass | None:
        """Mass outside the unit's own stride cell, enclosed by a radius; None if there is none."""
        outside = self.weights * self.geometry.outside_own_cell
        total = outside.sum()
        if not total > 0:
            return None
        outside /= total
        return RadialMass(outside, self.geometry.rings)

    @cached_property
    def around_centroid(self) -> Prepared:
        """The same map, with distances from its centroid."""
        return Prepared(self.weights, self.geometry.around(self.moments.mean))

    @cached_property
    def moments(self) -> Moments:
        """Moments around the centroid."""
        return moments(self.weights, self.geometry.rows, self.geometry.cols)

    def radius(self, share: float) -> float:
        """Radius around the unit that holds a share of the mass, in cells."""
        return self.radial.radius(share)

    def context_radius(self, share: float) -> float | None:
        """Radius around the unit that holds a share of the mass outside its own stride cell, in cells; None if there is
        none."""
        return None if self.context is None else self.context.radius(share)

    def area(self, share: float) -> float:
        """Area of the square that holds a share of the mass inside the reference, as a share of the reference."""
        return area_inside(self.side(share), self.geometry.center_px, self.geometry.shape)

    def side(self, share: float) -> float:
        """Side of the smallest square around the unit that holds a share of the mass, in cells."""
        if share not in self._sides:
            self._sides[share] = side(self.weights, self.geometry.rows, self.geometry.cols, share)
        return self._sides[share]

    def fit(self, shape: Shape) -> Fit | None:
        """Best shape of one kind over the part of the map that the TRF reaches; None if there is nothing to fit."""
        if shape not in self._fits:
            self._fits[shape] = self._fitted(shape)
        return self._fits[shape]

    @property
    def best_shape(self) -> str | None:
        """The shape that fits best, of some alike the first, ``"none"`` where none explains enough of the map; None if
        there is nothing to fit."""
        fits = {shape: fitted for shape in SHAPES if (fitted := self.fit(shape)) is not None}
        if not fits:
            return None
        best = max(fitted.r2 for fitted in fits.values())
        # Rounding must not decide between two.
        shape = next(shape for shape, fitted in fits.items() if fitted.r2 >= best - ALIKE)
        return shape if fits[shape].is_usable else NO_SHAPE

    def _fitted(self, shape: Shape) -> Fit | None:
        near = self._whole.fit(shape) if self._whole is not None else None
        (row_variance, col_variance), geometry = self.moments.variance, self.geometry
        center = self.moments.mean if near is None else near.center
        sigma = (math.sqrt(row_variance), math.sqrt(col_variance)) if near is None else near.sigma
        row_slice, col_slice = geometry.support
        row = Axis(positions=geometry.rows[row_slice], center=center[0], sigma=sigma[0])
        col = Axis(positions=geometry.cols[col_slice], center=center[1], sigma=sigma[1])
        return fit(self.weights[row_slice, col_slice], row, col, shape, is_near=near is not None)
