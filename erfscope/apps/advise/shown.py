"""Advice: its words, its tables and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from erfscope.apps.advise.outcome import Search
from erfscope.apps.advise.shown_search import search_json, search_parts
from erfscope.apps.advise.structure import ALL, NetStructure, Sides
from erfscope.core import Operation, Report
from erfscope.show import (
    DASH,
    Column,
    Note,
    Table,
    depth_sentences,
    depth_table,
    images_text,
    in_depth,
    listed_up_to,
    random_weights,
    rows_of,
    sides_text,
    square_text,
    weights_condition,
)

SCHEMA = "erfscope.advice/1"
#: Names of layers in a sentence.
FEW = 4
EVIDENCE = (
    "Evidence: image classifiers (CNNs) trained at low resolution; layers that add no new pixels did not improve what"
    " is linearly separable, and nets without them were as accurate (Richter et al. 2021, arXiv:2106.12307; 2022,"
    " arXiv:2211.14487). Not shown for dense outputs, detection, transformers or weights trained at another size: train"
    " and compare before a layer goes."
)


def advice_json(structure: NetStructure, depth: Report | None, search: Search | None) -> dict[str, Any]:
    """Advice as JSON values; a field that covers every input is null."""
    found: dict[str, Any] = {"schema": SCHEMA, "structure": {**structure.to_json(), "weights": "any"}}
    if depth is not None:
        found["depth"] = depth.to_json()
    if search is not None:
        found["search"] = search_json(search)
    return found


def advice_parts(
    structure: NetStructure, depth: Report | None, search: Search | None, *, everything: bool
) -> Iterator[Table | Note]:
    """The structure, then what was measured, then what a search found: lines of text and tables."""
    empty = Note(text="")
    yield Note(text=_headline(structure), style="bold")
    yield from (empty, layers_table(structure) if everything else stages_table(structure), empty)
    yield from (Note(text=text, label="-") for text in _findings(structure))
    yield from (Note(text=text, style="dim") for text in (*_meanings(structure), EVIDENCE))
    for series in in_depth(depth.results) if depth is not None else ():
        weights = random_weights(series[0]) or weights_condition(series[0]).alone
        over = f"{len(series)} layer{'s' * (len(series) > 1)} measured over {images_text(series[0])}"
        yield from (empty, Note(text=f"{over}; {weights}", style="bold"))
        yield from (Note(text=text, label="-") for text in depth_sentences(series))
        yield from (empty, depth_table(series))
    if search is not None:
        yield empty
        yield from search_parts(search, structure, everything=everything)


def _headline(structure: NetStructure) -> str:
    wasted, whole = structure.unproductive(), len(structure.in_place)
    at, certain = f"{structure.model} at {sides_text(structure.axes, structure.input_size)}", _widening(wasted)
    if not certain:
        aside = f"; {len(wasted)} that widen no field read what covers the input already" if wasted else ""
        return f"{at}: none of {whole} layers is unproductive by the size of its field{aside}"
    are = "is" if len(certain) == 1 else "are"
    return f"{at}: {len(certain)} of {whole} layers {are} unproductive, with {_shares(certain, structure)}"


def _widening(layers: Sequence[Operation]) -> list[Operation]:
    """Those that see more than their input: a kernel of 1 mixes channels at any size."""
    return [each for each in layers if each.widens]


def _shares(layers: Sequence[Operation], structure: NetStructure) -> str:
    params, gmacs = sum(each.params for each in layers), sum(each.gmacs for each in layers)
    return f"{_share(params, structure.params)} of the parameters and {_share(gmacs, structure.gmacs)} of the GMACs"


def _share(part: float, whole: float) -> str:
    share = 100 * part / (whole or 1)
    return f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"


def _findings(structure: NetStructure) -> Iterator[str]:
    """What the fields say, and what can be done."""
    cells, border, mixer = structure.axes.cells, structure.border(), structure.mixer()
    wasted, partly, critical = structure.unproductive(), structure.partly(), structure.critical()
    smallest, largest = structure.smallest(), structure.largest()
    if border is not None:
        yield f"border layer: {border.name}, the first whose theoretical receptive field (TRF) exceeds the input"
    if certain := _widening(wasted):
        yield f"unproductive: {_named(certain)}; what they read covers the input already, even along the shortest path"
    elif wasted:
        yield f"covered: {_named(wasted)}; little is wasted for certain, as a kernel of 1 mixes channels at any size"
    if partly:
        yield f"unproductive along some axes only: {_named(partly)}"
    if critical:
        yield f"critical: {_named(critical)}; their own kernel is what first reaches beyond the input"
    if certain := _widening((*wasted, *partly)):
        if structure.classifies:
            yield (
                f"what to do: take inputs of {square_text(smallest)} {cells} or more, take out a stride before"
                f" {certain[0].name}, or train with fewer blocks from there"
            )
        else:
            yield "no classifier follows: in dense outputs and detectors these layers may still serve other units"
    if mixer is not None:
        yield (
            f"from {mixer.name} on, operations that mix all positions (attention, pooling) show layers all of it;"
            " fields are given without these, and say little where attention carries the context"
        )
    elif any(side > most for side, most in zip(structure.input_size, largest, strict=True)):
        yield (
            f"no layer sees an input of this size whole: what is larger than {square_text(largest)} {cells} is seen in"
            " parts; --target 'r50>=...' searches for edits that widen the field"
        )
    if largest != smallest:
        yield (
            f"below {square_text(smallest)} {cells} layers read what covers the input already; inputs above"
            f" {square_text(largest)} {cells} are seen whole by no layer"
        )


def _named(layers: Sequence[Operation]) -> str:
    return listed_up_to(FEW, [each.name for each in layers])


def _meanings(structure: NetStructure) -> Iterator[str]:
    yield (
        f"field in: side in {structure.axes.cells} of what a layer's input sees by its shortest path (a residual block"
        " counts as its shortcut), the largest in the stage; TRF: of the stage's last layer, by all paths. Both without"
        " borders, for a unit at the centre: one at the border of a dense output needs twice as much to see everything."
        " Both hold for any weights"
    )
    yield "covered: layers whose field in is larger than the input already, unproductive where they widen it"
    heads = [each.name for each in structure.layers if each not in structure.in_place]
    if heads:
        yield f"not counted, as all positions are one there: {listed_up_to(FEW, heads)}"


def _side(sides: Sides) -> str:
    return "all" if ALL in sides else square_text(sides)


def stages_table(structure: NetStructure) -> Table:
    """The layers of each stage together; neighbours that are alike in one row."""
    groups: dict[str, list[Operation]] = {}
    for each in structure.in_place:
        groups.setdefault(each.stage or each.name.partition(".")[0] or each.name, []).append(each)
    wasted, critical = {*structure.unproductive()}, {*structure.critical()}
    rows = list[tuple[list[str], tuple[str, ...]]]()
    for name, group in groups.items():
        least = tuple(max(sides) for sides in zip(*(each.shortest_in for each in group), strict=True))
        params, gmacs = sum(each.params for each in group), sum(each.gmacs for each in group)
        counts = [str(sum(each in kind for each in group) or DASH) for kind in (wasted, critical)]
        outs = [each.local for each in group if ALL not in each.local]
        sides = _side(least), _side(outs[-1]) if outs else "all"
        cells = str(len(group)), *sides, *counts, _share(params, structure.params), _share(gmacs, structure.gmacs)
        if rows and rows[-1][1] == cells:
            rows[-1][0].append(name)
        else:
            rows.append(([name], cells))
    names = ("layers", "field in", "TRF", "covered", "critical", "params", "GMACs")
    lines = [(f"{name[0]} to {name[-1]}, each" if name[1:] else name[0], *cells) for name, cells in rows]
    return _table("stage", names, lines)


def layers_table(structure: NetStructure) -> Table:
    """Every layer with weights."""
    wasted, partly, critical = {*structure.unproductive()}, {*structure.partly()}, {*structure.critical()}
    rows = []
    for each in structure.layers:
        kinds = ((wasted, "unproductive"), (partly, "partly"), (critical, "critical"))
        kind = "head" if each.is_head else next((name for kind, name in kinds if each in kind), "")
        sides = _side(each.shortest_in), _side(each.local), _side(each.longest)
        rows.append(
            (each.name, *sides, kind, _share(each.params, structure.params), _share(each.gmacs, structure.gmacs))
        )
    return _table("layer", ("field in", "TRF", "with\nmixing", "", "params", "GMACs"), rows)


def _table(first: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = (Column(name=first, kind="name", folds=True), *(Column(name=each, kind="number") for each in names))
    return Table(columns=columns, rows=rows_of(rows))
