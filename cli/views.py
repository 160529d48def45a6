"""What commands of their own print: verdicts, explanations of measures, and tables of layers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from erfscope.attribution.convention import CONVENTIONS, Convention
from erfscope.cli.console import Screen, complain, print_json, say
from erfscope.engine.layer_table import LayerRow, LayerTable, overview
from erfscope.errors import ErfscopeError
from erfscope.gate.verdict import CheckReport, Line
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import size_text
from erfscope.measures import MEASURES, Measure
from erfscope.printable import printable
from erfscope.results.report import Report
from erfscope.view.sentences import ERRORS, GUIDE, RATIOS, SYMBOLS, THREE_AXES, WHAT, methods_sentence
from erfscope.view.table import Column, Table, TableRow, rows_of
from erfscope.view.terminal.table import TerminalTable, fact_table
from erfscope.view.words import WIDER, square_text, whole_text

WORDS = {
    "fail": "bold red",
    "inconclusive": "bold yellow",
    "pass": "bold green",
    "baseline created": "bold cyan",
    "updated": "bold cyan",
}
KINDS = {"notice": "cyan", "accept": "bold", "summary": "bold"}


def store(report: CheckReport, folder: Path) -> bool:
    """Write the artifacts; return whether that succeeded."""
    from erfscope.gate.artifacts import write_artifacts

    try:
        for path in write_artifacts(report, folder):
            complain(f"wrote {path}")
    except ErfscopeError as error:
        complain(str(error))
        return False
    return True


def deliver(report: CheckReport, *, shown: str, quiet: bool = False) -> None:
    """Print the report; on GitHub also write annotations and the summary of the step.

    Args:
        report: The verdicts.
        shown: ``"rich"``, ``"plain"``, ``"json"``, ``"markdown"`` or ``"github"``.
        quiet: Whether text has one line for each check and nothing else.
    """
    if shown == "json":
        print_json(report.to_json())
    elif shown == "markdown":
        say(report.markdown().rstrip("\n"))
    else:
        screen = Screen(plain=shown != "rich")
        for line in report.lines():
            if not quiet or line.kind == "head":
                # A command in the line is copied whole.
                screen.print(styled(line), soft_wrap=line.kind == "accept" or not screen.is_bounded)
    if shown in ("json", "markdown") and not report.ok:
        complain(report.summary)
    if shown == "github" or os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(report)


def styled(line: Line) -> Text:
    """A line in the colours of its kind and verdict."""
    text = Text(line.text, style=KINDS.get(line.kind, ""))
    style = WORDS.get(line.verdict, "")
    if line.kind == "head":
        text.stylize(style, 0, len(line.verdict))
    elif line.kind == "reason":
        text.stylize(style.removeprefix("bold "))
    elif line.verdict:
        text.stylize(style, len(line.text) - len(line.verdict))
    return text


def _annotate(report: CheckReport) -> None:
    """Annotations on stderr, which no format uses, and the table in the step's summary."""
    for command in report.annotations():
        # The runner reads commands on both streams, at the beginning of a line.
        print(printable(command), file=sys.stderr)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(report.markdown())
        except OSError as error:
            complain(f"cannot write GITHUB_STEP_SUMMARY: {error.strerror or error}")


def explanation(report: Report | None) -> RenderableType:
    """The conventions and measures of a run, or of all where there is none; the guide to their use; and the run's
    methods section."""
    conventions = list(CONVENTIONS) if report is None else list(dict.fromkeys(result.convention for result in report))
    used = set(MEASURES) if report is None else {name for result in report for name in result.measures}
    parts: list[RenderableType] = [Text(), Text(WHAT)]
    parts += _heading("Conventions" if len(conventions) > 1 else "Convention")
    for name in conventions:
        if name in CONVENTIONS:
            parts += _convention(CONVENTIONS[name])
    if used:
        parts += [
            *_heading("Measures"),
            Text(f"{SYMBOLS} {THREE_AXES}"),
            Text(RATIOS),
            *_measures([MEASURES[name] for name in MEASURES if name in used]),
            Text(),
            Text(ERRORS),
        ]
    parts += _heading("What to use when")
    for purpose, advice in GUIDE:
        parts += [Text(purpose, style="bold"), _indented(advice)]
    if report is not None and len(report):
        parts += _heading("For a paper")
        parts += [Text(methods_sentence(report))]
    return Group(*parts)


def guide() -> int:
    """Print everything that can be explained without a run; the exit code, 0."""
    Screen().print(explanation(None))
    return 0


def _convention(convention: Convention) -> Iterator[RenderableType]:
    yield _entry(convention.name, f"shown as {convention.scale}", convention.source)
    yield _indented(f"readout {convention.readout_text}; contribution {convention.contribution_text}")
    yield _indented(f"not for {convention.not_for}", style="dim")


def _measures(measures: list[Measure]) -> Iterator[RenderableType]:
    """One entry each; what several must not be used for stands once, below the last of them."""
    alike: list[str] = []
    for place, measure in enumerate(measures):
        yield _entry(
            measure.name,
            f"in {measure.unit}, {WIDER[measure.wider]}" if measure.unit else WIDER[measure.wider],
            measure.source,
        )
        yield _indented(measure.formula)
        alike.append(measure.name)
        if place + 1 == len(measures) or measure.not_for != measures[place + 1].not_for:
            if measure.not_for:
                which = f"{', '.join(alike)}: " if len(alike) > 1 else ""
                yield _indented(f"{which}not for {measure.not_for}", style="dim")
            alike = []


def _heading(words: str) -> list[RenderableType]:
    return [Text(), Text(words, style="bold underline")]


def _entry(name: str, facts: str, source: str) -> Text:
    text = Text(name, style="bold")
    text.append(f"  {facts}", style="not bold")
    text.append(f"  [{source}]", style="not bold dim")
    return text


def _indented(words: str, style: str = "") -> Padding:
    return Padding(Text(words, style=style), (0, 0, 0, 4))


Box = tuple[tuple[int, int], ...]
#: Wider than any table of layers.
UNLIMITED = 10_000


def layer_view(table: LayerTable, *, one: bool, everything: bool) -> RenderableType:
    """All layers as a table, or everything about one of them."""
    body = _single(table) if one else _All(table, list(table.rows) if everything else overview(table))
    return Group(body, *(Text(f"! {note}", style="yellow") for note in table.notes))


class _All:
    """One row per layer and unit; the causes of global TRFs stand in a column if there is room, else in lines below."""

    def __init__(self, table: LayerTable, rows: Sequence[LayerRow]) -> None:
        self.table, self.rows = table, rows
        self.exceeding = [row for row in rows if _exceeds(row)]
        self.whole = "input" if table.wrt == IMAGE else table.wrt

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

    def _table(self, *, with_causes: bool) -> Table:
        is_mixed = any(map(_is_mixed, self.rows))
        numbers = ("shape", "stride", "TRF", *(["local"] if is_mixed else []), "unit", "centre")
        texts = [f"exceeds\n{self.whole}"] if self.exceeding else []
        texts += ["global by"] if is_mixed and with_causes else []
        columns = [
            Column(name="layer", kind="name", folds=True),
            *(Column(name=name, kind="number") for name in numbers),
        ]
        rows = []
        for row in self.rows:
            trf, bound = row.trf, "" if row.trf.exact else "≤"
            cells = [f"{row.name}{' *' if row.stage else ''}", size_text(row.shape), square_text(trf.stride_px)]
            cells.append("all" if trf.is_global else bound + square_text(trf.size_px))
            cells += [bound + square_text(trf.local_size_px)] if is_mixed else []
            cells += [_place(row.unit), ("" if trf.center_exact else "~") + _place(trf.center_px)]
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
        yield f"{self.table.model} at {size_text(self.table.input_size)}"
        yield f"sizes in {_unit_of(self.table)}"
        yield f"default layer {self.table.default_layer or '–'}"
        if any(row.stage for row in self.rows):
            yield "* a stage"
        if any(map(_is_mixed, self.rows)):
            yield (
                f"all: the TRF covers {whole_text(self.table.wrt)} (global operation), local is without such operations"
            )
        if self.exceeding:
            first = self.exceeding[0].name
            yield (
                f"exceeds {self.whole}: the TRF covers all of it, from {first} on; later layers add no new pixels at"
                " this size"
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
    trf, word = row.trf, _unit_of(table)
    reference = "the image" if table.wrt == IMAGE else table.wrt
    facts = {
        "layer": row.name + (" (a stage)" if row.stage else ""),
        "map": size_text(row.shape),
        "input": size_text(table.input_size),
        "reference": f"{reference}, {size_text(trf.reference_px)}",
        "unit": _place(row.unit),
        "centre": _place(trf.center_px) if trf.center_exact else f"about {_place(trf.center_px)}",
        "stride": f"{square_text(trf.stride_px)} {word}",
        "offset": f"{_place(trf.offset_px)}; centre = offset + unit x stride",
        "TRF": f"covers {whole_text(table.wrt)}" if trf.is_global else f"{square_text(trf.size_px)} {word}",
        "box": _box(trf.box_px),
        "inside": _box(trf.clipped_box_px),
    }
    if any(other.trf.is_global for other in table.rows):
        facts["global operation"] = trf.global_by or "none"
    if any(map(_is_mixed, table.rows)):
        facts["without global operations"] = f"{square_text(trf.local_size_px)} {word}"
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
        facts["paths"] = "all pass the reference" if trf.all_paths else f"some from the image avoid {table.wrt}"
    return facts


def _is_mixed(row: LayerRow) -> bool:
    """Whether global operations widen the TRF, along one axis or along all."""
    return row.trf.is_global or row.trf.size_px != row.trf.local_size_px


def _unit_of(table: LayerTable) -> str:
    return "px" if table.wrt == IMAGE else f"cells of {table.wrt}"


def _place(values: Sequence[float]) -> str:
    return ",".join(f"{value:.6g}" for value in values)


def _box(sides: Box) -> str:
    return " x ".join("nothing" if first > last else f"[{first}, {last}]" for first, last in sides)
