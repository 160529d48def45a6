"""Going on with a run that was stopped: its sums are taken up, and what is finished is not measured again."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.engine.outcome import pending_result
from erfscope.engine.running_sums import RunningSums
from erfscope.engine.state import Plan, Sums
from erfscope.errors import ErfscopeError
from erfscope.results.comparability import Use, place_of, short, unlike
from erfscope.results.result import Result


def refuse_others(earlier: Sequence[Result], labels: Sequence[str]) -> None:
    """Refuse to go on with results of which some belong to a model that is not asked for now, since they would be lost.

    Args:
        earlier: Earlier results.
        labels: What the models asked for are called. A model with inserted blocks is called after its host.

    Raises:
        ErfscopeError: names such a result.
    """
    others = [
        r.label for r in earlier if not any(r.label == label or r.label.startswith(f"{label} + ") for label in labels)
    ]
    if others:
        asked = ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")
        raise ErfscopeError(
            f"what was measured before has results of {others[0]}, which is not among what is asked for now ({asked})"
            " and would be lost; name it too, or measure into another folder"
        )


def resume_run(plan: Plan, sums: Sums, earlier: Sequence[Result]) -> list[Result] | None:
    """Let a run start with what was measured before.

    Args:
        plan: What is measured.
        sums: Nothing was seen yet.
        earlier: Results of before, of this model or others.

    Returns:
        The results, where all units of the run are finished; None where images are left, in which case the run has the
        sums of those that were seen.

    Raises:
        ErfscopeError: what was measured before was measured under other settings.
    """
    if not earlier:
        return None
    found = [_same(pending_result(plan, number), earlier) for number in range(len(plan.units))]
    kept = [result for result in found if result is not None]
    if len(kept) < len(found):
        return None
    parts = [result.part for result in kept if result.part is not None and result.part.stopped]
    if not parts:
        return kept
    if len({part.seen for part in parts}) > 1 or len(parts) < len(kept) or parts[0].wanted != len(plan.indices):
        raise ErfscopeError(
            f"the earlier results of {plan.model.label} do not belong together; measure it again into another folder"
        )
    sums.seen = parts[0].seen
    for number, (part, result) in enumerate(zip(parts, kept, strict=True)):
        sums.running[number].next_image = plan.indices[sums.seen - 1] + 1
        # One rank has what was summed up before; the others start with nothing.
        if plan.process_group.rank == 0:
            sums.running[number] = RunningSums(part.average.copy(), sums.running[number].next_image)
            sums.unreadable = list(part.unreadable)
            if part.ratio is not None:
                sums.ratios[number] = part.ratio
        sums.started -= result.seconds if number == 0 else 0
    return None


def has_lost_arrays(result: Result) -> bool:
    """Whether the file with its map or its sums has gone, so that it must be measured again."""
    codes = {finding.code for finding in result.findings}
    return "map_missing" in codes or (result.part is None and bool(codes & {"stopped", "shard"}))


def _same(wanted: Result, earlier: Sequence[Result]) -> Result | None:
    """The earlier result of the same unit; None where there is none."""
    place = place_of(wanted)
    found = next((result for result in earlier if place_of(result) == place), None)
    if found is None or has_lost_arrays(found):
        return None
    if differing := unlike(Use.RESUME, found, wanted):
        texts = [f"{name} ({short(then)} then, {short(now)} now)" for name, then, now in differing[:3]]
        raise ErfscopeError(
            f"{wanted.label} cannot go on where it was stopped: they differ in {', '.join(texts)}; measure it again"
            " into another folder"
        )
    return found
