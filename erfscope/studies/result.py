"""The result of a study that was run: its table, claims and figure, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from erfscope.environment import environment
from erfscope.errors import unknown
from erfscope.results.json_values import plain
from erfscope.storage import writing
from erfscope.storage.files import report_bytes
from erfscope.storage.formats import FORMATS, suffixes
from erfscope.studies.stored_picture import encoded
from erfscope.studies.study import Effort, Row, StudyFindings
from erfscope.view.grids import csv_grid, text_grid

SCHEMA = "erfscope.study/1"
#: The file that identifies a study's folder.
STORED = "study.json"
#: Suffixes of the files that a study can be written to.
SUFFIXES = suffixes("report", "table", "figure")


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

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
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
            return csv_grid(_one_per_cell([row.numbers for row in self.rows]))
        lines = [[column.title for column in self.columns]]
        lines += [[column.text(row) for column in self.columns] for row in self.rows]
        return text_grid(lines, left=[not column.numeric for column in self.columns], format=format)

    def verdicts(self, *, format: str = "markdown") -> str:
        """The claims as text, one line each: the claim, the published result, that of the study, and the verdict.

        Raises:
            ErfscopeError: another format than those of :meth:`table`.
        """
        lines = [["claim", "published", "ours", "verdict"], *(list(astuple(each)) for each in self.claims)]
        return text_grid(lines, left=[True] * 4, format=format)

    def text(self, *, format: str) -> str:
        """The table, and the claims below it; CSV, which has one table, is without the claims.

        Raises:
            ErfscopeError: another format than those of :meth:`table`.
        """
        return self.table(format=format) + ("" if format == "csv" else "\n" + self.verdicts(format=format))

    def to_json(self) -> dict[str, Any]:
        """The study as JSON values."""
        return {
            "schema": SCHEMA,
            "study": self.study,
            "passed": self.passed,
            "conclusion": self.conclusion,
            "claims": [asdict(each) for each in self.claims],
            "settings": {"seed": self.seed, "effort": self.effort, "data": self.data},
            "seconds": round(self.seconds, 3),
            "environment": plain(self.environment),
            "rows": [plain(row.numbers) for row in self.rows],
        }

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
        document: dict[str, Any] = plain({**self.to_json(), "table": table, "picture": encoded(self.picture)})
        return document

    def figure(self, path: str | Path | None = None) -> Any:
        """Draw the study's matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Raises:
            ErfscopeError: another suffix, or it cannot be written.
        """
        from erfscope.figures.charts import draw

        return draw(self.picture, path=path)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the study: a folder (JSON, table, figure), or one file whose suffix decides.

        Raises:
            ErfscopeError: another suffix, the target exists and ``force`` is not set, or it cannot be written.
        """
        check_output(path, force=force)
        target = Path(path)
        if target.suffix.lower() in SUFFIXES:
            writing.write_bytes(target, self._content(target.suffix.lower()), force=force)
            return
        with writing.new_directory(target, force=force, holding=STORED) as folder:
            for name in (STORED, "table.csv", "table.md", "figure.png"):
                (folder / name).write_bytes(self._content(Path(name).suffix))

    def _content(self, suffix: str) -> bytes:
        if FORMATS[suffix].content == "figure":
            from erfscope.figures.canvas import figure_bytes

            return figure_bytes(self.figure(), suffix)
        return report_bytes(self.document()) if suffix == ".json" else self.text(format=FORMATS[suffix].table).encode()

    def _repr_markdown_(self) -> str:
        return self.text(format="markdown")

    def _repr_png_(self) -> bytes:
        return self._content(".png")


def _one_per_cell(rows: Sequence[dict[str, Any]]) -> list[list[object]]:
    """Return the lines of a table. A number of several values has a column for each, NAME_1, NAME_2, ..., as many as in
    its longest row."""
    lengths = {
        name: max((len(row[name]) for row in rows if isinstance(row[name], tuple)), default=0) for name in rows[0]
    }
    titles = [[f"{name}_{place + 1}" for place in range(n)] if n else [name] for name, n in lengths.items()]
    cells = [
        [[*(row[name] or ()), *[None] * n][:n] if n else [row[name]] for name, n in lengths.items()] for row in rows
    ]
    return [[value for part in line for value in part] for line in [titles, *cells]]


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`StudyResult.save` could not write; called before anything is computed.

    Raises:
        ErfscopeError: its suffix is unknown, it exists and ``force`` is not set, or its folder does not exist.
    """
    writing.check_output(path, SUFFIXES, force=force, holding=STORED)
