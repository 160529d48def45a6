"""Results in the terminal: words, tables and heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from erfscope.core.answer.comparability import swept
from erfscope.core.answer.measures import INPUT_SHARE, SHOWN_WITHOUT_PLACE, Geometry, Prepared
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result, image_cell
from erfscope.core.request.values import AUTO
from erfscope.core.run.auto_input_size import ENOUGH, TOO_SMALL
from erfscope.core.values.axes import TOKENS
from erfscope.core.values.printable import number
from erfscope.core.values.unit import size_text
from erfscope.show.view import error_bars, words
from erfscope.show.view.cells import SizeCells, identity, measure_cell
from erfscope.show.view.extras import Extra
from erfscope.show.view.fit import NO_ROOM, fit
from erfscope.show.view.report_view import ReportRow, ReportView, report_view, unsaid
from erfscope.show.view.table import DASH, Cell, Column, Table, TableRow
from erfscope.show.view.terminal.heatmap import GAP, NARROWEST, Gallery, HeatMap, input_image
from erfscope.show.view.terminal.table import TerminalTable
from erfscope.show.view.windows import windows

#: Columns of the map of a single result where there is room, and the share of a terminal that is wider.
WIDE_MAP, WIDE_SHARE = 36, 1 / 3


def draw_result(result: Result, *, maps: bool = True) -> RenderableType:
    """One result: identity, warnings, the answer, the map, if ``maps``, beside its sizes, and findings."""
    return draw_report(Report(results=(result,), environment={}), maps=maps)


def draw_report(report: Report, *, maps: bool = True, zoom: str | float = AUTO) -> RenderableType:
    """Several results: one row each, their maps, if ``maps``, then findings and notes; ``zoom`` as for figures."""
    view = report_view(report)
    if len(report) < 2:
        place = [Text(view.pixel_note, style="dim")] if view.pixel_note else []
        return Group(*_single(view.rows[0], maps=maps, zoom=zoom), *place) if len(report) else Text("no results")
    lines: list[RenderableType] = [Text(text, style="bold yellow") for text in view.shouts]
    lines += [ComparisonTable(view), *([Gallery(report.results, zoom=zoom)] if maps else [])]
    lines += [Text(f"{row.name}: {_extra(extra)}") for row in view.rows for extra in row.extras]
    for note in view.notes:
        failed = note.code == "failed"
        lines.append(Text("" if failed else "! ", style="red" if failed else "yellow").append(view.note_text(note)))
    return Group(*lines)


def _single(row: ReportRow, *, maps: bool, zoom: str | float) -> Iterator[RenderableType]:
    result, findings = row.result, unsaid(row.result)
    yield Text(row.label, style="bold").append(" · " + " · ".join(identity(result)), style="not bold")
    if text := words.random_weights(result):
        yield Text(text, style="bold yellow")
    if result.error is not None:
        yield Text(result.error, style="bold red")
    if not result.measures:
        return
    yield Text(_answer(result))
    known = any(finding.code in (ENOUGH, TOO_SMALL) for finding in findings)
    yield from (Text(f.text + ("" if known else _larger(result))) for f in findings if f.code == "clipped")
    yield Text()
    # A stored result may lack its map.
    yield _MapAndSizes(row, zoom) if maps and result.map is not None else _sizes(row.sizes)
    if note := words.plane_note([result]):
        yield Text(note, style="dim")
    yield from (Text(_extra(extra)) for extra in row.extras)
    yield from (Text(f"! {finding.text}", style="yellow") for finding in findings if finding.code != "clipped")


def _larger(result: Result) -> str:
    sides = [2 * side for side in result.input.size]
    return f"; try --input-size {sides[0] if len(set(sides)) == 1 else size_text(sides)}, or auto"


def _answer(result: Result) -> str:
    """The sizes in one sentence."""
    radii, unit = words.main_radii(result), words.lengths_text(result)
    if len(radii) < len(words.RADII):
        return f"Measured: {', '.join(result.measures)}."
    middle = "the unit's centre" if words.has_place(result) else f"its centroid{_centroid(result)}"
    r50, r90 = (measure_cell(result, name) for name in radii)
    errors = error_bars.no_errors([result]) or ("" if r50.error is None else error_bars.errors_over(result))
    half, most = (f"({number(2 * float(radius))} {unit} across)" for radius in radii.values())
    sentence = f"Half of the ERF lies within {r50} {unit} of {middle} {half}, 90 % within {r90.text} {unit} {most}"
    if pixel := image_cell(result):
        plane = f" {words.IN_PLANE}" if result.is_in_plane else ""
        pixels = " and ".join(number(float(radius) * pixel) for radius in radii.values())
        sentence += f"; that is {pixels} {result.input.noun} {result.input_axes.cell}{plane}"
    return f"{sentence}; {words.field_text(result)}." + (f" {errors[:1].upper()}{errors[1:]}." if errors else "")


def _centroid(result: Result) -> str:
    """Where the centroid of a result's map is, in parentheses; "" where it has none."""
    if result.map is None:
        return ""
    measured = result.map.measured
    mean = Prepared(measured.magnitude, Geometry(measured)).moments.mean
    mean = tuple(place / step for place, step in zip(mean, measured.axes.spacing, strict=True))
    return f" ({', '.join(number(place + 0.0) for place in mean)})"


def _extra(extra: Extra) -> str:
    items = ", ".join(f"{name} {cell}".strip() for name, cell in extra.items)
    return f"{extra.head}: {items}" if items else extra.head


class _MapAndSizes:
    """A rich renderable: the map beside its sizes and, where there is room, the input image; above them where the
    terminal is narrow."""

    def __init__(self, row: ReportRow, zoom: str | float) -> None:
        self.row, self.zoom = row, zoom

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.row.result
        (shown,) = windows([result], self.zoom)
        assert shown is not None
        sizes, picture, width = _sizes(self.row.sizes), result.picture, options.max_width
        room = width - GAP - max(map(cell_len, sizes.plain.splitlines()), default=0)
        is_beside = room >= NARROWEST
        columns = min(room if is_beside else width, max(WIDE_MAP, int(width * WIDE_SHARE)))
        heat = HeatMap(result, columns, shown.part)
        drawn = heat.drawn(console)
        grid = Grid.grid(padding=(0, GAP, 0, 0))
        if picture is not None and room >= 2 * heat.shape[1] + GAP:
            grid.add_row(Text(f"input {result.input.noun}", style="dim"), Text("ERF", style="dim"))
            grid.add_row(input_image(picture, heat.shape, console, part=heat.close_up), drawn.text, sizes)
        elif is_beside:
            grid.add_row(drawn.text, sizes)
        yield from (grid,) if is_beside else (drawn.text, Text(), sizes)
        if drawn.fault is not None:
            yield Text(drawn.fault, style="yellow")
        yield Text(" · ".join((*heat.close_up.words, drawn.key, *_side(result))), style="dim")


def _side(result: Result) -> Iterator[str]:
    """The side that percentages of sizes refer to, for a reference that is no square."""
    sides = [side for side in (() if result.trf is None else result.trf.reference_px[-2:]) if side > 1]
    if len(set(sides)) > 1:
        yield f"side {words.ratio_sides(result)[0]}, the root of {' x '.join(str(side) for side in sides)}"


def _sizes(sizes: tuple[SizeCells, ...]) -> Text:
    """The rows beside the heat map: value, share of the input's side, and what it means."""
    width = max((cell_len(f"{size.cell} {size.unit}".rstrip()) for size in sizes), default=0)
    names = max([13, *(len(size.name) + 1 for size in sizes)])
    text = Text(no_wrap=True)
    for size in sizes:
        ratio = "" if size.of_input.value is None else f"{size.of_input} of {'area' if 'area' in size.name else 'side'}"
        text.append(f"{size.name:<{names}}", style="bold")
        text.append(f"{size.cell} {size.unit}".rstrip().rjust(width))
        text.append(f"  {ratio}\n", style="dim")
        if size.gloss:
            text.append(f"  {size.gloss}\n", style="dim")
    return text


def next_step(report: Report, written: Sequence[str]) -> str | None:
    """What to try after a command has measured a report.

    Args:
        report: The results that are shown.
        written: The outputs that were written.

    Returns:
        One line; None where a hint does not help.
    """
    first = report[0]
    if not first.ok:
        return None
    explain = "--explain says what each number means"
    if first.weights.fallback:
        return f"next: erfscope doctor --fix-hint {first.model} says how to get pretrained weights; {explain}"
    if folder := next((path for path in written if Path(path).is_dir()), None):
        return (
            f"next: erfscope layers {first.model} lists what else can be measured; erfscope compare {folder} DIR2"
            " compares saved results"
        )
    if written:
        return None
    noun = first.input.noun
    yours = {"image": "YOUR.png", "volume": "YOUR.nii.gz", "clip": "FRAMES/"}.get(noun, "YOUR.wav")
    given = first.input.source in ("image", "volume", "sound") or first.input_axes.cell == TOKENS  # ids are no files
    images = "" if given else f"--image {yours} for your own {noun}s, "
    return f"next: add {images}-o DIR to keep maps and numbers; {explain}"


# --- Several results as tables that fit: columns without room beside the sizes stand in a second table ---

#: Sizes in the first of two tables; the last is the first to go where room is short.
FIRST = ("r50", "r90", "context_r50", "far_mass")
#: Columns that get no table of their own where room is short.
MINOR = ("stride", "unit", "params", "GMACs")


class ComparisonTable:
    """A rich renderable: one row per result, and below it the differences to the one it is compared with."""

    def __init__(self, view: ReportView) -> None:
        self.view = view
        self.swept = swept(view.results)
        self.measured = {name for row in view.rows for name in row.result.measures}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [column for column in self.view.columns if column.kind == "structure" or column.differs]
        shown, hidden = self._fitted(columns, options.max_width)
        for each in shown:
            yield Text()
            yield TerminalTable(each)
        yield Text()
        if hidden:
            yield Text(f"{NO_ROOM.format(', '.join(hidden))}, and --format csv", style="dim")
        if left_out := len(self.measured - {column.name for column in columns}):
            yield Text(f"{left_out} more measures: --format csv or --measures NAME,NAME shows them", style="dim")
        if "layer" in self.swept and len({row.result.label for row in self.view.rows}) > 1:
            yield Text("Δ vs first: difference to the first model's layer of the same stride", style="dim")
        yield from (Text(text, style="dim") for text in self.view.below)

    def _fitted(self, columns: Sequence[Column], width: int) -> tuple[list[Table], list[str]]:
        """The columns as tables, and the names of those without room: all in one, or the sizes first, and the others,
        which stand in more tables but for minor ones."""
        names = Column(name="model", kind="name")
        found = fit(self._table(names, columns), width)
        if not found.hidden:
            return [found.table], []
        sizes = {INPUT_SHARE, *FIRST, *SHOWN_WITHOUT_PLACE, *self.swept}
        first = [column for column in columns if column.name in sizes]
        names = replace(names, folds=True)
        found = fit(self._table(names, first), width)
        names, tables = replace(names, width=found.widths[0]), [found.table]
        left = [column.name for column in columns if column.name not in sizes or column.name in found.hidden]
        while not set(left) <= {*MINOR} or len(tables) == 1:
            more = [column for column in columns if column.name in {*left, *self.swept}]
            found = fit(self._table(names, more), width)
            if set(left) <= {*found.hidden}:
                break
            tables.append(found.table)
            left = [name for name in left if name in found.hidden]
        return tables, left

    def _table(self, names: Column, columns: Sequence[Column]) -> Table:
        rows, group = list[TableRow](), None
        for row in self.view.rows:
            before, group = group, self._group(row)
            cells = [row.cells.get(column.name) for column in columns]
            style = "" if row.result.ok else "dim"
            rows.append(TableRow(cells=(row.label, *map(_tight, cells)), style=style, begins_section=before != group))
            if any(differences := [_difference(cell) for cell in cells]):
                change = "  Δ vs host" if row.has_host else "  Δ vs first"
                rows.append(TableRow(cells=(change, *differences), style="dim"))
        heads = [replace(column, rank=self._rank(column.name)) for column in columns]
        return Table(columns=(names, *heads), rows=tuple(rows))

    def _rank(self, name: str) -> int:
        if name in self.swept:
            return 0
        return 1 + FIRST.index(name) if name in FIRST else 9 if name in MINOR else 8

    def _group(self, row: ReportRow) -> object:
        """The value that rows of one section share: the model where its layers or units are swept, else the swept
        settings."""
        if {"layer", "unit"} & set(self.swept):
            return row.result.label
        if len({each.result.label for each in self.view.rows}) == 1:
            return None
        return tuple(row.cells[name].text for name in self.swept if name in row.cells)


def _tight(cell: Cell | None) -> str:
    """A cell without spaces around ±."""
    return DASH if cell is None else f"{cell} {cell.unit}".rstrip().replace(" ± ", "±")


def _difference(cell: Cell | None) -> str:
    """The difference of a cell; "" where it has none."""
    change = None if cell is None else cell.difference
    return "" if change is None or change.value is None else change.signed.replace(" ± ", "±")
