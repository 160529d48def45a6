"""``--verify``: the first image by the plain model in float64, beside what the measurement computes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from erfscope.adapter import Adapter
from erfscope.attribution.gradient import Contribution, GradientRequest, gradient_draws
from erfscope.engine.batch import draws
from erfscope.engine.batch_size import device_and_dtype, lacks_for_double
from erfscope.engine.double import copy_in_double, run_in_double
from erfscope.engine.state import Plan, Sums
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.box import box_at, inside
from erfscope.results.result import Verification

#: Largest relative L1 differences that rounding explains.
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-2}


def verify(plan: Plan, sums: Sums) -> list[Verification]:
    """Compare each unit's value and map of the first image with the plain model: plain autograd, no crop, no fold, no
    batch, float64.

    Args:
        plan: What was measured.
        sums: How its batches were computed.

    Returns:
        One record per unit: relative L1 differences of the unit's channels and of its map.

    Raises:
        MeasurementError: the model cannot be run in float64, or there is no memory for it.
    """
    counted = plan.model.pass_bytes(plan.layer, plan.settings.wrt)
    if lacking := lacks_for_double(plan, counted):
        raise MeasurementError(f"--verify needs {lacking}; use a smaller --input-size, or leave --verify out")
    index, x = first_readable(plan, plan.indices)
    device, dtype = device_and_dtype(plan)
    part = plan.read(index).to(device=device, dtype=dtype)
    measured = _by_unit(plan, draws(plan, part, [index]))
    double = copy_in_double(plan.model.adapter)
    plain = run_in_double(partial(_plain, plan, double, x.to(device).double(), index))
    pairs = zip(measured, plain, strict=True)
    return [Verification(value=_off(a[0], b[0]), map=_off(a[1], b[1]), allowed=ALLOWED[dtype]) for a, b in pairs]


def first_readable(plan: Plan, indices: Sequence[int]) -> tuple[int, Tensor]:
    """Return the first image that can be read, with its index: the whole input (1, C_in, *space) on the CPU.

    Raises:
        ErfscopeError: an image cannot be read, and is not to be passed over.
    """
    for index in indices:
        try:
            return index, plan.feed.batch([index])
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
    raise MeasurementError("no image can be read")


def _plain(plan: Plan, double: Adapter, x: Tensor, index: int) -> list[tuple[Tensor, Tensor]]:
    known = plan.model.recording.layouts(plan.layer, plan.settings.wrt)
    asked = GradientRequest(convention=plan.convention, images=[index], seed=plan.settings.seed, draws=plan.draws)
    layer, wrt = plan.layer, plan.settings.wrt
    return _by_unit(plan, gradient_draws(double, x, plan.units, asked, layer=layer, wrt=wrt, known=known))


def _by_unit(plan: Plan, contributions: Iterable[Contribution]) -> list[tuple[Tensor, Tensor]]:
    """By unit its channels (C,), and the mean of its maps of one image over the draws, (*space) of the whole
    reference."""
    values: dict[int, Tensor] = {}
    sums = [torch.zeros(trf.reference_px, dtype=torch.float64) for trf in plan.trfs]
    counts = [0] * len(sums)
    for each in contributions:
        found = each.maps[0].double()
        where = ... if each.origin is None else inside(box_at(each.origin, found.shape))
        sums[each.unit][where] += found
        counts[each.unit] += 1
        assert each.value is not None
        values[each.unit] = each.value[0]
    return [(values[number], total / counts[number]) for number, total in enumerate(sums)]


def _off(measured: Tensor, plain: Tensor) -> float:
    """Relative L1 difference; 0 of two that are zero."""
    difference, scale = float((measured - plain).abs().sum()), float(plain.abs().sum())
    return difference / scale if scale > 0 else difference
