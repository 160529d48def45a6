"""What the borders of the reference cut off an ERF, estimated from its own fall-off towards them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures.prepared import Geometry, Prepared

#: A share of a mass of which more is never reached: the radius that holds it is not known.
NEARLY_ALL = 0.98


def lost_at_borders(erf: ErfMap) -> tuple[float, float | None]:
    """How much more of an ERF a larger input would show, about, and how much its r50 would grow.

    Beyond a border the ERF is taken to go on to fall as it does from strip to strip at the border, each a stride of the
    layer wide, or as the Gaussian does whose mass is shared by the nearer and the further half of the way from the unit
    to the border as the ERF's is: by that of which there is more, as far as the theoretical receptive field (TRF)
    reaches. The second counts in deep networks, whose zeros around the image leave little at the border. Borders that
    the unit itself stands at do not count: it stands there at every input size.

    Args:
        erf: The map, with its TRF.

    Returns:
        The share of the whole ERF that lies beyond the borders, and the relative growth of r50 (None where half of the
        whole ERF is not inside).

    Source: erfscope. Compared with inputs twice as large (docs/erf.md, "What the border cuts").
    """
    plane = erf.measured
    weights = plane.magnitude
    beyond = sum(_beyond(plane, weights, axis) for axis in range(weights.ndim))
    prepared = Prepared(weights, Geometry(plane))
    level = (1 + beyond) / 2
    growth = None
    if level < NEARLY_ALL and (r50 := prepared.radius(0.5)) > 0:
        growth = prepared.radius(level) / r50 - 1
    return beyond / (1 + beyond), growth if beyond else 0.0


def stands_at_border(erf: ErfMap) -> bool:
    """Whether the unit is the outermost along an axis that has units inside."""
    plane = erf.measured
    return any(any(_is_outermost(plane, axis)) for axis in range(plane.values.ndim))


def _is_outermost(plane: ErfMap, axis: int) -> Iterator[bool]:
    """Whether the unit is the first and the last along an axis; neither on maps without any others."""
    size, stride, center = plane.values.shape[axis], max(plane.stride_px[axis], 1.0), plane.center_px[axis]
    has_others = size > 2 * stride
    yield has_others and center + 0.5 < stride
    yield has_others and size - 0.5 - center < stride


def _beyond(plane: ErfMap, weights: FloatArray, axis: int) -> float:
    """The mass beyond both ends of an axis, as a share of that inside."""
    trf = plane.trf
    if trf is None:
        return 0.0
    profile = weights.sum(axis=tuple(other for other in range(weights.ndim) if other != axis))
    # What a global operation adds has no fall-off.
    first, last = (trf.local_box_px if trf.is_global else trf.box_px)[axis]
    width = max(1, min(math.ceil(plane.stride_px[axis]), len(profile) // 4))
    center, total = plane.center_px[axis], 0.0
    ends = (-first, profile, center), (last - len(profile) + 1, profile[::-1], len(profile) - 1 - center)
    for (overhang, inwards, place), is_outermost in zip(ends, _is_outermost(plane, axis), strict=True):
        if overhang <= 0 or is_outermost:
            continue
        edge, before = float(inwards[:width].sum()), float(inwards[width : 2 * width].sum())
        ratio, strips = min(1.0, edge / before) if before > 0 else 1.0, overhang / width
        falling = edge * (strips if ratio == 1 else ratio * (1 - ratio**strips) / (1 - ratio))
        total += max(falling, _gaussian_beyond(inwards, place, overhang))
    return total


#: Distances to a border in standard deviations of a Gaussian, the mass inside, and the share of it in the nearer half.
_REACH = np.linspace(0.05, 8, 160)
_INSIDE = np.array([math.erf(reach / math.sqrt(2)) for reach in _REACH])
_NEAR = np.array([math.erf(reach / 2 / math.sqrt(2)) for reach in _REACH]) / _INSIDE


def _gaussian_beyond(inwards: FloatArray, place: float, overhang: int) -> float:
    """The mass beyond a border of the Gaussian around the unit that falls as the ERF does on the way to the border.

    Args:
        inwards: The profile, from the border on.
        place: The unit's distance to the first cell.
        overhang: Cells of the TRF beyond the border.
    """
    distance = place + 0.5
    offsets = place - np.arange(len(inwards))
    near = np.clip(distance / 2 - offsets + 0.5, 0, 1)[offsets >= 0]
    side = inwards[offsets >= 0]
    mass = float(side.sum())
    if mass == 0 or distance <= 0:
        return 0.0
    inside = float(np.interp((near * side).sum() / mass, _NEAR, _INSIDE))
    return mass * min((1 - inside) / inside, overhang / distance)
