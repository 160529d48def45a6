"""Tables of plain texts in every format; tables of results and of studies are written with these functions.

Each takes the lines of a table, the first of which is its head.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from erfscope.errors import unknown
from erfscope.printable import one_line, printable
from erfscope.view.latex_text import escaped


def text_grid(lines: Sequence[Sequence[str]], *, left: Sequence[bool], format: str) -> str:
    """Any texts as a table.

    Args:
        lines: The cells.
        left: Which columns are aligned to the left, for Markdown and LaTeX; the others are aligned to the right.
        format: ``"csv"``, ``"markdown"``, ``"latex"`` (booktabs) or ``"plain"`` (tabs).

    Raises:
        ErfscopeError: another format.
    """
    if format == "csv":
        return csv_grid(lines)
    if format == "markdown":
        return markdown_grid([[markdown_text(text) for text in line] for line in lines], left=left)
    if format == "latex":
        kinds = ["l" if is_left else "r" for is_left in left]
        rows = latex_grid([[escaped(text) for text in line] for line in lines], kinds)
        return "\n".join(rows) + "\n"
    if format == "plain":
        return plain_grid(lines)
    raise unknown("table format", format, ["csv", "markdown", "latex", "plain"])


def csv_grid(lines: Iterable[Sequence[object]]) -> str:
    """Values as CSV; None is an empty cell."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_harmless(item) for item in line] for line in lines)
    return buffer.getvalue()


def _harmless(item: object) -> object:
    """Text that steers no terminal, and is quoted where a spreadsheet would run it as a formula."""
    if not isinstance(item, str):
        return item
    text = printable(item, keep="\n")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def plain_grid(lines: Iterable[Sequence[str]]) -> str:
    """Texts with tabs between them."""
    return "".join("\t".join(line) + "\n" for line in lines)


def markdown_grid(lines: Sequence[Sequence[str]], *, left: Sequence[bool]) -> str:
    """Markdown in cells; each column is aligned to the left or to the right."""
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


def latex_grid(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    """LaTeX in cells, as the lines of a ``tabular`` of booktabs.

    Args:
        lines: The cells.
        columns: The kind of each column, such as ``"l"`` or ``"r"``.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = (
        " & ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + " \\\\"
        for line in lines
    )
    inside = ["\\toprule", head, "\\midrule", *body, "\\bottomrule"]
    return [f"\\begin{{tabular}}{{{''.join(columns)}}}", *(f"  {line}" for line in inside), "\\end{tabular}"]
