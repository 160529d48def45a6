"""Everything that one run of the gate has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erfscope.gate.verdict import EXIT_CODES, Verdict


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
        found = {EXIT_CODES[verdict.word] for verdict in self.verdicts}
        return next((code for code in (1, 3) if code in found), 0)

    @property
    def ok(self) -> bool:
        """Whether nothing stands against any model."""
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
        from erfscope.gate.text import report_lines

        return "\n".join(line.text for line in report_lines(self))

    def markdown(self) -> str:
        """All verdicts as Markdown, for the summary of a CI run."""
        from erfscope.gate.markdown import markdown

        return markdown(self)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        from erfscope.gate.document import report_to_json

        return report_to_json(self)
