"""What autocast changes: the map of one picture computed with it and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from erfscope.engine.batch import accumulate
from erfscope.engine.batch_size import device_and_dtype, needs
from erfscope.engine.run import Run, map_of
from erfscope.errors import EnvironmentFailure, MeasurementError
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap
from erfscope.measures import measure


def amp_errors(run: Run, seen: Sequence[int]) -> list[str]:
    """How far autocast moves each unit's map of the first picture that can be used, in words.

    The same random signs are drawn in both dtypes.

    Args:
        run: What is asked; its averages are not touched.
        seen: Indices of the pictures measured.

    Returns:
        One sentence per unit: the difference of the two maps, each of sum 1, in relative L1, and the change of r50. Empty where no
        picture can be used.
    """
    lost = {*run.unreadable, *(image for average in run.averages for image in (*average.dead, *average.broken))}
    usable = [index for index in seen if index not in lost]
    if not usable:
        return []
    coarse, own = run.settings.amp_dtype, str(device_and_dtype(run)[1]).removeprefix("torch.")
    try:
        # Memory was planned for the maps of the coarse dtype, which are half as large.
        if any(need.takes(1) > need.there for need in needs(run, None)):
            raise EnvironmentFailure(f"one picture in {own} does not fit into memory")
        maps = [_maps(run, usable[0], amp_dtype) for amp_dtype in (coarse, None)]
    except MeasurementError as error:
        return [f"what {coarse} changes is not known: {error}"] * len(run.units)
    return [f"{coarse} changes the map of the first picture by {_change(*pair)}" for pair in zip(*maps, strict=True)]


def _maps(run: Run, index: int, amp_dtype: str | None) -> list[ErfMap]:
    """The map of every unit from one picture."""
    one = replace(
        run,
        settings=replace(run.settings, amp_dtype=amp_dtype),
        averages=[MapAccumulator(run.convention, 1, trf.reference_px, trf) for trf in run.trfs],
        ratios={},
        counted={},
    )
    accumulate(one, [index])
    if not all(average.groups for average in one.averages):
        raise MeasurementError(f"a gradient in {amp_dtype or device_and_dtype(run)[1]} is zero or not finite")
    return [map_of(one, number) for number in range(len(run.units))]


def _change(coarse: ErfMap, fine: ErfMap) -> str:
    """From one map to the other."""
    share = float(np.abs(coarse.values - fine.values).sum() / np.abs(fine.values).sum())
    before, after = (measure(erf, ["r50"])["r50"] for erf in (fine, coarse))
    text = f"{share:.2%} (relative L1)"
    if not isinstance(before, float) or not isinstance(after, float) or before == 0:
        return text
    return f"{text} and its r50 by {abs(after / before - 1):.2%}"
