"""The layers of a model in a terminal, as text and as a data frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

from erfscope.core.answer.layers import LayerRow, LayerTable
from erfscope.core.values.names import IMAGE, is_input
from erfscope.core.values.printable import brief, listed_up_to
from erfscope.core.values.unit import Trf, size_text
from erfscope.show.view.table import Column, Table, TableRow, rows_of
from erfscope.show.view.terminal.table import TerminalTable, fact_table
from erfscope.show.view.words import sides_text, square_text, whole_text

Box = tuple[tuple[int, int], ...]
#: Wider than any table of layers.
UNLIMITED = 10_000


def layer_view(table: LayerTable, *, one: bool | None = None, everything: bool = False) -> RenderableType:
    """All layers as a table, or everything about one of them; about the only one if ``one`` is None."""
    one = len({row.name for row in table.rows}) == 1 if one is None else one
    body = _single(table) if one else _All(table, list(table.rows) if everything else table.overview())
    return Group(body, *(Text(f"! {note}", style="yellow") for note in table.notes))


class _All:
    """One row per layer and unit; the causes of global TRFs stand in a column if there is room, else in lines below."""

    def __init__(self, table: LayerTable, rows: Sequence[LayerRow]) -> None:
        self.table, self.rows = table, rows
        self.exceeding = [row for row in rows if _exceeds(row)]
        self.whole = "input" if is_input(table.wrt) else table.wrt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, causes = TerminalTable(self._table(with_causes=True)), list[str]()
        if Measurement.get(console, options.update(max_width=UNLIMITED), shown).maximum > options.max_width:
            shown, causes = TerminalTable(self._table(with_causes=False)), list(self._causes())
        yield shown
        yield Text()
        for text in causes:
            yield Text(text, style="dim")
        hidden = len({row.name for row in self.table.rows} - {row.name for row in self.rows})
        more = f" --all shows {hidden} more layer{'s' * (hidden != 1)}." if hidden else ""
        yield Text("; ".join(self._legend()) + "." + more, style="dim")
        if parts := [row.name for row in self.table.rows if row.part and not row.stage]:
            yield Text(f"--layer stages measures {listed_up_to(8, list(dict.fromkeys(parts)))}", style="dim")
        if self.table.without_place:
            units = ", ".join(f"{unit} ({layer})" for unit, layer in self.table.without_place)
            yield Text(f"--unit also takes units without a place: {units}", style="dim")

    def _table(self, *, with_causes: bool) -> Table:
        is_mixed = any(map(_is_mixed, self.rows))
        numbers = ("shape", "stride", "TRF", *(["local"] if is_mixed else []), "unit", "centre")
        texts = [f"exceeds\n{self.whole}"] if self.exceeding else []
        texts += ["global by"] if is_mixed and with_causes else []
        columns = [
            Column(name="layer", kind="name", folds=True),
            *([Column(name="reference")] if self.table.has_several_inputs else []),
            *(Column(name=name, kind="number") for name in numbers),
        ]
        rows = []
        for row in self.rows:
            trf, bound = row.trf, "" if row.trf.exact else "≤"
            cells = [f"{row.name}{' *' if row.stage else ''}", *([row.wrt] if row.wrt else [])]
            cells += [size_text(row.shape), square_text(trf.stride_px)]
            cells.append("all" if trf.is_global else bound + square_text(trf.size_px))
            cells += [bound + square_text(trf.local_size_px)] if is_mixed else []
            cells += [_unit_text(row), ("" if trf.center_exact else "~") + _brief_place(trf.center_px)]
            cells += ["yes" if _exceeds(row) else ""] if self.exceeding else []
            cells += [trf.global_by or ""] if is_mixed and with_causes else []
            rows.append(TableRow(cells=tuple(cells), style="bold" if row.name == self.table.default_layer else ""))
        return Table(columns=(*columns, *(Column(name=name, folds=True) for name in texts)), rows=tuple(rows))

    def _causes(self) -> Iterator[str]:
        """One line for each operation that makes TRFs global, in the order of execution."""
        names = dict.fromkeys(row.trf.global_by for row in self.rows if row.trf.global_by)
        for name in names:
            layers = list(dict.fromkeys(row.name for row in self.rows if row.trf.global_by == name))
            yield f"all by {name}: {layers[0]}" + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")

    def _legend(self) -> Iterator[str]:
        """The meaning of the columns and marks of this table."""
        # The default layer has its inputs in the model's order, beside a tower that may have the last one alone.
        rows = sorted(self.table.rows, key=lambda row: row.name != self.table.default_layer)
        sizes = {row.wrt: f"{row.wrt} {size_text(row.trf.reference_px)}" for row in rows if row.wrt}
        yield f"{self.table.model} at {', '.join(sizes.values()) or size_text(self.table.input_size)}"
        yield f"sizes in {_unit_of(self.table)}"
        yield f"default layer {self.table.default_layer or '–'}"
        yield "the same for any weights"
        if any(row.stage for row in self.rows):
            yield "* a stage"
        if any(map(_is_mixed, self.rows)):
            yield (
                f"all: the TRF covers {whole_text(self.table.wrt)} (global operation), local is without such operations"
            )
        if self.exceeding:
            first = self.exceeding[0].name
            yield (
                f"exceeds {self.whole}: the TRF covers all of it, from {first} on; later layers add no new"
                f" {self.table.axes.one_cell}s at this size"
            )
        if any(not row.trf.exact for row in self.rows):
            yield "≤ an upper bound"
        if any(not row.trf.center_exact for row in self.rows):
            yield "~ not exact: branches disagree or an operation does not tell; --layer NAME says which"


def _exceeds(row: LayerRow) -> bool:
    """Whether the TRF covers the whole reference."""
    return all((0, size - 1) == side for side, size in zip(row.trf.clipped_box_px, row.trf.reference_px, strict=True))


def _single(table: LayerTable) -> RenderableType:
    """Everything about one layer: first the facts of all its units, then those that differ between units."""
    facts = [_facts(table, row) for row in table.rows]
    shared = [name for name, text in facts[0].items() if all(other[name] == text for other in facts)]
    block = TerminalTable(fact_table((name, facts[0][name]) for name in shared))
    differing = [name for name in facts[0] if name not in shared]
    if not differing:
        return block
    columns = tuple(Column(name=name, folds=True) for name in differing)
    units = Table(columns=columns, rows=rows_of([fact[name] for name in differing] for fact in facts))
    return Group(block, TerminalTable(units, edged=True))


def _facts(table: LayerTable, row: LayerRow) -> dict[str, str]:
    """Everything about one unit, by name; every unit of a layer has the same names."""
    trf = row.trf
    wrt = row.wrt or table.wrt
    reference = f"the {table.axes.noun}" if wrt == IMAGE else wrt
    facts = {
        "layer": row.name + (" (a stage)" if row.stage else ""),
        "map": size_text(row.shape),
        **({} if row.wrt else {"input": size_text(table.input_size)}),
        "reference": f"{reference}, {size_text(trf.reference_px)}",
        "weights": "any",
        "unit": _unit_text(row),
        **(_place_facts(table, trf) if trf.center_px else {}),
        "TRF": f"covers {whole_text(table.wrt)}" if trf.is_global else _sides(table, trf.size_px),
        "box": _box(trf.box_px),
        "inside": _box(trf.clipped_box_px),
    }
    if any(other.trf.is_global for other in table.rows):
        facts["global operation"] = trf.global_by or "none"
    if any(map(_is_mixed, table.rows)):
        facts["without global operations"] = _sides(table, trf.local_size_px)
        facts["box without them"] = _box(trf.local_box_px)
    facts["understood"] = (
        "every operation" if trf.exact else f"an upper bound; not understood: {', '.join(trf.inexact_by)}"
    )
    if not trf.center_exact:
        facts["understood"] += (
            f"; the centre is not exact: {trf.center_inexact_reason}"
            if trf.center_inexact_reason
            else "; the centre is not exact"
        )
    if not all(other.trf.all_paths for other in table.rows):
        facts["paths"] = (
            "all pass the reference" if trf.all_paths else f"some from the {table.axes.noun} avoid {table.wrt}"
        )
    return facts


def _place_facts(table: LayerTable, trf: Trf) -> dict[str, str]:
    """Where a unit stands, by name."""
    return {
        "centre": ("" if trf.center_exact else "about ") + _brief_place(trf.center_px),
        "stride": _sides(table, trf.stride_px),
        "offset": f"{_brief_place(trf.offset_px)}; centre = offset + unit x stride",
    }


def _unit_text(row: LayerRow) -> str:
    return " ".join(filter(None, (row.kind, _place(row.unit))))


def _is_mixed(row: LayerRow) -> bool:
    """Whether global operations widen the TRF, along one axis or along all."""
    return row.trf.is_global or row.trf.size_px != row.trf.local_size_px


def _sides(table: LayerTable, sides: Sequence[float]) -> str:
    if is_input(table.wrt):
        return sides_text(table.axes, sides, square=True)
    return f"{square_text(sides)} {_unit_of(table)}"


def _unit_of(table: LayerTable) -> str:
    return table.axes.cells if is_input(table.wrt) else f"cells of {table.wrt}"


def _place(values: Sequence[float]) -> str:
    return ",".join(f"{value:.6g}" for value in values)


def _brief_place(values: Sequence[float]) -> str:
    return ",".join(map(brief, values))


def _box(sides: Box) -> str:
    return " x ".join("nothing" if first > last else f"[{first}, {last}]" for first, last in sides)


def layer_numbers(table: LayerTable) -> Table:
    """Every layer and unit, a column for each fact."""
    columns = (
        "layer",
        *(["reference"] if table.has_several_inputs else []),
        "stage",
        "shape",
        "unit",
        "center_px",
        "stride_px",
        "trf_px",
        "trf_local_px",
        "global_by",
        "exact",
    )
    rows = []
    for row in table.rows:
        trf = row.trf
        sizes = size_text([f"{side:g}" for side in trf.stride_px]), size_text(trf.size_px), size_text(trf.local_size_px)
        places = size_text(row.shape), _unit_text(row), _place(trf.center_px)
        name = [row.name, *([row.wrt] if row.wrt else [])]
        rows.append([*name, str(row.stage).lower(), *places, *sizes, trf.global_by, str(trf.exact).lower()])
    return Table(columns=tuple(Column(name=name) for name in columns), rows=rows_of(rows))
