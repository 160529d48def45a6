"""The output of ``erfscope check``: in the terminal, as a file, and for GitHub."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.text import Text

from erfscope.cli.console.screen import Screen, complain, print_json, say
from erfscope.errors import ErfscopeError
from erfscope.gate.verdict import CheckReport
from erfscope.gate.view import ReportView, report_view
from erfscope.gate.writers import Line, github_commands, markdown, text_lines
from erfscope.printable import printable

WORDS = {
    "fail": "bold red",
    "inconclusive": "bold yellow",
    "pass": "bold green",
    "baseline created": "bold cyan",
    "updated": "bold cyan",
}
KINDS = {"notice": "cyan", "accept": "bold", "summary": "bold"}


def store(report: CheckReport, folder: Path) -> bool:
    """Write the artifacts; return whether that succeeded."""
    from erfscope.gate.artifacts import write_artifacts

    try:
        for path in write_artifacts(report, folder):
            complain(f"wrote {path}")
    except ErfscopeError as error:
        complain(str(error))
        return False
    return True


def deliver(report: CheckReport, *, shown: str, quiet: bool = False) -> None:
    """Print the report; on GitHub also write annotations and the summary of the step.

    Args:
        report: The verdicts.
        shown: ``"rich"``, ``"plain"``, ``"json"``, ``"markdown"`` or ``"github"``.
        quiet: Whether text has one line for each check and nothing else.
    """
    view = report_view(report)
    if shown == "json":
        print_json(report.to_json())
    elif shown == "markdown":
        say(markdown(view).rstrip("\n"))
    else:
        screen = Screen(plain=shown != "rich")
        for line in text_lines(view):
            if not quiet or line.kind == "head":
                # A command in the line is copied whole.
                screen.print(styled(line), soft_wrap=line.kind == "accept" or not screen.is_bounded)
    if shown in ("json", "markdown") and not report.ok:
        complain(report.summary)
    if shown == "github" or os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(view)


def styled(line: Line) -> Text:
    """A line in the colours of its kind and verdict."""
    text = Text(line.text, style=KINDS.get(line.kind, ""))
    style = WORDS.get(line.verdict, "")
    if line.kind == "head":
        text.stylize(style, 0, len(line.verdict))
    elif line.kind == "reason":
        text.stylize(style.removeprefix("bold "))
    elif line.verdict:
        text.stylize(style, len(line.text) - len(line.verdict))
    return text


def _annotate(view: ReportView) -> None:
    """Annotations on stderr, which no format uses, and the table in the step's summary."""
    for command in github_commands(view):
        # The runner reads commands on both streams, at the beginning of a line.
        print(printable(command), file=sys.stderr)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown(view))
        except OSError as error:
            complain(f"cannot write GITHUB_STEP_SUMMARY: {error.strerror or error}")
