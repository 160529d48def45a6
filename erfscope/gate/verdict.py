"""The verdict of one check, and the verdicts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erfscope.gate.baseline import BaselineEntry
from erfscope.gate.judge import MeasureVerdict, shown_word
from erfscope.gate.structure import StructureChange
from erfscope.results.result import Result

Word = Literal["pass", "fail", "cannot tell", "new", "updated"]
#: Exit codes; of several verdicts a failure counts first.
EXIT_CODES: dict[str, int] = {"fail": 1, "cannot tell": 3, "pass": 0, "new": 0, "updated": 0}


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
    def text(self) -> str:
        """The verdict in plain text: obtained, expected and tolerance of every measure, and the accepting command."""
        from erfscope.gate.writers import verdict_lines, verdict_view

        return "\n".join(line.text for line in verdict_lines(verdict_view(self)))

    @property
    def needed(self) -> int | None:
        """The number of samples that would settle a verdict that is inconclusive because of noise; None where there is
        no such verdict, or no such number."""
        return max((measure.needed for measure in self.measures if measure.needed is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values."""
        from erfscope.gate.writers import verdict_document

        return verdict_document(self)


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
        from erfscope.gate.writers import report_view, text_lines

        return "\n".join(line.text for line in text_lines(report_view(self)))

    def markdown(self) -> str:
        """All verdicts as Markdown, for the summary of a CI run."""
        from erfscope.gate.writers import markdown, report_view

        return markdown(report_view(self))

    def to_json(self) -> dict[str, Any]:
        """All verdicts as JSON values."""
        from erfscope.gate.writers import report_document

        return report_document(self)
