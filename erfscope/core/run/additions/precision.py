"""The change by autocast and by TF32: the map of one image computed with them and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.result import Result
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.batch import accumulate, device_and_dtype
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums, map_of
from erfscope.core.run.engine.shared_run import SharedRun
from erfscope.core.system.precision import float32_precision
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.finding import Finding


def with_precision_errors(plan: Plan, sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """The results, one per unit, with a finding on how far autocast and TF32, where asked for, move its map of the
    first image that can be used.

    The same random signs are drawn in both precisions. Stated are the difference of the two maps, each of sum 1, in
    relative L1, and the change of r50. Nothing is added where no image can be used."""
    settings = plan.settings
    without = [
        ("amp_error", settings.amp_dtype, replace(settings, amp_dtype=None)),
        ("tf32_error", "TF32" if settings.tf32 else None, replace(settings, tf32=False)),
    ]
    lost = {
        *sums.unreadable,
        *(image for average in sums.averages for image in (*average.zero_gradient_images, *average.nan_images)),
    }
    index = next((index for index in plan.indices[: sums.seen] if index not in lost), None)
    for code, name, finer in without:
        if name is not None and index is not None:
            texts = _changes(plan, index, name, finer)
            found = (Finding(code=code, text=text) for text in texts)
            results = [replace(r, findings=(*r.findings, each)) for r, each in zip(results, found, strict=True)]
    return results


def _changes(plan: Plan, index: int, name: str, finer: Settings) -> Sequence[str]:
    """A sentence for each unit on what changes its map from finer settings to those asked for."""
    try:
        maps = [_maps(plan, index, settings) for settings in (plan.settings, finer)]
    except MeasurementError as error:
        return (f"what {name} changes is not known: {error}",) * len(plan.question.units)
    return [f"{name} changes the map of the first image by {_change(*pair)}" for pair in zip(*maps, strict=True)]


def _maps(plan: Plan, index: int, settings: Settings) -> list[ErfMap]:
    """The map of every unit from one image."""
    run, sums = SharedRun(replace(plan, settings=settings)), plan.sums(images=1)
    with float32_precision(tf32=settings.tf32):
        accumulate(run, sums, [index], run.read)
    if not all(average.groups for average in sums.averages):
        raise MeasurementError(f"a gradient in {settings.amp_dtype or device_and_dtype(plan)[1]} is zero or not finite")
    return [map_of(plan, sums, number) for number in range(len(plan.question.units))]


def _change(coarse: ErfMap, fine: ErfMap) -> str:
    """From one map to the other."""
    share = float(np.abs(coarse.values - fine.values).sum() / np.abs(fine.values).sum())
    before, after = (measure_map(erf, ["r50"])["r50"] for erf in (fine, coarse))
    text = f"{share:.2%} (relative L1)"
    if not isinstance(before, float) or not isinstance(after, float) or before == 0:
        return text
    return f"{text} and its r50 by {abs(after / before - 1):.2%}"
