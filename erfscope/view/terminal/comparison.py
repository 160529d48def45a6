"""Several results as tables that fit the terminal: columns that do not fit beside the sizes stand in a second table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from erfscope.measures import SHOWN
from erfscope.results.comparability import swept
from erfscope.view.report_view import ReportView, Row
from erfscope.view.table import DASH, Cell, Column, Table, TableRow
from erfscope.view.terminal.table import TerminalTable

#: Between two columns.
GAP = 2
#: The widest column of names where room is short, and its width in a narrow terminal.
NAME_WIDTH, NARROW_NAME = 40, 16
#: Sizes in the first of two tables; names are folded to make room for them.
FIRST = ("r50", "context_r50", "r90", "far_mass")
#: Columns that are the first to go where room is short.
MINOR = ("stride", "unit", "params", "GMACs")


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
    """A rich renderable: one row per result, and below it the differences to the one it is compared with."""

    def __init__(self, view: ReportView) -> None:
        self.view = view
        self.swept = swept(view.results)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, width = _columns(self.view), options.max_width
        name = GAP + max(cell_len(text) for text in (*(row.label for row in self.view.rows), "  Δ vs first"))
        tables, hidden = [columns], list[str]()
        if name + sum(column.width for column in columns) > width:
            every = [column for column in columns if column.name in self.swept]
            sizes = [column for column in columns if column.name in FIRST or column in every]
            short = min(name, NAME_WIDTH + GAP)
            name = max(min(short, width - sum(column.width for column in sizes)), min(short, NARROW_NAME + GAP))
            second, hidden = _fitting(columns, every, width - name)
            tables = [sizes, second]
        for shown in tables:
            yield Text()
            yield TerminalTable(self._table(shown, name - GAP))
        yield Text()
        if hidden:
            yield Text(f"no room for: {', '.join(hidden)}; widen the terminal, or use --format csv", style="dim")
        if "layer" in self.swept and len({row.result.label for row in self.view.rows}) > 1:
            yield Text("Δ vs first: difference to the first model's layer of the same stride", style="dim")
        yield from (Text(text, style="dim") for text in self.view.below)

    def _table(self, columns: Sequence[_Column], name_width: int) -> Table:
        rows, group = list[TableRow](), None
        for row in self.view.rows:
            before, group = group, self._group(row)
            cells = (row.label, *(column.cells[row.index] for column in columns))
            style = "" if row.result.ok else "dim"
            rows.append(TableRow(cells=cells, style=style, begins_section=before != group))
            if any(column.differences[row.index] for column in columns):
                change = "  Δ vs host" if row.has_host else "  Δ vs first"
                rows.append(TableRow(cells=(change, *(each.differences[row.index] for each in columns)), style="dim"))
        heads = [Column(name=each.name, kind="number" if each.numeric else "text") for each in columns]
        names = Column(name="model", kind="name", width=name_width, folds=True)
        return Table(columns=(names, *heads), rows=tuple(rows))

    def _group(self, row: Row) -> object:
        """The value that rows of one section share: the model where its layers or units are swept, else the swept
        settings."""
        if {"layer", "unit"} & set(self.swept):
            return row.result.label
        if len({each.result.label for each in self.view.rows}) == 1:
            return None
        return tuple(row.cells[name].text for name in self.swept if name in row.cells)


def _columns(view: ReportView) -> list[_Column]:
    """All columns that may be shown, in their order."""
    shown = [c for c in view.columns if c.kind == "structure" or c.differs]
    shown = [c for c in shown if c.kind != "measure" or c.name in SHOWN]
    return [
        _Column(
            name=column.name,
            cells=[_tight(row.cells.get(column.name)) for row in view.rows],
            differences=[_difference(row.cells.get(column.name)) for row in view.rows],
            numeric=column.kind != "condition",
        )
        for column in shown
    ]


def _fitting(columns: Sequence[_Column], every: Sequence[_Column], room: int) -> tuple[list[_Column], list[str]]:
    """The columns of the second table, as many as fit beside those that stand in both, and the names of the others."""
    chosen, hidden = list(every), list[str]()
    room -= sum(column.width for column in every)
    rest = [column for column in columns if column not in every and column.name not in FIRST]
    for column in sorted(rest, key=lambda column: column.name in MINOR):
        if column.width <= room:
            chosen.append(column)
            room -= column.width
        else:
            hidden.append(column.name)
    return [column for column in columns if column in chosen], hidden


def _tight(cell: Cell | None) -> str:
    """A cell without spaces around ±."""
    return DASH if cell is None else f"{cell} {cell.unit}".rstrip().replace(" ± ", "±")


def _difference(cell: Cell | None) -> str:
    """The difference of a cell; "" where it has none."""
    change = None if cell is None else cell.difference
    return "" if change is None or change.value is None else change.signed.replace(" ± ", "±")
