"""The panels of volumes, clips and sequences hold slices, frames and curves of the map, and marks in its units."""

from __future__ import annotations

import numpy as np

from erfscope.geometry.axes import Axes
from erfscope.maps.erf_map import ErfMap
from erfscope.results.result import Result


def made(shape: tuple[int, ...], axes: Axes) -> Result:
    values = np.random.default_rng(0).random(shape)
    center = tuple(float(side // 2) for side in shape)
    erf = ErfMap(values=values / values.sum(), center_px=center, stride_px=(1.0,) * len(shape), axes=axes)
    return MADE(erf, center)
