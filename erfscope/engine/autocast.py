"""The change by autocast: the map of one image computed with it and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from erfscope.engine.batch import accumulate
from erfscope.engine.batch_size import device_and_dtype
from erfscope.engine.state import Plan, Sums, map_of
from erfscope.errors import MeasurementError
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap
from erfscope.measures import measure


def amp_errors(plan: Plan, sums: Sums, seen: Sequence[int]) -> tuple[str, ...]:
    """How far autocast moves each unit's map of the first image that can be used, as a sentence.

    The same random signs are drawn in both dtypes.

    Args:
        plan: What is measured.
        sums: Of the measurement, which are not touched.
        seen: Indices of the images measured.

    Returns:
        One sentence per unit: the difference of the two maps, each of sum 1, in relative L1, and the change of r50.
        Empty where no image can be used.
    """
    lost = {
        *sums.unreadable,
        *(image for average in sums.averages for image in (*average.zero_gradient_images, *average.nan_images)),
    }
    usable = [index for index in seen if index not in lost]
    if not usable:
        return ()
    coarse = plan.settings.amp_dtype
    try:
        maps = [_maps(plan, usable[0], amp_dtype) for amp_dtype in (coarse, None)]
    except MeasurementError as error:
        return (f"what {coarse} changes is not known: {error}",) * len(plan.units)
    return tuple(f"{coarse} changes the map of the first image by {_change(*pair)}" for pair in zip(*maps, strict=True))


def _maps(plan: Plan, index: int, amp_dtype: str | None) -> list[ErfMap]:
    """The map of every unit from one image."""
    one = replace(plan, settings=replace(plan.settings, amp_dtype=amp_dtype))
    sums = Sums(averages=[MapAccumulator(plan.convention, 1, trf.reference_px, trf) for trf in plan.trfs])
    accumulate(one, sums, [index], plan.read)
    if not all(average.groups for average in sums.averages):
        raise MeasurementError(f"a gradient in {amp_dtype or device_and_dtype(plan)[1]} is zero or not finite")
    return [map_of(one, sums, number) for number in range(len(plan.units))]


def _change(coarse: ErfMap, fine: ErfMap) -> str:
    """From one map to the other."""
    share = float(np.abs(coarse.values - fine.values).sum() / np.abs(fine.values).sum())
    before, after = (measure(erf, ["r50"])["r50"] for erf in (fine, coarse))
    text = f"{share:.2%} (relative L1)"
    if not isinstance(before, float) or not isinstance(after, float) or before == 0:
        return text
    return f"{text} and its r50 by {abs(after / before - 1):.2%}"
