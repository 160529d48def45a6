"""Advice: its words, its tables and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from erfscope.advice.advise import SCHEMA, Advice
from erfscope.advice.design import Search
from erfscope.advice.search import MOST_DRAWS, Trial, difference
from erfscope.advice.structure import ALL, LayerField, Sides, Structure
from erfscope.advice.target import HALO
from erfscope.printable import brief, listed_up_to, number, with_error
from erfscope.results.depth import in_depth
from erfscope.results.json_values import fields, plain
from erfscope.view import words
from erfscope.view.depth import depth_sentences, depth_table
from erfscope.view.table import DASH, Column, Note, Table, rows_of
from erfscope.view.terminal.report import as_html, as_plain_text
from erfscope.view.terminal.table import draw_parts
from erfscope.view.words import sides_of, square_text

#: Names of layers in a sentence.
FEW = 4
#: Candidates in a table.
MANY = 12
EVIDENCE = (
    "Evidence: image classifiers (CNNs) trained at low resolution; layers that add no new pixels did not improve what"
    " is linearly separable, and nets without them were as accurate (Richter et al. 2021, arXiv:2106.12307; 2022,"
    " arXiv:2211.14487). Not shown for dense outputs, detection, transformers or weights trained at another size: train"
    " and compare before a layer goes."
)
RANDOM = "random weights, drawn anew for every draw, describe the architecture only: measure again after training"
OWN_WEIGHTS = "measured on the weights that the model has; weights of new kernels and blocks are random, untrained"


def advice_view(advice: Advice, *, everything: bool = False) -> Any:
    """The advice in a terminal."""
    return draw_parts(advice_parts(advice, everything=everything))


def advice_text(advice: Advice) -> str:
    """The advice as in a terminal, without colours."""
    return as_plain_text(advice_view(advice))


def advice_html(advice: Advice) -> str:
    """The advice for a notebook."""
    return as_html(advice_text(advice))


def advice_json(advice: Advice) -> dict[str, Any]:
    """The advice as JSON values; a field that covers every input is null."""
    found: dict[str, Any] = {"schema": SCHEMA, "structure": advice.structure.to_json()}
    if advice.depth is not None:
        found["depth"] = advice.depth.to_json()
    if advice.search is not None:
        found["search"] = _search_json(advice.search)
    return found


def advice_parts(advice: Advice, *, everything: bool = False) -> Iterator[Table | Note]:
    """The structure, then what was measured, then what a search found: lines of text and tables."""
    empty, structure = Note(text=""), advice.structure
    yield Note(text=_headline(structure), style="bold")
    yield from (empty, layers_table(structure) if everything else stages_table(structure), empty)
    yield from (Note(text=text, label="-") for text in _findings(structure))
    yield from (Note(text=text, style="dim") for text in (*_meanings(structure), EVIDENCE))
    for series in in_depth(advice.depth.results) if advice.depth is not None else ():
        weights = words.conditions(series[0])["weights"].alone
        yield from (empty, Note(text=f"measured with {weights} over {words.images_text(series[0])}", style="bold"))
        yield from (Note(text=text, label="-") for text in depth_sentences(series))
        yield from (empty, depth_table(series))
    if advice.search is not None:
        yield empty
        yield from search_parts(advice.search, structure, everything=everything)


def _headline(structure: Structure) -> str:
    wasted = structure.unproductive()
    at = f"{structure.model} at {sides_of(structure.axes, structure.input_size)}"
    whole = len(structure.in_place)
    if not wasted:
        return f"{at}: none of {whole} layers is unproductive by the size of its field"
    pointwise = sum(not each.widens for each in wasted)
    kind = f" ({'all' if pointwise == len(wasted) else pointwise} of kernel 1)" if pointwise else ""
    are = "is" if len(wasted) == 1 else "are"
    return f"{at}: {len(wasted)} of {whole} layers {are} unproductive{kind}, with {_shares(wasted, structure)}"


def _shares(layers: Sequence[LayerField], structure: Structure) -> str:
    params, gmacs = sum(each.params for each in layers), sum(each.gmacs for each in layers)
    return f"{_share(params, structure.params)} of the parameters and {_share(gmacs, structure.gmacs)} of the GMACs"


def _share(part: float, whole: float) -> str:
    share = 100 * part / (whole or 1)
    return f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"


def _findings(structure: Structure) -> Iterator[str]:
    """What the fields say, and what can be done."""
    cells, border, mixer = structure.axes.cells, structure.border(), structure.mixer()
    wasted, partly, critical = structure.unproductive(), structure.partly(), structure.critical()
    smallest, largest = structure.smallest(), structure.largest()
    if border is not None:
        yield f"border layer: {border.name}, the first whose theoretical receptive field (TRF) exceeds the input"
    if wasted:
        yield f"unproductive: {_named(wasted)}; their input already sees more than the whole input, by every path"
    if partly:
        yield f"unproductive along one axis only: {_named(partly)}"
    if critical:
        yield f"critical: {_named(critical)}; they reach beyond the input, from inputs that do not"
    if wasted or partly:
        first, enough = (wasted or partly)[0], f"inputs of {square_text(smallest)} {cells} or more"
        yield (
            f"what to do: take {enough}, take out a stride before {first.name}, or train with fewer blocks from there"
            if any(each.widens for each in (*wasted, *partly))
            else "little is wasted for certain: a kernel of 1 mixes channels at any size, and the convolutions of these"
            f" blocks still see new {cells}; {enough} leave no doubt"
        )
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
            f"inputs below {square_text(smallest)} {cells} have unproductive layers; those above"
            f" {square_text(largest)} {cells} are seen whole by no layer"
        )


def _named(layers: Sequence[LayerField]) -> str:
    return listed_up_to(FEW, [each.name for each in layers])


def _meanings(structure: Structure) -> Iterator[str]:
    yield (
        "least field in: side of what a layer's input sees by its shortest path (a residual block counts as its"
        " shortcut), the largest in the stage; field out: of the last layer by all paths, its TRF. Both as if the input"
        f" had no borders, in {structure.axes.cells}"
    )
    yield "for a unit at the centre; one at the border of a dense output needs twice the field to see all of the input"
    heads = [each.name for each in structure.layers if each.is_head]
    if heads:
        yield f"not counted, as all positions are one there: {listed_up_to(FEW, heads)}"


def _side(sides: Sides) -> str:
    return "all" if ALL in sides else square_text(sides)


def stages_table(structure: Structure) -> Table:
    """The layers of each stage together."""
    groups: dict[str, list[LayerField]] = {}
    for each in structure.in_place:
        groups.setdefault(each.stage or each.name.partition(".")[0] or each.name, []).append(each)
    wasted, critical = {*structure.unproductive()}, {*structure.critical()}
    rows = []
    for name, group in groups.items():
        least = tuple(max(sides) for sides in zip(*(each.shortest_in for each in group), strict=True))
        shares = (
            _share(sum(x.params for x in group), structure.params),
            _share(sum(x.gmacs for x in group), structure.gmacs),
        )
        counts = [sum(each in kind for each in group) for kind in (wasted, critical)]
        outs = [each.local for each in group if ALL not in each.local]
        cells = (name, len(group), _side(least), _side(outs[-1]) if outs else "all")
        rows.append((*map(str, cells), *(str(count or DASH) for count in counts), *shares))
    names = ("layers", "least\nfield in", "field\nout", "unpro-\nductive", "critical", "params", "GMACs")
    return _table("stage", names, rows)


def layers_table(structure: Structure) -> Table:
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
    return _table("layer", ("least\nfield in", "field\nout", "with\nmixing", "", "params", "GMACs"), rows)


def _table(first: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = (Column(name=first, kind="name", folds=True), *(Column(name=each, kind="number") for each in names))
    return Table(columns=columns, rows=rows_of(rows))


def search_parts(search: Search, structure: Structure, *, everything: bool = False) -> Iterator[Table | Note]:
    """What a search found: the answer, a table of the candidates, and how to make the best of them."""
    met = [each for each in search.trials if search.meets(each)]
    shown = ranked(search)
    rest = len(search.trials) - len(shown)
    yield Note(text=_answer(search, structure, met), style="bold")
    yield Note(text=RANDOM if search.draws_weights else OWN_WEIGHTS, style="yellow")
    yield from (
        Note(text=""),
        search_table(search, [*search.trials] if everything else shown, structure),
        Note(text=""),
    )
    for each in [each for each in shown if each is not search.own][:FEW]:
        yield Note(text=each.candidate.options, label="-")
        if each.candidate.python:
            yield Note(text=each.candidate.python, label=" ")
    for text in _search_notes(search, rest if not everything else 0):
        yield Note(text=text, style="dim")


def _answer(search: Search, structure: Structure, met: Sequence[Trial]) -> str:
    own, cells = search.value(search.own), structure.axes.cells
    is_size = search.target.name == HALO or search.measure.endswith(("50", "90"))
    text = _halo(own) if search.target.name == HALO else number(own)
    now = f"{search.target.name} is {text}{f' {cells}' if is_size and own is not None else ''}"
    within = f" within {' and '.join(each.text for each in search.budget)}" if search.budget else ""
    if search.own in met:
        return f"{search.target.text}: {now}, so that the model meets the target as it is"
    if not met:
        known, every = sum(search.value(each) is not None for each in search.trials[1:]), len(search.trials) - 1
        some = f"the {known} measured of {every}" if known < every else str(every)
        return f"{search.target.text}: {now}, and none of {some} candidates meets the target{within}"
    best = min(met, key=lambda each: (each.price, each.order))
    price = "halo" if search.price == HALO else "cost"
    return f"{search.target.text}: {now}; met at the least {price}{within} by {best.candidate.text}"


def ranked(search: Search) -> list[Trial]:
    """The model as it is, the first candidates that meet the target, the cheapest first, then the others of the front,
    those with most first."""
    met = sorted((each for each in search.trials if search.meets(each)), key=lambda each: (each.price, each.order))
    if search.price == HALO:
        others = sorted((each for each in search.trials if each.costs[HALO] is not None), key=lambda each: each.price)
    else:
        others = sorted(search.front, key=lambda each: -each.mean)
    return [search.own, *[each for each in dict.fromkeys((*met, *others)) if each is not search.own][:MANY]]


def search_table(search: Search, trials: Sequence[Trial], structure: Structure) -> Table:
    """The candidates with what they change."""
    measured, own, is_halo = {*map(id, search.front)}, search.own, search.price == HALO
    names = [*(["halo"] if is_halo else []), search.measure, f"Δ{search.measure}", "ΔGMACs", "Δparams", "Δmemory"]
    names += ["target", "front", "draws", *(["on the\nweights"] if search.on_weights else [])]
    rows = []
    for each in trials:
        cells = [each.candidate.text, *([_halo(each.costs[HALO])] if is_halo else [])]
        change, error = difference(each, own)
        known = bool(each.values) and each is not own
        value = abs(each.mean) if each.values else None
        sign = -1 if search.target.is_most and not is_halo else 1
        cells += [number(value), _signed(sign * change, error) if known else DASH]
        cells += [_change(each, own, name) for name in ("gmacs", "params", "memory")]
        cells += ["met" if search.meets(each) else "", "yes" if id(each) in measured else "", str(len(each.values))]
        if search.on_weights:
            cells.append(with_error(*search.on_weights.get(each.candidate.text, (None, None))))
        rows.append(cells)
    columns = (
        Column(name="edit", kind="name", folds=True),
        *(Column(name=name, kind="number") for name in names),
    )
    return Table(columns=columns, rows=rows_of(rows))


def _halo(side: float | None) -> str:
    return DASH if side is None else brief(side)


def _signed(change: float, error: float) -> str:
    text = with_error(change, error)
    return text if text.startswith("-") else f"+{text}"


def _change(trial: Trial, own: Trial, name: str) -> str:
    """A cost beside that of the model as it is, in per cent."""
    found, before = trial.costs[name], own.costs[name]
    if found is None or not before or trial is own:
        return DASH
    return "0" if found == before else f"{100 * (found / before - 1):+.3g} %"


def _search_notes(search: Search, rest: int) -> Iterator[str]:
    draws = sum(len(each.values) for each in search.trials)
    of = "images and weights" if search.draws_weights else "images"
    yield (
        f"± standard error of the difference over paired draws of {of}; front: no candidate with less"
        f" {'halo' if search.price == HALO else 'GMACs'} has as much {search.measure}, differences below 1 % aside"
    )
    if not search.is_settled:
        why = f"after {MOST_DRAWS} draws" if max(map(len, (t.values for t in search.trials))) >= MOST_DRAWS else "yet"
        yield f"the front is not settled {why}: give more --time, and go on with --resume"
    yield f"{draws} draws in all" + (f"; {rest} more candidates: --all shows them" if rest > 0 else "")
    if any(each.candidate.size for each in search.trials if search.meets(each)):
        yield "a larger input helps where it shows more of the scene, not where the same is enlarged"
    failed = [each for each in search.trials if each.failure]
    if failed:
        yield f"not possible: {listed_up_to(2, [f'{each.candidate.text} ({each.failure})' for each in failed])}"


def _search_json(search: Search) -> dict[str, Any]:
    shown = {id(each): rank for rank, each in enumerate(ranked(search))}
    best = {*map(id, search.front)}
    rows = []
    for each in search.trials:
        change, error = difference(each, search.own)
        rows.append(
            {
                "edit": each.candidate.text,
                "insert": each.candidate.edits,
                "input_size": each.candidate.size,
                "python": each.candidate.python,
                "options": each.candidate.options,
                "rank": shown.get(id(each)),
                "on_front": id(each) in best,
                "meets_target": search.meets(each),
                **each.costs,
                "values": {str(draw): abs(value) for draw, value in sorted(each.values.items())},
                "difference": change if each.values else None,
                "se": error if each.values and error < ALL else None,
                "failure": each.failure or None,
            }
        )
    head = {name: fields(search)[name] for name in ("layer", "measure", "price", "is_settled", "draws_weights")}
    target = {"target": search.target.text, "budget": [each.text for each in search.budget]}
    document: dict[str, Any] = plain({**target, **head, "on_weights": dict(search.on_weights), "candidates": rows})
    return document


def search_figure(search: Search) -> Any:
    """The candidates of a search as a figure."""
    from erfscope.figures.front import Point, front_figure

    best, sign = {*map(id, search.front)}, -1 if search.target.is_most and search.price != HALO else 1
    points = []
    for each in (each for each in search.trials if each.values and each.price < ALL):
        _, error = difference(each, search.own)
        shown = error if each is not search.own and error < ALL else 0.0
        points.append(
            Point(
                text=each.candidate.text,
                price=each.price,
                value=sign * each.mean,
                error=shown,
                on_front=id(each) in best,
                is_own=each is search.own,
            )
        )
    own = search.value(search.own)
    limit = search.target.limit(own or 0.0)
    return front_figure(
        points,
        title=f"{search.target.text} · {search.layer}",
        price="halo" if search.price == HALO else "GMACs",
        measure=search.measure,
        goal=(limit, None) if search.price == HALO else (None, limit),
        words=RANDOM if search.draws_weights else OWN_WEIGHTS,
    )
