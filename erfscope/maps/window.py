"""A map seen through the window of a smaller one: what the border of a smaller input would cut off."""

from __future__ import annotations

from erfscope.maps.erf_map import ErfMap


def share_outside(erf: ErfMap, window: ErfMap) -> float:
    """Share of a map that lies outside of another one's cells, where their units stand at one place.

    Args:
        erf: The map, not zero; signed values count by their size.
        window: A map of as many axes, whose values do not matter.

    Returns:
        From 0, where all of it lies inside, to 1.
    """
    places = zip(erf.center_px, window.center_px, window.values.shape, strict=True)
    begun = [(round(center - other), side) for center, other, side in places]
    inside = tuple(slice(max(first, 0), max(first + side, 0)) for first, side in begun)
    return max(0.0, 1.0 - float(erf.magnitude[inside].sum()))
