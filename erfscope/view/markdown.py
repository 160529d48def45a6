"""Tables in Markdown; what all rows share, and the notes, are lines below them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from erfscope.printable import one_line
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
    return grid(lines, left=[True, *(c.kind == "condition" for c in table.columns)]) + "".join(
        f"\n{text}\n" for text in below
    )


def grid(lines: Sequence[Sequence[str]], *, left: Sequence[bool]) -> str:
    """A table of texts whose first line is its head; each column is aligned to the left or to the right."""
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width if is_left else "-" * (width - 1) + ":" for width, is_left in zip(widths, left, strict=True)]
    padded = [
        [
            text.ljust(width) if is_left else text.rjust(width)
            for text, width, is_left in zip(line, widths, left, strict=True)
        ]
        for line in lines
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in (padded[0], rule, *padded[1:]))


def markdown_text(text: str) -> str:
    """Any text as Markdown that prints it: it ends no cell, and starts no tag and no link."""
    return re.sub(r"[\\|\[]", r"\\\g<0>", one_line(text)).replace("<", "&lt;")
