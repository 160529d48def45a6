"""Tables in Markdown; what all rows share, and the notes, are lines below them."""

from __future__ import annotations

from erfscope.view.grids import markdown_grid, markdown_text
from erfscope.view.paper import head, paper_table
from erfscope.view.report_view import ReportView


def markdown(view: ReportView) -> str:
    """A report as a table in Markdown."""
    table = paper_table(view)
    lines = [["model", *(head(c.name) + (f" ({c.unit})" if c.unit else "") for c in table.columns)]]
    for row, cells, mark in zip(view.rows, table.rows, table.marks, strict=True):
        label = markdown_text(row.result.label) + (f" ({mark})" if mark else "")
        lines.append([label, *(markdown_text(str(cell)) for cell in cells)])
    terms = "; ".join(f"{head(name)}: {meaning}" for name, meaning in table.terms)
    below = [
        markdown_text(table.caption + (f" {terms}." if terms else "")),
        *(f"({letter}) {markdown_text(text)}" for letter, text in table.notes),
    ]
    return markdown_grid(lines, left=[True, *(c.kind == "condition" for c in table.columns)]) + "".join(
        f"\n{text}\n" for text in below
    )
