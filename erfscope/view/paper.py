"""A report as a paper's table: columns in which rows differ, a caption with what they share, and letters for findings
and notes of single rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from erfscope.view import words
from erfscope.view.cells import MISSING, Cell
from erfscope.view.report_view import Column, ReportView, Row

#: Columns that a paper has no room for; the terminal and CSV have them.
LEFT_OUT = ("stride", "params", "GMACs", "seed")
#: Heads of columns that differ from the name.
HEADS = {
    "erf_trf": "ERF/TRF",
    "center_share": "centre share",
    "angle_deg": "angle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A table as LaTeX and Markdown show it; each row begins with its model's name, which is no cell."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    #: (name, meaning) of the columns, for the end of the caption.
    terms: tuple[tuple[str, str], ...]
    #: (letter, text) of findings and notes of rows.
    notes: tuple[tuple[str, str], ...]
    #: The letters behind the name of each row; "" for none.
    marks: tuple[str, ...]


def paper_table(view: ReportView) -> PaperTable:
    """Arrange a report as a paper would."""
    columns = [column for column in view.columns if _has_column(view, column)]
    notes = sorted(view.notes, key=lambda note: note.rows)
    letters = {note: _letter(place) for place, note in enumerate(notes)}
    texts = [f"{note.text} ({view.rows[note.rows[0]].name})" if note.rows[1:] else note.text for note in notes]
    return PaperTable(
        columns=tuple(columns),
        rows=tuple(tuple(_cell(row, column) for column in columns) for row in view.rows),
        caption=" ".join(_caption(view, columns)),
        terms=tuple(_terms(view, columns)),
        notes=tuple(zip(letters.values(), texts, strict=True)),
        marks=tuple(
            ",".join(letter for note, letter in letters.items() if row.index in note.rows) for row in view.rows
        ),
    )


def head(name: str) -> str:
    """The head of a column in plain text."""
    return HEADS.get(name, name.replace("_", " "))


def _has_column(view: ReportView, column: Column) -> bool:
    if column.kind == "measure":
        return True
    if column.name == "weights" and any(row.result.weights.fallback for row in view.rows):
        # Rows name random weights in place of pretrained ones even where all rows share them.
        return True
    if column.name == "unit":
        # Indices of units of different layers differ anyway, so that they only matter within a layer.
        return any("unit" in row.told_apart_by for row in view.rows)
    return column.differs and column.name not in LEFT_OUT


def _cell(row: Row, column: Column) -> Cell:
    if column.kind == "measure" and not row.result.ok:
        return MISSING
    return row.cells.get(column.name, MISSING)


def _caption(view: ReportView, columns: list[Column]) -> Iterator[str]:
    shown = words.usable(view.results)
    labels = list(dict.fromkeys(result.label for result in shown))
    of = labels[0] if len(labels) == 1 else f"{len(labels)} models"
    if steps := words.steps_of_one(shown):
        of = f"{shown[0].model} at {steps} steps of its training"
    yield f"Effective receptive field{'s' * (len(shown) != 1)} (ERF) of {of}: {'; '.join(_shared(view, columns))}."
    if any(cell.error is not None for row in view.rows for cell in row.cells.values()):
        over = words.listed(dict.fromkeys(result.se_over for result in shown))
        yield f"± is the {words.JACKKNIFE} over {over}."
    yield from filter(None, (words.plane_note(shown), words.cells_note(shown)))


def _shared(view: ReportView, columns: list[Column]) -> Iterator[str]:
    """The conditions and columns that all rows share, as items of the caption."""
    given = {column.name for column in columns}
    yield from (condition.alone for name, condition in view.shared.items() if name not in given)
    for column in view.columns:
        if column.kind == "structure" and not column.differs:
            cell = next((row.cells[column.name] for row in view.rows if row.result.ok), MISSING)
            text = f"{column.name} {cell} {column.unit}".rstrip()
            if not cell.is_missing:
                yield {"params": f"{cell} parameters", "GMACs": f"{cell} GMACs"}.get(column.name, text)


def _terms(view: ReportView, columns: list[Column]) -> Iterator[tuple[str, str]]:
    """(name, meaning) of all columns, and of the terms in these meanings."""
    names = [column.name for column in columns]
    names += ["TRF"] if any(result.trf is not None for result in words.usable(view.results)) else []
    # The meaning of context_r50 refers to r50.
    names += ["r50"] if "context_r50" in names else []
    yield from ((name, text) for name, text in words.GLOSS.items() if name in names and name not in LEFT_OUT)
    if note := words.global_note(view.results):
        yield note


def _letter(place: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)
