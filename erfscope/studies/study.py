"""What a study is, what it is asked, and what it finds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from erfscope.environment import environment
from erfscope.errors import ErfscopeError, unknown
from erfscope.serialise import plain
from erfscope.storage import FIGURES, TABLES, check_directory, check_target, new_directory, report_bytes, write_bytes
from erfscope.studies.picture import Picture
from erfscope.studies.text import text_table

SCHEMA = "erfscope.study/1"
Progress = Callable[[str, int, int], None]
#: By which a folder of a study is known.
STORED = "study.json"
#: How much is computed: everything in at most ten minutes, what shows the claim in less than one, or just enough for a test.
Effort = Literal["full", "quick", "smoke"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One entry of the table of studies."""

    name: str
    #: The papers.
    source: str
    #: What it shows, in a few words.
    shows: str
    #: How long it takes on two CPU cores, in seconds, in full and quick.
    seconds: int
    quick_seconds: int
    #: The module that has ``study(asked)``.
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a study is to be run."""

    seed: int = 0
    effort: Effort = "full"
    progress: Progress | None = None
    #: A folder with the papers' own data set, for the studies that can take one; None for data made or shipped here.
    data: Path | None = None
    #: Where trained nets are kept from one run to the next; None for nowhere.
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ErfscopeError(f"the seed is {self.seed}; it must be 0 or larger")

    @property
    def quick(self) -> bool:
        """Whether less than everything is computed."""
        return self.effort != "full"

    def pick(self, *, full: T, quick: T, smoke: T) -> T:
        """What fits the effort."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.effort]

    def tell(self, text: str, done: int, total: int) -> None:
        """Say how far a study is, to whoever listens."""
        if self.progress is not None:
            self.progress(text, done, total)


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
    #: What the study shows, as a figure.
    picture: Picture | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A study that was run: its rows, whether every claim held, and how it was run."""

    study: str
    seed: int
    effort: Effort
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
            "settings": {"seed": self.seed, "effort": self.effort},
            "seconds": round(self.seconds, 3),
            "environment": plain(self.environment),
            "rows": [plain(dataclasses.asdict(row)) for row in self.rows],
        }

    def figure(self, path: str | Path | None = None) -> Any:
        """What the study shows, as a matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Raises:
            ErfscopeError: this study has no figure.
        """
        if self.findings.picture is None:
            raise ErfscopeError(f"the study {self.study} has no figure, only a table")
        from erfscope.figures.studies import draw

        return draw(self.findings.picture, path=path)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the study: a folder (JSON, table, figure), or one file whose suffix decides.

        Raises:
            ErfscopeError: another suffix, the target exists and ``force`` is not set, or it cannot be written.
        """
        check_output(path, force=force)
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix in (".json", *TABLES, *FIGURES):
            write_bytes(target, self._content(suffix), force=force)
            return
        names = [STORED, "table.csv", "table.md", *(["figure.png"] if self.findings.picture is not None else [])]
        with new_directory(target, force=force, holding=STORED) as folder:
            for name in names:
                (folder / name).write_bytes(self._content(Path(name).suffix))

    def _content(self, suffix: str) -> bytes:
        if suffix in FIGURES:
            from erfscope.figures import figure_bytes

            return figure_bytes(self.figure(), suffix)
        return report_bytes(self.to_json()) if suffix == ".json" else self.table(format=TABLES[suffix]).encode()

    def _repr_markdown_(self) -> str:
        return self.table()

    def _repr_png_(self) -> bytes | None:
        return self._content(".png") if self.findings.picture is not None else None


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`StudyResult.save` could not write; called before anything is computed.

    Raises:
        ErfscopeError: its suffix is unknown, it exists and ``force`` is not set, or its folder does not exist.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    known = (".json", *TABLES, *FIGURES)
    if suffix in known:
        check_target(target, force=force)
    elif suffix and not str(path).endswith(("/", os.sep)) and not target.is_dir():
        raise ErfscopeError(
            f"cannot write {target.name!r}; an output is a folder (end its name with /), or a file ending in {', '.join(known)}"
        )
    else:
        check_directory(target, force=force, holding=STORED)
