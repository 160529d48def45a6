"""Verdicts for a pull request: a Markdown table, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from erfscope.gate.judge import shown_word
from erfscope.gate.text import COLUMNS, MINUS, cells
from erfscope.printable import printable
from erfscope.view.markdown import markdown_text
from erfscope.view.words import IN_PLANE, IN_PLANE_MEANS

if TYPE_CHECKING:
    from erfscope.gate.report import CheckReport
    from erfscope.gate.verdict import Verdict


def markdown(report: CheckReport) -> str:
    """All verdicts: one table, then the reasons and the accepting commands."""
    header = ("check", "what", *COLUMNS[1:])
    lines = [f"### erfscope check: {markdown_text(report.summary)}", "", _line(header), _line(["---"] * len(header))]
    notes: list[str] = []
    for verdict in report:
        lines += [_line([verdict.name, *row]) for row in _rows(verdict)]
        reasons = [verdict.reason, *(measure.reason for measure in verdict.measures)]
        said = [*filter(None, reasons), *(f"note: {text}" for text in verdict.notices)]
        notes += [f"- **{markdown_text(verdict.name)}**: {markdown_text(text)}" for text in said]
        found = verdict.obtained
        if found.measures and found.structure is not None and len(found.structure.trf_px) == 3:
            notes.append(f"- **{markdown_text(verdict.name)}**: sizes are {IN_PLANE}: {IN_PLANE_MEANS}")
        if verdict.accept:
            notes.append(
                f"- **{markdown_text(verdict.name)}**: to accept, `{printable(verdict.accept).replace('`', '')}`"
            )
    notes += [f"- {markdown_text(text)}" for text in report.notices]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def github_commands(report: CheckReport) -> Iterator[str]:
    """GitHub's workflow commands: an error for every check that fails or is inconclusive, a notice where something
    should be known.

    Source: docs.github.com, "Workflow commands for GitHub Actions"; what ``@actions/core`` escapes.
    """
    for verdict in report:
        reasons = [change.text for change in verdict.structure if change.verdict != "notice"]
        reasons = [
            *filter(None, [verdict.reason]),
            *reasons,
            *(measure.reason for measure in verdict.measures if measure.reason),
        ]
        if not verdict.ok:
            text = "\n".join([verdict.cause, *reasons, *([f"to accept: {verdict.accept}"] if verdict.accept else [])])
            yield _command("error", report, verdict, text)
        elif verdict.notices and verdict.word == "pass":
            yield _command("notice", report, verdict, "\n".join(verdict.notices))


def _command(kind: str, report: CheckReport, verdict: Verdict, text: str) -> str:
    title = f"erfscope check: {verdict.name}: {verdict.shown}"
    return f"::{kind} file={_property(report.baseline.name)},title={_property(title)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _rows(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for change in verdict.structure:
        yield (change.what, change.obtained, change.expected, MINUS, MINUS, _bold(shown_word(change.verdict)))
    for measure in verdict.measures:
        row = cells(measure)
        yield (*row[:-1], _bold(row[-1]))
    if not verdict.structure and not verdict.measures:
        yield (verdict.cause, *[MINUS] * 4, _bold(verdict.shown))


def _bold(word: str) -> str:
    return word if word in ("pass", "notice") else f"**{word}**"


def _line(row: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(markdown_text(text) for text in row) + " |"
