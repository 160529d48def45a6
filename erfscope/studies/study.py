"""What a study is, what it is asked, and what it finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erfscope.environment import environment
from erfscope.errors import ErfscopeError, unknown
from erfscope.serialise import plain
from erfscope.storage import check_target, report_bytes, write_bytes
from erfscope.studies.text import text_table

SCHEMA = "erfscope.study/1"
TABLES = {".csv": "csv", ".md": "markdown", ".tex": "latex"}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One entry of the table of studies."""

    name: str
    #: The papers.
    source: str
    #: What it shows, in a few words.
    shows: str
    #: How long it takes on two CPU cores, in seconds.
    seconds: int
    #: The module that has ``study(asked)``.
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a study is to be run."""

    seed: int = 0
    #: Smaller cases and fewer samples.
    quick: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ErfscopeError(f"the seed is {self.seed}; it must be 0 or larger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a study's table."""

    title: str
    #: A row -> the cell, in words.
    text: Callable[[Any], str]
    numeric: bool = True
    #: Whether its words may fold where the terminal is narrow.
    folds: bool = False
    #: Whether it is left out there.
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a study found."""

    columns: tuple[Column, ...]
    #: A row -> the heading that it stands under; rows of one heading follow each other.
    section: Callable[[Any], str] | None = None
    #: Frozen dataclasses with a ``name`` and ``passed``.
    rows: tuple[Any, ...]
    #: The answer in a sentence.
    conclusion: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A study that was run: its rows, whether every claim held, and how it was run."""

    study: str
    seed: int
    quick: bool
    seconds: float
    findings: Findings
    environment: Mapping[str, Any] = field(default_factory=environment)

    @property
    def rows(self) -> tuple[Any, ...]:
        """One per line of the table."""
        return self.findings.rows

    @property
    def passed(self) -> bool:
        """Whether every claim held."""
        return self.findings.passed

    @property
    def conclusion(self) -> str:
        """The answer in a sentence."""
        return self.findings.conclusion

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Any:
        """A row by its name.

        Raises:
            ErfscopeError: there is no such row.
        """
        found = [row for row in self.rows if row.name == name]
        if not found:
            raise unknown("row", name, [row.name for row in self.rows], where=f"the study {self.study}")
        return found[0]

    def table(self, *, format: str = "markdown") -> str:
        """The rows as text: ``"plain"`` (tabs), ``"csv"``, ``"markdown"`` or ``"latex"``. CSV has the numbers in full.

        Raises:
            ErfscopeError: another format.
        """
        titles = [column.title for column in self.findings.columns]
        cells = [[column.text(row) for column in self.findings.columns] for row in self.rows]
        if format == "csv":
            fields = [list(dataclasses.asdict(row).items()) for row in self.rows]
            titles = [name for name, _ in fields[0]]
            cells = [["" if value is None else str(value) for _, value in row] for row in fields]
        return text_table(titles, cells, format=format, numeric=[column.numeric for column in self.findings.columns])

    def to_json(self) -> dict[str, Any]:
        """The study as JSON values."""
        return {
            "schema": SCHEMA,
            "study": self.study,
            "passed": self.passed,
            "conclusion": self.conclusion,
            "settings": {"seed": self.seed, "quick": self.quick},
            "seconds": round(self.seconds, 3),
            "environment": plain(self.environment),
            "rows": [plain(dataclasses.asdict(row)) for row in self.rows],
        }

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the study to a file: .json, or a table as .csv, .md or .tex.

        Raises:
            ErfscopeError: another suffix, the file exists and ``force`` is not set, or it cannot be written.
        """
        check_file(path, force=force)
        target = Path(path)
        suffix = target.suffix.lower()
        content = report_bytes(self.to_json()) if suffix == ".json" else self.table(format=TABLES[suffix]).encode()
        write_bytes(target, content, force=force)

    def _repr_markdown_(self) -> str:
        return self.table()


def check_file(path: str | Path, *, force: bool) -> None:
    """Refuse a file that :meth:`StudyResult.save` could not write; called before anything is computed.

    Raises:
        ErfscopeError: its suffix is unknown, it exists and ``force`` is not set, or its folder does not exist.
    """
    target = Path(path)
    if target.suffix.lower() not in (".json", *TABLES):
        raise ErfscopeError(f"cannot write {target.name!r}; a study is written to a file ending in .json, {', '.join(TABLES)}")
    check_target(target, force=force)
