"""The output of ``erfscope check``: in the terminal, as a file, and for GitHub."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.text import Text

from erfscope.cli.console.screen import Screen, complain, print_json, say
from erfscope.errors import ErfscopeError
from erfscope.gate.markdown import github_commands
from erfscope.gate.report import CheckReport
from erfscope.gate.text import Line, report_lines
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


def deliver(report: CheckReport, *, shown: str) -> None:
    """Print the report; on GitHub also write annotations and the summary of the step.

    Args:
        report: The verdicts.
        shown: ``"rich"``, ``"plain"``, ``"json"``, ``"markdown"`` or ``"github"``.
    """
    if shown == "json":
        print_json(report.to_json())
    elif shown == "markdown":
        say(report.markdown().rstrip("\n"))
    else:
        screen = Screen(plain=shown != "rich")
        for line in report_lines(report):
            screen.print(styled(line), soft_wrap=not screen.is_bounded)
    if shown in ("json", "markdown") and not report.ok:
        complain(report.summary)
    if shown == "github" or os.environ.get("GITHUB_ACTIONS") == "true":
        _write_for_github(report)


def styled(line: Line) -> Text:
    """A line in the colours of its kind."""
    text = Text(line.text, style=KINDS.get(line.kind, ""))
    style = WORDS.get(line.word, "")
    if line.kind == "head":
        text.stylize(style, 0, len(line.word))
    elif line.kind == "reason":
        text.stylize(style.removeprefix("bold "))
    elif line.word:
        text.stylize(style, len(line.text) - len(line.word))
    return text


def _write_for_github(report: CheckReport) -> None:
    """Print annotations on stderr, which no format uses, and add the table to the summary of the step."""
    for command in github_commands(report):
        # The runner reads commands on both streams, at the beginning of a line.
        print(printable(command), file=sys.stderr)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(report.markdown())
        except OSError as error:
            complain(f"cannot write GITHUB_STEP_SUMMARY: {error.strerror or error}")
