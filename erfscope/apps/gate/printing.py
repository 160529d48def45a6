"""How the command prints verdicts: in a terminal, as JSON or Markdown, and for GitHub."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.text import Text

from erfscope.apps.gate.verdict import CheckReport, Line
from erfscope.core import ErfscopeError
from erfscope.show import command, printable

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
    from erfscope.apps.gate.artifacts import write_artifacts

    try:
        for path in write_artifacts(report, folder):
            command.complain(f"wrote {path}")
    except ErfscopeError as error:
        command.complain(str(error))
        return False
    return True


def deliver(report: CheckReport, *, shown: str, quiet: bool = False) -> None:
    """Print the report; on GitHub also write annotations and the summary of the step.

    Args:
        report: The verdicts.
        shown: ``"rich"``, ``"plain"``, ``"json"``, ``"markdown"`` or ``"github"``.
        quiet: Whether text has one line for each check and nothing else.
    """
    if shown == "json":
        command.print_json(report.to_json())
    elif shown == "markdown":
        command.say(report.markdown().rstrip("\n"))
    else:
        screen = command.Screen(plain=shown != "rich")
        width = screen.width if screen.is_bounded else sys.maxsize
        for line in (verdict.in_one_line for verdict in report) if quiet else report.lines(width):
            # A command in the line is copied whole, and a log has one line for each check.
            screen.print(styled(line), soft_wrap=quiet or line.kind == "accept" or not screen.is_bounded)
    if shown in ("json", "markdown") and not report.ok:
        command.complain(report.summary)
    if shown == "github" or os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(report)


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


def _annotate(report: CheckReport) -> None:
    """Annotations on stderr, which no format uses, and the table in the step's summary."""
    for annotation in report.annotations():
        # The runner reads commands on both streams, at the beginning of a line.
        print(printable(annotation), file=sys.stderr)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(report.markdown())
        except OSError as error:
            command.complain(f"cannot write GITHUB_STEP_SUMMARY: {error.strerror or error}")
