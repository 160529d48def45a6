"""Results as tables for a paper: LaTeX (booktabs) and Markdown. What is the same in every row stands in the caption."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from erfscope.geometry.names import IMAGE
from erfscope.geometry.receptive_field import Trf
from erfscope.measures import MEASURES
from erfscope.printable import one_line
from erfscope.results.result import Result
from erfscope.tables.columns import (
    UNIT_SIGNS,
    Cell,
    cell,
    conditions,
    images_text,
    plane_note,
    rounded,
    steps_of_one,
    structure_columns,
)
from erfscope.tables.conditions import option_values
from erfscope.tables.meanings import TERMS

DASH = "–"
#: Columns of sizes that are no measures: the input in pixels, the others in cells of the reference.
SIZES = ("input", "stride", "TRF")
#: How a paper writes a measure, in LaTeX; \1 and \2 are what the name holds.
SYMBOLS = (
    (r"(context_)?r(\d+)", r"\1$r_{\2}$"),
    (r"(gaussian_)?sigma_(\w+)", r"\1$\\sigma_{\\mathrm{\2}}$"),
    (r"(side|area)(\d+)", r"\1$_{\2}$"),
    (r"gaussian_r2", "gaussian $R^2$"),
)
#: How it heads columns whose name is not said well by itself.
HEADS = {
    "label": "model",
    "params M": "params (M)",
    "erf_trf": "ERF/TRF",
    "center_share": "centre share",
    "angle_deg": "angle",
}
#: What a paper has no room for where rows differ in it; it stands in the terminal and in CSV.
LEFT_OUT = ("stride", "params M", "GMACs")
#: More columns than this are set over both columns of a page.
NARROW = 8
#: What LaTeX needs in place of a character.
ESCAPES = {character: f"\\{character}" for character in "{}$&%#_"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "|": "\\textbar{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "–": "--",
    "—": "---",
    "…": "\\ldots{}",
    "·": "\\textperiodcentered{}",
    "±": "$\\pm$",
    "≤": "$\\leq$",
    "×": "$\\times$",
    "→": "$\\to$",
    "−": "$-$",
    "µ": "$\\mu$",
    "σ": "$\\sigma$",
    "²": "$^2$",
    "°": "$^\\circ$",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: words, or numbers with errors."""

    name: str
    unit: str = ""
    cells: tuple[str | Cell, ...]

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left."""
        return self.name in ("label", "weights", "input", "layer", "unit", "convention", "images", "method")

    @property
    def has_errors(self) -> bool:
        """Whether any of its numbers has one."""
        return any(isinstance(entry, Cell) and entry.se is not None for entry in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """What both formats show: columns, what all rows share, and why rows have no numbers."""

    columns: tuple[Column, ...]
    caption: str
    #: (name, meaning) of the columns that the caption explains.
    terms: tuple[tuple[str, str], ...]
    #: (letter, reason) of the rows without numbers.
    notes: tuple[tuple[str, str], ...]
    #: The letter behind the name of each row; "" for none.
    marks: tuple[str, ...]


def paper_table(results: Sequence[Result], measures: Sequence[str]) -> PaperTable:
    """Arrange results as a paper would.

    Args:
        results: One row each. One that cannot be used has dashes, and its reason as a note.
        measures: Their columns, after those conditions and sizes of the model that differ between rows.

    Returns:
        The table. Random weights in place of pretrained ones stay in their rows, whatever all rows share.
    """
    usable = [result for result in results if result.ok] or list(results)
    references = {result.wrt == IMAGE for result in usable}
    cells_unit = "" if len(references) > 1 else "px" if references == {True} else "cells"
    columns, shared = _conditions(results, cells_unit)
    shown = results if any(column.name == "TRF" for column in columns) else usable
    fields = [result.trf for result in shown if result.trf is not None] if "TRF" in structure_columns(results) else []
    for name in measures:
        power = MEASURES[name].unit.removeprefix("px")
        unit = MEASURES[name].unit if power == MEASURES[name].unit else cells_unit and cells_unit + power
        numbers = tuple(cell(result, name) if result.ok else Cell(value=None) for result in results)
        columns.append(Column(name=name, unit=unit, cells=numbers))
    lost = [row for row, result in enumerate(results) if not result.ok]
    letters = {row: _letter(place) for place, row in enumerate(lost)}
    return PaperTable(
        columns=tuple(columns),
        caption=_caption(usable, shared, columns),
        terms=tuple(_terms(fields, measures)),
        notes=tuple((letters[row], one_line(results[row].error or results[row].status)) for row in lost),
        marks=tuple(letters.get(row, "") for row in range(len(results))),
    )


def _conditions(results: Sequence[Result], cells_unit: str) -> tuple[list[Column], list[str]]:
    """The columns before the measures, and in words what all usable rows share."""
    columns, shared = [_column("label", [result.label for result in results])], []
    rows = [
        _facts(result) | {name: read(result) for name, read in structure_columns(results).items()} for result in results
    ]
    some_ok = any(result.ok for result in results)
    for name in [*(name for name in rows[0] if name != "images"), "images"]:
        unit = "px" if name == "input" else cells_unit if name in SIZES else ""
        common = {row.get(name, "") for row, result in zip(rows, results, strict=True) if result.ok or not some_ok}
        fallback = name == "weights" and any(result.weights.fallback for result in results)
        if len(common) > 1 and (name in LEFT_OUT or (name == "unit" and not _told_by_unit(results))):
            continue
        if len(common) > 1 or fallback:
            columns.append(_column(name, [row.get(name) or DASH for row in rows], unit))
        elif common - {"", DASH}:
            shared.append(_said(name, next(iter(common)), unit))
    return columns, shared


def _told_by_unit(results: Sequence[Result]) -> bool:
    """Whether results differ in nothing that has a column but the unit: units of different layers differ wherever they
    are."""
    rows = [
        {name: text for name, text in _facts(result).items() if name != "unit"} | {"label": result.label}
        for result in results
        if result.ok
    ]
    return any(row in rows[:place] for place, row in enumerate(rows))


def _terms(fields: Sequence[Trf], measures: Sequence[str]) -> list[tuple[str, str]]:
    """What the caption has to explain."""
    everywhere = [field.local_size_px != field.size_px for field in fields if field.is_global]
    everything = "all (n)" if any(everywhere) else "all" if everywhere else ""
    # That of context_r50 is said after that of r50.
    basis = ["r50"] if "context_r50" in measures else []
    names = [*(["TRF"] if fields or "erf_trf" in measures else []), everything, *basis, *measures]
    return [(name, TERMS[name]) for name in dict.fromkeys(names) if name in TERMS]


def _facts(result: Result) -> dict[str, str]:
    """Conditions of one row that a reader of the paper needs; a note says what its status is."""
    facts = {name: text for name, text in conditions(result).items() if name not in ("label", "status")}
    return {
        **facts,
        **option_values(result),
        "method": "" if result.method == "gradient" else result.method,
        "images": images_text(result),
    }


def _column(name: str, cells: Sequence[str], unit: str = "") -> Column:
    return Column(name=name, unit=unit, cells=tuple(one_line(text) for text in cells))


def _said(name: str, text: str, unit: str) -> str:
    """One condition in a caption."""
    said = {"images": f"measured on {text}", "params M": f"{text} M parameters", "GMACs": f"{text} GMACs"}
    return said.get(name, f"{name} {text}" + (f" {unit}" if unit else ""))


def _letter(place: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)


def _caption(usable: Sequence[Result], shared: Sequence[str], columns: Sequence[Column]) -> str:
    names = list(dict.fromkeys(result.label for result in usable))
    of = names[0] if len(names) == 1 else f"{len(names)} models"
    if steps := steps_of_one(usable):
        of = f"{usable[0].model} at {steps} steps of its training"
    text = f"Effective receptive field{'s' * (len(usable) != 1)} (ERF) of {of}"
    text += f": {'; '.join(shared)}." if shared else "."
    if any(column.has_errors for column in columns):
        over = " and ".join(dict.fromkeys(result.se_over for result in usable))
        text += f" ± is the delete-one-group jackknife standard error over {over}."
    if len({result.wrt == IMAGE for result in usable}) > 1:
        text += " Sizes are in pixels of the image, or in cells of the map where the layer says with respect to which."
    note = plane_note(usable)
    return one_line(f"{text} {note}" if note else text)


def title(name: str) -> str:
    """How a paper heads a column, in LaTeX: ``$r_{50}$``."""
    for pattern, symbol in SYMBOLS:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, symbol, name).replace("_$", " $")
    return escaped(HEADS.get(name, name.replace("_", " ")))


def escaped(text: str) -> str:
    """Any text as LaTeX that prints it."""
    # Hyphens side by side would be drawn as one dash.
    apart = re.sub(r"-(?=[-–—])|–(?=-)", "\\g<0>\0", one_line(text))
    safe = "".join("{}" if character == "\0" else ESCAPES.get(character, character) for character in apart)
    # At the beginning of a row these two belong to the command before it.
    return f"{{}}{safe}" if safe[:1] in ("[", "*") else safe


def latex(table: PaperTable) -> str:
    """A ``table`` environment with a caption, ``table*`` where it is wide; needs the package booktabs alone."""
    rows = [_latex_row(table, row) for row in range(len(table.marks))]
    lines = [[_latex_head(column) for column in table.columns], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    head, *body = (
        " & ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + " \\\\"
        for line in lines
    )
    spec = "".join(
        "l" if column.is_text else "r@{${}\\pm{}$}l" if column.has_errors else "r" for column in table.columns
    )
    notes = [f"  {{\\footnotesize \\textsuperscript{{{letter}}}~{escaped(text)}\\par}}" for letter, text in table.notes]
    environment = "table*" if len(table.columns) > NARROW else "table"
    terms = "; ".join(f"{title(name)}: {escaped(meaning)}" for name, meaning in table.terms)
    caption = escaped(_times(table.caption)) + (f" {terms}." if terms else "")
    return "\n".join(
        (
            "% needs \\usepackage{booktabs}",
            f"\\begin{{{environment}}}",
            "  \\centering",
            f"  \\caption{{{caption}}}",
            "  \\label{tab:erf}",
            f"  \\begin{{tabular}}{{{spec}}}",
            "    \\toprule",
            f"    {head}",
            "    \\midrule",
            *(f"    {line}" for line in body),
            "    \\bottomrule",
            "  \\end{tabular}",
            *(["  \\par\\smallskip", *notes] if notes else []),
            f"\\end{{{environment}}}\n",
        )
    )


def _times(text: str) -> str:
    """Sizes with a sign of multiplication in place of the letter."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", text)


def _latex_head(column: Column) -> str:
    units = {"px2": "px$^2$", "cells2": "cells$^2$", "deg": "$^\\circ$"}
    text = title(column.name) + (f" ({units.get(column.unit, column.unit)})" if column.unit else "")
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if column.has_errors else text


def _latex_row(table: PaperTable, row: int) -> list[str]:
    texts = []
    for column in table.columns:
        entry = column.cells[row]
        if isinstance(entry, str):
            mark = f"\\textsuperscript{{{table.marks[row]}}}" if column.name == "label" and table.marks[row] else ""
            texts.append(escaped(_times(entry) if column.name in SIZES else entry) + mark)
            continue
        value, error = rounded(entry.value, entry.se)
        value = escaped(value) if isinstance(entry.value, str) or entry.value is None else f"${value}$"
        if error is not None:
            texts.append(f"{value} & ${error}$")
        else:
            texts.append(f"\\multicolumn{{2}}{{c}}{{{value}}}" if column.has_errors else value)
    return texts


def markdown(table: PaperTable) -> str:
    """A table in Markdown; what all rows share, and the notes, are lines below it."""
    lines = [[_markdown_head(column) for column in table.columns]]
    for row, mark in enumerate(table.marks):
        texts = [_markdown_cell(column.cells[row]) for column in table.columns]
        lines.append([texts[0] + (f" ({mark})" if mark else ""), *texts[1:]])
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(table.columns))]
    rule = [
        "-" * width if column.is_text else "-" * (width - 1) + ":"
        for column, width in zip(table.columns, widths, strict=True)
    ]
    padded = [
        [
            text.ljust(width) if column.is_text else text.rjust(width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        ]
        for line in lines
    ]
    body = "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], rule, *padded[1:]))
    terms = "; ".join(f"{HEADS.get(name, name.replace('_', ' '))}: {meaning}" for name, meaning in table.terms)
    below = [
        markdown_text(table.caption + (f" {terms}." if terms else "")),
        *(f"({letter}) {markdown_text(text)}" for letter, text in table.notes),
    ]
    return body + "\n\n" + "\n\n".join(below) + "\n"


def _markdown_head(column: Column) -> str:
    unit = UNIT_SIGNS.get(column.unit, column.unit)
    return HEADS.get(column.name, column.name.replace("_", " ")) + (f" ({unit})" if unit else "")


def _markdown_cell(entry: str | Cell) -> str:
    if isinstance(entry, str):
        return markdown_text(entry)
    value, error = rounded(entry.value, entry.se)
    return value if error is None else f"{value} ± {error}"


def markdown_text(text: str) -> str:
    """Any text as Markdown that prints it: it ends no cell, and starts no tag and no link."""
    return re.sub(r"[\\|\[]", r"\\\g<0>", one_line(text)).replace("<", "&lt;")
