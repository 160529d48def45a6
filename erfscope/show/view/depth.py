"""How the ERF of one model grows from layer to layer, as a table and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from erfscope.core.answer.depth import Depth, DepthStep, Difference, depth_of, in_depth
from erfscope.core.answer.result import Result
from erfscope.core.values.printable import number, plus, rounded
from erfscope.show.view import words
from erfscope.show.view.cells import measure_cell, plain_cell, unit_of
from erfscope.show.view.table import MISSING, Cell, Column, Note, Table, rows_of

#: Measures of the table, beside what a layer adds and how much of its TRF it fills.
MEASURES = ("r50", "r90", "context_r50", "far_mass")
OF_TRF = "what lies within r90, as a share of the TRF"


def depth_table(results: Sequence[Result]) -> Table:
    """Sizes by layer, what each layer adds, and how much of its TRF it fills.

    Args:
        results: A series of :func:`erfscope.core.answer.depth.in_depth`.
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
    rows = (_cells(step, names) for step in depth.steps)
    terms = [(each.name, each.gloss) for each in columns[2 + len(names) :]]
    terms += filter(None, [words.global_note(results)])
    note = Note(text=" · ".join(f"{name}: {meaning}" for name, meaning in terms))
    return Table(columns=tuple(columns), rows=rows_of(row[: len(columns)] for row in rows), notes=(note,))


def _cells(step: DepthStep, names: Sequence[str]) -> list[Cell | str]:
    result = step.result
    field = MISSING if result.trf is None else Cell(text=words.field_cell(result.trf))
    sizes = [measure_cell(result, name) for name in names]
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
        results: A series of :func:`erfscope.core.answer.depth.in_depth`.
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


def depth_sections(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """The series of two or more layers of a report, by its models, settings and units: (name, sentences) of each."""
    places = {id(result): place for place, result in enumerate(results)}
    apart = words.distinctions(results)
    found = []
    for series in in_depth(results):
        others = [text for name, text in apart[places[id(series[-1])]].items() if name != "layer"]
        if len(series) > 1:
            name = " · ".join([series[0].label, *others])
            found.append((name, depth_sentences(series)))
    return found
