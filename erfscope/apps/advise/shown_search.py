"""What a search found: its words, its table, its JSON and its figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from erfscope.apps.advise.halving import CHOOSING, MOST_DRAWS, Trial
from erfscope.apps.advise.outcome import REACH, Search
from erfscope.apps.advise.structure import ALL, NetStructure
from erfscope.apps.advise.target import HALO
from erfscope.apps.advise.verdict import DECIDING, LOOKS
from erfscope.core import to_json
from erfscope.show import DASH, Column, Note, Table, brief, fixed, listed_up_to, plus, rows_of, with_error

#: Names in a sentence, and candidates in a table.
FEW, MANY = 3, 12
RANDOM = "random weights, drawn anew for every draw, describe the architecture only: measure again after training"
#: A verdict in the table.
TARGET = {"met": "met", "not met": "no", "not decided": "open"}
OWN_WEIGHTS = "measured on the weights that the model has; weights of new kernels and blocks are random, untrained"


def search_parts(search: Search, structure: NetStructure, *, everything: bool = False) -> Iterator[Table | Note]:
    """What a search found: the answer, a table of the candidates, and how to make the best of them."""
    shown, empty = ranked(search), Note(text="")
    rest = 0 if everything else len(search.trials) - len(shown)
    yield Note(text=_answer(search, structure), style="bold")
    yield from (Note(text=text, style="yellow") for text in _warnings(search, structure))
    yield from (empty, search_table(search, [*search.trials] if everything else shown), empty)
    useful = [(place, each) for place, each in enumerate(shown) if each is not search.own and not _misses(search, each)]
    for place, each in useful[:FEW]:
        yield Note(text=search.command(each), label=f"{place}:")
        if each.candidate.python:
            yield Note(text=each.candidate.python, label="  ")
    yield from (Note(text=text, style="dim") for text in _search_notes(search, rest))


def _misses(search: Search, trial: Trial) -> bool:
    """Whether a candidate is known to miss the target, or the budget."""
    return search.verdict_on(trial) == "not met" or not search.is_allowed(trial)


def _answer(search: Search, structure: NetStructure) -> str:
    cells = f" {structure.axes.cells}" if _is_length(search) else ""
    now = f"{search.target.text}: {search.target.name} is {_number(search, search.own)}{cells}"
    within = f" within {' and '.join(each.text for each in search.budget)}" if search.budget else ""
    met, every = search.met(), len(search.trials) - 1
    if search.own in met:
        return f"{now}, so that the model meets the target as it is"
    if met:
        if search.price == HALO:
            kept = f"which keeps {_measured(search, met[0])} of it"
            return f"{now}; met with the least loss of reach{within} by {met[0].candidate.typed}, {kept}"
        is_least = search.is_settled and not any(map(search.is_open, search.tested))
        least, rest = (" at the least cost", "") if is_least else ("", "; not known yet: whether at the least cost")
        return f"{now}; met{least}{within} by {met[0].candidate.typed}, with {_number(search, met[0])}{cells}{rest}"
    known, best, tested = sum(search.value(each) is not None for each in search.trials[1:]), search.best, ""
    measured = f"; {known} of them are measured" if known < every else ""
    if best is not search.own:
        tested = f"; the best of {len(search.tested)} tested: {best.candidate.typed}, {_number(search, best)}{cells}"
    if search.verdict == "not met":
        some = f"the {known} measured of {every}" if known < every else str(every)
        return f"{now}, and none of {some} candidates meets the target{within}{tested}"
    when = "in this time" if _is_cut(search) else f"by {LOOKS[-1]} draws"
    return f"{now}; not decided {when} whether any of {every} candidates meets the target{within}{measured}{tested}"


def _is_cut(search: Search) -> bool:
    """Whether more time would give the candidates that are open more draws."""
    left = [len(each.among(DECIDING)) for each in search.tested if search.is_open(each)]
    return min(left, default=0) < LOOKS[-1]


def _number(search: Search, trial: Trial) -> str:
    """What the target is about of a candidate, with its error; about that of fewer than four draws."""
    return _halo(trial.costs[HALO]) if search.price == HALO else _measured(search, trial)


def _measured(search: Search, trial: Trial) -> str:
    value, error = search.measured(trial)
    if search.measure == REACH:
        # Of the model as it is all.
        return DASH if value is None else f"{with_error(100 * value, 100 * error)} %"
    return f"{'≈ ' if value is not None and error == ALL else ''}{with_error(value, error)}"


def _is_length(search: Search) -> bool:
    return search.target.name == HALO or search.measure.endswith(("50", "90"))


def _warnings(search: Search, structure: NetStructure) -> Iterator[str]:
    """What a reader must know before the numbers."""
    yield RANDOM if search.draws_weights else OWN_WEIGHTS
    if hidden := search.hidden():
        name, then = (
            ("r50", "candidates are judged by the reach, which sees it")
            if search.price == HALO
            else (search.measure, "whether they help shows only after training")
        )
        yield (
            f"{name} is blind here: skip connections pass by {listed_up_to(FEW, hidden)}, and edits of these change it"
            f" by less than 1 %; {then}"
        )
    if search.price == HALO:
        yield "no size shows what is lost with parameters: train the candidate before you tile with it"
    # A disc of this radius holds half of the input.
    even = math.sqrt(math.prod(structure.input_size) / (2 * math.pi))
    if search.target.name == "r50" and len(structure.input_size) == 2 and search.target.value > even:
        yield f"an ERF spread evenly over the whole input has an r50 of {brief(round(even))}: more needs a larger input"
    if any(each.candidate.size for each in search.met()):
        yield "a larger input helps where it shows more of the scene, not where the same is enlarged"


def ranked(search: Search) -> list[Trial]:
    """The model as it is, the first candidates that meet the target, then others that were tested, then those of the
    front, those with most first; of smaller halos all, the smallest first."""
    if search.price == HALO:
        others = sorted((each for each in search.trials if each.costs[HALO] is not None), key=lambda each: each.price)
    else:
        others = [*search.tested, *sorted(search.front, key=lambda each: -each.mean)]
    found = dict.fromkeys((*search.met(), *others))
    return [search.own, *[each for each in found if each is not search.own][:MANY]]


def search_table(search: Search, trials: Sequence[Trial]) -> Table:
    """The candidates with what they change."""
    best, own, is_halo = {*map(id, search.known_front)}, search.own, search.price == HALO
    names = ["halo", REACH, "r50"] if is_halo else [search.measure, f"Δ{search.measure}"]
    names += ["ΔGMACs", "Δparams", "Δmemory", "target", *(["on the\nweights"] if search.on_weights else [])]
    places, rows = {id(each): str(place) for place, each in enumerate(ranked(search))}, []
    for each in trials:
        mark = "*" if id(each) in best else ""
        cells = [places.get(id(each), "").removeprefix("0") + mark, each.candidate.text]
        if is_halo:
            cells += [_halo(each.costs[HALO]), _measured(search, each), _r50(search, each)]
        else:
            cells += [_measured(search, each), _difference(search, each)]
        cells += [_change(each, own, name) for name in ("gmacs", "params", "memory")]
        is_tested = is_halo or each in search.tested
        cells += [TARGET[search.verdict_on(each)] if is_tested and search.is_allowed(each) else ""]
        if search.on_weights:
            cells.append(with_error(*search.on_weights.get(each.candidate.text, (None, None))))
        rows.append(cells)
    columns = (Column(name=""), Column(name="edit", kind="name", folds=True))
    # The answer goes last where there is no room, and costs first.
    ranks = {name: 0 if name == "target" else 2 if name.startswith(("ΔGM", "Δp", "Δmem")) else 1 for name in names}
    numbers = (Column(name=name, kind="number", rank=rank) for name, rank in ranks.items())
    return Table(columns=(*columns, *numbers), rows=rows_of(rows))


def _difference(search: Search, trial: Trial) -> str:
    """The measure minus that of the model as it is; with too few draws for an error it is about that."""
    if trial is search.own or not trial.values:
        return DASH
    change, error = search.change(trial)
    text = with_error(change, error)
    return f"{'' if error < ALL else '≈ '}{plus(text)}{text}"


def _r50(search: Search, trial: Trial) -> str:
    return with_error(*search.r50(trial)[0]) if trial.r50 else DASH


def _halo(side: float | None) -> str:
    return DASH if side is None else brief(side)


def _change(trial: Trial, own: Trial, name: str) -> str:
    """A cost beside that of the model as it is, in per cent."""
    found, before = trial.costs[name], own.costs[name]
    if found is None or not before or trial is own:
        return DASH
    change = 100 * (found / before - 1)
    text = fixed(change, 0 if abs(change) >= 10 else 1)
    return "0" if found == before else f"{plus(text)}{text} %"


def _search_notes(search: Search, rest: int) -> Iterator[str]:
    draws = sum(len(each.values) for each in search.trials)
    of = "images and weights" if search.draws_weights else "images"
    if search.price != HALO:
        yield (
            "target: met or no where the interval of the mean lies on that side (Student's t, wrong in at most 5 % of"
            " searches), over draws that chose nothing; else open"
        )
        yield (
            "numbers of the candidates tested are of further draws, which chose nothing; the others' are of the draws"
            " that choose, which flatter the best; ≈: of fewer than four draws"
        )
    if search.price == HALO:
        yield (
            "reach: at each distance up to the halo, the share of the ERF that lies farther, divided by that of the"
            " model as it is (at most all of it); the mean over these distances"
        )
    mark = (
        f"; *: the front, no candidate with less {'halo' if search.price == HALO else 'GMACs'} has as much"
        f" {search.measure}, differences below 1 % aside"
    )
    yield f"± standard error over draws of {of}, of Δ paired{mark if search.known_front else ''}"
    if not search.is_settled:
        most = max(len(each.among(CHOOSING)) for each in search.trials)
        why = f"after {MOST_DRAWS} draws" if most >= MOST_DRAWS else "yet"
        yield f"the front is not settled {why}: give more --time, and go on with --resume"
    elif search.verdict == "not decided" and _is_cut(search):
        yield "the target is not decided yet: give more --time, and go on with --resume"
    yield f"{draws} draws in all" + (f"; {rest} more candidates: --all shows them" if rest > 0 else "")
    failed = [each for each in search.trials if each.failure]
    if failed:
        yield f"not possible: {listed_up_to(2, [f'{each.candidate.typed} ({each.failure})' for each in failed])}"


def search_json(search: Search) -> dict[str, Any]:
    """A search as JSON values."""
    shown = {id(each): rank for rank, each in enumerate(ranked(search))}
    best = {*map(id, search.known_front)}
    rows = []
    for each in search.trials:
        (value, error), (change, change_error) = search.measured(each), search.change(each)
        rows.append(
            {
                "edit": each.candidate.text,
                "insert": each.candidate.edits,
                "input_size": each.candidate.size,
                "python": each.candidate.python,
                "command": search.command(each),
                "rank": shown.get(id(each)),
                "on_front": id(each) in best,
                "meets_target": search.meets(each),
                "verdict": search.verdict_on(each),
                **each.costs,
                "value": value,
                "value_se": error,
                "difference": change,
                "se": change_error,
                **({"r50": search.r50(each)[0][0]} if search.measure == REACH else {}),
                "values": {str(draw): search.sign * found for draw, found in sorted(each.values.items())},
                "failure": each.failure or None,
            }
        )
    head = {name: getattr(search, name) for name in ("layer", "measure", "price", "is_settled", "draws_weights")}
    target = {"target": search.target.text, "verdict": search.verdict, "budget": [each.text for each in search.budget]}
    document: dict[str, Any] = to_json({**target, **head, "on_weights": dict(search.on_weights), "candidates": rows})
    return document


def search_figure(search: Search) -> Any:
    """The candidates of a search as a figure."""
    from erfscope.show import plot

    best, points, shown = {*map(id, search.known_front)}, [], ranked(search)
    places = {id(each): str(place) for place, each in enumerate(shown)}
    for each in (each for each in search.trials if each.values and each.price < ALL):
        (value, _), error = search.measured(each), 0.0 if each is search.own else search.change(each)[1]
        points.append(
            plot.Point(
                label=places.get(id(each), ""),
                price=each.price,
                value=value or 0.0,
                error=error if error < ALL else 0.0,
                on_front=id(each) in best,
                is_own=each is search.own,
            )
        )
    limit = search.target.limit(search.value(search.own) or 0.0)
    names = [f"{place} {each.candidate.text}" for place, each in enumerate(shown) if each.values]
    return plot.front_figure(
        points,
        title=f"{search.target.text} · {search.layer}",
        axes=("halo" if search.price == HALO else "GMACs", search.measure),
        goal=(limit, None) if search.price == HALO else (None, limit),
        words=[*names, RANDOM if search.draws_weights else OWN_WEIGHTS],
    )
