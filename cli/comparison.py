"""Several results in one table that fits the terminal: what does not fit as a column is said in words below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.report import Report
from erfscope.result import Result
from erfscope.stimuli import KINDS
from erfscope.tables import COMPARED, cell, conditions, structure_columns, with_error

#: The longest model name that is shown on one line.
NAME_WIDTH = 40
#: Columns in the order in which they are kept where the terminal is narrow.
KEPT = (
    "r50",
    "TRF",
    "context_r50",
    "r90",
    "far_mass",
    "layer",
    "input",
    "weights",
    "convention",
    "unit",
    "center_share",
    "erf_trf",
    "stride",
)
#: Columns in the order in which they are shown.
SHOWN = ("weights", "input", "layer", "unit", "convention", "status", "stride", "TRF", *COMPARED, "params M", "GMACs")
CONDITIONS = ("weights", "input", "layer", "unit", "convention", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column: its cells for all results, and those of the rows of differences."""

    name: str
    cells: list[str]
    differences: list[str]
    numeric: bool = True

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.name, *self.cells, *self.differences)) + 3


class ComparisonTable:
    """A rich renderable of a report: one row per result, and what differs from the first row below each of the others."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = _columns(self.report)
        chosen = _fitting(columns, options.max_width - self._name_width() - 2)
        yield self._table(chosen)
        if any(column.name == "TRF" for column in chosen) and any(result.trf and result.trf.is_global for result in self.report):
            yield Text("TRF all (n): a global operation makes the field everything; n without such operations", style="dim")
        yield from self._words([column for column in columns if column not in chosen])
        yield from _extra_cost(self.report)

    def _name_width(self) -> int:
        return min(NAME_WIDTH, max(cell_len(name) for name in _names(self.report))) + 3

    def _table(self, columns: Sequence[_Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
        for column in columns:
            table.add_column(column.name, justify="right" if column.numeric else "left", no_wrap=True)
        for row, (result, name) in enumerate(zip(self.report, _names(self.report), strict=True)):
            cells = [Text(column.cells[row]) for column in columns]
            table.add_row(Text(name), *cells, style="" if result.ok else "dim")
            if any(column.differences[row] for column in columns):
                table.add_row(
                    Text("  minus host" if result.host else "  minus first"),
                    *(Text(column.differences[row]) for column in columns),
                    style="dim",
                )
        return table

    def _words(self, hidden: Sequence[_Column]) -> RenderResult:
        """Conditions that all rows share, and the columns that did not fit."""
        first = conditions(self.report[0])
        shared = [f"{name} {first[name]}" for name in CONDITIONS[:-1] if len({conditions(r)[name] for r in self.report}) == 1]
        yield Text(" · ".join([*shared, images_text(self.report[0])]), style="dim")
        for column in hidden:
            if not column.numeric:
                pairs = [f"{name} {text}" for name, text in zip(_names(self.report), column.cells, strict=True)]
                yield Text(f"{column.name}: {', '.join(pairs)}", style="dim")
        numeric = [column.name for column in hidden if column.numeric]
        if numeric:
            yield Text(f"no room for: {', '.join(numeric)}; widen the terminal, or use --format csv", style="dim")


def _names(report: Report) -> list[str]:
    """What each row is called: with its reference, where not all rows have the same kind."""
    if len({result.wrt == "image" for result in report}) == 1:
        return [result.label for result in report]
    return [result.label if result.wrt == "image" else f"{result.label}, wrt {result.wrt}" for result in report]


def _extra_cost(report: Report) -> Iterator[Text]:
    """What inserted blocks cost, one line for each kind of model."""
    lines: dict[str, None] = {}
    for result in report:
        host = report.compared_with(result)
        if result.host and host and host.cost and result.cost:
            parameters = result.cost.parameters - host.cost.parameters
            gmacs = None if result.cost.gmacs is None or host.cost.gmacs is None else result.cost.gmacs - host.cost.gmacs
            extra = "" if gmacs is None else f", {gmacs:+.3g} GMACs"
            lines[f"{result.label}: {parameters:+,} parameters{extra}"] = None
    yield from (Text(line, style="dim") for line in lines)


def images_text(result: Result) -> str:
    """How many pictures, of which kind, and how many of them were of no use."""
    n, lost = result.input.n_images, result.input.n_dead
    kind = KINDS.get(result.input.source)
    text = f"{n} {'image' if kind is None else 'picture'}{'' if n == 1 else 's'}" + ("" if kind is None else f" of {kind.words}")
    return text + (f", {lost} unusable" if lost else "")


def _columns(report: Report) -> list[_Column]:
    """Everything that may be shown, in the order of showing."""
    none = [""] * len(report)
    found: dict[str, _Column] = {}
    for name in CONDITIONS:
        cells = [conditions(result)[name] for result in report]
        if name == "layer" and _names(report) != [result.label for result in report]:
            cells = [result.layer for result in report]
        if len(set(cells)) > 1:
            found[name] = _Column(name=name, cells=cells, differences=none, numeric=False)
    for name, text in structure_columns(report.results).items():
        found[name] = _Column(name=name, cells=[text(result) for result in report], differences=none)
    differences = report.differences()
    for name in COMPARED:
        if any(name in result.measures for result in report):
            values = [cell(result, name) for result in report]
            changes = [_change(row.get(name)) for row in differences]
            found[name] = _Column(name=name, cells=[_tight(v.value, v.se) for v in values], differences=changes)
    return [found[name] for name in SHOWN if name in found]


def _fitting(columns: Sequence[_Column], room: int) -> list[_Column]:
    """As many columns as fit, the most important first."""
    order = {name: rank for rank, name in enumerate(("status", *KEPT))}
    chosen = set()
    for column in sorted(columns, key=lambda c: order.get(c.name, len(order))):
        if column.width <= room:
            chosen.add(column.name)
            room -= column.width
    return [column for column in columns if column.name in chosen]


def _change(difference: tuple[float | None, float | None] | None) -> str:
    """What differs from the first row; nothing where no pairs were measured."""
    if difference is None or difference[0] is None:
        return ""
    return ("" if difference[0] < 0 else "+") + _tight(*difference)


def _tight(value: float | str | None, se: float | None) -> str:
    return with_error(value, se).replace(" ± ", "±")
