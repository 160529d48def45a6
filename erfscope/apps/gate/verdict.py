"""The verdict of one check, and the verdicts of a run: as tables, lines of text, GitHub's annotations and JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from erfscope.apps.gate.baseline import SETTINGS_CHANGED, BaselineEntry, BaselineMeasure
from erfscope.apps.gate.judge import MeasureVerdict, shown_word, signed_difference
from erfscope.apps.gate.structure import StructureChange
from erfscope.apps.gate.tolerance import DEFAULT, SAME_WEIGHTS, unit_of
from erfscope.core import Axes, Result, to_json
from erfscope.show import (
    DASH,
    IN_PLANE,
    IN_PLANE_MEANS,
    Cell,
    Column,
    Note,
    Table,
    TableRow,
    aligned,
    gloss_of,
    markdown,
    markdown_text,
    number,
    printable,
    rows_of,
    weights_words,
    with_error,
)

Word = Literal["pass", "fail", "cannot tell", "new", "updated"]
#: Exit codes; of several verdicts a failure counts first.
EXIT_CODES: dict[str, int] = {"fail": 1, "cannot tell": 3, "pass": 0, "new": 0, "updated": 0}
SCHEMA = "erfscope.check/1"
#: The columns of everything that is compared.
COMPARED = (
    Column(name="what", kind="name", folds=True),
    *(Column(name=name, folds=True, rank=rank) for name, rank in (("obtained", 1), ("expected", 2))),
    *(Column(name=name, rank=rank) for name, rank in (("tolerance", 4), ("difference", 3), ("verdict", 0))),
)
#: Verdicts that no table sets in bold.
QUIET = ("pass", "notice", DASH)


class Line(NamedTuple):
    """One line of text, and what it is, so that a terminal can colour it."""

    text: str
    kind: Literal["head", "row", "reason", "notice", "accept", "summary"]
    #: The verdict that it shows, "" for none.
    verdict: str = ""


#: The kind of line that each kind of note is.
KINDS: dict[str, Literal["reason", "notice", "accept"]] = {
    "reason": "reason",
    "advice": "accept",
    "fact": "notice",
    "accept": "accept",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAdvice:
    """What to do with what a check finds, in the words of the place where it is run: a terminal, pytest or Python."""

    #: The command that accepts it.
    accept: str
    #: How checks that the baseline lacks pass.
    allow: str
    #: How a check that was made with other settings is kept beside the earlier one.
    keep: str


PYTHON = CheckAdvice(
    accept="erfscope.check(..., update=True)",
    allow="missing='accept' adds new checks and lets them pass",
    keep="name this check (name=...), or choose another baseline",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one check."""

    name: str
    word: Word
    #: Whether what was found became a baseline entry just now, where there was none.
    created: bool = False
    #: What changed, or why it is inconclusive, in a few words: "model changed".
    cause: str
    #: What differs in the structure.
    structure: tuple[StructureChange, ...] = ()
    #: Every guarded measure.
    measures: tuple[MeasureVerdict, ...] = ()
    #: Why nothing, or only the structure, could be compared; "" where everything was.
    reason: str = ""
    #: Changes that do not fail the check.
    notices: tuple[str, ...] = ()
    #: The command that accepts what was found; "" where there is nothing to accept.
    accept: str = ""
    advice: CheckAdvice = PYTHON
    #: Whether nobody named the tolerances.
    has_default_tolerances: bool = False
    obtained: BaselineEntry
    #: None where the baseline has no such entry.
    expected: BaselineEntry | None = None
    #: The measurement itself, with its map; None where only the structure was compared, or nothing could be measured.
    result: Result | None = None

    @property
    def shown(self) -> str:
        """The verdict as people read it; ``word`` is what code and JSON have."""
        return shown_word("new" if self.created else self.word)

    @property
    def ok(self) -> bool:
        """Whether the check passes."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0, 1 where it fails, 3 where it is inconclusive."""
        return EXIT_CODES[self.word]

    @property
    def is_noisy(self) -> bool:
        """Whether nothing but noise keeps it from being decided, so that more images may."""
        open_measures = [measure for measure in self.measures if measure.word == "cannot tell"]
        has_other_cause = bool(self.reason) or any(change.verdict == "cannot tell" for change in self.structure)
        is_open = self.word == "cannot tell" and not has_other_cause
        return is_open and all(measure.se for measure in open_measures)

    @property
    def needed(self) -> int | None:
        """The number of samples that would settle a verdict that is inconclusive because of noise; None where there is
        no such verdict, or no such number."""
        return max((measure.needed for measure in self.measures if measure.needed is not None), default=None)

    @property
    def text(self) -> str:
        """The verdict in plain text: obtained, expected and tolerance of every measure, and the accepting command."""
        return "\n".join(line.text for line in self.lines())

    @property
    def table(self) -> Table:
        """Everything that was compared, a row each; notes say why the check does not pass, most important first, what
        would settle it, what was found, and how to accept it."""
        changes = [(c.what, c.obtained, c.expected, DASH, DASH, shown_word(c.verdict)) for c in self.structure]
        return Table(
            columns=COMPARED,
            rows=rows_of([*changes, *map(_row, self.measures)]),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[Note]:
        for change in self.structure:
            if change.first_layer and change.verdict != "notice":
                yield Note(label="fact", text=change.where)
        reasons = filter(None, (self.reason, *(each.reason for each in self.measures)))
        yield from (Note(label="reason", text=text) for text in reasons)
        if self.cause == SETTINGS_CHANGED:
            yield Note(label="advice", text=f"to keep both: {self.advice.keep}")
        elif self.needed is not None:
            over = {each.obtained.over for each in self.measures if each.needed is not None and each.obtained}
            count = f"{self.needed} {'draws' if over == {'draws'} else 'samples'}"
            yield Note(label="advice", text=f"to settle it: measure the baseline's model and this one with {count}")
        found = self.obtained
        if found.measures and not self.measures:
            values = [f"{name} {_value(each)}{unit_of(name, each)}" for name, each in found.measures.items()]
            yield Note(label="fact", text=f"found: {', '.join(values)}")
        recorded = str(found.protocol.get("options", {}).get("axes", ""))
        rank = 0 if found.structure is None else len(found.structure.trf_px)
        if found.measures and rank == 3 and Axes.of_recorded(recorded, rank).is_in_plane:
            yield Note(label="fact", text=f"sizes are {IN_PLANE}: {IN_PLANE_MEANS}")
        yield from (Note(label="fact", text=f"note: {text}") for text in self.notices)
        if self.accept:
            yield Note(label="accept", text=f"to accept: {self.accept}")

    @property
    def head(self) -> Line:
        """The verdict and its cause."""
        # Names come from outside: a line break in one would make a line of its own.
        return Line(printable(f"{self.shown.upper()} {self.name} · {self.cause}"), "head", self.shown)

    @property
    def in_one_line(self) -> Line:
        """The verdict, its cause, and what changed or why it does not pass, in a few words: ``TRF 103 -> 71``."""
        why = [change.brief for change in self.structure]
        why += [measure.brief for measure in self.measures if measure.word == "fail"]
        why += filter(None, [self.reason, *(measure.reason for measure in self.measures if measure.is_open)])
        return self.head._replace(text=printable(": ".join(filter(None, [self.head.text, "; ".join(why)]))))

    def lines(self, width: int = sys.maxsize) -> Iterator[Line]:
        """What changed, everything that was compared, and the notes, line by line; the table within a width."""
        table = self.table
        yield self.head
        if self.obtained.structure is not None:
            yield Line(printable(f"  structure: {self.obtained.structure}"), "row")
        if source := self.obtained.weights.get("source"):
            yield Line(f"  {weights_words(source).alone}", "row")
        words = ["", *(str(row.cells[-1]) for row in table.rows), ""]
        for texts, word in zip(aligned(table, width - 2), words, strict=True) if table.rows else ():
            yield from (Line(printable(f"  {text}"), "row", "" if n else word) for n, text in enumerate(texts))
        for note in table.notes:
            kind = KINDS[note.label]
            yield Line(printable(f"  {note.text}"), kind, self.shown if kind == "reason" else "")

    def annotation(self, file: str) -> str | None:
        """GitHub's workflow command: an error where the check does not pass, a notice where it passes with notices.

        Source: docs.github.com, "Workflow commands for GitHub Actions"; what ``@actions/core`` escapes.
        """
        changes = [change.text for change in self.structure if change.verdict != "notice"]
        notes = [note.text for note in self._notes() if note.label in ("reason", "accept")]
        texts = self.notices if self.ok else (self.cause, *changes, *notes)
        if self.ok and not (texts and self.shown == "pass"):
            return None
        kind, title = "notice" if self.ok else "error", f"erfscope check: {self.name}: {self.shown}"
        return f"::{kind} file={_property(file)},title={_property(title)}::{_message(chr(10).join(texts))}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values, with obtained, expected and tolerance of everything compared."""
        measures = {
            each.name: {
                "verdict": each.word,
                "obtained": _number(each.obtained),
                "expected": _number(each.expected),
                "tolerance": str(each.tolerance),
                **{key: getattr(each, key) for key in ("limit", "difference", "se", "needed", "reason", "notice")},
            }
            for each in self.measures
        }
        document: dict[str, Any] = to_json(
            {
                "name": self.name,
                "verdict": self.word,
                "cause": self.cause,
                "reason": self.reason,
                "structure": self.structure,
                "measures": measures,
                "notices": self.notices,
                "accept": self.accept,
                "obtained": self.obtained.to_json(),
            }
        )
        return document


def _row(measure: MeasureVerdict) -> tuple[str, ...]:
    has_limit = measure.limit is not None and measure.tolerance.relative
    return (
        f"{measure.name}{unit_of(measure.name, measure.obtained, measure.expected)}",
        _value(measure.obtained),
        _value(measure.expected),
        str(measure.tolerance) + (f" ({number(measure.limit)})" if has_limit else ""),
        DASH if measure.difference is None else signed_difference(measure),
        shown_word(measure.word),
    )


def _value(recorded: BaselineMeasure | None) -> str:
    return DASH if recorded is None or recorded.value is None else with_error(recorded.value, recorded.se)


def _number(recorded: BaselineMeasure | None) -> dict[str, float | None] | None:
    return None if recorded is None else {"value": recorded.value, "se": recorded.se}


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The verdicts of one run, in the order of the checks."""

    verdicts: tuple[Verdict, ...]
    baseline: Path
    #: Names of the entries that were written into the baseline.
    written: tuple[str, ...] = ()
    #: What concerns no single check.
    notices: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @property
    def exit_code(self) -> int:
        """1 if a check fails, else 3 if one is inconclusive, else 0."""
        found = {verdict.exit_code for verdict in self.verdicts}
        return next((code for code in (1, 3) if code in found), 0)

    @property
    def ok(self) -> bool:
        """Whether every check passes."""
        return self.exit_code == 0

    @property
    def summary(self) -> str:
        """One line: ``1 fail, 2 pass (erf-baseline.json)``."""
        counts = Counter(verdict.shown for verdict in self.verdicts)
        order = ("fail", "inconclusive", "baseline created", "updated", "pass")
        found = [f"{counts[word]} {word.removeprefix('baseline ')}" for word in order if counts[word]]
        return f"{', '.join(found)} ({self.baseline.name})"

    @property
    def text(self) -> str:
        """All verdicts in plain text."""
        return "\n".join(line.text for line in self.lines())

    def lines(self, width: int = sys.maxsize) -> Iterator[Line]:
        """All verdicts, what the measures mean, and one line that counts the verdicts."""
        for verdict in self.verdicts:
            yield from verdict.lines(width)
            yield Line("", "row")
        shown = (name for each in self for name in ([m.name for m in each.measures] or each.obtained.measures))
        has_default = any(verdict.has_default_tolerances and verdict.measures for verdict in self)
        rule = f"default tolerance: {SAME_WEIGHTS} if weights and structure are the baseline's, else {DEFAULT}"
        if meanings := " · ".join(filter(None, (gloss_of(shown), rule if has_default else ""))):
            yield Line(meanings, "row")
        yield from (Line(text, "notice") for text in self.notices)
        yield Line(self.summary, "summary")

    def markdown(self) -> str:
        """All verdicts as Markdown, for the summary of a CI run: one table, then the reasons and the accepting
        commands."""
        rows: list[TableRow] = []
        notes: list[str] = []
        for verdict in self.verdicts:
            found, name = verdict.table, markdown_text(verdict.name)
            lines = [row.cells for row in found.rows] or [(verdict.cause, *(DASH,) * 4, verdict.shown)]
            for *cells, word in lines:
                strong = Cell(text=str(word), is_strong=word not in QUIET)
                rows.append(TableRow(cells=(verdict.name, *cells, strong)))
            notes += [f"- **{name}**: {markdown_text(note.text)}" for note in found.notes if note.label != "accept"]
            if verdict.accept:
                notes.append(f"- **{name}**: to accept: `{printable(verdict.accept).replace('`', '')}`")
        notes += [f"- {markdown_text(text)}" for text in self.notices]
        columns = (Column(name="check"), *COMPARED)
        grid = markdown(Table(columns=columns, rows=tuple(rows)))
        return "\n".join([f"### erfscope check: {markdown_text(self.summary)}", "", grid, *notes]).rstrip("\n") + "\n"

    def annotations(self) -> Iterator[str]:
        """GitHub's workflow commands, see :meth:`Verdict.annotation`."""
        yield from filter(None, (verdict.annotation(self.baseline.name) for verdict in self))

    def to_json(self) -> dict[str, Any]:
        """All verdicts as JSON values."""
        return {
            "schema": SCHEMA,
            "exit_code": self.exit_code,
            "baseline": str(self.baseline),
            "written": list(self.written),
            "notices": list(self.notices),
            "checks": [verdict.to_json() for verdict in self],
        }
