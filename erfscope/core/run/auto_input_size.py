"""Inputs that are enlarged until their border cuts less than a tenth of the ERF."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from erfscope.core.answer.findings import CUT_OFF, outside_text
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.result import Result
from erfscope.core.run.parallel import RankGone, current
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.finding import Finding
from erfscope.core.values.unit import size_text

#: How often the model's own size is doubled at most.
DOUBLINGS = 3
#: The share of an ERF that lies outside of the size before falls with every doubling, as far as the ERF has an end. One
#: that stays above this part of the share before it belongs to an ERF that grows with its input.
FALLING = 0.8
#: Codes of the finding on the last size: it is large enough, or it is not.
ENOUGH, TOO_SMALL = "input_enlarged", "border_cuts"

Size = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """The results at one size, and for each the share of its ERF that lies outside of the size before; no shares for
    the first size."""

    rows: list[Result]
    shares: list[float] = field(default_factory=list)

    @property
    def size(self) -> Size:
        return tuple(self.rows[0].input.size)


def grown(measured: Callable[[Size | None], Iterable[Result]]) -> list[Result]:
    """Results at the model's own input size, and at its doubles until the input is large enough.

    It is where of every ERF less than ``CUT_OFF`` lies outside of the size before, around the same unit, or where no
    more than that of the theoretical receptive field (TRF) lies outside of this one.

    Args:
        measured: The results at a size; None is the model's own. A failure at a larger size ends the growth.

    Returns:
        The results of every size, the smallest first; those of the last one say what share lies outside, and if that
        is too much, why there is no larger size. Results that cannot be used, and those of a run that was stopped, have
        no such finding.

    Raises:
        ErfscopeError: nothing can be measured at the model's own size.
    """
    steps, reason = [_Step([*measured(None)])], None
    while reason is None and _is_complete(steps):
        if (reason := current().all_gather(lambda: _reason_to_end(steps))[0]) is not None:
            break
        last = steps[-1]
        size = (*last.size[:-2], *(2 * side for side in last.size[-2:]))
        try:
            rows = [*measured(size)]
            failure = next((row.error for row in rows if not row.ok), None)
        except RankGone:
            raise
        except ErfscopeError as error:
            failure = str(error)
        if failure is not None:
            reason = f"{size_text(size)} cannot be measured: {failure}"
            break
        pairs = [(new.map, old.map) for new, old in zip(rows, last.rows, strict=False)]
        shares = [share_outside(new, old) for new, old in pairs if new is not None and old is not None]
        steps.append(_Step(rows, shares))
    found = steps[-1].rows if reason is None else _with_finding(steps, reason)
    return [*(row for step in steps[:-1] for row in step.rows), *found]


def _is_complete(steps: Sequence[_Step]) -> bool:
    """Whether all results of the last size are usable, and as many as at the first size: a stopped run has fewer."""
    rows = steps[-1].rows
    stopped = any(finding.code == "stopped" for row in rows for finding in row.findings)
    return (
        bool(rows)
        and len(rows) == len(steps[0].rows)
        and not stopped
        and all(row.ok and row.map is not None for row in rows)
    )


def _reason_to_end(steps: Sequence[_Step]) -> str | None:
    """Why no larger size is measured, "" if this one is large enough; None if a larger one is measured."""
    step = steps[-1]
    shares = step.shares or [1.0] * len(step.rows)
    if all(share < CUT_OFF or _clipped(row) <= CUT_OFF for row, share in zip(step.rows, shares, strict=True)):
        return ""
    if len(steps) > 2 and max(step.shares) > FALLING * max(steps[-2].shares):
        by = next((row.trf.global_by for row in step.rows if row.trf is not None and row.trf.global_by), None)
        return "the ERF grows with the input" + (f", of which {by} sees all" if by else "")
    if len(steps) > DOUBLINGS:
        return f"no more than {2**DOUBLINGS} times the model's own size is tried"
    return None


def _with_finding(steps: Sequence[_Step], reason: str) -> list[Result]:
    """The last size's results with a finding on that size, in place of an earlier run's finding."""
    step, size = steps[-1], size_text(steps[-1].size)
    rows = []
    for number, row in enumerate(step.rows):
        shown = (
            [f"{step.shares[number]:.0%} of the ERF at {size} lies outside {size_text(steps[-2].size)}"]
            if step.shares
            else []
        )
        if row.trf is not None and not row.trf.is_global and (not shown or _clipped(row) <= CUT_OFF):
            shown.append(f"{outside_text(_clipped(row))} {size}")
        about = " and ".join(shown) or "how much the border cuts is not known"
        text = f"input size auto ends at {size}: {about}; {reason or 'large enough'}"
        found = Finding(code="border_cuts", text=text) if reason else Finding(code="input_enlarged", text=text)
        rows.append(
            replace(row, findings=(*(each for each in row.findings if each.code not in (ENOUGH, TOO_SMALL)), found))
        )
    return rows


def _clipped(row: Result) -> float:
    """Share of the TRF that lies outside the input; 1 where none is known, or a global operation makes it all of any
    input."""
    if row.map is None or row.trf is None or row.trf.is_global:
        return 1.0
    clipped = measure_map(row.map, ["clipped"])["clipped"]
    return clipped if isinstance(clipped, float) else 1.0


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
