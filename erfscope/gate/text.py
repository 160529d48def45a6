"""Verdicts as lines of plain text. What each line is stands beside it, so that a terminal can colour it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from erfscope.gate.entry import BaselineMeasure
from erfscope.gate.judge import MeasureVerdict, moved, shown_word, unit_of
from erfscope.printable import number, printable, with_error
from erfscope.view.words import IN_PLANE, IN_PLANE_MEANS, gloss_of

if TYPE_CHECKING:
    from erfscope.gate.report import CheckReport
    from erfscope.gate.verdict import Verdict

Kind = Literal["head", "row", "reason", "notice", "accept", "summary"]
COLUMNS = ("measure", "obtained", "expected", "tolerance", "difference", "verdict")
MINUS = "–"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text."""

    text: str
    kind: Kind
    #: The verdict that it belongs to, "" for none.
    word: str = ""


def report_lines(report: CheckReport) -> Iterator[Line]:
    """All verdicts, then one line that counts them."""
    for verdict in report:
        yield from verdict_lines(verdict)
        yield Line("", "row")
    if gloss := gloss_of(name for verdict in report for name in _shown_measures(verdict)):
        yield Line(gloss, "row")
    yield from (Line(text, "notice") for text in report.notices)
    yield Line(report.summary, "summary")


def verdict_lines(verdict: Verdict) -> Iterator[Line]:
    """One verdict: what changed, obtained / expected / tolerance of everything compared, and the accepting command."""
    # Names come from outside: a line break in one would make a line of its own.
    yield from (replace(line, text=printable(line.text)) for line in _lines(verdict))


def _lines(verdict: Verdict) -> Iterator[Line]:
    yield Line(f"{verdict.shown.upper():<12} {verdict.name} · {verdict.cause}", "head", verdict.shown)
    if verdict.reason:
        yield Line(f"  {verdict.reason}", "reason", verdict.shown)
    if verdict.obtained.structure is not None:
        yield Line(f"  structure    {verdict.obtained.structure}", "row")
        if verdict.obtained.measures and len(verdict.obtained.structure.trf_px) == 3:
            yield Line(f"  sizes        {IN_PLANE}: {IN_PLANE_MEANS}", "row")
    for change in verdict.structure:
        if change.verdict != "notice":
            yield Line(f"  {change.text}", "reason", shown_word(change.verdict))
    if verdict.measures:
        yield from _table(verdict.measures)
    elif verdict.obtained.measures:
        yield from (
            Line(f"  {name:<12} {value(found, name)}", "row") for name, found in verdict.obtained.measures.items()
        )
    yield from (
        Line(f"  {measure.reason}", "reason", shown_word(measure.word))
        for measure in verdict.measures
        if measure.reason
    )
    if verdict.needed is not None:
        yield Line(f"  to settle it: measure the baseline's model and this one with {verdict.needed} of them", "accept")
    yield from (Line(f"  note: {text}", "notice") for text in verdict.notices)
    if verdict.accept:
        yield Line(f"  to accept: {verdict.accept}", "accept")


def _shown_measures(verdict: Verdict) -> list[str]:
    """Names of the measures that stand in a verdict's table or below its head."""
    return [measure.name for measure in verdict.measures] or list(verdict.obtained.measures)


def cells(measure: MeasureVerdict) -> tuple[str, ...]:
    """One row of the table: :data:`COLUMNS`."""
    limit = (
        ""
        if measure.limit is None or not measure.tolerance.relative
        else f" ({number(measure.limit)}{unit_of(measure.name)})"
    )
    difference = MINUS if measure.difference is None else moved(measure.difference, measure.se, measure.name)
    return (
        measure.name,
        value(measure.obtained, measure.name),
        value(measure.expected, measure.name),
        f"{measure.tolerance}{limit}",
        difference,
        shown_word(measure.word),
    )


def value(recorded: BaselineMeasure | None, name: str) -> str:
    """A number with its error and unit."""
    if recorded is None or recorded.value is None:
        return MINUS
    return f"{with_error(recorded.value, recorded.se)}{unit_of(name)}"


def _table(measures: Sequence[MeasureVerdict]) -> Iterator[Line]:
    rows = [cells(measure) for measure in measures]
    widths = [max(len(row[column]) for row in (COLUMNS, *rows)) for column in range(len(COLUMNS))]
    yield Line(_row(COLUMNS, widths), "row")
    yield from (Line(_row(row, widths), "row", row[-1]) for row in rows)


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return ("  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))).rstrip()
