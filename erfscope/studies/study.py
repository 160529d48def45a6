"""Entries, options and results of studies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from erfscope.environment import environment
from erfscope.errors import ErfscopeError, unknown
from erfscope.figures.chart_data import Picture
from erfscope.results.json_values import plain
from erfscope.storage import writing
from erfscope.storage.files import report_bytes
from erfscope.storage.formats import FORMATS, suffixes
from erfscope.storage.writing import new_directory, write_bytes
from erfscope.view.grids import csv_grid, text_grid

SCHEMA = "erfscope.study/1"
Progress = Callable[[str, int, int], None]
#: The file that identifies a study's folder.
STORED = "study.json"
#: Suffixes of the files that a study can be written to.
SUFFIXES = suffixes("report", "table", "figure")
#: How much a study computes: all in at most ten minutes, enough to show the claim in less than one, or just enough for
#: a test.
Effort = Literal["full", "quick", "smoke"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One entry of the table of studies."""

    name: str
    #: The papers.
    source: str
    #: Its claim, in a few words.
    shows: str
    #: Its duration on two CPU cores in seconds, in full and quick.
    seconds: int
    quick_seconds: int
    #: The module of this room that has ``study(asked)``.
    home: str
    #: The papers' own data sets that it takes instead of what is made here; "" for none.
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of a run."""

    seed: int = 0
    effort: Effort = "full"
    progress: Progress | None = None
    #: A folder with the papers' own data set, for the studies that can take one; None for data made or shipped here.
    data: Path | None = None
    #: A folder where trained nets are kept from one run to the next; None to keep none.
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ErfscopeError(f"the seed is {self.seed}; it must be 0 or larger")

    @property
    def quick(self) -> bool:
        """Whether the study computes less than all."""
        return self.effort != "full"

    def pick(self, *, full: T, quick: T, smoke: T) -> T:
        """Return the value for the effort."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.effort]

    def tell(self, text: str, done: int, total: int) -> None:
        """Report the progress of a study."""
        if self.progress is not None:
            self.progress(text, done, total)

    def each(self, text: str, cases: Collection[T]) -> Iterator[T]:
        """Yield the cases, and report the progress before each and after the last."""
        for done, case in enumerate(cases):
            self.tell(text, done, len(cases))
            yield case
        self.tell(text, len(cases), len(cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a study's table."""

    title: str
    #: A row -> the text of the cell.
    text: Callable[[Any], str]
    numeric: bool = True
    #: Whether its text may fold in a narrow terminal.
    folds: bool = False
    #: Whether a narrow terminal leaves it out.
    optional: bool = False


#: The last column of studies whose rows are claims.
VERDICT = Column(title="", text=lambda row: "ok" if row.passed else "FAILED", numeric=False)


def cell(value: float | None, form: str, none: str = "") -> str:
    """Return a number in a format such as ``".3f"``, or ``none`` if there is none."""
    return none if value is None else format(value, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFindings:
    """The rows, conclusion and figure of a study."""

    columns: tuple[Column, ...]
    #: The field of a row with the heading that it is under; rows of one heading follow each other. None for no
    #: headings.
    section: str | None = None
    #: Frozen dataclasses with a ``name`` and ``passed``.
    rows: tuple[Any, ...]
    #: The answer, as a sentence.
    conclusion: str
    #: The study's figure.
    picture: Picture
    #: Whether the claim about all rows together holds.
    holds_overall: bool = True

    @property
    def passed(self) -> bool:
        """Whether every claim held."""
        return self.holds_overall and all(row.passed for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A study that was run: its rows, whether every claim held, and how it was run."""

    study: str
    seed: int
    effort: Effort
    seconds: float
    findings: StudyFindings
    #: The folder that the papers' own data came from; None for data made here.
    data: str | None = None
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
        """The rows as text: ``"plain"`` (tabs), ``"csv"``, ``"markdown"`` or ``"latex"``. CSV has the numbers in full,
        one per cell.

        Raises:
            ErfscopeError: another format.
        """
        if format == "csv":
            return csv_grid(_one_per_cell([dataclasses.asdict(row) for row in self.rows]))
        columns = self.findings.columns
        lines = [[column.title for column in columns], *([column.text(row) for column in columns] for row in self.rows)]
        return text_grid(lines, left=[not column.numeric for column in columns], format=format)

    def to_json(self) -> dict[str, Any]:
        """The study as JSON values."""
        return {
            "schema": SCHEMA,
            "study": self.study,
            "passed": self.passed,
            "conclusion": self.conclusion,
            "settings": {"seed": self.seed, "effort": self.effort, "data": self.data},
            "seconds": round(self.seconds, 3),
            "environment": plain(self.environment),
            "rows": [plain(dataclasses.asdict(row)) for row in self.rows],
        }

    def figure(self, path: str | Path | None = None) -> Any:
        """Draw the study's matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Raises:
            ErfscopeError: another suffix, or it cannot be written.
        """
        from erfscope.figures.charts import draw

        return draw(self.findings.picture, path=path)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the study: a folder (JSON, table, figure), or one file whose suffix decides.

        Raises:
            ErfscopeError: another suffix, the target exists and ``force`` is not set, or it cannot be written.
        """
        check_output(path, force=force)
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix in SUFFIXES:
            write_bytes(target, self._content(suffix), force=force)
            return
        with new_directory(target, force=force, holding=STORED) as folder:
            for name in (STORED, "table.csv", "table.md", "figure.png"):
                (folder / name).write_bytes(self._content(Path(name).suffix))

    def _content(self, suffix: str) -> bytes:
        if FORMATS[suffix].content == "figure":
            from erfscope.figures.canvas import figure_bytes

            return figure_bytes(self.figure(), suffix)
        return report_bytes(self.to_json()) if suffix == ".json" else self.table(format=FORMATS[suffix].table).encode()

    def _repr_markdown_(self) -> str:
        return self.table()

    def _repr_png_(self) -> bytes:
        return self._content(".png")


def _one_per_cell(rows: Sequence[dict[str, Any]]) -> list[list[object]]:
    """Return the lines of a table. A field of several numbers has a column for each, NAME_1, NAME_2, ..., as many as in
    its longest row."""
    lengths = {
        name: max((len(row[name]) for row in rows if isinstance(row[name], tuple)), default=None) for name in rows[0]
    }
    titles: list[object] = [
        title
        for name, n in lengths.items()
        for title in ([name] if n is None else [f"{name}_{place + 1}" for place in range(n)])
    ]

    def cells(row: dict[str, Any]) -> Iterator[object]:
        for name, length in lengths.items():
            yield from [row[name]] if length is None else [*(row[name] or ()), *[None] * length][:length]

    return [titles, *(list(cells(row)) for row in rows)]


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`StudyResult.save` could not write; called before anything is computed.

    Raises:
        ErfscopeError: its suffix is unknown, it exists and ``force`` is not set, or its folder does not exist.
    """
    writing.check_output(path, SUFFIXES, force=force, holding=STORED)
