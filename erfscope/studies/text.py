"""A study's table as text, for files and for output that is not a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from erfscope.errors import unknown

FORMATS = ("plain", "csv", "markdown", "latex")


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, format: str, numeric: Sequence[bool]) -> str:
    """Return the lines of a table, each with its line break.

    Args:
        titles: One per column.
        rows: Cells.
        format: ``"plain"`` (tabs), ``"csv"``, ``"markdown"`` or ``"latex"`` (booktabs).
        numeric: Which columns are aligned to the right, for Markdown and LaTeX.

    Raises:
        ErfscopeError: another format.
    """
    if format not in FORMATS:
        raise unknown("table format", format, FORMATS)
    if format == "csv":
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([titles, *rows])
        return buffer.getvalue()
    if format == "latex":
        return _latex(titles, rows, numeric)
    if format == "plain":
        lines = ["\t".join(row) for row in [titles, *rows]]
    else:
        rule = ["---:" if right else "---" for right in numeric]
        lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in [titles, rule, *rows]]
    return "\n".join(lines) + "\n"


def _latex(titles: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    from erfscope.view.latex_text import escaped

    head, *body = (" & ".join(map(escaped, row)) + " \\\\" for row in [titles, *rows])
    columns = "".join("r" if right else "l" for right in numeric)
    lines = [
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        head,
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
