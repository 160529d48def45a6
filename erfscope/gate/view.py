"""The view of a check's verdicts: all that outputs show of them, as text, built once; writers only format it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from erfscope.gate.entry import SETTINGS_CHANGED, BaselineMeasure
from erfscope.gate.judge import MeasureVerdict, shown_word, signed_difference, unit_of
from erfscope.gate.tolerance import DEFAULT, SAME_WEIGHTS
from erfscope.printable import number, with_error
from erfscope.view.words import DASH, IN_PLANE, IN_PLANE_MEANS, gloss_of

if TYPE_CHECKING:
    from erfscope.gate.verdict import CheckReport, Verdict


class Row(NamedTuple):
    """A row of the table: a change of the structure, or a measure."""

    what: str
    obtained: str
    expected: str
    tolerance: str
    difference: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """All that is shown of one verdict."""

    name: str
    #: The verdict as people read it.
    shown: str
    ok: bool
    cause: str
    #: The unit's geometry in one line; "" where it is not known.
    structure: str
    rows: tuple[Row, ...]
    #: Changes of the structure that count against the model.
    changes: tuple[str, ...]
    #: Why the check does not pass, most important first.
    reasons: tuple[str, ...]
    #: What would settle an inconclusive verdict, apart from accepting it; "" where nothing would.
    advice: str
    #: What was found and compared with nothing, and what sizes mean.
    facts: tuple[str, ...]
    notices: tuple[str, ...]
    #: The command that accepts what was found; "" where there is nothing to accept.
    accept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """All that is shown of a run."""

    verdicts: tuple[VerdictView, ...]
    #: What the measures mean.
    gloss: str
    notices: tuple[str, ...]
    summary: str
    #: Name of the baseline's file.
    file: str


def report_view(report: CheckReport) -> ReportView:
    """The view of a run."""
    shown = (name for verdict in report for name in ([m.name for m in verdict.measures] or verdict.obtained.measures))
    default = any(str(each.tolerance) in (DEFAULT, SAME_WEIGHTS) for verdict in report for each in verdict.measures)
    rule = f"default tolerance: {SAME_WEIGHTS} if weights and structure are the baseline's, else {DEFAULT}"
    return ReportView(
        verdicts=tuple(map(verdict_view, report)),
        gloss=" · ".join(filter(None, (gloss_of(shown), rule if default else ""))),
        notices=report.notices,
        summary=report.summary,
        file=report.baseline.name,
    )


def verdict_view(verdict: Verdict) -> VerdictView:
    """The view of one verdict."""
    structure, reasons = verdict.obtained.structure, [verdict.reason, *(each.reason for each in verdict.measures)]
    changes = [Row(c.what, c.obtained, c.expected, DASH, DASH, shown_word(c.verdict)) for c in verdict.structure]
    over = {each.obtained.over for each in verdict.measures if each.needed is not None and each.obtained is not None}
    count = f"{verdict.needed} {'draws' if over == {'draws'} else 'samples'}"
    advice = "" if verdict.needed is None else f"to settle it: measure the baseline's model and this one with {count}"
    if verdict.cause == SETTINGS_CHANGED:
        advice = "to keep both: name this check (NAME=MODEL, or its name in the settings), or choose another --baseline"
    return VerdictView(
        name=verdict.name,
        shown=verdict.shown,
        ok=verdict.ok,
        cause=verdict.cause,
        structure="" if structure is None else str(structure),
        rows=(*changes, *map(_row, verdict.measures)),
        changes=tuple(change.text for change in verdict.structure if change.verdict != "notice"),
        reasons=tuple(filter(None, reasons)),
        advice=advice,
        facts=tuple(_facts(verdict)),
        notices=verdict.notices,
        accept=verdict.accept,
    )


def _facts(verdict: Verdict) -> Iterator[str]:
    found = verdict.obtained
    if found.measures and not verdict.measures:
        yield f"found: {', '.join(f'{name} {_value(each)}{unit_of(name)}' for name, each in found.measures.items())}"
    if found.measures and found.structure is not None and len(found.structure.trf_px) == 3:
        yield f"sizes are {IN_PLANE}: {IN_PLANE_MEANS}"


def _row(measure: MeasureVerdict) -> Row:
    has_limit = measure.limit is not None and measure.tolerance.relative
    return Row(
        what=f"{measure.name}{unit_of(measure.name)}",
        obtained=_value(measure.obtained),
        expected=_value(measure.expected),
        tolerance=str(measure.tolerance) + (f" ({number(measure.limit)})" if has_limit else ""),
        difference=DASH if measure.difference is None else signed_difference(measure),
        verdict=shown_word(measure.word),
    )


def _value(recorded: BaselineMeasure | None) -> str:
    return DASH if recorded is None or recorded.value is None else with_error(recorded.value, recorded.se)
