"""How a table fits into a terminal or a log: columns go before anything in them is cut, and words are wrapped."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from erfscope.core.values.printable import name_pieces
from erfscope.show.view.table import Cell, Column, Table

#: Between two columns of text, and the width that names and words need at most: longer ones are broken.
GAP, LONGEST_WORD = 2, 16
NO_ROOM = "no room for: {}; a wider terminal shows them"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFit:
    """How a table fits into a width: columns go before anything in them is cut."""

    table: Table
    #: Of each column that is left.
    widths: tuple[int, ...]
    #: The columns that are left out.
    hidden: tuple[str, ...]

    @property
    def note(self) -> str:
        """What was left out; "" for nothing."""
        return NO_ROOM.format(", ".join(" ".join(name.split()) for name in self.hidden)) if self.hidden else ""


def fit(table: Table, width: int) -> TableFit:
    """The table with as many columns as fit into a width, each as wide as its text, or as its longest word where it may
    fold; the first column stays."""
    needs = [_needed(table, place) for place in range(len(table.columns))]
    kept = list(range(len(needs)))
    while kept[1:] and sum(needs[n][0] + GAP for n in kept) - GAP > width:
        kept.remove(max(kept[1:], key=lambda n: (table.columns[n].rank, n)))
    room = width - sum(needs[n][0] + GAP for n in kept) + GAP
    widths = dict.fromkeys(kept, 0)
    for place, n in enumerate(by_want := sorted(kept, key=lambda n: needs[n][1] - needs[n][0])):
        # What a column leaves goes to those that want more.
        more = min(needs[n][1] - needs[n][0], max(room, 0) // (len(by_want) - place))
        widths[n], room = needs[n][0] + more, room - more
    rows = tuple(replace(row, cells=tuple(row.cells[n] for n in kept if n < len(row.cells))) for row in table.rows)
    hidden = tuple(column.name for n, column in enumerate(table.columns) if n not in kept)
    found = replace(table, columns=tuple(table.columns[n] for n in kept), rows=rows)
    return TableFit(table=found, widths=tuple(widths[n] for n in kept), hidden=hidden)


def _needed(table: Table, place: int) -> tuple[int, int]:
    """The width that a column needs at least, and the one that it fills."""
    column = table.columns[place]
    if column.width is not None:
        return column.width, column.width
    cells = [row.cells[place] for row in table.rows if place < len(row.cells)]
    below = [cell.below for cell in cells if isinstance(cell, Cell)]
    lines = [line for text in (column.name, *map(str, cells), *below) for line in text.split("\n")]
    whole = max(map(text_width, lines), default=0)
    if not column.folds:
        return whole, whole
    pieces = [piece.rstrip() for line in lines for piece in _pieces(column, line)]
    least = [text_width(piece) if "±" in piece else min(text_width(piece), LONGEST_WORD) for piece in pieces]
    return max(least, default=0), whole


def _pieces(column: Column, text: str) -> list[str]:
    """The parts of a text that may stand on lines of their own; a number and its error stay together."""
    return name_pieces(text) if column.kind == "name" else re.findall(r"\S+(?: ± \S+)* *", text)


def aligned(table: Table, width: int = sys.maxsize) -> list[list[str]]:
    """Lines of text whose columns are aligned to the left: those of the head, of each row, and what was left out."""
    found = fit(table, width)
    rows = [
        [column.name for column in found.table.columns],
        *([str(each) for each in r.cells] for r in found.table.rows),
    ]
    return [*(_side_by_side(row, found) for row in rows), [found.note] if found.note else []]


def _side_by_side(row: Sequence[str], found: TableFit) -> list[str]:
    """The lines of a row whose cells are folded."""
    cells = [folded(*each) for each in zip(found.table.columns, row, found.widths, strict=True)]
    count = max(map(len, cells))
    every = (
        [line + " " * (width - text_width(line)) for line in (*lines, *[""] * (count - len(lines)))]
        for lines, width in zip(cells, found.widths, strict=True)
    )
    return [(" " * GAP).join(texts).rstrip() for texts in zip(*every, strict=True)]


def folded(column: Column, text: str, width: int) -> list[str]:
    """The lines of a text in a column of a width."""
    lines = [""]
    for piece in _broken(_pieces(column, text), width):
        if lines[-1] and text_width((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _broken(pieces: Sequence[str], width: int) -> Iterator[str]:
    """The pieces, those that are wider than their column in several."""
    for piece in pieces:
        step = len(piece) if text_width(piece.rstrip()) <= width else width
        yield from (piece[start : start + step] for start in range(0, len(piece), step))


def text_width(text: str) -> int:
    """The width of a text in a terminal, in characters of Latin letters."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
