"""``attention-pooling``: nets that count the green nodes of a graph, with attention that is unsupervised, supervised,
or weakly supervised by removing nodes.

Knyazev et al. say that attention which finds the right nodes is what lets a net count in larger graphs than it was
trained on, and among unseen colours; that this often needs attention that starts near green, or is supervised;
and that weak supervision (how much the answer changes when a node is removed) does nearly as well. The notes on the
paper dispute that the attention's AUC explains accuracy; both are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from torch import Tensor, nn

import erfscope
from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    percent,
    points,
    share_with_error,
)
from erfscope.apps.lab.studies.training import seeded, train
from erfscope.core import FloatArray
from erfscope.show import Chart, Curve, Picture

#: Colours that a net is trained on, and the channels of a node.
COLOURS, CHANNELS, GREEN, MOST = 3, 4, 1, 10
WIDTH = 64
#: Numbers of nodes in training, and of larger graphs.
SMALL, LARGE = range(4, 26), (30, 60, 100, 150, 200)
#: Weight of the Kullback-Leibler divergence between the attention and its target.
BETA = 10.0
#: Learning rate; that of the few numbers of the attention is ten times as high. The decay of the weights is the
#: authors': it takes those of the fourth channel, which training never uses, to zero. Without it they stay as they were
#: drawn, and the seed decides how many graphs with unseen colours are counted right.
RATE, WEIGHT_DECAY = 3e-3, 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graphs:
    """Graphs with the same number of nodes."""

    #: (B, n, 4): 1 in the channel of a node's colour; unseen colours have any of them, but for green.
    x: Tensor
    #: (B, n, n), 0 and 1, symmetric.
    adjacency: Tensor

    @property
    def green(self) -> Tensor:
        """Which nodes are green, bool (B, n)."""
        return self.x[..., GREEN] > 0

    @property
    def count(self) -> Tensor:
        """The number of green nodes, (B,)."""
        return self.green.sum(1).float()

    @property
    def truth(self) -> Tensor:
        """Target of the attention, (B, n): equal on the green nodes, or on all nodes if none is green."""
        weights = self.green.float()
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, torch.ones_like(weights))
        return weights / weights.sum(1, keepdim=True)

    def without(self, node: int) -> Graphs:
        """The graphs without one node and its links."""
        kept = torch.arange(self.x.shape[1]) != node
        return replace(self, x=self.x[:, kept], adjacency=self.adjacency[:, kept][:, :, kept])


def colour_graphs(count: int, nodes: int, generator: torch.Generator, *, unseen: bool = False) -> Graphs:
    """Random graphs with 0 to ten green nodes.

    Args:
        count: How many.
        nodes: Nodes of each.
        generator: Source of randomness.
        unseen: Whether the nodes that are not green have any mixture of the three other channels, none of them
            included, instead of one of two colours.
    """
    greens = torch.randint(min(MOST, nodes) + 1, (count, 1), generator=generator)
    rank = torch.rand(count, nodes, generator=generator).argsort(1).argsort(1)
    others = torch.randint(COLOURS - 1, (count, nodes), generator=generator) * 2
    x = F.one_hot(torch.where(rank < greens, GREEN, others), CHANNELS).float()
    links = nodes * (1 + torch.rand(count, 1, 1, generator=generator))
    chosen = torch.rand(count, nodes, nodes, generator=generator) < links / max(nodes * (nodes - 1) / 2, 1)
    upper = chosen.triu(1).float()
    if unseen:
        mixtures = torch.randint(2, x.shape, generator=generator).float()
        mixtures[..., GREEN] = 0
        x = torch.where((rank < greens)[..., None], x, mixtures)
    return Graphs(x=x, adjacency=upper + upper.transpose(1, 2))


class MeanLayer(nn.Module):
    """ReLU of A_mean X W + X B + b; a node without neighbours receives nothing from them."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(in_channels, WIDTH, bias=False)
        self.own = nn.Linear(in_channels, WIDTH)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """(B, n, c) and (B, n, n) -> (B, n, 64)."""
        mean = adjacency / adjacency.sum(2, keepdim=True).clamp_min(1)
        return F.relu(self.neighbours(mean @ x) + self.own(x))


class Counter(nn.Module):
    """Two layers with a pooling between them, and a sum over the nodes that are kept. Attention reads a node's own
    colour.

    Args:
        pool: ``"none"``, ``"top_k"`` (80 % of the nodes) or ``"threshold"`` (those whose attention exceeds 0.03). Its
            direction in the space of colours is drawn from a normal distribution, as the authors do.
    """

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.first, self.second, self.head = MeanLayer(CHANNELS), MeanLayer(WIDTH), nn.Linear(WIDTH, 1)
        pools = {
            "none": None,
            "top_k": adapters.blocks.TopKPooling(CHANNELS + 1, ratio=0.8),
            "threshold": adapters.blocks.ThresholdPooling(CHANNELS + 1, threshold=0.03),
        }
        self.pool = pools[pool]
        self.start(torch.randn(CHANNELS))

    def start(self, direction: Tensor) -> None:
        """Let the attention begin with a direction in the space of colours, (4,); a net without attention has none."""
        if self.pool is not None:
            with torch.no_grad():
                self.pool.weight.copy_(F.pad(direction, (0, 1))[None])

    @property
    def towards_green(self) -> float | None:
        """Cosine of the attention's direction with green, among the colours of the training; None without attention."""
        if self.pool is None:
            return None
        direction = self.pool.weight[0, :COLOURS].detach()
        return float(direction[GREEN] / torch.linalg.vector_norm(direction))

    def forward(self, x: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor | None]:
        """Colours (B, n, 4) and links (B, n, n) -> counts (B,), and the score of every node, (B, n), where there is
        attention."""
        h: Tensor = self.first(x, adjacency)
        if self.pool is None:
            return self.head(self.second(h, adjacency).sum(1)).squeeze(1), None
        seen = F.pad(x, (0, 1), value=1.0)
        cells = seen.transpose(1, 2).unsqueeze(2)  # the blocks take maps; a graph is one of a single row
        gate = self.pool(cells)[:, -1, 0, :, None]  # a channel of ones comes out as what it was multiplied by
        kept = self.pool.selected(cells)[:, 0, 0, :, None].float()
        left = adjacency * kept * kept.transpose(1, 2)
        counts = self.head((self.second(h * gate, left) * kept).sum(1)).squeeze(1)
        return counts, seen @ self.pool.weight[0]


def graphs_of(asked: StudyOptions) -> dict[str, list[Graphs]]:
    """Return graphs to ``train`` with, and three sets to test with: ``small``, ``large``, and ``unseen`` colours."""
    share = asked.pick(full=1, quick=1, smoke=4)

    def made(count: int, sizes: Sequence[int], first: int, *, unseen: bool = False) -> list[Graphs]:
        seeds = {nodes: 1000 * asked.seed + first + nodes for nodes in sizes}
        return [
            colour_graphs(count, n, torch.Generator().manual_seed(seed), unseen=unseen) for n, seed in seeds.items()
        ]

    return {
        "train": made(24, SMALL, 0),
        "small": made(40 // share, SMALL, 300),
        "large": made(100 // share, LARGE, 600),
        "unseen": made(100 // share, LARGE, 600, unseen=True),
    }


def fresh(pool: str, seed: int) -> Counter:
    """A net at random weights."""
    with seeded(seed):
        return Counter(pool)


def removed(judge: Counter, train: Sequence[Graphs]) -> list[Tensor]:
    """Return targets for weak supervision: how much a net without attention changes its answer when a node is removed,
    (B, n) for each batch of graphs."""
    targets = []
    with torch.no_grad():
        for graphs in train:
            every = judge(graphs.x, graphs.adjacency)[0].numpy()
            less = [graphs.without(node) for node in range(graphs.x.shape[1])]
            without = np.stack([judge(one.x, one.adjacency)[0].numpy() for one in less], axis=1)
            found = [theory.leave_one_out(row, whole) for row, whole in zip(without, every, strict=True)]
            targets.append(torch.from_numpy(np.stack(found)).float())
    return targets


def teach(
    counter: Counter, graphs: Sequence[Graphs], targets: Sequence[Tensor] | None, asked: StudyOptions, name: str
) -> None:
    """Train a net to count, and its attention to match the targets (Knyazev et al. 2019, section 3).

    Args:
        counter: Trained in place.
        graphs: One batch each.
        targets: Target of the attention, (B, n) for each batch; None for unsupervised attention.
        asked: Effort of the training, and the folder where nets are kept.
        name: Distinguishes this net from others of its kind.
    """
    epochs = asked.pick(full=150, quick=25, smoke=6)
    attention = [] if counter.pool is None else [counter.pool.weight]
    rest = [parameter for parameter in counter.parameters() if all(parameter is not each for each in attention)]
    groups = [{"params": rest, "lr": RATE}, *({"params": [each], "lr": 10 * RATE} for each in attention)]
    optimizer = torch.optim.Adam(groups, weight_decay=WEIGHT_DECAY)

    def losses(epoch: int) -> Iterator[Tensor]:
        for which in torch.randperm(len(graphs), generator=torch.Generator().manual_seed(epoch)).tolist():
            counts, scores = counter(graphs[which].x, graphs[which].adjacency)
            loss = F.mse_loss(counts, graphs[which].count)
            if targets is not None:
                loss = loss + BETA * F.kl_div(scores.log_softmax(1), targets[which], reduction="batchmean")
            yield loss
        for group in optimizer.param_groups if epoch + 1 == epochs * 3 // 4 else ():
            group["lr"] *= 0.1

    name = f"attention-pooling-{name}".replace(" ", "-")
    train(asked, name, counter, optimizer, epochs, losses, beta=BETA, rate=RATE, decay=WEIGHT_DECAY)


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
) -> StudyRow:
    start = counter.towards_green
    teach(counter, data["train"], targets, asked, name)
    each = range(asked.pick(full=20, quick=6, smoke=2))
    looked = [erf_of(counter, graphs, which) for graphs in data["large"][:3] for which in each]
    useful = [(erf, green) for erf, green in looked if green.sum() > 0 and erf.sum() > 0]
    tested = {kind: _tested(counter, data[kind]) for kind in ("small", "large", "unseen")}
    return StudyRow(
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


def _claims(rows: Sequence[StudyRow], graphs: int) -> list[Claim]:
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


def _picture(rows: Sequence[StudyRow]) -> Picture:
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
    StudyColumn("net", "{name}", numeric=False),
    StudyColumn("start", "{start:+.2f}", optional=True, none="-"),
    StudyColumn("right", "{accuracy:.0%}"),
    StudyColumn("large", "{accuracy_large:.0%}"),
    StudyColumn("unseen", "{accuracy_unseen:.0%}"),
    StudyColumn("publ. %", "{published[0]} ± {published[1]}", none="-"),
    StudyColumn("AUC unseen", "{auc_unseen:.3f}", none="-"),
    StudyColumn("AUC large", "{auc_attention:.3f}", optional=True, none="-"),
    StudyColumn("AUC ERF", "{auc_erf:.3f}", optional=True, none="-"),
    StudyColumn("on green", "{erf_on_green:.0%}", optional=True, none="-"),
)
