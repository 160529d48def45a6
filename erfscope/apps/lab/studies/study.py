"""What studies are made of: entries, options, rows of a table, claims, and how they are measured and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, astuple, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

import erfscope
from erfscope.apps.lab.studies.packing import decoded, encoded, tuples
from erfscope.core import ErfscopeError, FloatArray, environment, to_json, unknown
from erfscope.show import (
    Cell,
    Column,
    Curve,
    Picture,
    Table,
    TableRow,
    check_output,
    format_table,
    rows_of,
    write,
    write_folder,
)

#: How much a study computes: trainings of hours, all in at most ten minutes, enough to show the claim in less than one,
#: or just enough for a test.
Effort = Literal["long", "full", "quick", "smoke"]
#: Called with a text, the number of cases done, and the number of cases.
Progress = Callable[[str, int, int], None]
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
    #: Why not all of its claims are reproduced, in the words of a stranger; "" where all are, in full.
    reason: str = ""

    def explained(self, result: StudyResult) -> str:
        """Return one line that says why claims of a run are not reproduced; "" where all are."""
        if all(each.verdict == "reproduced" for each in result.claims):
            return ""
        small = "" if result.effort in ("full", "long") else f"effort {result.effort} runs smaller cases than full"
        weaker = any(each.verdict == "mechanism only" for each in result.claims)
        meaning = "mechanism only: the effect is there, but smaller or in smaller nets" * weaker
        reasons = "; ".join(filter(None, (self.reason, small, meaning)))
        return f"Not every claim below is reproduced: {reasons}." if reasons else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of a run."""

    seed: int = 0
    effort: Effort = "full"
    progress: Progress = lambda _text, _done, _total: None
    #: A folder with the papers' own data set, for the studies that can take one; None for data made or shipped here.
    data: Path | None = None
    #: A folder where trained nets are kept from one run to the next; None to keep none.
    cache: Path | None = None
    #: Seconds that earlier runs spent on the nets that this one takes from the cache.
    spent: list[float] = field(default_factory=list)

    def pick(self, *, full: T, quick: T, smoke: T, long: T | None = None) -> T:
        """Return the value for the effort; what has none for long is as in full."""
        return {"long": full if long is None else long, "full": full, "quick": quick, "smoke": smoke}[self.effort]

    def each(self, text: str, cases: Collection[T]) -> Iterator[T]:
        """Yield the cases, and report the progress before each and after the last."""
        for done, case in enumerate(cases):
            self.progress(text, done, len(cases))
            yield case
        self.progress(text, len(cases), len(cases))


class StudyRow(SimpleNamespace):
    """One line of a study's table: its numbers, by name."""

    name: str
    #: Whether the checks of the row hold.
    passed: bool
    #: Arrays of the row for the figure, (H, W) each; they are in no table.
    maps: dict[str, FloatArray]

    @property
    def numbers(self) -> dict[str, Any]:
        """All but the maps."""
        return {key: value for key, value in vars(self).items() if key != "maps"}


@dataclass(frozen=True, slots=True)
class StudyColumn:
    """One column of a study's table."""

    title: str
    #: The cell of a row: a template such as ``"{r90:.1f}"`` of its numbers, or a function of the row.
    shown: str | Callable[[Any], str]
    _: KW_ONLY
    numeric: bool = True
    #: Whether its text may fold in a narrow terminal.
    folds: bool = False
    #: Whether a narrow terminal leaves it out.
    optional: bool = False
    #: The cell where a number of the template is None.
    none: str = ""

    @property
    def of_table(self) -> Column:
        """The column as tables have it."""
        kind: Literal["number", "text"] = "number" if self.numeric else "text"
        return Column(name=self.title, kind=kind, folds=self.folds, rank=2 if self.optional else 1)

    def text(self, row: StudyRow) -> str:
        """Return the cell of a row."""
        if callable(self.shown):
            return self.shown(row)
        is_lacking = any(value is None and f"{{{name}" in self.shown for name, value in row.numbers.items())
        return self.none if is_lacking else self.shown.format_map(row.numbers)


#: The last column of studies whose rows are checks.
VERDICT = StudyColumn("ok", lambda row: "ok" if row.passed else "FAILED", numeric=False)
Verdict = Literal["reproduced", "mechanism only", "not reproduced"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the literature, and what the study found."""

    claim: str
    #: The published result, or the closed form.
    published: str
    #: The result of the study, with its standard error where it has one.
    ours: str
    verdict: Verdict


def claim(text: str, published: str, ours: str, is_reproduced: bool, *, has_mechanism: bool = False) -> Claim:
    """Return a claim with its verdict: the published result, its mechanism alone (at another size), or neither."""
    verdict: Verdict = "mechanism only" if has_mechanism else "not reproduced"
    return Claim(text, published, ours, "reproduced" if is_reproduced else verdict)


def holds(rows: Sequence[StudyRow]) -> bool:
    """Return whether the checks of all rows hold."""
    return all(row.passed for row in rows)


@dataclass(frozen=True, kw_only=True)
class StudyFindings:
    """The rows, claims and figure of a study."""

    columns: tuple[StudyColumn, ...] = field(repr=False)
    #: The number of a row with the heading that it is under; rows of one heading follow each other. None for no
    #: headings.
    section: str | None = None
    rows: Sequence[StudyRow] = field(repr=False)
    claims: Sequence[Claim]
    picture: Picture = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every check held; a claim that a smaller training does not reproduce is no failure."""
        return holds(self.rows)

    @property
    def conclusion(self) -> str:
        """How many claims are reproduced, and which rows failed."""
        found = [each.verdict for each in self.claims]
        parts = [f"{found.count('reproduced')} of {len(found)} claims reproduced"]
        parts += [f"{found.count(each)} {each}" for each in get_args(Verdict)[1:] if each in found]
        failed = [row.name + (f" ({row.problem})" if getattr(row, "problem", None) else "") for row in self.rows]
        failed = [text for text, row in zip(failed, self.rows, strict=True) if not row.passed]
        return ", ".join(parts) + "." + (f" Failed: {', '.join(failed)}." if failed else "")


def result_with_map(model: Any, **options: Any) -> Any:
    """Return the :class:`erfscope.Result` of a model that must have a map.

    Args:
        model: As :func:`erfscope.analyze` takes it.
        **options: Likewise.

    Raises:
        MeasurementError: it has none.
    """
    result = erfscope.analyze(model, **options)
    if result.map is None:
        raise result.failure("has no map")
    return result


def with_error(value: float, se: float | None, digits: int = 3) -> str:
    """Return a value, and its standard error unless that rounds to zero."""
    return f"{value:.{digits}f}" + (f" ± {se:.{digits}f}" if se is not None and se >= 0.5 * 10**-digits else "")


def percent(share: float, se: float) -> str:
    """Return a share in percent, and its standard error."""
    return f"{100 * share:.1f} ± {100 * se:.1f} %"


def share_with_error(share: float, count: int) -> str:
    """Return a share of ``count`` cases in percent, and its binomial standard error."""
    return percent(share, (share * (1 - share) / count) ** 0.5)


def error_of_mean(values: FloatArray) -> float:
    """Return the standard error of the mean of what several nets do in the same cases.

    Args:
        values: (nets, cases).

    Returns:
        That over nets or that over cases, whichever is larger.
    """
    return float(max(values.mean(1 - axis).std(ddof=1) / n**0.5 for axis, n in enumerate(values.shape) if n > 1))


def points(
    label: str, rows: Sequence[StudyRow], number: str, *, x: str = "", scale: float = 1.0, error: str = ""
) -> Curve:
    """Return one point for each row that has a number.

    Args:
        label: Name of the curve.
        rows: Rows.
        number: Name of the number.
        x: Name of the number along the axis; "" for the row's place.
        scale: Factor of the number.
        error: Name of its standard error; "" for none.
    """
    known = [(place, row) for place, row in enumerate(rows) if getattr(row, number) is not None]
    return Curve(
        label=label,
        x=[getattr(row, x) if x else place for place, row in known],
        y=[scale * getattr(row, number) for _, row in known],
        error=[scale * (getattr(row, error) or 0.0) for _, row in known] if error else None,
        points=True,
    )


SCHEMA = "erfscope.study/1"
#: The file that identifies a study's folder.
STORED = "study.json"
#: Suffix of a file -> what its table is called.
TABLES = {".csv": "csv", ".md": "markdown", ".tex": "latex"}
#: Suffixes of the files that a study can be written to.
SUFFIXES = (".json", *TABLES, ".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class StudyResult(StudyFindings):
    """A study that was run: what it found, and how it was run."""

    study: str
    seed: int
    effort: Effort
    #: Of the run, and of earlier ones on the nets that it took from the cache.
    seconds: float
    #: The folder that the papers' own data came from; None for data made here.
    data: str | None = None
    environment: Mapping[str, Any] = field(default_factory=environment)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[StudyRow]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> StudyRow:
        """A row by its name.

        Raises:
            ErfscopeError: there is no such row.
        """
        by_name = {row.name: row for row in self.rows}
        if name not in by_name:
            raise unknown("row", name, list(by_name), where=f"the study {self.study}")
        return by_name[name]

    def table(self, *, format: str = "markdown") -> str:
        """The rows as text: ``"plain"`` (tabs), ``"csv"``, ``"markdown"`` or ``"latex"``. CSV has the numbers in full,
        one per cell.

        Raises:
            ErfscopeError: another format.
        """
        if format == "csv":
            return format_table(_one_per_cell([row.numbers for row in self.rows]), format)
        return format_table(self.rows_table(self.columns), format)

    def rows_table(self, columns: Sequence[StudyColumn], *, has_headings: bool = False) -> Table:
        """Some columns of the rows; with headings above those of a section, for a terminal."""
        rows: list[TableRow] = []
        for row, before in zip(self.rows, [None, *self.rows], strict=False):
            section = getattr(row, self.section) if self.section is not None and has_headings else None
            if section is not None and (before is None or section != getattr(before, self.section or "")):
                rows.append(TableRow(cells=(section,), style="bold"))
            cells = tuple(column.text(row) for column in columns)
            rows.append(TableRow(cells=cells, style="" if row.passed else "bold red"))
        return Table(columns=tuple(column.of_table for column in columns), rows=tuple(rows))

    def verdicts(self, *, format: str = "markdown") -> str:
        """The claims as text, one line each: the claim, the published result, that of the study, and the verdict.

        Raises:
            ErfscopeError: another format than those of :meth:`table`.
        """
        return format_table(self.claims_table(), format)

    def claims_table(self) -> Table:
        """The claims, a row each."""
        names = ("claim", "published", "ours", "verdict")
        rows = [
            (*astuple(each)[:-1], Cell(text=each.verdict, style="" if each.verdict == "reproduced" else "yellow"))
            for each in self.claims
        ]
        return Table(columns=tuple(Column(name=name, folds=name != "verdict") for name in names), rows=rows_of(rows))

    def text(self, *, format: str) -> str:
        """The table, and the claims below it; CSV, which has one table, is without the claims.

        Raises:
            ErfscopeError: another format than those of :meth:`table`.
        """
        return self.table(format=format) + ("" if format == "csv" else "\n" + self.verdicts(format=format))

    def to_json(self) -> dict[str, Any]:
        """The study as JSON values."""
        study = {
            "schema": SCHEMA,
            "study": self.study,
            "passed": self.passed,
            "conclusion": self.conclusion,
            "claims": [asdict(each) for each in self.claims],
            "settings": {"seed": self.seed, "effort": self.effort, "data": self.data},
            "seconds": round(self.seconds, 3),
            "environment": self.environment,
            "rows": [row.numbers for row in self.rows],
        }
        document: dict[str, Any] = to_json(study)
        return document

    def document(self) -> dict[str, Any]:
        """The study as JSON values, with the texts of its table and its figure."""
        columns = [
            {
                "title": column.title,
                "cells": [column.text(row) for row in self.rows],
                **{name: getattr(column, name) for name in ("numeric", "folds", "optional")},
            }
            for column in self.columns
        ]
        table = {"section": self.section, "columns": columns}
        document: dict[str, Any] = to_json({**self.to_json(), "table": table, "picture": encoded(self.picture)})
        return document

    def figure(self, path: str | Path | None = None) -> Any:
        """Draw the study's matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Raises:
            ErfscopeError: another suffix, or it cannot be written.
        """
        from erfscope.show import plot

        return plot.draw(self.picture, path=path)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the study: a folder (JSON, table, figure), or one file whose suffix decides.

        Raises:
            ErfscopeError: another suffix, the target exists and ``force`` is not set, or it cannot be written.
        """
        refuse_output(path, force=force)
        suffix = Path(path).suffix.lower()
        if suffix in SUFFIXES:
            write(path, self._content(suffix), force=force)
        else:
            names = (STORED, "table.csv", "table.md", "figure.png")
            write_folder(path, {name: self._content(Path(name).suffix) for name in names}, force=force)

    def _content(self, suffix: str) -> Any:
        """What is written to a file of that suffix."""
        if suffix == ".json":
            return self.document()
        return self.text(format=TABLES[suffix]) if suffix in TABLES else self.figure()

    def _repr_markdown_(self) -> str:
        return self.text(format="markdown")

    def _repr_png_(self) -> bytes:
        from erfscope.show import plot

        return plot.figure_bytes(self.figure(), ".png")


def _one_per_cell(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with every number in a cell of its own. A number of several values has a column for each, NAME_1,
    NAME_2, ..., as many as in its longest row."""
    lengths = {
        name: max((len(row[name]) for row in rows if isinstance(row[name], tuple)), default=0) for name in rows[0]
    }
    titles = [[f"{name}_{place + 1}" for place in range(n)] if n else [name] for name, n in lengths.items()]
    cells = [
        [[*(row[name] or ()), *[None] * n][:n] if n else [row[name]] for name, n in lengths.items()] for row in rows
    ]
    columns = tuple(Column(name=title) for part in titles for title in part)
    return Table(columns=columns, rows=rows_of([value for part in line for value in part] for line in cells))


def refuse_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`StudyResult.save` could not write; called before anything is computed.

    Raises:
        ErfscopeError: its suffix is unknown, it exists and ``force`` is not set, or its folder does not exist.
    """
    check_output(path, SUFFIXES, force=force, holding=STORED)


#: One NAME.json per study, written by ``erfscope study NAME -o erfscope/apps/lab/studies/kept/NAME.json --force``.
FOLDER = Path(__file__).parent / "kept"


def kept_study(name: str) -> StudyResult:
    """Read the study of a real run that the package ships; nothing is computed.

    Args:
        name: Name of a study.

    Raises:
        ErfscopeError: the package ships no run of it.
    """
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        raise ErfscopeError(f"erfscope keeps no run of a study {name!r}; run it")
    found = json.loads(file.read_text(encoding="utf-8"))
    table, settings = found["table"], found["settings"]
    rows = [StudyRow(**{key: tuples(value) for key, value in row.items()}, maps={}) for row in found["rows"]]
    return StudyResult(
        **{key: found[key] for key in ("study", "seconds", "environment")},
        **{key: settings[key] for key in ("seed", "effort", "data")},
        columns=tuple(_column(given, rows) for given in table["columns"]),
        section=table["section"],
        rows=rows,
        claims=[Claim(**each) for each in found["claims"]],
        picture=decoded(found["picture"]),
    )


def _column(given: dict[str, Any], rows: list[StudyRow]) -> StudyColumn:
    cells = {row.name: text for row, text in zip(rows, given.pop("cells"), strict=True)}
    return StudyColumn(given.pop("title"), lambda row: cells[row.name], **given)
