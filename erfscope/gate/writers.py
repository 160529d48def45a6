"""The verdicts of a check as plain text, Markdown, GitHub's annotations and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from erfscope.gate.baseline import SETTINGS_CHANGED, BaselineMeasure
from erfscope.gate.judge import DEFAULT, SAME_WEIGHTS, MeasureVerdict, shown_word, signed_difference, unit_of
from erfscope.printable import number, printable, with_error
from erfscope.results.json_values import fields, plain
from erfscope.view.grids import markdown_grid, markdown_text
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


SCHEMA = "erfscope.check/1"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, and what it is, so that a terminal can colour it."""

    text: str
    kind: Literal["head", "row", "reason", "notice", "accept", "summary"]
    #: The verdict that it shows, "" for none.
    verdict: str = ""


def text_lines(view: ReportView) -> Iterator[Line]:
    """All verdicts, then one line that counts them."""
    for verdict in view.verdicts:
        yield from verdict_lines(verdict)
        yield Line("", "row")
    if view.gloss:
        yield Line(view.gloss, "row")
    yield from (Line(text, "notice") for text in view.notices)
    yield Line(view.summary, "summary")


def verdict_lines(view: VerdictView) -> Iterator[Line]:
    """One verdict: what changed, obtained, expected and tolerance of everything compared, and the accepting command."""
    # Names come from outside: a line break in one would make a line of its own.
    yield Line(printable(f"{view.shown.upper():<12} {view.name} · {view.cause}"), "head", view.shown)
    if view.structure:
        yield Line(printable(f"  structure: {view.structure}"), "row")
    table = [Row(*Row._fields), *view.rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for place, row in enumerate(table if view.rows else []):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield Line(printable(f"  {text.rstrip()}"), "row", row.verdict if place else "")
    yield from (Line(printable(f"  {text}"), "reason", view.shown) for text in view.reasons)
    if view.advice:
        yield Line(f"  {view.advice}", "accept")
    for text in (*view.facts, *(f"note: {text}" for text in view.notices)):
        yield Line(printable(f"  {text}"), "notice")
    if view.accept:
        yield Line(printable(f"  to accept: {view.accept}"), "accept")


def markdown(view: ReportView) -> str:
    """All verdicts: one table, then the reasons and the accepting commands."""
    lines, notes = [["check", *Row._fields]], list[str]()
    for verdict in view.verdicts:
        name = markdown_text(verdict.name)
        for *texts, word in verdict.rows or [Row(verdict.cause, DASH, DASH, DASH, DASH, verdict.shown)]:
            shown = word if word in ("pass", "notice", DASH) else f"**{word}**"
            lines.append([name, *map(markdown_text, texts), shown])
        advice = [verdict.advice] if verdict.advice else []
        texts = [*verdict.reasons, *advice, *verdict.facts, *(f"note: {text}" for text in verdict.notices)]
        notes += [f"- **{name}**: {markdown_text(text)}" for text in texts]
        if verdict.accept:
            notes.append(f"- **{name}**: to accept: `{printable(verdict.accept).replace('`', '')}`")
    notes += [f"- {markdown_text(text)}" for text in view.notices]
    table = markdown_grid(lines, left=[True] * len(lines[0]))
    return "\n".join([f"### erfscope check: {markdown_text(view.summary)}", "", table, *notes]).rstrip("\n") + "\n"


def github_commands(view: ReportView) -> Iterator[str]:
    """GitHub's workflow commands: an error for every check that does not pass, a notice for one that passes with
    notices.

    Source: docs.github.com, "Workflow commands for GitHub Actions"; what ``@actions/core`` escapes.
    """
    for verdict in view.verdicts:
        accept = [f"to accept: {verdict.accept}"] if verdict.accept else []
        texts = verdict.notices if verdict.ok else (verdict.cause, *verdict.changes, *verdict.reasons, *accept)
        if verdict.ok and not (texts and verdict.shown == "pass"):
            continue
        title = _property(f"erfscope check: {verdict.name}: {verdict.shown}")
        kind = "notice" if verdict.ok else "error"
        yield f"::{kind} file={_property(view.file)},title={title}::{_message(chr(10).join(texts))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def report_document(report: CheckReport) -> dict[str, Any]:
    """A run as JSON values."""
    return {
        "schema": SCHEMA,
        "exit_code": report.exit_code,
        "baseline": str(report.baseline),
        "written": list(report.written),
        "notices": list(report.notices),
        "checks": [verdict_document(verdict) for verdict in report],
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON values, with obtained, expected and tolerance of everything compared."""
    measures = {
        each.name: {
            "verdict": each.word,
            "obtained": _number(each.obtained),
            "expected": _number(each.expected),
            "tolerance": str(each.tolerance),
            **{key: getattr(each, key) for key in ("limit", "difference", "se", "needed", "reason", "notice")},
        }
        for each in verdict.measures
    }
    document: dict[str, Any] = plain(
        {
            "name": verdict.name,
            "verdict": verdict.word,
            "cause": verdict.cause,
            "reason": verdict.reason,
            "structure": [fields(change) for change in verdict.structure],
            "measures": measures,
            "notices": verdict.notices,
            "accept": verdict.accept,
            "obtained": verdict.obtained.to_json(),
        }
    )
    return document


def _number(recorded: BaselineMeasure | None) -> dict[str, float | None] | None:
    return None if recorded is None else {"value": recorded.value, "se": recorded.se}
