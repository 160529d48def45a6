"""What a unit of a clip or a sequence waits for: where it stands in time, and how far its field reaches beyond that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erfscope.geometry.axes import TIME
from erfscope.measures.sizes import along

if TYPE_CHECKING:
    from erfscope.results.result import Result


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


def timing_of(result: Result) -> Timing | None:
    """The timing of a unit with a place; None for references without an axis of time."""
    trf, names = result.trf, result.axes.names
    if TIME not in names or trf is None or not trf.center_px:
        return None
    axis = names.index(TIME)
    half = (max(trf.stride_px[axis], 1.0) - 1) / 2
    first, last = result.own_time or (trf.center_px[axis] - half, trf.center_px[axis] + half)
    end = None if trf.is_global else trf.box_px[axis][1]
    after = None if result.map is None else along(result.map.magnitude, [axis])[math.floor(last) + 1 :]
    return Timing(
        step=(first, last),
        look_ahead=None if end is None else max(0.0, end - last),
        latency=None if end is None else max(0.0, end - first),
        causal_by_trf=None if end is None or not trf.exact else end <= last,
        causal_by_map=None if after is None else not after.any(),
    )
