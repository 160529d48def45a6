"""What a unit of a clip or a sequence waits for: where it stands in time, and how far its field reaches beyond that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures.sizes import along
from erfscope.core.values.axes import TIME, Axes
from erfscope.core.values.unit import Trf


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A unit along the axis of time, in cells of the reference."""

    #: First and last cell of the unit's own step: that of its index where the layer has a unit for each step, else one
    #: stride around its centre.
    step: tuple[float, float]
    #: How far the theoretical receptive field (TRF) reaches beyond the step, and beyond its first cell; None where a
    #: global operation, whose masks it does not know, makes it the whole reference.
    look_ahead: float | None
    latency: float | None
    #: Whether nothing after the step can move the unit, by the TRF, and did so in the map, exactly; None if that is not
    #: known.
    causal_by_trf: bool | None
    causal_by_map: bool | None


def own_step(trf: Trf, axes: Axes, index: tuple[int, ...], units: tuple[int, ...]) -> tuple[float, float] | None:
    """First and last cell of a unit's own step along the axis of time; None without such an axis, or a place.

    It is that of the unit's index where the layer has a unit for each step and pads at either end, as causal models do
    at the beginning: unit 0 has the first step. Else, as in layers without padding, it is one stride around the unit's
    centre.

    Args:
        trf: The unit's.
        axes: Of the reference.
        index: The unit's, in the layer's map.
        units: Size of that map.
    """
    if TIME not in axes.names or not trf.center_px:
        return None
    axis = axes.names.index(TIME)
    stride, center = trf.stride_px[axis], trf.center_px[axis]
    half = (max(stride, 1.0) - 1) / 2
    if stride < 1 or len(index) != len(axes.names):
        return center - half, center + half
    first, side = index[axis] * stride, trf.reference_px[axis]
    begun, end = (trf.local_box_px if trf.is_global else trf.box_px)[axis]
    pads = begun < first or end + (units[axis] - 1 - index[axis]) * stride > side - 1
    if not pads or units[axis] < side // stride:
        return center - half, center + half
    return first, first + stride - 1


def timing_of(trf: Trf, axes: Axes, step: tuple[float, float], erf: ErfMap | None) -> Timing:
    """The timing of a unit with a step of its own, and with its map if there is one."""
    axis, (first, last) = axes.names.index(TIME), step
    end = None if trf.is_global else trf.box_px[axis][1]
    after = None if erf is None else along(erf.magnitude, [axis])[math.floor(last) + 1 :]
    return Timing(
        step=(first, last),
        look_ahead=None if end is None else max(0.0, end - last),
        latency=None if end is None else max(0.0, end - first),
        causal_by_trf=None if end is None or not trf.exact else end <= last,
        causal_by_map=None if after is None else not after.any(),
    )
