"""Sizes of the maps of all units of a layer, and how they change towards the border."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erfscope.core.answer.maps.erf_map import FloatArray

#: Measures that are taken of every unit.
MEASURED = ("r50", "context_r50")


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderEffect:
    """One measure over the positions of a layer, in cells of the reference; None if no unit has it.

    Zero padding and the end of the image change what units near the border see. Source: the effect is that of Alsallakh
    et al. 2021 ("Mind the Pad", arXiv:2010.02178) and Kayhan & van Gemert 2020 (arXiv:2003.07064); the numbers are
    erfscope's."""

    #: Over the units that have the measure.
    min: float | None
    median: float | None
    max: float | None
    #: Median over the units whose theoretical receptive field (TRF) lies inside the reference, over those whose TRF its
    #: border clips, and the second divided by the first. Where one unit's TRF covers the whole reference, all are
    #: inside.
    inside: float | None
    clipped: float | None
    clipped_to_inside: float | None
    #: Median over the outermost units of the layer's map divided by that over its middle half along every axis.
    edge_to_centre: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """r50 and context_r50 of every unit of a layer, each of its map over all images as if it had been measured alone.

    Arrays have the layer's spatial shape and are read-only; sizes are in cells of the reference, NaN where a unit has
    no gradient, or none beyond rounding, and for ``context_r50`` also where all of it lies in the unit's own cell."""

    r50: FloatArray
    context_r50: FloatArray
    #: Whether the unit's theoretical receptive field lies inside the reference, clipped nowhere.
    inside: NDArray[np.bool_]
    #: Groups of units with disjoint TRFs, of each of which a gradient is taken for each draw and batch: as many as
    #: units, if none share one.
    passes: int
    #: Why units whose TRFs do not overlap did not share gradients; "" if they did.
    alone: str = ""

    def __post_init__(self) -> None:
        for name, dtype in (("r50", np.float64), ("context_r50", np.float64), ("inside", np.bool_)):
            values = np.array(getattr(self, name), dtype=dtype)
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @property
    def units(self) -> int:
        """Units of the layer."""
        return self.r50.size

    @property
    def without_gradient(self) -> int:
        """Units whose maps have no size."""
        return int(np.isnan(self.r50).sum())

    def border_effect(self, name: str = "r50") -> BorderEffect:
        """One of :data:`MEASURED` over positions.

        Raises:
            KeyError: another measure.
        """
        values = {"r50": self.r50, "context_r50": self.context_r50}[name]
        edge, centre = _zones(values.shape)
        inside, clipped = _median(values[self.inside]), _median(values[~self.inside])
        usable = values[~np.isnan(values)]
        return BorderEffect(
            min=float(usable.min()) if usable.size else None,
            median=_median(values),
            max=float(usable.max()) if usable.size else None,
            inside=inside,
            clipped=clipped,
            clipped_to_inside=_ratio(clipped, inside),
            edge_to_centre=_ratio(_median(values[edge]), _median(values[centre])),
        )


def _zones(space: tuple[int, ...]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The outermost units of a map, along the axes that have any others, and those of its middle half along every
    axis."""
    edge, centre = np.zeros(space, dtype=np.bool_), np.ones(space, dtype=np.bool_)
    for axis, side in enumerate(space):
        index = np.arange(side).reshape([-1 if k == axis else 1 for k in range(len(space))])
        if side > 2:
            edge = edge | (index == 0) | (index == side - 1)
        # A unit belongs to the half that its middle lies in.
        centre = centre & (np.abs(2 * index + 1 - side) <= max(side / 2, 1))
    return edge, centre & ~edge


def _median(values: FloatArray) -> float | None:
    usable = values[~np.isnan(values)]
    return float(np.median(usable)) if usable.size else None


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
