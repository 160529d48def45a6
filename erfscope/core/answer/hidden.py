"""What a map may lack because its gradient misses it, by the energy that forward passes with noise leave possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.maps.probe import LARGEST_ERROR, Probe, is_unpredicted, miss_alike
from erfscope.core.answer.maps.trust import Hidden, Size, Trust
from erfscope.core.answer.measures import Geometry, measure_map

#: The share outside r90.
OUTSIDE = 0.1
#: A smaller share of a map shows in none of the digits that are printed of it.
LEAST_SHARE = 1e-3
#: Halvings of the interval that the largest r90 lies in.
HALVINGS = 30


def with_hidden(trust: Trust, erf: ErfMap | None) -> Trust:
    """The check with what a map may lack."""
    return replace(trust, hidden=hidden_of(trust, erf))


def hidden_of(trust: Trust, erf: ErfMap | None) -> Hidden | None:
    """What a map may lack, where its gradient was tested; None where it was not.

    Noise on a region bounds the energy E that the gradient misses there. Spread evenly over N cells, which is the worst
    case by Cauchy and Schwarz, this is an amplitude of sqrt(N E) beside the map's own, the mean of
    ``trust.amplitudes``; of a map of energies it is E beside 1.
    """
    if erf is None or not trust.gradient or not trust.amplitudes:
        return None
    room = _Room(trust, erf)
    sizes = {} if not room.geometry.has_center else {"r90": room.r90(), "far_mass": room.far_mass()}
    return Hidden(
        share=room.with_hidden(0.0, -math.inf),
        sizes=sizes,
        region=room.unpredicted(alike=True),
        in_doubt=room.unpredicted(alike=False),
    )


class _Room:
    """The mass beyond a distance that the gradient of a map may miss."""

    def __init__(self, trust: Trust, erf: ErfMap) -> None:
        self.trust, self.erf = trust, erf
        self.geometry = Geometry(erf)
        self.values = erf.measured.magnitude
        self.amplitude = float(np.mean(trust.amplitudes))
        #: Energy that is missed on the whole reference at most.
        self.everywhere = _most(trust.gradient)
        kept = erf.axes.measured
        inside = np.zeros(self.geometry.shape)
        inside[tuple(slice(*trust.box[axis]) for axis in kept)] = 1.0
        #: Of each measured cell, how many cells of the reference got noise.
        self.cells = inside * math.prod(high - low for axis, (low, high) in enumerate(trust.box) if axis not in kept)

    def outside(self, weights: FloatArray, radius: float) -> float:
        """The weights beyond a radius, each spread over one cell of it, as those of r90 are."""
        cell = self.geometry.cell
        return float((weights * np.clip((self.geometry.distance - radius) / cell + 0.5, 0, 1)).sum())

    def mass(self, energy: float, cells: float) -> float:
        """What so much energy makes of the map at most, on so many cells, in the mass of the whole map."""
        return energy if self.erf.scale == "energy" else math.sqrt(cells * energy) / self.amplitude

    def with_hidden(self, seen: float, beyond: float, cells: float | None = None) -> float:
        """The largest share of the mass beyond a distance.

        Args:
            seen: That of the map itself.
            beyond: The distance.
            cells: How many cells with noise lie beyond; None for those of a radius.
        """
        mass = self.mass(self._energy(beyond), self.outside(self.cells, beyond) if cells is None else cells)
        # Energies of a sum: its amplitudes add up at most.
        total = (math.sqrt(seen) + math.sqrt(mass)) ** 2 if self.erf.scale == "energy" else seen + mass
        return 1 - (1 - seen) / (1 - seen + total)

    def _energy(self, beyond: float) -> float:
        """The largest energy that is missed beyond a distance."""
        regions = [region for region in self.trust.regions if region.ends_at is None or region.ends_at > beyond]
        # Regions go outwards: without the outermost one nothing is known beyond the others.
        parts = sum(_most(region.probes) for region in regions) if regions else math.inf
        return min(self.everywhere, parts)

    def r90(self) -> Size:
        """r90, and the largest distance beyond which a tenth of the mass may lie."""
        printed = _number(self.erf, "r90")
        low, high = printed, float(self.geometry.distance.max())
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            is_beyond = self.with_hidden(self.outside(self.values, middle), middle) > OUTSIDE
            low, high = (middle, high) if is_beyond else (low, middle)
        return Size(printed=printed, largest=low, unit=self.erf.axes.unit, tolerance=LARGEST_ERROR * printed)

    def far_mass(self) -> Size:
        """The far mass, and the largest that is possible."""
        printed = _number(self.erf, "far_mass")
        sides = [side * step for side, step in zip(self.geometry.shape, self.geometry.axes.spacing, strict=True)]
        far = math.hypot(*sides) / 4
        largest = self.with_hidden(printed, far, float(self.cells[self.geometry.distance > far].sum()))
        return Size(printed=printed, largest=largest, tolerance=LARGEST_ERROR)

    def unpredicted(self, *, alike: bool) -> str:
        """The first region in which noise moves the unit, the gradient predicts nothing of it, and the map lacks a
        share that shows; "" where there is none.

        Args:
            alike: Whether two sigmas must find the same, which rounding errors, kinks and curvature do not make.
        """
        for region in self.trust.regions:
            least = min(region.probes, key=lambda probe: probe.missed)
            is_known = any(miss_alike(one, other) for one, other in combinations(region.probes, 2))
            if is_unpredicted(least) and is_known >= alike and self.mass(least.missed, region.cells) >= LEAST_SHARE:
                return region.name
        return ""


def _most(probes: Sequence[Probe]) -> float:
    """The largest energy that a gradient may miss: each probe's bound holds, since all else adds to what it finds."""
    return min(probe.most_missed for probe in probes)


def _number(erf: ErfMap, name: str) -> float:
    value = measure_map(erf, [name])[name]
    return value if isinstance(value, float) else math.nan
