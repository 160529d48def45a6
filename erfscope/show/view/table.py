"""One table, whatever it is of, and its writers as text: tab-separated, CSV, Markdown and LaTeX.

Makers build a :class:`Table`; writers format it and add no words. That of the terminal is in ``terminal/table.py``, and
HTML has its templates. Nothing here imports torch.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from erfscope.core.answer.json_values import to_json
from erfscope.core.values.errors import unknown
from erfscope.core.values.printable import one_line, plus, printable

DASH = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text, and the number that it shows, if any."""

    text: str
    #: Whether there is nothing here.
    is_missing: bool = False
    value: Any = None
    #: JSON pointer (RFC 6901) to the number in :meth:`erfscope.core.answer.report.Report.to_json`; "" for words.
    pointer: str = ""
    error: Cell | None = None
    #: The difference to the number of the row it is compared with.
    difference: Cell | None = None
    #: The unit, where a column's rows do not share one.
    unit: str = ""
    #: The key of sorting, where that is neither the number nor the text.
    order: float | None = None
    #: How a terminal shows it, as rich writes styles.
    style: str = ""
    #: Whether Markdown sets it in bold.
    is_strong: bool = False
    #: A second line, fainter, in a terminal.
    below: str = ""

    def __str__(self) -> str:
        return self.text if self.error is None else f"{self.text} ± {self.error.text}"

    @property
    def full(self) -> str:
        """The number as JSON has it."""
        value = to_json(self.value + 0.0 if isinstance(self.value, float) else self.value)
        return "" if value is None else value if isinstance(value, str) else repr(value)

    @property
    def sort(self) -> str:
        """The key of sorting: a number or a text; "" where there is neither."""
        if self.order is not None:
            return repr(self.order)
        return self.full or ("" if self.is_missing or self.pointer else self.text)

    @property
    def signed(self) -> str:
        """A difference, its sign before it."""
        return f"{plus(self.text)}{self}"


MISSING = Cell(text=DASH, is_missing=True)
#: What a row has in a column; only CSV takes other values than texts and cells.
Value = Cell | str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, by its name."""

    name: str
    #: Names are broken after their marks; conditions, structure and measures are of results.
    kind: Literal["text", "name", "number", "condition", "structure", "measure"] = "text"
    #: Its head, where that is not the name; and its head in LaTeX, where that is not the text.
    title: str = ""
    symbol: str = ""
    #: Of all cells; "" where rows differ in it.
    unit: str = ""
    #: Its meaning in at most eight words; "" where the name is clear.
    gloss: str = ""
    #: Whether usable rows differ in it.
    differs: bool = True
    #: Whether its text may fold in a narrow terminal; and its width there, None for what it needs.
    folds: bool = False
    width: int | None = None
    #: When it goes where a terminal has no room: the highest rank first, and of one rank the last column.
    rank: int = 1

    @property
    def is_numeric(self) -> bool:
        """Whether its cells are aligned to the right."""
        return self.kind in ("number", "structure", "measure")

    @property
    def head(self) -> str:
        """Its title with its unit."""
        return (self.title or self.name) + (f" ({self.unit})" if self.unit else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row; one that has fewer cells than the table has columns is a heading of a terminal."""

    cells: tuple[Value, ...]
    #: The letters of the notes on it, behind its first cell.
    mark: str = ""
    #: How a terminal shows it, as rich writes styles.
    style: str = ""
    #: Whether a terminal draws a line above it.
    begins_section: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line below a table."""

    text: str
    #: Its letter in a paper's table, or what it is of.
    label: str = ""
    #: How a terminal shows it, as rich writes styles.
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as every writer takes it."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[Note, ...] = ()
    #: What a paper says of it; a table without is no float of LaTeX.
    caption: str = ""
    #: Columns whose meaning (``gloss``) the caption ends with.
    terms: tuple[Column, ...] = ()


def rows_of(lines: Iterable[Sequence[Value]]) -> tuple[TableRow, ...]:
    """Rows of nothing but cells."""
    return tuple(TableRow(cells=tuple(line)) for line in lines)


def format_table(table: Table, format: str) -> str:
    """A table as text.

    Args:
        table: The table.
        format: ``"csv"``, ``"markdown"``, ``"latex"`` (booktabs) or ``"plain"`` (tabs).

    Raises:
        ErfscopeError: another format.
    """
    if format not in WRITERS:
        raise unknown("table format", format, WRITERS)
    return WRITERS[format](table)


def tab_separated(table: Table) -> str:
    """Texts with tabs between them."""
    lines = [[column.name for column in table.columns], *(map(str, row.cells) for row in table.rows)]
    return "".join("\t".join(line) + "\n" for line in lines)


# --- CSV ------------------------------------------------------------------------------------------


def comma_separated(table: Table) -> str:
    """Values as CSV; None is an empty cell."""
    buffer = io.StringIO()
    lines: list[Iterable[Value]] = [[column.name for column in table.columns], *(row.cells for row in table.rows)]
    csv.writer(buffer, lineterminator="\n").writerows([_harmless(item) for item in line] for line in lines)
    return buffer.getvalue()


#: A negative number with its error and its unit, which no spreadsheet runs.
_NUMBER = re.compile(r"-[\d.,]+( ± [\d.]+)?( ?[%a-z°²]{1,6})?")


def _harmless(item: Value) -> object:
    """Text that steers no terminal, and is quoted where a spreadsheet would run it as a formula."""
    if not isinstance(item, str):
        return item
    text = printable(item, keep="\n")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text) else text


# --- Markdown -------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    """A table in Markdown; its caption and its notes below it."""
    lines = [[markdown_text(column.head) for column in table.columns]]
    for row in table.rows:
        first, *others = map(_in_markdown, row.cells)
        lines.append([first + (f" ({row.mark})" if row.mark else ""), *others])
    terms = "; ".join(f"{term.title}: {term.gloss}" for term in table.terms)
    below = [markdown_text(table.caption + (f" {terms}." if terms else ""))] if table.caption else []
    below += [(f"({note.label}) " if note.label else "") + markdown_text(note.text) for note in table.notes]
    rule = ["--:" if column.is_numeric else "---" for column in table.columns]
    grid = ["| " + " | ".join(line) + " |\n" for line in (lines[0], rule, *lines[1:])]
    return "".join([*grid, *(f"\n{text}\n" for text in below)])


def _in_markdown(cell: Value) -> str:
    text = markdown_text(str(cell))
    return f"**{text}**" if isinstance(cell, Cell) and cell.is_strong else text


def markdown_text(text: str) -> str:
    """Any text as Markdown that prints it: it ends no cell, and starts no tag and no link."""
    return re.sub(r"[\\|\[]", r"\\\g<0>", one_line(text)).replace("<", "&lt;")


# --- LaTeX ----------------------------------------------------------------------------------------

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
#: Floats by how many columns of a table they hold at most, and how many points a line of theirs has at least: a column
#: of CVPR's, and the text of NeurIPS'.
FLOATS = {"table": (4, 236.0), "table*": (sys.maxsize, 397.0)}
#: Points: no letter or digit of a small font is much wider on average, these are as wide, and so is the space around a
#: column. A column of text that would be narrower than the last is not broken.
LETTER, THIN_LETTERS, THIN, AROUND, TIGHTEST = 4.9, ".,:;'il|", 2.6, 8.0, 30.0


def escaped(text: str) -> str:
    """Any text as LaTeX that prints it."""
    # Hyphens side by side would be drawn as one dash.
    apart = re.sub(r"-(?=[-–—])|–(?=-)", "\\g<0>\0", one_line(text))
    safe = "".join("{}" if character == "\0" else ESCAPES.get(character, character) for character in apart)
    # At the beginning of a row these two belong to the command before it.
    return f"{{}}{safe}" if safe[:1] in ("[", "*") else safe


def breakable(text: str) -> str:
    """:func:`escaped` text whose names may be broken after their marks."""
    return "\\allowbreak{}".join(map(escaped, re.split(r"(?<=[_./:])(?=[^\W\d_])|(?<=_)(?=\d)", one_line(text))))


def caption_line(text: str, after: str = "") -> str:
    """A caption whose lines may be stretched: names leave few places to break it. ``after`` is LaTeX already."""
    return f"  \\emergencystretch=3em\n  \\caption{{{breakable(_times(text))}{after}}}"


def latex(table: Table) -> str:
    """A ``tabular`` of booktabs; with a caption in a ``table`` environment, ``table*`` where it is wide."""
    cells = [[each if isinstance(each, Cell) else None for each in row.cells] for row in table.rows]
    errors = [any(cell is not None and cell.error for cell in column) for column in zip(*cells, strict=True)]
    errors = errors or [False] * len(table.columns)
    float_ = next(name for name, (most, _) in FLOATS.items() if len(table.columns) <= most)
    shares = _shares(table, FLOATS[float_][1]) if table.caption else [0.0] * len(table.columns)
    lines = [list(map(_latex_head, table.columns, errors))]
    for row in table.rows:
        line = list(map(_latex_cell, row.cells, errors, shares))
        line[0] += f"\\textsuperscript{{{row.mark}}}" if row.mark else ""
        lines.append(line)
    kinds = [
        f"p{{{share:.2f}\\linewidth}}"
        if share
        else "l"
        if not column.is_numeric
        else "r@{${}\\pm{}$}l"
        if has_errors
        else "r"
        for column, has_errors, share in zip(table.columns, errors, shares, strict=True)
    ]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    head, *body = (
        " & ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + " \\\\"
        for line in lines
    )
    inside = ["\\toprule", head, "\\midrule", *body, "\\bottomrule"]
    tabular = [f"\\begin{{tabular}}{{{''.join(kinds)}}}", *(f"  {line}" for line in inside), "\\end{tabular}"]
    return "\n".join([*(_floating(table, tabular, float_) if table.caption else tabular), ""])


def _shares(table: Table, line: float) -> list[float]:
    """The share of a line that each column of text gets where all of them are wider than what the numbers leave; 0 for
    those that are as wide as their text, and for all where there is no room.

    Args:
        table: The table.
        line: Points of a line.
    """
    grid = [[column.head for column in table.columns], *([str(each) for each in row.cells] for row in table.rows)]
    widths = [max(map(_points, texts)) for texts in zip(*grid, strict=True)]
    texts = sorted((n for n, column in enumerate(table.columns) if not column.is_numeric), key=widths.__getitem__)
    left = line - AROUND * len(widths) - sum(width for n, width in enumerate(widths) if n not in texts)
    shares = [0.0] * len(widths)
    if sum(widths[n] for n in texts) <= left or left < TIGHTEST * len(texts):
        return shares
    for place, n in enumerate(texts):
        # What a short column leaves goes to the longer ones.
        given = min(widths[n], left / (len(texts) - place))
        shares[n] = given / line if given < widths[n] else 0.0
        left -= given
    return shares


def _points(text: str) -> float:
    return sum(THIN if character in THIN_LETTERS else LETTER for character in text)


def _floating(table: Table, tabular: Sequence[str], environment: str) -> list[str]:
    terms = "; ".join(f"{term.symbol}: {breakable(term.gloss)}" for term in table.terms)
    after = [f" {terms}."] if terms else []
    after += [f" \\textsuperscript{{{note.label}}}~{breakable(note.text.rstrip('.'))}." for note in table.notes]
    return [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{{environment}}}",
        "  \\centering",
        # The class article leaves no space below a caption, so that it would touch the first rule.
        "  \\setlength{\\belowcaptionskip}{6pt}",
        caption_line(table.caption, "".join(after)),
        "  \\label{tab:erf}",
        f"  \\small\\setlength{{\\tabcolsep}}{{{AROUND / 2:g}pt}}",
        *(f"  {line}" for line in tabular),
        f"\\end{{{environment}}}",
    ]


def _latex_head(column: Column, has_errors: bool) -> str:
    text = (column.symbol or escaped(column.title or column.name)) + (
        f" ({escaped(column.unit)})" if column.unit else ""
    )
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if has_errors else text


def _latex_cell(cell: Value, has_errors: bool, share: float) -> str:
    if share:
        # A word at the beginning of a paragraph could not be broken.
        return f"\\raggedright\\hspace{{0pt}}{breakable(_times(str(cell)))}"
    if not isinstance(cell, Cell):
        return escaped(str(cell))
    text = f"${cell.text}$" if isinstance(cell.value, int | float) else escaped(_times(cell.text))
    if cell.error is not None:
        return f"{text} & ${cell.error.text}$"
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if has_errors else text


def _times(text: str) -> str:
    """Sizes with a sign of multiplication in place of the letter."""
    return re.sub(r"(?<=\d)x(?=\d)|(?<=frames )x(?= )", "×", text)


WRITERS = {"csv": comma_separated, "markdown": markdown, "latex": latex, "plain": tab_separated}
