"""The terminal's writer of tables; a name that needs several lines is broken after its marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from erfscope.show.view.fit import GAP, TableFit, fit, folded
from erfscope.show.view.table import Cell, Column, Note, Table, Value, rows_of


class TerminalTable:
    """A rich renderable: a table, and its notes below it.

    Args:
        table: The table; a column without a name has no head, and a table of such columns alone no lines.
        edged: Whether there is an empty line and column around it.
    """

    def __init__(self, table: Table, *, edged: bool = False) -> None:
        self.table, self.edged = table, edged

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.grid(fit(self.table, options.max_width - 2 * self.edged)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = fit(self.table, options.max_width - 2 * self.edged)
        yield self.grid(found)
        if found.note:
            yield Text(found.note, style="dim")
        yield from map(_drawn, self.table.notes)

    def grid(self, found: TableFit) -> Grid:
        """The table itself."""
        columns = found.table.columns
        if not any(column.name for column in columns):
            grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
        else:
            grid = Grid(box=box.SIMPLE_HEAD, show_edge=self.edged, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        # The last column has what is left: before rich 14.3 a fixed width has the padding of the edge too.
        for column, width in zip(columns, [*found.widths[:-1], None], strict=False):
            justify: Literal["left", "right"] = "right" if column.is_numeric else "left"
            grid.add_column(column.name, justify=justify, width=width, overflow="fold")
        for place, row in enumerate(found.table.rows):
            if row.begins_section and place:
                grid.add_section()
            grid.add_row(*map(_shown, columns, row.cells, found.widths), style=row.style)
        return grid


def _shown(column: Column, value: Value, width: int) -> RenderableType:
    if column.kind == "name":
        return Text("\n".join(folded(column, str(value), width)))
    if not isinstance(value, Cell):
        return Text(str(value))
    text = Text(str(value), style=value.style)
    return Text.assemble(text, "\n", (value.below, "dim")) if value.below else text


def draw_parts(parts: Iterable[Table | Note]) -> Group:
    """Lines of text and tables, one below the other; the text of a line with a label stands beside that."""
    return Group(*(_drawn(part) for part in parts))


def _drawn(part: Table | Note) -> RenderableType:
    if isinstance(part, Table):
        return TerminalTable(part)
    if not part.label:
        return Text(part.text, style=part.style)
    item = Grid.grid(padding=(0, 1, 0, 0))
    item.add_row(Text(part.label), Text(part.text, style=part.style))
    return item


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Facts by their names, without heads."""
    return Table(
        columns=(Column(name=""), Column(name="", folds=True)),
        rows=rows_of((Cell(text=name, style="dim"), text) for name, text in facts),
    )
