"""What outputs show of a verdict: rows of obtained, expected and tolerance, and what must be said of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from erfscope.gate.entry import BaselineMeasure
from erfscope.gate.judge import MeasureVerdict, moved, shown_word, unit_of
from erfscope.printable import number, with_error
from erfscope.view.words import DASH, IN_PLANE, IN_PLANE_MEANS

if TYPE_CHECKING:
    from erfscope.gate.verdict import Verdict

COLUMNS = ("what", "obtained", "expected", "tolerance", "difference", "verdict")
Kind = Literal["reason", "notice", "accept"]


def rows(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    """A row of :data:`COLUMNS` for everything that was compared: changes of the structure, and measures."""
    for change in verdict.structure:
        what = change.what.replace("theoretical receptive field (TRF)", "TRF")  # a cell, no sentence
        yield what, change.obtained, change.expected, DASH, DASH, shown_word(change.verdict)
    yield from map(_row, verdict.measures)


def said(verdict: Verdict) -> Iterator[tuple[Kind, str]]:
    """What must be said of a verdict, most important first: reasons and notes; the command that accepts it is
    ``verdict.accept``."""
    yield from (("reason", text) for text in reasons(verdict))
    if verdict.needed is not None:
        yield "accept", f"to settle it: measure the baseline's model and this one with {verdict.needed} of them"
    found = verdict.obtained
    if found.measures and not verdict.measures:
        texts = (f"{name} {_value(measure, name)}" for name, measure in found.measures.items())
        yield "notice", f"found: {', '.join(texts)}"
    if found.measures and found.structure is not None and len(found.structure.trf_px) == 3:
        yield "notice", f"sizes are {IN_PLANE}: {IN_PLANE_MEANS}"
    yield from (("notice", f"note: {text}") for text in verdict.notices)


def reasons(verdict: Verdict) -> list[str]:
    """Why it is no pass."""
    texts = [verdict.reason, *(measure.reason for measure in verdict.measures)]
    return [text for text in texts if text]


def measures_of(verdict: Verdict) -> list[str]:
    """The measures that stand in the rows of a verdict."""
    return [measure.name for measure in verdict.measures] or list(verdict.obtained.measures)


def _row(measure: MeasureVerdict) -> tuple[str, ...]:
    limit = ""
    if measure.limit is not None and measure.tolerance.relative:
        limit = f" ({number(measure.limit)}{unit_of(measure.name)})"
    return (
        measure.name,
        _value(measure.obtained, measure.name),
        _value(measure.expected, measure.name),
        f"{measure.tolerance}{limit}",
        DASH if measure.difference is None else moved(measure.difference, measure.se, measure.name),
        shown_word(measure.word),
    )


def _value(recorded: BaselineMeasure | None, name: str) -> str:
    if recorded is None or recorded.value is None:
        return DASH
    return f"{with_error(recorded.value, recorded.se)}{unit_of(name)}"
