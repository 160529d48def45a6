"""What the borders of the reference cut off an ERF, estimated from its own fall-off towards them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.measures.prepared import Geometry, Prepared
from erfscope.core.values.unit import Trf

#: A share of a mass of which more is never reached: the radius that holds it is not known.
NEARLY_ALL = 0.98
#: How much more of the paths may lie outside than is estimated from the others. In public models that an input cuts by
#: a part it is at most 6 times, where all taps of a branch lie outside 15 times and more.
MISSED = 10.0


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

    Source: erfscope. Compared with inputs twice as large (docs/errors.md, "What the border cuts").
    """
    plane = erf.measured
    weights = plane.magnitude
    beyond = sum(_beyond(plane.trf, weights, axis) for axis in range(weights.ndim))
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
    yield from _outermost(plane.values.shape[axis], plane.stride_px[axis], plane.center_px[axis])


def _outermost(size: int, stride: float, center: float) -> tuple[bool, bool]:
    stride = max(stride, 1.0)
    has_others = size > 2 * stride
    return has_others and center + 0.5 < stride, has_others and size - 0.5 - center < stride


def _beyond(trf: Trf | None, weights: FloatArray, axis: int) -> float:
    """The mass beyond both ends of an axis, in units of that inside."""
    profile = weights.sum(axis=tuple(other for other in range(weights.ndim) if other != axis))
    return 0.0 if trf is None else sum(_beyond_ends(trf, profile, axis))


def _beyond_ends(trf: Trf, profile: FloatArray, axis: int) -> tuple[float, float]:
    """The mass beyond each end of an axis, in units of that of the profile along it."""
    # What a global operation adds has no fall-off.
    first, last = (trf.local_box_px if trf.is_global else trf.box_px)[axis]
    stride, center = trf.stride_px[axis], trf.center_px[axis]
    width, found = max(1, min(math.ceil(stride), len(profile) // 4)), list[float]()
    ends = (-first, profile, center), (last - len(profile) + 1, profile[::-1], len(profile) - 1 - center)
    for (overhang, inwards, place), is_outermost in zip(ends, _outermost(len(profile), stride, center), strict=True):
        if overhang <= 0 or is_outermost:
            found.append(0.0)
            continue
        edge, before = float(inwards[:width].sum()), float(inwards[width : 2 * width].sum())
        ratio, strips = min(1.0, edge / before) if before > 0 else 1.0, overhang / width
        falling = edge * (strips if ratio == 1 else ratio * (1 - ratio**strips) / (1 - ratio))
        found.append(max(falling, _gaussian_beyond(inwards, place, overhang)))
    return found[0], found[1]


def unseen_share(trf: Trf, inside: FloatArray, outside: FloatArray, axis: int) -> float:
    """The share of the paths to a unit that leave the reference where the fall-off of the others does not show it: what
    is above :data:`MISSED` times the estimate from those inside.

    So the estimate is tried on a map of which the outside is known. Where all taps of a branch lie outside, nothing
    falls off inside.

    Args:
        trf: Of the unit.
        inside: (cells,): the share of the paths that end at each cell along the axis.
        outside: (2,): the share that leaves before the first cell, and behind the last.
        axis: Of the reference.
    """
    at_border = _outermost(len(inside), trf.stride_px[axis], trf.center_px[axis])
    gone = sum(share for share, is_outermost in zip(outside, at_border, strict=True) if not is_outermost)
    return max(0.0, float(gone) - MISSED * sum(_beyond_ends(trf, inside, axis)))


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
