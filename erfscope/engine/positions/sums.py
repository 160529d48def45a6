"""The mean contribution to one of many units, on its theoretical receptive field (TRF) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from erfscope.attribution.convention import Convention
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures import MEASURES, Geometry, Prepared, value_of
from erfscope.results.positions import MEASURED

#: Geometries of units that are kept: one for all units whose fields lie inside, and some for those at the border.
GEOMETRIES = 64


class FieldSum:
    """Sum of one unit's contributions over images, as :class:`erfscope.maps.accumulator.MapAccumulator` makes it,
    without groups.

    Args:
        field: First and last cell along each axis of the part of the reference that is kept.
    """

    __slots__ = ("_first", "_images", "_total", "part", "ratio")

    def __init__(self, field: Sequence[tuple[int, int]]) -> None:
        #: The part of a map that is kept.
        self.part = tuple(slice(first, last + 1) for first, last in field)
        #: Norm of the gradient over that of one with random signs, of the first image that has one.
        self.ratio: float | None = None
        self._first = tuple(first for first, _ in field)
        self._total: FloatArray | None = None
        self._images = 0

    def add(self, contribution: FloatArray, convention: Convention) -> None:
        """Add one image's mean contribution over draws, on the TRF.

        An image whose contribution is zero or not finite is left out of the map.
        """
        total = float(np.abs(contribution).sum())
        if total > 0 and math.isfinite(total):
            scaled = contribution / total if convention.per_image else contribution
            self._total = scaled.copy() if self._total is None else self._total + scaled
            self._images += 1

    def map(self, center_px: Sequence[float], stride_px: Sequence[float], convention: Convention) -> ErfMap | None:
        """The map on the TRF, with the unit's centre as seen from its first cell; None where no image has a
        gradient."""
        if self._total is None:
            return None
        mean = self._total / self._images
        values = np.sqrt(mean) if convention.root else mean
        total = np.abs(values).sum()
        return ErfMap(
            values=values / total if total > 0 else values,
            center_px=tuple(center - first for center, first in zip(center_px, self._first, strict=True)),
            stride_px=tuple(stride_px),
            scale=convention.scale,
        )


def sizes(erf: ErfMap | None) -> dict[str, float]:
    """The measures that are taken of every unit; NaN for those that its map does not have.

    A map is zero outside the TRF: radii around the unit are the same on the TRF alone.
    """
    if erf is None:
        return dict.fromkeys(MEASURED, math.nan)
    plane = erf.plane
    prepared = Prepared(plane.magnitude, _geometry(plane.values.shape, plane.center_px, plane.stride_px))
    values = {name: value_of(MEASURES[name], prepared) for name in MEASURED}
    return {name: value if isinstance(value, float) else math.nan for name, value in values.items()}


@lru_cache(maxsize=GEOMETRIES)
def _geometry(shape: tuple[int, ...], center_px: tuple[float, ...], stride_px: tuple[float, ...]) -> Geometry:
    """That of units that stand alike in fields of the same size."""
    return Geometry(ErfMap(values=np.zeros(shape), center_px=center_px, stride_px=stride_px))
