"""The verdicts of a check as plain text, Markdown, GitHub's annotations and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from erfscope.gate.entry import BaselineMeasure
from erfscope.gate.view import ReportView, Row, VerdictView
from erfscope.printable import printable
from erfscope.results.json_values import fields, plain
from erfscope.view.grids import markdown_grid, markdown_text
from erfscope.view.words import DASH

if TYPE_CHECKING:
    from erfscope.gate.verdict import CheckReport, Verdict

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
