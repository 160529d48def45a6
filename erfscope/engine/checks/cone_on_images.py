"""Whether the cones of a run agree with the whole pass on the images that are measured; a run whose cones do not takes the whole pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from erfscope.engine.batch_size import check_comparison, device_and_dtype
from erfscope.engine.cone_difference import TOLERANCE, differences
from erfscope.engine.double import NoDoublePrecision
from erfscope.engine.state import Plan
from erfscope.errors import ErfscopeError


def verify_on_first(plan: Plan) -> Plan:
    """Compare every cone with the whole pass on the first image that can be read; return a plan without crops if one differs."""
    if plan.cones is None or all(cone.is_whole for cone in plan.cones):
        return plan
    check_comparison(plan)
    try:
        off = next(differences(plan.model.adapter, plan.cones, readable(plan, range(plan.feed.n))), None)
    except NoDoublePrecision as error:
        return _uncropped(plan, f"the cone cannot be compared with the whole pass, since {error}")
    if off is None:
        return plan
    compared = replace(plan, difference=max(off, plan.difference or 0.0))
    return compared if off <= TOLERANCE else _uncropped(compared, f"the cone differs from the whole pass by {off:.1e}")


def compare_on_pictures(plan: Plan) -> Plan:
    """Compare cones that nothing proves with the whole pass on every image; return a plan without crops if one differs.

    One image may show what noise does not: a gate that opens where there is something bright and smooth. All ranks decide alike.

    Raises:
        ErfscopeError: an image cannot be read, and is not to be passed over.
        MeasurementError: there is no memory for it.
    """
    cones = [cone for cone in plan.cones or () if cone.shown_by == "comparison"]
    if not cones:
        return plan

    def found() -> tuple[list[float], str]:
        check_comparison(plan)
        try:
            return list(differences(plan.model.adapter, cones, readable(plan, plan.process_group.share(plan.indices)))), ""
        except NoDoublePrecision as error:
            return [], f"the cone cannot be compared with the whole pass, since {error}"

    gathered = plan.process_group.all_gather(found)
    offs = [found_off for each, _ in gathered for found_off in each]
    # The noise that the cone was planned with is one more.
    off = max(offs, default=0.0)
    compared = replace(plan, checked_on=len(offs) + 1, difference=off)
    against = next((text for _, text in gathered if text), "")
    if not against and not off <= TOLERANCE:
        count = sum(not each <= TOLERANCE for each in offs)
        against = f"the cone differs from the whole pass by up to {off:.1e} on {count} of {len(offs)} images"
    return _uncropped(compared, against) if against else compared


def _uncropped(plan: Plan, reason: str) -> Plan:
    whole = plan.model.cones(plan.layer, plan.units, plan.settings.wrt, crop=False)
    assert whole is not None
    return replace(plan, cones=[replace(cone, reason=reason, refuted=True) for cone in whole])


def readable(plan: Plan, indices: Sequence[int]) -> Iterator[Tensor]:
    """Inputs (1, C_in, *space) where the model lies, without those that cannot be read and may be passed over."""
    for index in indices:
        try:
            x = plan.feed.batch([index])
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
            continue
        yield x.to(device_and_dtype(plan)[0])
