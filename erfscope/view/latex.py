"""Tables in LaTeX (booktabs)."""

from __future__ import annotations

import re

from erfscope.view.cells import Cell
from erfscope.view.grids import latex_grid
from erfscope.view.latex_text import escaped
from erfscope.view.paper import head, paper_table
from erfscope.view.report_view import Column, ReportView

#: How a paper writes a measure, in LaTeX; \1 and \2 are what the name holds.
SYMBOLS = (
    (r"(context_)?r(\d+)", r"\1$r_{\2}$"),
    (r"(gaussian_)?sigma_(\w+)", r"\1$\\sigma_{\\mathrm{\2}}$"),
    (r"(side|area)(\d+)", r"\1$_{\2}$"),
    (r"gaussian_r2", "gaussian $R^2$"),
)
#: More columns than this are set over both columns of a page.
NARROW = 8


def latex(view: ReportView) -> str:
    """A ``table`` environment with a caption, ``table*`` where it is wide; needs the package booktabs alone."""
    table = paper_table(view)
    errors = [any(cells[place].error for cells in table.rows) for place in range(len(table.columns))]
    lines = [["model", *map(_head, table.columns, errors)]]
    for row, cells, mark in zip(view.rows, table.rows, table.marks, strict=True):
        label = escaped(row.result.label) + (f"\\textsuperscript{{{mark}}}" if mark else "")
        lines.append([label, *map(_cell, table.columns, cells, errors)])
    kinds = [
        "l" if c.kind == "condition" else "r@{${}\\pm{}$}l" if e else "r"
        for c, e in zip(table.columns, errors, strict=True)
    ]
    notes = [f"  {{\\footnotesize \\textsuperscript{{{letter}}}~{escaped(text)}\\par}}" for letter, text in table.notes]
    environment = "table*" if len(table.columns) >= NARROW else "table"
    terms = "; ".join(f"{title(name)}: {escaped(meaning)}" for name, meaning in table.terms)
    caption = escaped(_times(table.caption)) + (f" {terms}." if terms else "")
    return "\n".join(
        (
            "% needs \\usepackage{booktabs}",
            f"\\begin{{{environment}}}",
            "  \\centering",
            f"  \\caption{{{caption}}}",
            "  \\label{tab:erf}",
            *(f"  {line}" for line in latex_grid(lines, ["l", *kinds])),
            *(["  \\par\\smallskip", *notes] if notes else []),
            f"\\end{{{environment}}}\n",
        )
    )


def title(name: str) -> str:
    """The head of a column in LaTeX, e.g. ``$r_{50}$``."""
    for pattern, symbol in SYMBOLS:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, symbol, name).replace("_$", " $")
    return escaped(head(name))


def _times(text: str) -> str:
    """Sizes with a sign of multiplication in place of the letter."""
    return re.sub(r"(?<=\d)x(?=\d)", "×", text)


def _head(column: Column, has_errors: bool) -> str:
    text = title(column.name) + (f" ({escaped(column.unit)})" if column.unit else "")
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if has_errors else text


def _cell(column: Column, cell: Cell, has_errors: bool) -> str:
    is_number = isinstance(cell.value, int | float)
    text = f"${cell.text}$" if is_number else escaped(_times(cell.text) if column.kind != "measure" else cell.text)
    if cell.error is not None:
        return f"{text} & ${cell.error.text}$"
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if has_errors else text
