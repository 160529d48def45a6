"""Several results as tables that fit the terminal: what does not fit beside the sizes stands in a second table below
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.cli.views.names import Name
from erfscope.geometry.names import IMAGE
from erfscope.results.pairing import COMPARED, swept
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.tables.columns import cell, conditions, images_text, plane_note, structure_columns, whole_text, with_error
from erfscope.tables.conditions import option_words
from erfscope.tables.meanings import gloss_of

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
MINOR = ("stride", "unit", "params M", "GMACs")
#: Columns in the order in which they are shown.
SHOWN = ("weights", "input", "layer", "unit", "convention", "stride", "TRF", *COMPARED, "params M", "GMACs")
CONDITIONS = ("weights", "input", "layer", "unit", "convention")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column: its cells for all results, and those of the rows of differences."""

    name: str
    cells: list[str]
    differences: list[str]
    numeric: bool = True

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.name, *self.cells, *self.differences)) + GAP


class ComparisonTable:
    """A rich renderable of a report: one row per result, and below it what it differs by from the one it is compared
    with."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.swept = swept(report.results)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name, tables, hidden = self._placed(_columns(self.report), options.max_width)
        for columns in tables:
            yield Text()
            yield self._table(columns, name)
        yield Text()
        if hidden:
            yield Text(f"no room for: {', '.join(hidden)}; widen the terminal, or use --format csv", style="dim")
        if any(result.trf and result.trf.is_global for result in self.report):
            yield Text(_global_note(self.report.results), style="dim")
        if note := plane_note(self.report.results):
            yield Text(note, style="dim")
        if "layer" in self.swept and len({result.label for result in self.report}) > 1:
            yield Text("Δ vs first: difference to the first model's layer of the same stride", style="dim")
        if gloss := gloss_of(column.name for columns in tables for column in columns):
            yield Text(gloss, style="dim")
        if any(result.ok for result in self.report):
            yield self._shared()
        yield from _extra_cost(self.report)

    def _placed(self, columns: Sequence[_Column], width: int) -> tuple[int, list[list[_Column]], list[str]]:
        """Width of the names, the columns of one table or two, and what fits into neither; swept settings stand in
        both."""
        every = [column for column in columns if column.name in self.swept]
        rest = sorted(
            (c for c in columns if c not in every), key=lambda c: KEPT.index(c.name) if c.name in KEPT else len(KEPT)
        )
        width -= sum(column.width for column in every)
        wanted = GAP + max(cell_len(text) for text in (*_names(self.report), "  Δ vs first"))
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
        before = None
        for row, (result, name) in enumerate(zip(self.report, _names(self.report), strict=True)):
            if before is not None and self._group(before) != self._group(result):
                table.add_section()
            before = result
            table.add_row(
                Name(name), *(Text(column.cells[row]) for column in columns), style="" if result.ok else "dim"
            )
            if any(column.differences[row] for column in columns):
                change = Text("  Δ vs host" if result.host else "  Δ vs first")
                table.add_row(change, *(Text(column.differences[row]) for column in columns), style="dim")
        return table

    def _group(self, result: Result) -> object:
        """What rows that stand together share: the model where its layers or units are swept, else the swept
        settings."""
        if {"layer", "unit"} & set(self.swept):
            return result.label
        facts = conditions(result)
        return (
            None
            if len({each.label for each in self.report}) == 1
            else tuple(facts[name] for name in self.swept if name in facts)
        )

    def _shared(self) -> Text:
        """Conditions that all rows share."""
        usable = [result for result in self.report if result.ok] or list(self.report)
        first = conditions(usable[0])
        shared = [f"{name} {first[name]}" for name in CONDITIONS if len({conditions(r)[name] for r in usable}) == 1]
        return Text(" · ".join([*shared, *option_words(usable[0]).values(), images_text(usable[0])]), style="dim")


def _global_note(results: Sequence[Result]) -> str:
    """What ``all (n)`` stands for in the column TRF, with the operations that make it so."""
    shown = [result for result in results if result.trf is not None and result.trf.is_global]
    wholes = {whole_text(result.wrt) for result in shown}
    names = list(dict.fromkeys(result.trf.global_by or "" for result in shown if result.trf is not None))
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    whole = wholes.pop() if len(wholes) == 1 else "the whole reference"
    return f"TRF all (n): the TRF covers {whole} (global operation: {some}); n without such operations"


def _names(report: Report) -> list[str]:
    """What each row is called: with its reference where not all rows have the same kind, and with its status where it
    cannot be used."""
    mixed = len({result.wrt == IMAGE for result in report}) > 1
    names = [
        f"{result.label}, wrt {result.wrt}" if mixed and result.wrt != IMAGE else result.label for result in report
    ]
    return [name if result.ok else f"{name}: {result.status}" for name, result in zip(names, report, strict=True)]


def _extra_cost(report: Report) -> Iterator[Text]:
    """What inserted blocks cost, one line for each kind of model."""
    lines: dict[str, None] = {}
    for result in report:
        host = report.compared_with(result) if result.host else None
        if host and host.cost and result.cost:
            parameters = result.cost.parameters - host.cost.parameters
            gmacs = (
                None if result.cost.gmacs is None or host.cost.gmacs is None else result.cost.gmacs - host.cost.gmacs
            )
            extra = "" if gmacs is None else f", {gmacs:+.3g} GMACs"
            lines[f"{result.label}: {parameters:+,} parameters{extra}"] = None
    yield from (Text(line, style="dim") for line in lines)


def _columns(report: Report) -> list[_Column]:
    """Everything that may be shown, in the order of showing."""
    none = [""] * len(report)
    found: dict[str, _Column] = {}
    for name in CONDITIONS:
        cells = [conditions(result)[name] for result in report]
        if name == "layer" and len({result.wrt == IMAGE for result in report}) > 1:
            cells = [result.layer for result in report]
        if len({text for text, result in zip(cells, report, strict=True) if result.ok}) > 1:
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
    """As many columns as fit, the first ones first."""
    chosen = []
    for column in columns:
        if column.width <= room:
            chosen.append(column)
            room -= column.width
    return chosen


def _change(difference: tuple[float | None, float | None] | None) -> str:
    """What differs from the first row; nothing where no pairs were measured."""
    if difference is None or difference[0] is None:
        return ""
    return ("" if difference[0] < 0 else "+") + _tight(*difference)


def _tight(value: float | str | None, se: float | None) -> str:
    return with_error(value, se).replace(" ± ", "±")
