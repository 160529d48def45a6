"""``--verify``: the first image by the plain model in float64, beside what the measurement computes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from erfscope.core.answer.result import Result, Verification
from erfscope.core.run.additions.double import copy_in_double, run_in_double
from erfscope.core.run.attribution.forward import ModelForward
from erfscope.core.run.attribution.gradient import AskedUnits, Contribution, of_units
from erfscope.core.run.engine.batch import batch_contributions, device_and_dtype, first_readable, lacks_for_double
from erfscope.core.run.engine.cost import pass_bytes
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums
from erfscope.core.run.engine.running_sums import on_reference
from erfscope.core.run.engine.shared_run import SharedRun
from erfscope.core.system.model_errors import wrap_model_errors
from erfscope.core.system.restore import same_random_numbers
from erfscope.core.values.errors import MeasurementError

#: Largest relative L1 differences that rounding explains.
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-2}


def with_verification(plan: Plan, _sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """Compare each unit's value and map of the first image with the plain model: plain autograd, no crop, no fold, no
    batch, float64.

    Returns:
        The results, one per unit, with relative L1 differences of the unit's channels and of its map.

    Raises:
        MeasurementError: the model cannot be run in float64, or there is no memory for it.
    """
    with same_random_numbers(), wrap_model_errors(plan.model.label, plan.model.adapter):
        found = _verify(plan)
    return [replace(result, verification=each) for result, each in zip(results, found, strict=True)]


def _verify(plan: Plan) -> list[Verification]:
    """One record per unit."""
    counted = pass_bytes(plan.model.whole(plan.site))
    if lacking := lacks_for_double(plan, counted):
        raise MeasurementError(f"--verify needs {lacking}; use a smaller --input-size, or leave --verify out")
    index, x = first_readable(plan, plan.indices)
    device, dtype = device_and_dtype(plan)
    run, units = SharedRun(plan), plan.question.units
    part = run.read(index).to(device=device, dtype=dtype)
    measured = _by_unit(plan, batch_contributions(run, part, [index]))
    plain_pass = ModelForward(copy_in_double(plan.model.adapter), plan.question)
    passes = [(plain_pass, [AskedUnits(plan.question, units, range(len(units)))])]
    whole = x.to(device).double()
    plain = run_in_double(lambda: _by_unit(plan, of_units(passes, whole, [index])))
    pairs = zip(measured, plain, strict=True)
    return [Verification(value=_off(a[0], b[0]), map=_off(a[1], b[1]), allowed=ALLOWED[dtype]) for a, b in pairs]


def _by_unit(
    plan: Plan, contributions: Iterable[tuple[list[int], Iterable[list[Contribution]]]]
) -> list[tuple[Tensor, Tensor]]:
    """By unit its channels (C,), and the sum of its maps of one image over the draws, (*space) of the whole
    reference."""
    found = []
    for trf, (_, draws) in zip(plan.trfs, contributions, strict=True):
        total = torch.zeros(trf.reference_px, dtype=torch.float64)
        for (each,) in draws:
            total += on_reference(each.maps, trf.reference_px, each.origin)[0].cpu()
        found.append((each.value[0].cpu(), total))
    return found


def _off(measured: Tensor, plain: Tensor) -> float:
    """Relative L1 difference; 0 of two that are zero."""
    difference, scale = float((measured - plain).abs().sum()), float(plain.abs().sum())
    return difference / scale if scale > 0 else difference
