"""Several results as tables that fit the terminal: what does not fit beside the sizes stands in a second table below
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.results.pairing import COMPARED, swept
from erfscope.view import words
from erfscope.view.cells import Cell
from erfscope.view.report_view import ReportView, Row
from erfscope.view.terminal.names import Name

#: Between two columns.
GAP = 2
#: The longest model name that is not folded where room is short, and what is left for names where the terminal is
#: narrow.
NAME_WIDTH, NARROW_NAME = 40, 16
#: Sizes that stand in the first table; longer names are folded to make room for them.
FIRST = ("r50", "context_r50", "r90", "far_mass")
#: Columns in the order in which they are given room.
KEPT = (*FIRST, "TRF", "layer", "input", "weights", "convention", "center_share", "erf_trf", "stride", "unit")
#: Columns that no second table is made for.
MINOR = ("stride", "unit", "params", "GMACs")
#: Columns that stand behind the measures.
LAST = ("params", "GMACs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column: its cells for all results, and those of the rows of differences."""

    name: str
    cells: list[str]
    differences: list[str]
    numeric: bool

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.name, *self.cells, *self.differences)) + GAP


class ComparisonTable:
    """A rich renderable: one row per result, and below it what it differs by from the one it is compared with."""

    def __init__(self, view: ReportView) -> None:
        self.view = view
        self.swept = swept(view.results)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name, tables, hidden = self._placed(_columns(self.view), options.max_width)
        for columns in tables:
            yield Text()
            yield self._table(columns, name)
        yield Text()
        if hidden:
            yield Text(f"no room for: {', '.join(hidden)}; widen the terminal, or use --format csv", style="dim")
        if "layer" in self.swept and len({row.result.label for row in self.view.rows}) > 1:
            yield Text("Δ vs first: difference to the first model's layer of the same stride", style="dim")
        yield from (Text(text, style="dim") for text in self.view.below)

    def _placed(self, columns: Sequence[_Column], width: int) -> tuple[int, list[list[_Column]], list[str]]:
        """Width of the names, the columns of one table or two, and what fits into neither; swept settings stand in
        both."""
        every = [column for column in columns if column.name in self.swept]
        rest = sorted(
            (c for c in columns if c not in every), key=lambda c: KEPT.index(c.name) if c.name in KEPT else len(KEPT)
        )
        width -= sum(column.width for column in every)
        wanted = GAP + max(cell_len(text) for text in (*(row.label for row in self.view.rows), "  Δ vs first"))
        if wanted + sum(column.width for column in rest) > width:
            wanted = min(wanted, NAME_WIDTH + GAP)
        left = width - sum(column.width for column in rest if column.name in FIRST)
        name = max(min(wanted, left), min(wanted, NARROW_NAME + GAP))
        tables: list[list[_Column]] = []
        while len(tables) < 2 and not {column.name for column in rest} <= set(MINOR):
            chosen = _fitting(rest, width - name) or rest[:1]
            rest = [column for column in rest if column not in chosen]
            tables.append([column for column in columns if column in every or column in chosen])
        return name - GAP, tables or [every], [column.name for column in rest]

    def _table(self, columns: Sequence[_Column], name_width: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        table.add_column("model", width=name_width)
        for column in columns:
            table.add_column(column.name, justify="right" if column.numeric else "left", no_wrap=True)
        group = None
        for row in self.view.rows:
            before, group = group, self._group(row)
            if row.index and before != group:
                table.add_section()
            style = "" if row.result.ok else "dim"
            table.add_row(Name(row.label), *(Text(column.cells[row.index]) for column in columns), style=style)
            if any(column.differences[row.index] for column in columns):
                change = Text("  Δ vs host" if row.minus == "host" else "  Δ vs first")
                table.add_row(change, *(Text(column.differences[row.index]) for column in columns), style="dim")
        return table

    def _group(self, row: Row) -> object:
        """What rows that stand together share: the model where its layers or units are swept, else the swept
        settings."""
        if {"layer", "unit"} & set(self.swept):
            return row.result.label
        if len({each.result.label for each in self.view.rows}) == 1:
            return None
        return tuple(row.cells[name].text for name in self.swept if name in row.cells)


def _columns(view: ReportView) -> list[_Column]:
    """Everything that may be shown, in the order of showing."""
    shown = [c for c in view.columns if c.differs and (c.kind != "measure" or c.name in COMPARED)]
    shown += [c for c in view.columns if c.kind == "structure" and not c.differs]
    order = [c for c in view.columns if c in shown]
    order.sort(key=lambda c: c.name in LAST)
    return [
        _Column(
            name=column.name,
            cells=[_tight(row.cells.get(column.name)) for row in view.rows],
            differences=[_tight(cell and cell.difference, signed=True) for cell in _cells(view, column.name)],
            numeric=column.kind != "condition",
        )
        for column in order
    ]


def _cells(view: ReportView, name: str) -> list[Cell | None]:
    return [row.cells.get(name) for row in view.rows]


def _fitting(columns: Sequence[_Column], room: int) -> list[_Column]:
    """As many columns as fit, the first ones first."""
    chosen = []
    for column in columns:
        if column.width <= room:
            chosen.append(column)
            room -= column.width
    return chosen


def _tight(cell: Cell | None, *, signed: bool = False) -> str:
    """A cell without spaces around its sign of an error; nothing where there are no pairs to take a difference of."""
    if cell is None:
        return "" if signed else words.DASH
    text = (cell.signed if signed else str(cell)).replace(" ± ", "±")
    return "" if signed and cell.value is None else f"{text} {cell.unit}".rstrip()
