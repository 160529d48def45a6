"""Verdicts for a pull request: a Markdown table, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from erfscope.gate.view import COLUMNS, reasons, rows, said
from erfscope.printable import printable
from erfscope.view.markdown import grid, markdown_text
from erfscope.view.words import DASH

if TYPE_CHECKING:
    from erfscope.gate.report import CheckReport
    from erfscope.gate.verdict import Verdict


def markdown(report: CheckReport) -> str:
    """All verdicts: one table, then the reasons and the accepting commands."""
    lines, notes = [["check", *COLUMNS]], list[str]()
    for verdict in report:
        name = markdown_text(verdict.name)
        nothing = (verdict.cause, *[DASH] * 4, verdict.shown)
        for *texts, word in list(rows(verdict)) or [nothing]:
            shown = word if word in ("pass", "notice", DASH) else f"**{word}**"
            lines.append([name, *map(markdown_text, texts), shown])
        notes += [f"- **{name}**: {markdown_text(text)}" for _, text in said(verdict)]
        if verdict.accept:
            notes.append(f"- **{name}**: to accept: `{printable(verdict.accept).replace('`', '')}`")
    notes += [f"- {markdown_text(text)}" for text in report.notices]
    table = grid(lines, left=[True] * len(lines[0]))
    return "\n".join([f"### erfscope check: {markdown_text(report.summary)}", "", table, *notes]).rstrip("\n") + "\n"


def github_commands(report: CheckReport) -> Iterator[str]:
    """GitHub's workflow commands: an error for every check that fails or is inconclusive, a notice where something
    should be known.

    Source: docs.github.com, "Workflow commands for GitHub Actions"; what ``@actions/core`` escapes.
    """
    for verdict in report:
        if not verdict.ok:
            changes = [change.text for change in verdict.structure if change.verdict != "notice"]
            accept = [f"to accept: {verdict.accept}"] if verdict.accept else []
            yield _command("error", report, verdict, "\n".join([verdict.cause, *changes, *reasons(verdict), *accept]))
        elif verdict.notices and verdict.word == "pass":
            yield _command("notice", report, verdict, "\n".join(verdict.notices))


def _command(kind: str, report: CheckReport, verdict: Verdict, text: str) -> str:
    title = f"erfscope check: {verdict.name}: {verdict.shown}"
    return f"::{kind} file={_property(report.baseline.name)},title={_property(title)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
