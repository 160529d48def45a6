"""A map made ready for measuring: what several measures need is computed once, and only when one of them asks."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray, magnitude_of, measured_of
from erfscope.core.answer.measures.shapes import ALIKE, NO_SHAPE, SHAPES, Axis, Fit, Shape, fit
from erfscope.core.answer.measures.sizes import (
    MapMoments,
    RadialMass,
    Rings,
    Sides,
    along,
    area_inside,
    edge_weights,
    extended_axes,
    moments,
    side,
    sides_of,
)
from erfscope.core.values.axes import TIME
from erfscope.core.values.unit import Trf

#: The second scale, in cells, that fits start from, at the peak: a narrow peak on a broad base has two minima.
NARROW = 0.5


class Geometry:
    """Positions of the cells of a map relative to its unit. Shared by all maps of one unit."""

    def __init__(self, erf: ErfMap, *, whole: bool = True) -> None:
        """Take the geometry of a map of any axes; distances are over those that :attr:`ErfMap.measured` keeps.

        Args:
            erf: The map.
            whole: Every cell of it; else the window that is not zero, which every measure can be had from in less time.
        """
        measured = erf.measured
        self.axes = measured.axes
        #: Of the measured axes, and the part of it that the cells below are.
        self.shape = measured.values.shape
        self.trf: Trf | None = measured.trf
        #: Of a unit without a place the origin, and no cell of its own.
        self.has_center = bool(measured.center_px)
        origin = (0.0,) * measured.values.ndim
        self.center_px, self.stride_px = measured.center_px or origin, measured.stride_px or origin
        self.window = tuple([slice(0, size) for size in self.shape]) if whole else self._window(measured.values)
        #: Of each measured axis (n,), signed distance of every cell to the unit's centre, in cells.
        self.offsets = tuple(
            [
                np.arange(part.start, part.stop, dtype=np.float64) - center
                for part, center in zip(self.window, self.center_px, strict=True)
            ]
        )
        #: Along the axis of time, measured or not, the unit's centre and the spacing; None where there is no such axis,
        #: and for units without a place.
        self.time_axis: tuple[float, float] | None = None
        if TIME in erf.axes.names and erf.center_px:
            axis = erf.axes.names.index(TIME)
            self.time_axis = erf.center_px[axis], erf.axes.spacing[axis]
        self.own_time = erf.own_time

    def around(self, offset: Sequence[float]) -> Geometry:
        """The same cells around a place that is so far from the unit's centre, in the unit of the spacing."""
        other = copy.copy(self)
        for name in ("scaled", "distance", "rings", "own_cell", "outside_own_cell"):
            other.__dict__.pop(name, None)
        steps = [away / step for away, step in zip(offset, self.axes.spacing, strict=True)]
        other.offsets = tuple(places - away for places, away in zip(self.offsets, steps, strict=True))
        other.center_px = tuple(center + away for center, away in zip(self.center_px, steps, strict=True))
        return other

    @cached_property
    def cell(self) -> float:
        """Side of a cell, the geometric mean where its sides differ; axes of one cell are left out."""
        kept = extended_axes(self.shape)
        return float(math.prod(map(self.axes.spacing.__getitem__, kept)) ** (1 / len(kept)))

    @property
    def steps(self) -> tuple[float, ...]:
        """Side of a cell along each axis; :attr:`cell` along one of a single cell, where the spacing means nothing."""
        if 1 not in self.shape:
            return self.axes.spacing
        return tuple([self.cell if n == 1 else step for n, step in zip(self.shape, self.axes.spacing, strict=True)])

    @cached_property
    def scaled(self) -> tuple[FloatArray, ...]:
        """The offsets in the unit of the spacing."""
        return tuple([places * step for places, step in zip(self.offsets, self.axes.spacing, strict=True)])

    @cached_property
    def distance(self) -> FloatArray:
        """(*window), distance of every cell to the unit's centre, in the unit of the spacing."""
        first, *others = np.ix_(*self.scaled)
        return functools.reduce(np.hypot, others, np.abs(first))

    @cached_property
    def rings(self) -> Rings:
        """The cells by their distance."""
        return Rings(self.distance, self.cell)

    @cached_property
    def own_cell(self) -> list[FloatArray]:
        """Of each measured axis (n,), share of every cell that lies in the unit's own stride cell."""
        return [edge_weights(places, stride / 2) for places, stride in zip(self.offsets, self.stride_px, strict=True)]

    @cached_property
    def outside_own_cell(self) -> FloatArray:
        """(*window), share of every cell that lies outside the unit's own stride cell."""
        return 1 - functools.reduce(np.multiply, np.ix_(*self.own_cell))

    @cached_property
    def sides(self) -> Sides:
        """The sides that sizes are divided by."""
        field = None if self.trf is None or self.trf.is_global else self.trf.size_px
        return sides_of(self.shape, field, self.axes.spacing)

    @property
    def center_in_window(self) -> tuple[float, ...]:
        """The unit's centre, counted from the window's first cell."""
        return tuple([-float(places[0]) for places in self.offsets])

    @property
    def support(self) -> tuple[slice, ...]:
        """The part of the window that the TRF reaches; the whole map if it is global, unknown or empty."""
        return tuple(
            slice(low - part.start, high - part.start)
            for (low, high), part in zip(self._reached, self.window, strict=True)
        )

    @property
    def _reached(self) -> list[tuple[int, int]]:
        """From which cell of each axis to before which one the TRF reaches."""
        box = () if self.trf is None or self.trf.is_global else self.trf.clipped_box_px
        if not box or any(last < first for first, last in box):
            return [(0, size) for size in self.shape]
        return [(first, last + 1) for first, last in box]

    def _window(self, values: FloatArray) -> tuple[slice, ...]:
        """The box around the cells that are not zero, that the TRF reaches, or that surround the centre."""
        parts = []
        for axis, (low, high) in enumerate(self._reached):
            others = tuple({*range(values.ndim)} - {axis})
            filled = np.flatnonzero(values.any(axis=others))
            size, center = self.shape[axis], min(max(self.center_px[axis], 0.0), self.shape[axis] - 1.0)
            lows = [low, math.floor(center) - 1, *filled[:1]]
            highs = [high, math.ceil(center) + 2, *(filled[-1:] + 1)]
            parts.append(slice(max(int(min(lows)), 0), min(int(max(highs)), size)))
        return tuple(parts)


class Prepared:
    """One non-negative map with sum 1 in its geometry: what every measure is a function of."""

    def __init__(
        self,
        weights: FloatArray,
        geometry: Geometry,
        *,
        time: FloatArray | None = None,
        whole: Prepared | None = None,
    ) -> None:
        """Make a map ready.

        Args:
            weights: (*window), non-negative, sum 1.
            geometry: Of the unit.
            time: (T,), the whole map summed onto the axis of time, with sum 1; None where there is none.
            whole: The map over all images where this one leaves a group of them out: fits start from its fits.
        """
        self.weights, self.geometry, self.time = weights, geometry, time
        self._whole = whole
        self._total = float(weights.sum())
        self._fits: dict[Shape, Fit | None] = {}
        self._sides: dict[float, float] = {}

    @classmethod
    def of(cls, erf: ErfMap, without: FloatArray | None = None, whole: Prepared | None = None) -> Prepared:
        """A map, in the window that is not zero; or its values ``without`` a group of images, in that of the whole."""
        values, names = erf.values if without is None else without, erf.axes.names
        geometry = Geometry(erf, whole=False) if whole is None else whole.geometry
        with np.errstate(invalid="ignore"):  # an infinite map becomes NaN here, and has no measures
            time = magnitude_of(along(values, [names.index(TIME)])) if TIME in names else None
            weights = magnitude_of(measured_of(values, erf.axes)[geometry.window])
            return cls(weights, geometry, time=time, whole=whole)

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
    def moments(self) -> MapMoments:
        """Moments around the centroid."""
        return moments(self.weights, self.geometry.scaled)

    def radius(self, share: float) -> float:
        """Radius around the unit that holds a share of the mass."""
        return self.radial.radius(share)

    def context_radius(self, share: float) -> float | None:
        """Radius around the unit that holds a share of the mass outside its own stride cell; None if there is none."""
        return None if self.context is None else self.context.radius(share)

    def area(self, share: float) -> float:
        """Area of the square that holds a share of the mass inside the reference, as a share of the reference."""
        geometry, side = self.geometry, self.side(share)
        return area_inside([side / step for step in geometry.steps], geometry.center_px, geometry.shape)

    def extent(self, name: str, share: float) -> float | None:
        """Length along one axis, centred on the unit, that holds a share of the mass; None where there is no such axis,
        and for the time of a clip where the unit has no place."""
        names, geometry = self.geometry.axes.names, self.geometry
        if name in names:
            axis = names.index(name)
            return side(along(self.weights, [axis]), [geometry.offsets[axis]], [geometry.axes.spacing[axis]], share)
        if name != TIME or self.time is None or geometry.time_axis is None:
            return None
        center, step = geometry.time_axis
        return side(self.time, [np.arange(len(self.time), dtype=np.float64) - center], [step], share)

    def lookback(self, share: float) -> float | None:
        """Length of time up to the end of the unit's own step that holds a share of the mass there; None without such
        an axis, and where all mass lies behind it."""
        if self.time is None or self.geometry.own_time is None or self.geometry.time_axis is None:
            return None
        end = min(self.geometry.own_time[1] + 0.5, len(self.time) - 0.5)
        inside = np.clip(end + 0.5 - np.arange(len(self.time)), 0, 1)
        seen = np.concatenate([[0.0], np.cumsum((inside * self.time)[::-1])])
        if not seen[-1] > 0:
            return None
        # How far back the later edge of each cell lies, and the earlier one of the first.
        back = np.concatenate([end - np.arange(len(self.time))[::-1] - 0.5, [end + 0.5]])
        return float(np.interp(share * seen[-1], seen, np.maximum(back, 0.0))) * self.geometry.time_axis[1]

    def time_shares(self) -> tuple[float, float, float] | None:
        """Shares of the mass before, in and after the unit's own step along the axis of time; None without one."""
        if self.time is None or self.geometry.own_time is None:
            return None
        places, (first, last) = np.arange(len(self.time)), self.geometry.own_time
        before, after = np.clip(first - places, 0, 1), np.clip(places - last, 0, 1)
        return float(before @ self.time), float((1 - before - after) @ self.time), float(after @ self.time)

    def side(self, share: float) -> float:
        """Side of the smallest square around the unit that holds a share of the mass."""
        if share not in self._sides:
            self._sides[share] = side(self.weights, self.geometry.offsets, self.geometry.steps, share)
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
        if near is not None:
            return self._fit_from(shape, near.center, near.sigma, is_near=True)
        spread = moments(self.weights, self.geometry.offsets)
        peak = np.unravel_index(int(self.weights.argmax()), self.weights.shape)
        middle = [float(places[at]) for places, at in zip(self.geometry.offsets, peak, strict=True)]
        starts = [(spread.mean, spread.sigma), (middle, [min(sigma, NARROW) for sigma in spread.sigma])]
        fits = [fitted for start in starts if (fitted := self._fit_from(shape, *start)) is not None]
        return max(fits, key=lambda fitted: fitted.r2, default=None)

    def _fit_from(
        self, shape: Shape, center: Sequence[float], sigma: Sequence[float], *, is_near: bool = False
    ) -> Fit | None:
        """The fit from one start, in cells from the unit."""
        parts = self.geometry.support
        axes = [
            Axis(positions=places[part], center=at, sigma=spread)
            for places, part, at, spread in zip(self.geometry.offsets, parts, center, sigma, strict=True)
        ]
        return fit(self.weights[parts], axes, shape, is_near=is_near)
