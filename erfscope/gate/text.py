"""Verdicts as lines of plain text. What each line is stands beside it, so that a terminal can colour it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from erfscope.gate.view import COLUMNS, Kind, measures_of, rows, said
from erfscope.printable import printable
from erfscope.view.words import gloss_of

if TYPE_CHECKING:
    from erfscope.gate.report import CheckReport
    from erfscope.gate.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text."""

    text: str
    kind: Kind | Literal["head", "row", "summary"]
    #: The verdict that it belongs to, "" for none.
    word: str = ""


def report_lines(report: CheckReport) -> Iterator[Line]:
    """All verdicts, then one line that counts them."""
    for verdict in report:
        yield from verdict_lines(verdict)
        yield Line("", "row")
    if gloss := gloss_of(name for verdict in report for name in measures_of(verdict)):
        yield Line(gloss, "row")
    yield from (Line(text, "notice") for text in report.notices)
    yield Line(report.summary, "summary")


def verdict_lines(verdict: Verdict) -> Iterator[Line]:
    """One verdict: what changed, obtained, expected and tolerance of everything compared, and the accepting command."""
    # Names come from outside: a line break in one would make a line of its own.
    yield from (replace(line, text=printable(line.text)) for line in _lines(verdict))


def _lines(verdict: Verdict) -> Iterator[Line]:
    yield Line(f"{verdict.shown.upper():<12} {verdict.name} · {verdict.cause}", "head", verdict.shown)
    if verdict.obtained.structure is not None:
        yield Line(f"  structure: {verdict.obtained.structure}", "row")
    table = [COLUMNS, *rows(verdict)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table if table[1:] else []:
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield Line(f"  {text.rstrip()}", "row", "" if row is COLUMNS else row[-1])
    for kind, text in said(verdict):
        yield Line(f"  {text}", kind, verdict.shown if kind == "reason" else "")
    if verdict.accept:
        yield Line(f"  to accept: {verdict.accept}", "accept")
