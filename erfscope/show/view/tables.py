"""Tables of reports for the writers of text: a paper's (Markdown, LaTeX), every number (CSV) and plain text; a paper's
figure."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from erfscope.core.answer.findings import COMPARE, WITHOUT_OWN_CELL
from erfscope.core.answer.measures import INPUT_SHARE, MEASURES, SHOWN
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.printable import listed
from erfscope.core.values.unit import size_text
from erfscope.show.view import words
from erfscope.show.view.extras import halo_cell
from erfscope.show.view.report_view import ReportNote, ReportRow, ReportView, chosen_measures, report_view
from erfscope.show.view.table import (
    MISSING,
    WRITERS,
    Cell,
    Column,
    Note,
    Table,
    TableRow,
    Value,
    caption_line,
    escaped,
    format_table,
    rows_of,
)

#: Columns that say under which conditions a row's numbers hold.
CONDITIONS = ("label", "weights", "input", "layer", "unit", "convention", "status")
#: Columns of a CSV that say what the layer and the model are.
STRUCTURE = (
    "center_px",
    "stride_px",
    "trf_px",
    "trf_local_px",
    "global_by",
    "trf_exact",
    "parameters",
    "gmacs",
    "halo_px",
    "halo_alignment_px",
)
#: Columns that a paper has no room for; the terminal and CSV have them.
LEFT_OUT = ("stride", "params", "GMACs", "seed")
#: Heads of columns that differ from the name.
HEADS = {
    "erf_trf": "ERF/TRF",
    "center_share": "centre share",
    "angle_deg": "angle",
}
#: How a paper writes a measure, in LaTeX; \1 and \2 are what the name holds.
SYMBOLS = (
    (r"(context_)?r(\d+)", r"\1$r_{\2}$"),
    (r"(gaussian_)?sigma_(\w+)", r"\1$\\sigma_{\\mathrm{\2}}$"),
    (r"(side|area)(\d+)", r"\1$_{\2}$"),
    (r"gaussian_r2", "gaussian $R^2$"),
)
#: Beside the image of a figure.
ELSEWHERE = r"  % In a paper elsewhere: \graphicspath{{FOLDER/}}, with the folder of this file."
#: Measures of a table that a column of a paper holds, as far as they were measured.
PAPER = ("r50", "r90")


def text_table(report: Report, measures: Sequence[str] | None, *, compared: Sequence[str] = (), format: str) -> str:
    """A report's table as text.

    Args:
        report: The results, a row each.
        measures: Columns after the conditions; :func:`erfscope.show.view.report_view.chosen_measures` if None, of which
            LaTeX has what fits into one column of a paper where these are those of a comparison.
        compared: The measures that have columns of differences in CSV.
        format: ``"csv"`` (full precision, a column per standard error), ``"markdown"``, ``"latex"`` (booktabs) or
            ``"plain"`` (tabs).

    Raises:
        ErfscopeError: unknown format or measure.
    """
    if format not in WRITERS:
        raise unknown("table format", format, WRITERS)
    chosen = chosen_measures(report.results) if measures is None else list(measures)
    for name in chosen:
        if name not in (INPUT_SHARE, *MEASURES):
            raise unknown("measure", name, MEASURES, limit=40)
    if format == "csv":
        view, others = report_view(report, chosen, compared=compared), compared if len(report) > 1 else ()
        return format_table(full_table(view, chosen, others), format)
    shares = [name for name in chosen if name == INPUT_SHARE]
    if format == "latex" and measures is None and chosen == [*shares, *SHOWN]:
        return format_table(paper_table(_in_one_column(report_view(report, [*shares, *PAPER]))), format)
    view = report_view(report, chosen)
    view = report_view(report, measures)
    return format_table(plain_table(view) if format == "plain" else paper_table(view), format)


def dataframe(table: str) -> Any:
    """A table in CSV as a pandas data frame; conditions stay text, whatever they look like.

    Raises:
        ErfscopeError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ErfscopeError(
            "a data frame needs pandas, which is not installed: pip install pandas, or take table(format='csv')"
        ) from error
    frame = pandas.read_csv(
        io.StringIO(table), dtype=dict.fromkeys(CONDITIONS, str), keep_default_na=False, na_values=[""]
    )
    # Some releases read the last digit of a number otherwise.
    texts = pandas.read_csv(io.StringIO(table), dtype=str, keep_default_na=False)
    for name in frame.select_dtypes("float"):
        frame[name] = [float(text or "nan") for text in texts[name]]
    return frame


# --- Plain text and CSV ---------------------------------------------------------------------------


def plain_table(view: ReportView) -> Table:
    """The conditions, the structure and the measures of every result."""
    names = [column.name for column in view.columns if column.kind != "condition" or column.name == "sizes"]
    rows = [TableRow(cells=(*_conditions(row), *(row.cells[name] for name in names))) for row in view.rows]
    return Table(columns=_named(*CONDITIONS, *names), rows=tuple(rows))


def full_table(view: ReportView, measures: Sequence[str], compared: Sequence[str]) -> Table:
    """Every number in full, a column for each."""
    numbers = [column for name in measures for column in (name, f"{name}_se")]
    changes = [column for name in compared for column in (f"{name}_diff", f"{name}_diff_se")]
    fixed = [*CONDITIONS, "wrt", "insert", "alpha", *STRUCTURE, "in_plane", "length_unit", "se_over"]
    columns = _named(*fixed, *numbers, *changes, "findings", "error")
    return Table(columns=columns, rows=rows_of(_values(row, measures, compared) for row in view.rows))


def _named(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name) for name in names)


def _conditions(row: ReportRow) -> list[str]:
    return [row.result.label, *(row.cells[name].sort for name in CONDITIONS[1:-1]), row.result.status]


def _values(row: ReportRow, measures: Sequence[str], compared: Sequence[str]) -> list[Value]:
    result = row.result
    values: list[Value] = [*_conditions(row), result.wrt, result.insert, result.alpha, *_structure(result)]
    values += [str(result.is_in_plane).lower(), result.axes.unit] if result.measures else [None, None]
    values += [result.se_over if any(measure.se is not None for measure in result.measures.values()) else None]
    for cell in [row.cells[name] for name in measures] + [row.cells[name].difference for name in compared]:
        values += [None, None] if cell is None else [cell.value, cell.error and cell.error.value]
    return [*values, " ".join(dict.fromkeys(finding.code for finding in result.findings)), result.error]


def _structure(result: Result) -> Iterator[Value]:
    """Centre and stride of the unit, TRF, cost and halo of one result, for CSV."""
    unit, trf, cost, halo = result.unit, result.trf, result.cost, result.halo
    yield None if unit is None else ",".join(f"{place:g}" for place in unit.center_px)
    yield None if unit is None else size_text([f"{side:g}" for side in unit.stride_px])
    yield from (
        (None,) * 4
        if trf is None
        else (size_text(trf.size_px), size_text(trf.local_size_px), trf.global_by, str(trf.exact).lower())
    )
    yield from (None, None) if cost is None else (cost.parameters, cost.gmacs)
    yield from (None, None) if halo is None else (halo_cell(halo), size_text(halo.alignment_px))


# --- A paper's table ------------------------------------------------------------------------------


def paper_table(view: ReportView) -> Table:
    """A report as a paper would arrange it: columns in which rows differ, a caption with what they share, and letters
    for findings and notes of single rows."""
    columns = [column for column in view.columns if _has_column(view, column)]
    notes = sorted(view.notes, key=lambda note: note.rows)
    letters = {note: _letter(place) for place, note in enumerate(notes)}
    names = {column.name for column in columns}
    # A note sends nobody to columns that the table lacks.
    texts = [note.text if names.issuperset(WITHOUT_OWN_CELL) else note.text.removesuffix(COMPARE) for note in notes]
    texts = [
        f"{text} ({view.rows[note.rows[0]].name})" if _is_of_first(view, note) else text
        for note, text in zip(notes, texts, strict=True)
    ]
    rows = [
        TableRow(
            cells=(row.result.label, *(_cell(row, column) for column in columns)),
            mark=",".join(letter for note, letter in letters.items() if row.index in note.rows),
        )
        for row in view.rows
    ]
    return Table(
        columns=(Column(name="model"), *(_titled(column.name, column.kind, column.unit) for column in columns)),
        rows=tuple(rows),
        caption=" ".join(_caption(view, columns)),
        terms=tuple(_terms(view, columns)),
        notes=tuple(Note(label=letter, text=text) for letter, text in zip(letters.values(), texts, strict=True)),
    )


def _is_of_first(view: ReportView, note: ReportNote) -> bool:
    """Whether the text of a note of several rows may be that of the first alone."""
    return len(note.rows) > 1 and len({view.rows[row].result.label for row in note.rows}) == 1


def _in_one_column(view: ReportView) -> ReportView:
    """The view whose table a column of a paper holds: the conditions in which rows differ are one column, and what
    layer and model are stands in the caption alone, where all rows share it."""
    apart = [column for column in view.columns if column.kind == "condition" and _has_column(view, column)]
    others = [c for c in view.columns if c.kind == "measure" or (c.kind == "structure" and not c.differs)]
    if len(apart) < 2:
        return replace(view, columns=(*apart, *others))
    joined = Column(name=", ".join(column.head for column in apart), kind="condition")
    rows = (
        replace(row, cells={**row.cells, joined.name: Cell(text=", ".join(str(_cell(row, each)) for each in apart))})
        for row in view.rows
    )
    return replace(view, columns=(joined, *others), rows=tuple(rows))


def _titled(name: str, kind: Any = "text", unit: str = "", gloss: str = "") -> Column:
    return Column(name=name, title=title(name), symbol=symbol(name), kind=kind, unit=unit, gloss=gloss)


def title(name: str) -> str:
    """The head of a column in plain text."""
    return HEADS.get(name, name.replace("_", " "))


def symbol(name: str) -> str:
    """The head of a column in LaTeX, e.g. ``$r_{50}$``."""
    for pattern, text in SYMBOLS:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, text, name).replace("_$", " $")
    return escaped(title(name))


def _has_column(view: ReportView, column: Column) -> bool:
    if column.kind == "measure":
        return True
    if column.name == "weights" and any(row.result.weights.fallback for row in view.rows):
        # Rows name random weights in place of pretrained ones even where all rows share them.
        return True
    if column.name == "unit":
        # Indices of units of different layers differ anyway, so that they only matter within a layer.
        return any("unit" in row.distinguishing for row in view.rows)
    return column.differs and column.name not in LEFT_OUT


def _cell(row: ReportRow, column: Column) -> Cell:
    if column.kind == "measure" and not row.result.ok:
        return MISSING
    return row.cells.get(column.name, MISSING)


def _caption(view: ReportView, columns: list[Column]) -> Iterator[str]:
    shown = words.usable(view.results)
    labels = list(dict.fromkeys(result.label for result in shown))
    of = labels[0] if len(labels) == 1 else f"{len(labels)} models"
    if steps := words.steps_of_one(shown):
        of = f"{shown[0].model} at {steps} steps of its training"
    elif files := words.checkpoints_of_one(shown):
        of = f"{shown[0].model} with {files} checkpoints"
    yield f"Effective receptive field{'s' * (len(shown) != 1)} (ERF) of {of}: {'; '.join(_shared(view, columns))}."
    if any(cell.error is not None for row in view.rows for cell in row.cells.values()):
        over = dict.fromkeys(result.se_over for result in shown)
        yield f"± is the {words.JACKKNIFE} over {listed(words.over_text(shown, each) for each in over)}."
    place = view.pixel_note
    place = f"{place[0].upper()}{place[1:]}." if place else ""
    yield from filter(None, (words.plane_note(shown), words.cells_note(shown), place))


def _shared(view: ReportView, columns: list[Column]) -> Iterator[str]:
    """The conditions and columns that all rows share, as items of the caption."""
    given = {column.name for column in columns}
    yield from (condition.alone for name, condition in view.shared.items() if name not in given)
    for column in view.columns:
        if column.kind == "structure" and not column.differs:
            cell = next((row.cells[column.name] for row in view.rows if row.result.ok), MISSING)
            unit = column.unit.removesuffix("s") if cell.text == "1" else column.unit
            text = f"{column.name} {cell} {unit}".rstrip()
            if not cell.is_missing:
                yield {"params": f"{cell} parameters", "GMACs": f"{cell} GMACs"}.get(column.name, text)


def _terms(view: ReportView, columns: list[Column]) -> Iterator[Column]:
    """All columns with a meaning, and the terms in these meanings."""
    names = [column.name for column in columns]
    has_field = any(column.name == "TRF" for column in view.columns)
    names += ["TRF"] if has_field and any(result.trf is not None for result in words.usable(view.results)) else []
    # The meaning of context_r50 refers to r50.
    names += ["r50"] if "context_r50" in names else []
    known = [(name, text) for name, text in words.GLOSS.items() if name in names and name not in LEFT_OUT]
    known += filter(None, [words.global_note(view.results)] * has_field)
    yield from (_titled(name, gloss=text) for name, text in known)


def _letter(place: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)


# --- A paper's figure -----------------------------------------------------------------------------


def latex_figure(
    results: Sequence[Result], shown: str, file: str, *, words_on: Sequence[str], has_maps: bool, is_wide: bool
) -> str:
    """A figure environment with its caption, for a paper.

    Args:
        results: What the figure shows.
        shown: What this kind of figure shows.
        file: Name of the image's file.
        words_on: What is to be said of it; conditions that all results share may be among it.
        has_maps: Whether it shows maps, with rings.
        is_wide: Whether it is wider than one of two columns.
    """
    drawn = [result for result in results if result.map is not None or result.ok] or list(results)
    common = [condition.alone for condition in words.shared(drawn).values()]
    others = "; ".join(text for text in words_on if text not in common)
    what = shown if drawn[1:] else shown.replace("Effective receptive fields", "Effective receptive field")
    sentences = [f"{what} of {listed(words.names(drawn))}.", f"Conditions: {'; '.join(common)}."]
    sentences += [f"{others[:1].upper()}{others[1:]}."] if others else []
    if has_maps and any(words.radii(result) and len(result.axes.names) > 1 for result in drawn):
        sentences.append("Circles around the unit: radii that hold 50 % (full) and 90 % (dashed) of the ERF.")
    sentences += filter(None, [words.cells_note(drawn)])
    cut = [name for name, result in zip(words.names(drawn), drawn, strict=True) if _is_cut(result)]
    if cut:
        sentences.append(f"Input too small for {listed(cut)}: sizes are underestimates.")
    name, width = ("figure*", "textwidth") if is_wide else ("figure", "linewidth")
    # LaTeX cannot escape every character in labels and names of files.
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", file)
    renamed = [] if plain == file else [f"% Rename the file to {plain}: LaTeX takes no other characters."]
    stem = plain.rpartition(".")[0]
    lines = [rf"\begin{{{name}}}", r"  \centering", ELSEWHERE, rf"  \includegraphics[width=\{width}]{{{plain}}}"]
    lines += [caption_line(" ".join(sentences)), rf"  \label{{fig:{stem}}}", rf"\end{{{name}}}", ""]
    return "\n".join([*renamed, *lines])


def _is_cut(result: Result) -> bool:
    """Whether the input cuts off so much of the ERF that its sizes are underestimates."""
    return any(finding.code == "clipped" for finding in result.findings)
