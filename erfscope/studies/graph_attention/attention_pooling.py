"""``attention-pooling``: nets that count the green nodes of a graph, with attention that is unsupervised, supervised,
or weakly supervised by removing nodes.

Knyazev et al. say that attention which finds the right nodes is what lets a net count in larger graphs than it was
trained on, and among unseen colours; that this often needs attention that starts near green, or is supervised;
and that weak supervision (how much the answer changes when a node is removed) does nearly as well. The notes on the
paper dispute that the attention's AUC explains accuracy; both are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.graph_attention.colour_graphs import CHANNELS, GREEN, Counter, Graphs
from erfscope.studies.graph_attention.counting import LARGE, SMALL, Data, fresh, graphs_of, removed, train
from erfscope.studies.study import Column, StudyFindings, StudyOptions, cell

SIZES = tuple(f"{sizes[0]} to {sizes[-1]} nodes" for sizes in (SMALL, LARGE))
#: Share of graphs that a net gets right by always saying the same number.
CHANCE = 1 / 11
#: Percent right in larger graphs with unseen colours, and its spread (COLORS-Test-LargeC, the README of the authors'
#: code).
PUBLISHED = {"sum over nodes": (15, 7), "unsupervised": (11, 6), "supervised": (75, 17), "weakly supervised": (73, 14)}
#: Name of a net -> its pooling, and the supervision of its attention.
NETS = {
    "sum over nodes": ("none", ""),
    "top-k": ("top_k", ""),
    "unsupervised": ("threshold", ""),
    "supervised": ("threshold", "truth"),
    "weakly supervised": ("threshold", "removal"),
}
SUPERVISION, STARTS = "supervision of attention", "where attention starts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net."""

    name: str
    section: str
    #: Cosine of the attention's direction with green before training.
    start: float | None
    #: Share of graphs whose count is right: with as many nodes as in training, with more, and with more and colours
    #: that were not seen.
    accuracy: float
    accuracy_large: float
    accuracy_unseen: float
    #: In percent, for graphs with more nodes and unseen colours, and its spread.
    published: tuple[int, int] | None
    #: Area under the curve of the attention as a detector of green nodes in larger graphs, and in those with unseen
    #: colours.
    auc_attention: float | None
    auc_unseen: float | None
    #: The same of the ERF of the count in larger graphs, and the share of that ERF on green nodes; None if no node
    #: moves a count.
    auc_erf: float | None
    erf_on_green: float | None
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Train every net, and measure its counts, its attention and its ERFs."""
    data = graphs_of(asked)
    counters: dict[str, Counter] = {}
    rows = []
    for name, (pool, supervision) in NETS.items():
        targets = _targets(supervision, counters, data)
        counter = counters[name] = fresh(pool, asked.seed)
        rows.append(_row(name, SUPERVISION, counter, data, asked, targets=targets))
    rows += [_row(name, STARTS, counter, data, asked) for name, counter in _starts(asked)]
    return StudyFindings(
        columns=COLUMNS, section="section", rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(rows)
    )


def _targets(supervision: str, counters: dict[str, Counter], data: Data) -> list[Tensor] | None:
    if supervision == "truth":
        return [graphs.truth for graphs in data.train]
    return removed(counters["sum over nodes"], data.train) if supervision == "removal" else None


def _starts(asked: StudyOptions) -> Iterator[tuple[str, Counter]]:
    """Yield nets whose attention starts in a random direction, and nets whose attention starts at green. Nets of one
    number share their other weights."""
    for number in range(1, asked.pick(full=6, quick=3, smoke=1) + 1):
        yield f"random start {number}", fresh("threshold", 1000 * asked.seed + number)
    for number in range(1, asked.pick(full=3, quick=2, smoke=1) + 1):
        counter = fresh("threshold", 1000 * asked.seed + number)
        counter.start(torch.eye(CHANNELS)[GREEN])
        yield f"start at green {number}", counter


def _row(
    name: str,
    section: str,
    counter: Counter,
    data: Data,
    asked: StudyOptions,
    *,
    targets: Sequence[Tensor] | None = None,
) -> Row:
    start = counter.towards_green
    train(counter, data.train, targets, asked, name)
    looked = [
        erf_of(counter, graphs, each)
        for graphs in data.large[:3]
        for each in range(asked.pick(full=20, quick=6, smoke=2))
    ]
    useful = [(erf, green) for erf, green in looked if green.sum() > 0 and erf.sum() > 0]
    (accuracy, _), (large, found), (unseen, found_unseen) = (
        _tested(counter, each) for each in (data.small, data.large, data.unseen)
    )
    return Row(
        name=name,
        section=section,
        start=start,
        accuracy=accuracy,
        accuracy_large=large,
        accuracy_unseen=unseen,
        published=PUBLISHED.get(name),
        auc_attention=found,
        auc_unseen=found_unseen,
        auc_erf=float(np.mean([auc(erf[None], green[None]) for erf, green in useful])) if useful else None,
        erf_on_green=float(np.mean([erf[green].sum() / erf.sum() for erf, green in useful])) if useful else None,
        # The paper says that attention which starts in a wrong direction may end at chance.
        passed=accuracy > CHANCE or (counter.pool is not None and targets is None),
    )


def _tested(counter: Counter, every: Sequence[Graphs]) -> tuple[float, float | None]:
    """Return the share of graphs whose count is right, and the AUC of the attention if the net has one."""
    right, found = [], []
    with torch.no_grad():
        for graphs in every:
            counts, scores = counter(graphs.x, graphs.adjacency)
            right.append(float((counts.round() == graphs.count).float().mean()))
            if scores is not None:
                found.append(auc(scores.numpy(), graphs.green.numpy()))
    return float(np.mean(right)), float(np.mean(found)) if found else None


def erf_of(counter: Counter, graphs: Graphs, which: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return how much every node of one graph moves the count, (n,), and which nodes are green."""
    links = graphs.adjacency[which : which + 1]

    def counted(x: Tensor) -> Tensor:
        counts: Tensor = counter(x[None], links)[0]
        return counts[:, None]

    return erfscope.influence(counted, graphs.x[which]).values[0], graphs.green[which].numpy()


def auc(scores: FloatArray, green: NDArray[np.bool_]) -> float:
    """Return the chance that a green node has a larger score than another node of its graph, ties counted half: the
    mean over graphs with both."""
    found = []
    for values, which in zip(scores, green, strict=True):
        ones, zeros = int(which.sum()), int((~which).sum())
        if ones and zeros:
            found.append((rankdata(values)[which].sum() - ones * (ones + 1) / 2) / (ones * zeros))
    return float(np.mean(found))


def _conclusion(rows: Sequence[Row]) -> str:
    by_name = {row.name: row for row in rows}
    plain, alone, supervised, weak = (
        by_name[name] for name in ("sum over nodes", "unsupervised", "supervised", "weakly supervised")
    )
    drawn, green = (
        [row for row in rows if row.section == STARTS and row.name.startswith(word)] for word in ("random", "start")
    )
    with_auc = [row for row in rows if row.auc_unseen is not None]
    return (
        f"In graphs of {LARGE[0]} to {LARGE[-1]} nodes with unseen colours supervised attention counts"
        f" {supervised.accuracy_unseen:.0%} of the graphs right (published {PUBLISHED[supervised.name][0]}%), weakly"
        f" supervised {weak.accuracy_unseen:.0%} ({PUBLISHED[weak.name][0]}%), unsupervised"
        f" {alone.accuracy_unseen:.0%}, and a sum over nodes {plain.accuracy_unseen:.0%}"
        f" ({plain.accuracy_large:.0%} with known colours): supervised attention"
        f" {_better(supervised, alone, plain)}, and weakly supervised attention {_better(weak, alone, plain)}."
        f" Unsupervised attention that starts at green reaches {_mean(green, 'accuracy_unseen'):.0%} (AUC"
        f" {_mean(green, 'auc_unseen'):.2f}, {len(green)} nets), at random {_mean(drawn, 'accuracy_unseen'):.0%}"
        f" ({_mean(drawn, 'auc_unseen'):.2f}, {len(drawn)} nets). That the AUC explains accuracy is disputed: over the"
        f" {len(with_auc)} nets with attention their rank correlation is {_ranks_agree(with_auc):+.1f}."
    )


def _better(row: Row, alone: Row, plain: Row) -> str:
    """Say whether a net counts better than one with unsupervised attention, and than one without attention."""
    over_alone, over_none = (row.accuracy_unseen > other.accuracy_unseen for other in (alone, plain))
    if over_alone == over_none:
        return f"is {'better' if over_none else 'no better'} than unsupervised or no attention"
    beaten, unbeaten = ("unsupervised", "no") if over_alone else ("no", "unsupervised")
    return f"is better than {beaten} attention, but not than {unbeaten} attention"


def _mean(rows: Sequence[Row], field: str) -> float:
    return float(np.mean([getattr(row, field) for row in rows]))


def _ranks_agree(rows: Sequence[Row]) -> float:
    ranks = (rankdata([row.auc_unseen for row in rows]), rankdata([row.accuracy_unseen for row in rows]))
    return float(np.corrcoef(*ranks)[0, 1])


def _picture(rows: Sequence[Row]) -> Picture:
    nets, alone = ([row for row in rows if row.section == section] for section in (SUPERVISION, STARTS))
    alone += [row for row in nets if row.name == "unsupervised"]
    accuracies = {SIZES[0]: "accuracy", SIZES[1]: "accuracy_large", f"{SIZES[1]}, unseen colours": "accuracy_unseen"}
    found = {"attention": "auc_attention", "attention, unseen colours": "auc_unseen"}
    known = [(place, row.published) for place, row in enumerate(nets) if row.published is not None]
    published = Curve(
        label="published, unseen colours",
        x=[place for place, _ in known],
        y=[mean for _, (mean, _) in known],
        error=[spread for _, (_, spread) in known],
        points=True,
    )
    places: list[float] = list(range(len(nets)))
    starts = [row.start for row in alone if row.start is not None]
    names, chance = ("sum", "top-k", "none", "full", "weak"), (("chance", 100 * CHANCE),)
    counted = tuple(_curve(label, places, nets, field, 100) for label, field in accuracies.items())
    seen = tuple(
        _curve(label, places, nets, field) for label, field in {**found, "ERF of the count": "auc_erf"}.items()
    )
    by_start = tuple(_curve(label, starts, alone, field, 100) for label, field in accuracies.items())
    seen_by_start = tuple(_curve(label, starts, alone, field) for label, field in found.items())
    cosine = "cosine of its start with green"
    return Picture(
        title="Counting green nodes through attention pooling",
        headings=("Supervision of attention", "Unsupervised attention, by where it starts"),
        rows=(
            (
                Chart(
                    title="Graphs counted right", x="", y="%", curves=(*counted, published), names=names, marks=chance
                ),
                Chart(
                    title="Finding green nodes in larger graphs",
                    x="",
                    y="AUC",
                    curves=seen,
                    names=names,
                    marks=(("by chance", 0.5),),
                ),
            ),
            (
                Chart(title="Graphs counted right", x=cosine, y="%", curves=by_start, marks=chance),
                Chart(
                    title="Finding green nodes in larger graphs",
                    x=cosine,
                    y="AUC",
                    curves=seen_by_start,
                    marks=(("by chance", 0.5),),
                ),
            ),
        ),
    )


def _curve(label: str, x: Sequence[float], rows: Sequence[Row], field: str, scale: float = 1.0) -> Curve:
    """Return the points of the rows that have this number."""
    pairs = [
        (place, scale * getattr(row, field))
        for place, row in zip(x, rows, strict=True)
        if getattr(row, field) is not None
    ]
    return Curve(label=label, x=[place for place, _ in pairs], y=[value for _, value in pairs], points=True)


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False),
    Column(title="start", text=lambda row: cell(row.start, "+.2f", "-"), optional=True),
    Column(title="right", text=lambda row: f"{row.accuracy:.0%}"),
    Column(title="large", text=lambda row: f"{row.accuracy_large:.0%}"),
    Column(title="unseen", text=lambda row: f"{row.accuracy_unseen:.0%}"),
    Column(
        title="publ. %", text=lambda row: "-" if row.published is None else f"{row.published[0]} ± {row.published[1]}"
    ),
    Column(title="AUC unseen", text=lambda row: cell(row.auc_unseen, ".3f", "-")),
    Column(title="AUC large", text=lambda row: cell(row.auc_attention, ".3f", "-"), optional=True),
    Column(title="AUC ERF", text=lambda row: cell(row.auc_erf, ".3f", "-"), optional=True),
    Column(title="on green", text=lambda row: cell(row.erf_on_green, ".0%", "-"), optional=True),
)
