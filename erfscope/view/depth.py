"""How the ERF of one model grows from layer to layer, as a table, as sentences, and as a page draws it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from erfscope.geometry.names import is_input
from erfscope.printable import number, plus, rounded
from erfscope.results.depth import Depth, DepthStep, Difference, covered, depth_of, in_depth
from erfscope.results.result import Result
from erfscope.view import words
from erfscope.view.cells import measure_cell, plain_cell, unit_of
from erfscope.view.drawings import Tick, round_ticks
from erfscope.view.report_view import ReportView
from erfscope.view.table import MISSING, Cell, Column, Note, Table, rows_of

#: Measures of the table, beside what a layer adds and how much of its TRF it fills.
MEASURES = ("r50", "r90", "context_r50", "far_mass")
OF_TRF = "what lies within r90, as a share of the TRF"
#: Layers from which on a page shows a series.
FEWEST = 3


def depth_table(results: Sequence[Result], places: Sequence[int] = ()) -> Table:
    """Sizes by layer, what each layer adds, and how much of its TRF it fills.

    Args:
        results: A series of :func:`erfscope.results.depth.in_depth`.
        places: Their positions in the report, for pointers to its JSON; 0, 1, 2, ... if left out.
    """
    first, depth = results[0], depth_of(results)
    added = f"{depth.measure} minus that of the layer before"
    names = [name for name in MEASURES if any(name in result.measures for result in results)]
    columns = [
        Column(name="layer", kind="name"),
        Column(name="TRF", kind="structure", unit=first.axes.cells, gloss=words.GLOSS["TRF"]),
        *(Column(name=name, kind="measure", unit=unit_of(name, first), gloss=words.GLOSS[name]) for name in names),
        Column(name="added", kind="measure", unit=unit_of("r50", first), gloss=added),
    ]
    if any(step.filled is not None for step in depth.steps):
        columns.append(Column(name="of TRF", kind="measure", gloss=OF_TRF))
    rows = (_cells(*each, names) for each in zip(depth.steps, places or range(len(results)), strict=True))
    terms = [(each.name, each.gloss) for each in columns[2 + len(names) :]]
    terms += filter(None, [words.global_note(results)])
    note = Note(text=" · ".join(f"{name}: {meaning}" for name, meaning in terms))
    return Table(columns=tuple(columns), rows=rows_of(row[: len(columns)] for row in rows), notes=(note,))


def _cells(step: DepthStep, place: int, names: Sequence[str]) -> list[Cell | str]:
    result = step.result
    field = MISSING if result.trf is None else Cell(text=words.field_cell(result.trf))
    sizes = [measure_cell(result, name, place) for name in names]
    return [result.layer, field, *sizes, _change(step.added), plain_cell(step.filled, "", percent=True, digits=2)]


def _change(change: Difference) -> Cell:
    """A difference with its sign; no document has it."""
    value, se = change
    text, error = rounded(value, se)
    return Cell(text=f"{plus(text)}{text}", value=value, error=None if error is None else Cell(text=error, value=se))


def depth_sentences(results: Sequence[Result]) -> list[str]:
    """Where r50 stops growing, where the border begins to clip the ERF, how much of the TRF is filled, and where that
    covers the reference.

    Args:
        results: A series of :func:`erfscope.results.depth.in_depth`.
    """
    depth = depth_of(results)
    return [*_growth(depth), *_clipping(depth), *_filling(depth), *_covering(depth)]


def _growth(depth: Depth) -> Iterator[str]:
    steps, size, after = depth.steps, depth.measure, len(depth.steps) - 1 - depth.stops_at
    names, unit = [step.result.layer for step in steps], words.lengths_text(steps[0].result)
    last, rest = f"the last {after} layers" if after > 1 else "the last layer", _unsigned(depth.rest)
    if after and depth.shrinks:
        yield f"{size} shrinks behind {names[depth.stops_at]}, by {rest.removeprefix('-')} {unit} in {last}."
    elif after and rest.startswith("-"):
        yield f"{size} stops growing at {names[depth.stops_at]}, and changes by {rest} {unit} in {last}."
    elif after:
        yield f"{size} stops growing at {names[depth.stops_at]}: {last} add{'s' * (after == 1)} {rest} {unit}."
    elif len(steps) > 1:
        last = f"{names[-1]} adds {_unsigned(steps[-1].added)} {unit} to {names[-2]}"
        yield f"{size} grows up to the last layer: {last}."


def _unsigned(change: Difference) -> str:
    return str(_change(change)).removeprefix("+")


def _clipping(depth: Depth) -> Iterator[str]:
    if depth.clips_at is not None:
        name, last = depth.steps[depth.clips_at].result.layer, len(depth.steps) - 1
        there = "sizes from there on" if depth.clips_at < last else "its sizes"
        grows = ", and in a larger input it may grow further" if depth.stops_at < last else ""
        yield f"The border begins to clip the ERF at {name}: {there} are underestimates{grows}."
    elif all(step.result.trf is not None for step in depth.steps):
        yield "The border clips the ERF of none of these layers."


def _filling(depth: Depth) -> Iterator[str]:
    known = [step for step in depth.steps if step.filled is not None]
    shares = [(f"{number(100 * (step.filled or 0), digits=2)} %", step.result.layer) for step in known]
    if shares:
        (share, layer), *others = dict.fromkeys((shares[0], shares[-1]))
        more = "".join(f", and {other} at {name}" for other, name in others)
        yield f"What lies within r90 of the unit is {share} of the TRF at {layer}{more}."


def _covering(depth: Depth) -> Iterator[str]:
    names, first = [step.result.layer for step in depth.steps if step.is_covered], depth.steps[0].result
    if names:
        left_out = ", global operations left out" * any(s.result.trf and s.result.trf.is_global for s in depth.steps)
        covers = f"the TRF of the layer before covers {words.whole_text(first.wrt)}{left_out}"
        yield f"From {names[0]} on {covers}; the ERF may still grow inside it."


# --- The section of a page ------------------------------------------------------------------------

#: Size of the drawing: curves lie LEFT..WIDTH - RIGHT and TOP..BOTTOM, the names of layers below.
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720.0, 40.0, 12.0, 12.0, 232.0
#: Units of the drawing: the width of a letter, how far a turned name reaches down per letter, and how far apart turned
#: names stand at least; and the most letters of a name, of which the table has all.
LETTER, TURNED, APART, LETTERS = 5.8, 3.4, 19.0, 18


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthChart:
    """r50, r90, half the TRF and half the side of the reference by layer: coordinates in a drawing of WIDTH."""

    height: float
    layers: tuple[Tick, ...]
    is_turned: bool
    radii: tuple[Tick, ...]
    #: What lengths are in, and what the other lines and the shade mean.
    unit: str
    key: str
    #: Where half the side of the reference is.
    side: float
    #: x and width of each layer behind one whose TRF covers the reference.
    shaded: tuple[tuple[float, float], ...]
    #: The path of each line by its name; "" where it has no points.
    lines: dict[str, str]
    #: (name, x, y, top and bottom of its error bar) of each radius.
    points: tuple[tuple[str, float, float, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSection:
    """One series of layers of one model."""

    name: str
    sentences: list[str]
    table: Table
    chart: DepthChart


def depth_sections(view: ReportView) -> list[DepthSection]:
    """The series of three or more layers of a report, by its models, settings and units."""
    places = {id(row.result): row.index for row in view.rows}
    apart = words.distinctions(view.results)
    found = []
    for series in in_depth(view.results):
        at = [places[id(result)] for result in series]
        others = [text for name, text in apart[at[-1]].items() if name != "layer"]
        if len(series) >= FEWEST:
            section = DepthSection(
                name=" · ".join([series[0].label, *others]),
                sentences=depth_sentences(series),
                table=depth_table(series, at),
                chart=depth_chart(series),
            )
            found.append(section)
    return found


def depth_chart(results: Sequence[Result]) -> DepthChart:
    """The drawing of a series; what is more than twice as large as the radii leaves it at its top."""
    radii = {name: [words.radii(result).get(name) for result in results] for name in words.RADII}
    halves: list[float | None] = [None if result.sides.field is None else result.sides.field / 2 for result in results]
    side = max(result.sides.reference for result in results) / 2
    most = max(float(each) + (each.se or 0.0) for row in radii.values() for each in row if each is not None)
    ticks = round_ticks(max(most, *(size for size in (side, *halves) if size is not None and size <= 2 * most)))
    wide = (WIDTH - LEFT - RIGHT) / len(results)
    layers = [r.layer if len(r.layer) <= LETTERS else f"…{r.layer[1 - LETTERS :]}" for r in results]
    letters = max(map(len, layers))
    is_turned = letters * LETTER > wide
    every = math.ceil(APART / wide) if is_turned else 1

    def x(place: int) -> float:
        return LEFT + wide * (place + 0.5)

    def y(size: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * size / ticks[-1]

    sizes: dict[str, Sequence[SupportsFloat | None]] = {**radii, "TRF": halves}
    lines = {
        name: _path([None if each is None else (x(n), y(float(each))) for n, each in enumerate(row)])
        for name, row in sizes.items()
    }
    shaded = tuple((x(n) - wide / 2, wide) for n, is_covered in enumerate(covered(results)) if is_covered)
    key = ["dotted: half the TRF"] * bool(lines["TRF"])
    key += [f"dashed: half the side of the {'input' if is_input(results[0].wrt) else 'reference'}"]
    key += [f"shaded: the TRF of the layer before covers {words.whole_text(results[0].wrt)}"] * bool(shaded)
    return DepthChart(
        height=BOTTOM + (20 + TURNED * letters if is_turned else 20),
        layers=tuple(Tick(at=x(n), text=layer) for n, layer in enumerate(layers) if n % every == 0),
        is_turned=is_turned,
        radii=tuple(Tick(at=y(tick), text=f"{tick:g}") for tick in ticks),
        unit=words.lengths_text(results[0]),
        key="; ".join(key),
        side=y(side),
        shaded=shaded,
        lines=lines,
        points=tuple(
            (name, x(n), y(float(each)), y(float(each) + (each.se or 0.0)), y(max(0.0, float(each) - (each.se or 0.0))))
            for name, row in radii.items()
            for n, each in enumerate(row)
            if each is not None
        ),
    )


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A line through points, with gaps where there is none."""
    pieces, before = [], None
    for point in points:
        if point is not None:
            pieces.append(f"{'M' if before is None else 'L'}{point[0]:.1f} {point[1]:.1f}")
        before = point
    return "".join(pieces)
