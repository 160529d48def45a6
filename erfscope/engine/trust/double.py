"""Passes with noise on a copy of a model in float64, for gradients that rounding errors hide from passes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from erfscope.engine.batch_size import lacks_for_double
from erfscope.engine.double import NarrowerTypes, NoDoublePrecision, copy_in_double, run_in_double
from erfscope.engine.state import Plan, Sums
from erfscope.engine.trust.noise import Gradient, UnitFunction, function_of
from erfscope.engine.trust.probes import of_gradient
from erfscope.maps.probe import LARGEST_ERROR
from erfscope.maps.trust import Trust, join


def found_in_double(plan: Plan, sums: Sums, number: int, images: Sequence[int], draws: int, found: Trust) -> Trust:
    """The findings in the model's own type, completed by noise on a copy of the model in float64.

    Rounding errors and kinks, which hide them from passes in float32, lie much closer together there.

    Args:
        plan: What was measured.
        sums: Of the measurement, by all ranks.
        number: Of the plan's units.
        images: Those that all ranks have checked.
        draws: Of noise on each of them.
        found: By passes of the model's own type.
    """
    counted = plan.pass_bytes

    def of_rank() -> tuple[list[Trust], str]:
        if lacking := lacks_for_double(plan, counted):
            return [], f"passes in float64 need {lacking}"
        narrower = NarrowerTypes()  # type: ignore[no-untyped-call]
        ours = list[Trust]()
        try:
            double = run_in_double(partial(copy_in_double, plan.model.adapter))
            for image in plan.process_group.share(images):
                own = function_of(plan, number, image)
                copied = replace(own, adapter=double, x=own.x.double())
                ours.append(run_in_double(partial(_of_copy, copied, own.gradient(), draws, sums, narrower)))
        except NoDoublePrecision as error:
            return [], str(error)
        cast = narrower.dtype
        return ours, "" if cast is None else f"the model casts float64 to {str(cast).removeprefix('torch.')} by itself"

    gathered = plan.process_group.all_gather(of_rank)
    trusts = [trust for of_one, _ in gathered for trust in of_one]
    why, in_double = (
        next((text for _, text in gathered if text), ""),
        join(trusts) if len(trusts) == len(images) else None,
    )
    # A gradient that agrees at such small noise is right whatever was cast; one that does not proves nothing.
    if in_double is None or (why and not (in_double.gradient and in_double.is_settled)):
        return replace(found, not_in_double=why)
    is_lost = in_double.lost_in_rounding > 0 and not in_double.gradient
    return replace(
        in_double,
        gradient=()
        if is_lost
        else (*found.gradient, *(replace(probe, dtype="float64") for probe in in_double.gradient)),
        not_in_double=in_double.not_in_double if is_lost else "",
        regions=() if is_lost else found.regions,
        ladder=() if is_lost else found.ladder,
        passes=found.passes + in_double.passes,
        grey_levels=found.grey_levels,
    )


def _of_copy(copied: UnitFunction, gradient: Gradient, draws: int, sums: Sums, narrower: NarrowerTypes) -> Trust:
    """The check of the model's own gradient of one image by noise on a copy in float64.

    Nothing where the copy has another gradient: rounding errors have changed the model's, or what it computes depends
    on the type."""
    other = copied.gradient()
    apart = float((gradient.values - other.values).norm()) / (other.norm or 1.0)
    if apart > LARGEST_ERROR and not copied.plan.model.draws_random_numbers:
        return Trust(
            gradient=(), passes=0, lost_in_rounding=1, not_in_double=f"its gradient in float64 is {apart:.1%} apart"
        )
    with narrower:
        return of_gradient(copied, gradient, draws, max(sums.batch_size // 2, 1))
