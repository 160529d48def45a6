"""A report as a paper's table: columns in which rows differ, a caption with what they share, and letters for findings
and notes of single rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from erfscope.results.result import Result
from erfscope.view import words
from erfscope.view.cells import MISSING, Cell
from erfscope.view.latex_text import escaped
from erfscope.view.report_view import Column, ReportView, Row
from erfscope.view.words import cells_note, error_words, listed, names, shared

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


#: Millimetres: a wider figure spans both columns of a paper.
COLUMN = 90.0


def latex_figure(
    results: Sequence[Result], shown: str, file: str, *, colour: str, contours: Sequence[float], width_mm: float
) -> str:
    """A figure environment with its caption, for a paper.

    Args:
        results: What the figure shows.
        shown: What this kind of figure shows.
        file: Name of the image's file.
        colour: Text of what the colours of its maps stand for; "" for a figure without maps.
        contours: Per cents of the ERF whose highest-density regions are outlined.
        width_mm: Width of the image.
    """
    drawn = [result for result in results if result.map is not None or result.ok] or list(results)
    common = [condition.alone for condition in shared(drawn).values()]
    what = shown if drawn[1:] else shown.replace("Effective receptive fields", "Effective receptive field")
    sentences = [f"{what} of {listed(names(drawn))}.", f"Conditions: {'; '.join(common)}."]
    if colour:
        sentences.append(
            f"Colour: {colour}; circles around the unit: radii that hold 50 % (full) and 90 % (dashed) of the ERF."
        )
        if contours:
            regions = listed(f"{each:g} %" for each in contours)
            sentences.append(f"Outlines: highest-density regions of {regions}, of the map smoothed.")
    sentences += filter(None, [cells_note(drawn)])
    sentences += [f"{words[:1].upper()}{words[1:]}." for words in error_words(drawn, "±")]
    cut = [name for name, result in zip(names(drawn), drawn, strict=True) if _is_cut(result)]
    if cut:
        sentences.append(f"Input too small for {listed(cut)}: sizes are underestimates.")
    name = "figure*" if width_mm > COLUMN else "figure"
    # LaTeX cannot escape every character in labels and names of files.
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", file)
    renamed = [] if plain == file else [f"% Rename the file to {plain}: LaTeX takes no other characters."]
    stem = plain.rpartition(".")[0]
    lines = [rf"\begin{{{name}}}", r"  \centering", rf"  \includegraphics[width={width_mm:.0f}mm]{{{plain}}}"]
    lines += [rf"  \caption{{{escaped(' '.join(sentences))}}}", rf"  \label{{fig:{stem}}}", rf"\end{{{name}}}", ""]
    return "\n".join([*renamed, *lines])


def _is_cut(result: Result) -> bool:
    """Whether the input cuts off so much of the ERF that its sizes are underestimates."""
    return any(finding.code == "clipped" for finding in result.findings)
