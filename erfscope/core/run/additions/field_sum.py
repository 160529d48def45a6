"""The sum of one unit's contributions over images, on its field alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from erfscope.core.answer.convention import Convention
from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.values.axes import Axes
from erfscope.core.values.unit import Trf


class FieldSum:
    """Sum of one unit's contributions over images, as :class:`erfscope.core.answer.maps.accumulator.MapAccumulator`
    makes it, without groups.

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

    def map(self, trf: Trf, convention: Convention, axes: Axes) -> ErfMap | None:
        """The map on the TRF, with the unit's centre as seen from its first cell; None where no image has a
        gradient."""
        if self._total is None:
            return None
        mean = self._total / self._images
        values = np.sqrt(mean) if convention.root else mean
        total = np.abs(values).sum()
        return ErfMap(
            values=values / total if total > 0 else values,
            center_px=tuple(center - first for center, first in zip(trf.center_px, self._first, strict=True)),
            stride_px=trf.stride_px,
            scale=convention.scale,
            axes=axes,
        )
