"""Differences of two measurements of the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erfscope.maps.jackknife import HALF_TURN, MIN_GROUPS, jackknife_se, wrap_cyclic

if TYPE_CHECKING:
    from erfscope.measures.values import MeasureValue


def paired_difference(a: MeasureValue, b: MeasureValue) -> tuple[float | None, float | None]:
    """Difference a - b of one measure between two maps over the same images, with the error of the difference itself.

    What the images do to both maps alike cancels, so the error is usually much smaller than that of either value.

    Args:
        a: The one value.
        b: The other, over the same images in the same groups.

    Returns:
        (difference, standard error), angles in [-90, 90). The difference is None where a value is None or a word; the
        error also where the numbers of groups differ or are below four.
    """
    if a.value is None or b.value is None or isinstance(a.value, str) or isinstance(b.value, str):
        return None, None
    period = HALF_TURN if a.kind == "angle" else None
    groups = len(a.leave_one_out)
    difference = a.value - b.value if period is None else wrap_cyclic(a.value - b.value, period)
    if groups < MIN_GROUPS or groups != len(b.leave_one_out):
        return difference, None
    return difference, jackknife_se(
        [x - y for x, y in zip(a.leave_one_out, b.leave_one_out, strict=True)], period=period
    )
