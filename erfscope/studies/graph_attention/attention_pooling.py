"""``attention-pooling``: nets that count the green nodes of a graph, with attention that is unsupervised, supervised,
or weakly supervised by removing nodes.

Knyazev et al. say that attention which finds the right nodes is what lets a net count in larger graphs than it was
trained on, and among unseen colours; that this often needs attention that starts near green, or is supervised;
and that weak supervision (how much the answer changes when a node is removed) does nearly as well. The notes on the
paper dispute that the attention's AUC explains accuracy; both are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from torch import Tensor

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.graph_attention.colour_graphs import (
    CHANNELS,
    GREEN,
    LARGE,
    SMALL,
    Counter,
    Graphs,
    fresh,
    graphs_of,
    removed,
    teach,
)
from erfscope.studies.study import (
    Claim,
    Column,
    Row,
    StudyFindings,
    StudyOptions,
    claim,
    percent,
    points,
    share_with_error,
)

SIZES = tuple(f"{sizes[0]} to {sizes[-1]} nodes" for sizes in (SMALL, LARGE))
#: Share of graphs of ten nodes or more that a net gets right by always saying the same number.
CHANCE = 1 / 11
#: Percent right in larger graphs with unseen colours, and its spread (COLORS-Test-LargeC, the README of the authors'
#: code).
PUBLISHED = {"sum over nodes": (15, 7), "unsupervised": (11, 6), "supervised": (75, 17), "weakly supervised": (73, 14)}
#: Name of a net -> its pooling.
NETS = {
    "sum over nodes": "none",
    "top-k": "top_k",
    "unsupervised": "threshold",
    "supervised": "threshold",
    "weakly supervised": "threshold",
}
SUPERVISION, SEEDS, STARTS = "supervision of attention", "the same from other weights", "where attention starts"


def study(asked: StudyOptions) -> StudyFindings:
    """Train every net, and measure its counts, its attention and its ERFs."""
    data = graphs_of(asked)
    rows = []
    for number in range(asked.pick(long=5, full=1, quick=1, smoke=1)):
        counters = {name: fresh(pool, asked.seed + number) for name, pool in NETS.items()}
        for name, counter in counters.items():
            targets = [graphs.truth for graphs in data["train"]] if name == "supervised" else None
            if name == "weakly supervised":
                targets = removed(counters["sum over nodes"], data["train"])
            section, numbered = (SEEDS, f"{name} {number + 1}") if number else (SUPERVISION, name)
            rows.append(_row(numbered, section, counter, data, asked, targets=targets))
    # Attention that starts in a random direction, and at green. Nets of one number share their other weights.
    for start, count in asked.pick(full=((0, 6), (1, 3)), quick=((0, 3), (1, 2)), smoke=((0, 1), (1, 1))):
        for number in range(1, count + 1):
            counter = fresh("threshold", 1000 * asked.seed + number)
            if start:
                counter.start(torch.eye(CHANNELS)[GREEN])
            name = f"start at green {number}" if start else f"random start {number}"
            rows.append(_row(name, STARTS, counter, data, asked))
    counted = sum(len(graphs.x) for graphs in data["unseen"])
    return StudyFindings(
        columns=COLUMNS, section="section", rows=rows, claims=_claims(rows, counted), picture=_picture(rows)
    )


def _row(
    name: str,
    section: str,
    counter: Counter,
    data: dict[str, list[Graphs]],
    asked: StudyOptions,
    *,
    targets: Sequence[Tensor] | None = None,
) -> Row:
    start = counter.towards_green
    teach(counter, data["train"], targets, asked, name)
    each = range(asked.pick(full=20, quick=6, smoke=2))
    looked = [erf_of(counter, graphs, which) for graphs in data["large"][:3] for which in each]
    useful = [(erf, green) for erf, green in looked if green.sum() > 0 and erf.sum() > 0]
    tested = {kind: _tested(counter, data[kind]) for kind in ("small", "large", "unseen")}
    return Row(
        name=name,
        section=section,
        # Cosine of the attention's direction with green before training.
        start=start,
        # Share of graphs whose count is right: with as many nodes as in training, with more, and with more and colours
        # that were not seen.
        accuracy=tested["small"][0],
        accuracy_large=tested["large"][0],
        accuracy_unseen=tested["unseen"][0],
        # In percent, for graphs with more nodes and unseen colours, and its spread.
        published=PUBLISHED.get(name),
        # Area under the curve of the attention as a detector of green nodes in larger graphs, and in those with unseen
        # colours.
        auc_attention=tested["large"][1],
        auc_unseen=tested["unseen"][1],
        # The same of the ERF of the count in larger graphs, and the share of that ERF on green nodes; None if no node
        # moves a count.
        auc_erf=float(np.mean([auc(erf[None], green[None]) for erf, green in useful])) if useful else None,
        erf_on_green=float(np.mean([erf[green].sum() / erf.sum() for erf, green in useful])) if useful else None,
        # The paper says that attention which starts in a wrong direction may end at chance.
        passed=tested["small"][0] > CHANCE or (counter.pool is not None and targets is None),
    )


def _tested(counter: Counter, every: Sequence[Graphs]) -> tuple[float, float | None]:
    """Return the share of graphs whose count is right, and the AUC of the attention if the net has one."""
    right, found = [], []
    for graphs in every:
        with torch.no_grad():
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
            # mannwhitneyu, which also computes a p-value, takes seven times as long.
            found.append((rankdata(values)[which].sum() - ones * (ones + 1) / 2) / (ones * zeros))
    return float(np.mean(found))


def _claims(rows: Sequence[Row], graphs: int) -> list[Claim]:
    counted = {
        name: np.array([row.accuracy_unseen for row in rows if row.name.rstrip(" 0123456789") == name])
        for name in PUBLISHED
    }
    claims = []
    for name, (mean, spread) in PUBLISHED.items():
        found = counted[name].mean()
        others = [counted[other].mean() for other, (theirs, _) in PUBLISHED.items() if abs(theirs - mean) > 50]
        ranks, near = all((found > other) == (mean > 50) for other in others), abs(100 * found - mean) <= spread
        ours = share_with_error(found, graphs)
        if len(counted[name]) > 1:
            ours = f"{100 * found:.0f} ± {100 * counted[name].std(ddof=1):.0f} % (nets: {len(counted[name])})"
        text = f"graphs counted right, larger and with unseen colours, {name}"
        claims.append(claim(text, f"{mean} ± {spread} %", ours, near and ranks, has_mechanism=ranks))
    green, random = (
        [row for row in rows if row.section == STARTS and row.name.startswith(word)] for word in ("start", "random")
    )
    means, errors = zip(*(_mean([row.accuracy_unseen for row in some]) for some in (green, random)), strict=True)
    gain = means[0] - means[1]
    with_auc = [row for row in rows if row.auc_unseen is not None]
    agree = float(
        spearmanr(*([getattr(row, number) for row in with_auc] for number in ("auc_unseen", "accuracy_unseen")))[0]
    )
    ours = ", ".join(
        f"{percent(mean, error)} at {place} (AUC {np.mean([row.auc_unseen for row in some]):.2f}, nets: {len(some)})"
        for place, some, mean, error in zip(("green", "random"), (green, random), means, errors, strict=True)
    )
    return [
        *claims,
        claim(
            "attention that starts at green counts better than one that starts at random",
            "better",
            ours,
            gain > 2 * np.hypot(*errors),
        ),
        claim(
            "the attention's AUC explains accuracy (disputed): rank correlation",
            "positive",
            f"{agree:+.1f}",
            agree > 0.5,
        ),
    ]


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean and its standard error, 0 for one value."""
    return float(np.mean(values)), float(np.std(values) / max(len(values) - 1, 1) ** 0.5)


def _picture(rows: Sequence[Row]) -> Picture:
    nets, alone = ([row for row in rows if row.section == section] for section in (SUPERVISION, STARTS))
    alone += [row for row in nets if row.name == "unsupervised"]
    accuracies = {SIZES[0]: "accuracy", SIZES[1]: "accuracy_large", f"{SIZES[1]}, unseen colours": "accuracy_unseen"}
    found = {"attention": "auc_attention", "attention, unseen colours": "auc_unseen"}
    known = {place: row.published for place, row in enumerate(nets) if row.published is not None}
    means, spreads = zip(*known.values(), strict=True)
    published = Curve(label="published, unseen colours", x=list(known), y=means, error=spreads, points=True)
    names, titles = (
        ("sum", "top-k", "none", "full", "weak"),
        ("Graphs counted right", "Finding green nodes in larger graphs"),
    )
    chance, blind = (("chance", 100 * CHANCE),), (("by chance", 0.5),)
    counted = [points(label, nets, number, scale=100) for label, number in accuracies.items()]
    seen = [points(label, nets, number) for label, number in {**found, "ERF of the count": "auc_erf"}.items()]
    by_start = [points(label, alone, number, x="start", scale=100) for label, number in accuracies.items()]
    seen_by_start = [points(label, alone, number, x="start") for label, number in found.items()]
    cosine = "cosine of its start with green"
    supervised = (
        Chart(title=titles[0], x="", y="%", curves=(*counted, published), names=names, marks=chance),
        Chart(title=titles[1], x="", y="AUC", curves=tuple(seen), names=names, marks=blind),
    )
    unsupervised = (
        Chart(title=titles[0], x=cosine, y="%", curves=tuple(by_start), marks=chance),
        Chart(title=titles[1], x=cosine, y="AUC", curves=tuple(seen_by_start), marks=blind),
    )
    return Picture(
        title="Counting green nodes through attention pooling",
        headings=("Supervision of attention", "Unsupervised attention, by where it starts"),
        rows=(supervised, unsupervised),
    )


COLUMNS = (
    Column("net", "{name}", numeric=False),
    Column("start", "{start:+.2f}", optional=True, none="-"),
    Column("right", "{accuracy:.0%}"),
    Column("large", "{accuracy_large:.0%}"),
    Column("unseen", "{accuracy_unseen:.0%}"),
    Column("publ. %", "{published[0]} ± {published[1]}", none="-"),
    Column("AUC unseen", "{auc_unseen:.3f}", none="-"),
    Column("AUC large", "{auc_attention:.3f}", optional=True, none="-"),
    Column("AUC ERF", "{auc_erf:.3f}", optional=True, none="-"),
    Column("on green", "{erf_on_green:.0%}", optional=True, none="-"),
)
