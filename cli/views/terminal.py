"""Results in the terminal: words, tables and heat maps. No computing: every number comes from the result."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.cli.console.screen import Screen
from erfscope.cli.views.comparison import ComparisonTable
from erfscope.cli.views.gallery import NARROWEST, Gallery
from erfscope.cli.views.heatmap import HeatMap, input_image
from erfscope.finding import code_of
from erfscope.geometry.box import size_text
from erfscope.results.growth import ENOUGH, TOO_SMALL
from erfscope.results.report import Report
from erfscope.results.result import Result, image_cell
from erfscope.tables.columns import IN_PLANE, field_text, lengths_text, number, plane_note, sides_text, with_error
from erfscope.tables.conditions import identity_words
from erfscope.tables.meanings import MEANING
from erfscope.tables.positions import positions_lines
from erfscope.tables.trust_text import trust_line

#: Columns of the map of a single result where there is room, and the share of a terminal that is wider.
WIDE_MAP, WIDE_SHARE = 36, 1 / 3
#: Between the input image, the map and its sizes.
GAP = 2
#: How many hops of a graph are shown one by one.
HOPS_SHOWN = 8


def result_view(result: Result, *, maps: bool = True) -> RenderableType:
    """One result: identity, what invalidates it, the answer, the map, if ``maps``, beside its sizes, and what to try
    next."""
    lines: list[RenderableType] = [identity(result)]
    shout = invalid(result)
    if shout is not None:
        lines.append(shout)
    if result.error is not None:
        lines.append(Text(result.error, style="bold red"))
    if not result.measures:
        return Group(*lines)
    lines.append(answer(result))
    clipped = next((w.text for w in result.warnings if w.code == "clipped"), None)
    if clipped is not None:
        sides = [2 * side for side in result.input.size]
        hint = str(sides[0]) if len(set(sides)) == 1 else size_text(sides)
        is_found = any(w.code in (ENOUGH, TOO_SMALL) for w in result.warnings)
        lines.append(Text(clipped if is_found else f"{clipped}; try --input-size {hint}, or auto"))
    # A stored result may lack its map; of a failed one there are no sizes either.
    lines += [Text(), _MapAndSizes(result) if maps and result.map is not None else _sizes(result)]
    if result.frame_mass is not None:
        shares = ", ".join(f"{share:.0%}" for share in result.frame_mass)
        lines.append(Text(f"share of each frame, first to last: {shares}"))
    if note := plane_note([result]):
        lines.append(Text(note, style="dim"))
    lines += [Text(text) for text in beside(result)]
    lines += [Text(f"! {w.text}", style="yellow") for w in result.warnings if w.code != "clipped"]
    return Group(*lines)


class _MapAndSizes:
    """A rich renderable: the map beside its sizes and, where there is room, the input image; above them where the
    terminal is narrow."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes, picture, width = _sizes(self.result), self.result.picture, options.max_width
        room = width - GAP - max(map(cell_len, sizes.plain.splitlines()), default=0)
        is_beside = room >= NARROWEST
        heat = HeatMap(self.result, min(room if is_beside else width, max(WIDE_MAP, int(width * WIDE_SHARE))))
        drawn = heat.drawn(console)
        grid = Table.grid(padding=(0, GAP, 0, 0))
        if picture is not None and room >= 2 * heat.shape[1] + GAP:
            grid.add_row(Text("input image", style="dim"), Text("ERF", style="dim"))
            grid.add_row(input_image(picture, heat.shape, console, part=heat.close_up), drawn.text, sizes)
        elif is_beside:
            grid.add_row(drawn.text, sizes)
        yield from (grid,) if is_beside else (drawn.text, Text(), sizes)
        if drawn.fault is not None:
            yield Text(drawn.fault, style="yellow")
        yield Text(" · ".join((*heat.close_up.words, _legend(self.result, drawn.key))), style="dim")


def report_view(report: Report, *, maps: bool = True) -> RenderableType:
    """Several results: one row each, their maps, if ``maps``, then what must be said about them."""
    if len(report) == 0:
        return Text("no results")
    if len(report) == 1:
        return result_view(report[0], maps=maps)
    lines: list[RenderableType] = list(dict.fromkeys(text for text in (_shout_text(r) for r in report) if text))
    lines = [Text(str(text), style="bold yellow") for text in lines]
    lines += [ComparisonTable(report), *([Gallery(report.results)] if maps else [])]
    lines += [Text(f"{result.label}: {text}") for result in report for text in beside(result)]
    for result in report:
        if result.error:
            lines.append(Text(f"{result.label}: {result.error}", style="red"))
    lines += [Text(f"! {text}", style="yellow") for text in _findings(report)]
    return Group(*lines)


def plain_text(shown: Result | Report) -> str:
    """What the terminal shows of a result or a report, without maps and colours."""
    screen = Screen(plain=True)
    with screen.capture() as captured:
        screen.print(result_view(shown, maps=False) if isinstance(shown, Result) else report_view(shown, maps=False))
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def _findings(report: Report) -> Iterator[str]:
    """What must be said of the rows, once for each model and kind of finding, with the number of further rows that it
    is true of."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in report:
        for finding in result.warnings:
            if code_of(finding).severity != "notice":
                row = f"{result.label} · {result.layer} · {result.convention}: {finding.text}"
                found.setdefault((result.label, finding.code), []).append(row)
    for rows in found.values():
        more = len(rows) - 1
        yield rows[0] + (f" (and {more} more row{'s' * (more != 1)} of this model)" if more else "")


def beside(result: Result) -> Iterator[str]:
    """What stands beside the sizes of a map: those of all other units, of a map on a graph, or of removed nodes."""
    yield from positions_lines(result)
    if (trusted := trust_line(result)) is not None:
        yield trusted
    if result.rank_correlation is not None:
        yield f"rank correlation with the gradient's map of the same images {result.rank_correlation:.2f}"
    if result.hops is not None:
        hops = result.hops
        shown = [f"{share:.1%}" for share in hops.mass[:HOPS_SHOWN]]
        more = f", further {sum(hops.mass[HOPS_SHOWN:]):.1%}" if len(hops.mass) > HOPS_SHOWN else ""
        lost = f", out of reach {hops.unreachable:.1%}" if hops.unreachable else ""
        mean = "–" if hops.mean_hop is None else f"{hops.mean_hop:.2f}"
        yield f"mean hop {mean} along the graph; share per hop 0, 1, ...: {', '.join(shown)}{more}{lost}"


def identity(result: Result) -> Text:
    """What was measured, in one line, and its status where it cannot be used."""
    text = Text()
    text.append(result.label if result.ok else f"{result.label}: {result.status}", style="bold")
    text.append(" · " + " · ".join(identity_words(result, gap=",")))
    return text


def invalid(result: Result) -> Text | None:
    """The second line, only where something invalidates the numbers."""
    text = _shout_text(result)
    return None if text is None else Text(text, style="bold yellow")


def answer(result: Result) -> Text:
    """The main finding in one sentence."""
    r50, r90 = result.measures.get("r50"), result.measures.get("r90")
    if r50 is None or r90 is None:
        return Text(f"Measured: {', '.join(result.measures)}.")
    over = f" (error over {result.se_over})" if r50.se is not None else ""
    lengths = lengths_text(result)
    sentence = (
        f"Half of the ERF lies within {with_error(r50.value, r50.se)} {lengths}{over}, 90 % within {number(r90.value)}"
        f" {lengths}"
    )
    pixel = image_cell(result)
    if pixel is not None and isinstance(r50.value, float) and isinstance(r90.value, float):
        plane = f" {IN_PLANE}" if result.is_in_plane else ""
        sentence += f" ({number(r50.value * pixel)} and {number(r90.value * pixel)} image px{plane})"
    return Text(f"{sentence}; {field_text(result)}.")


def _shout_text(result: Result) -> str | None:
    weights = result.weights
    if weights.fallback:
        return (
            f"RANDOM WEIGHTS, {weights.reason}: this describes the architecture only. To require pretrained weights:"
            " --weights pretrained"
        )
    if weights.source in ("random", "random-raw"):
        return f"RANDOM WEIGHTS ({weights.source}, seed {weights.seed}): this describes the architecture only."
    return None


def _sizes(result: Result) -> Text:
    """The six rows beside the heat map: value, share of the input's side, and what it means."""
    rows = []
    for name in MEANING:
        measure = result.measures.get(name)
        if measure is not None:
            is_share = measure.kind in ("share", "score")
            value = (
                _percent(measure.value, measure.se)
                if is_share
                else f"{with_error(measure.value, measure.se)} {lengths_text(result)}"
            )
            rows.append((name, value, "" if measure.of_input is None else f"{measure.of_input:.0%} of side"))
    width = max((len(value) for _, value, _ in rows), default=0)
    text = Text(no_wrap=True)
    for name, value, ratio in rows:
        text.append(f"{name:<12} ", style="bold")
        text.append(value.rjust(width))
        text.append(f"  {ratio}\n", style="dim")
        text.append(f"  {MEANING[name]}\n", style="dim")
    return text


def _legend(result: Result, text: str) -> str:
    """What the marks on the map mean, and what the side is that sizes are given as shares of, where that is not a
    square's."""
    sides = [side for side in (() if result.trf is None else result.trf.reference_px[-2:]) if side > 1]
    if len(set(sides)) < 2:
        return text
    return f"{text} · side {sides_text(result)[0]}, the root of {' x '.join(str(side) for side in sides)}"


def _percent(value: float | str | None, se: float | None) -> str:
    if not isinstance(value, float):
        return number(value)
    return f"{with_error(100 * value, None if se is None else 100 * se)} %"


def next_step(report: Report, *, stored: bool) -> str | None:
    """What to try next, for somebody who has just seen their first result; ``stored`` if it was written to a file."""
    first = report[0]
    if not first.ok:
        return None
    if first.weights.fallback:
        return (
            f"next: erfscope doctor --fix-hint {first.model} says how to get pretrained weights; --explain says what"
            " each number means"
        )
    if stored:
        return (
            f"next: erfscope layers {first.model} lists what else can be measured; compare saved results: erfscope"
            " compare DIR1 DIR2"
        )
    if len(report) > 1:
        return (
            f"next: -o DIR keeps maps and numbers; erfscope analyze {first.model} shows one map; --explain says what"
            " each number means"
        )
    if first.input.source != "image":
        return f"next: erfscope analyze {first.model} --image YOUR.png -o DIR; --explain says what each number means"
    return (
        f"next: erfscope compare {first.model} resnet50; -o DIR keeps map and numbers; --explain says what each number"
        " means"
    )
