"""Graphs of coloured nodes, and nets that learn to count the green ones through attention pooling.

Source: Knyazev et al. 2019, arXiv:1905.02850, the data set COLORS: n nodes and n to 2 n links, up to ten green nodes.
As in the authors' code (github.com/bknyaz/graph_attention_pool) there is a fourth channel, which only unseen colours
use, and the attention reads the colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope import theory
from erfscope.adapters.blocks import ThresholdPooling, TopKPooling
from erfscope.restore import seed_generators
from erfscope.studies.study import StudyOptions
from erfscope.studies.training import train

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
            "top_k": TopKPooling(CHANNELS + 1, ratio=0.8),
            "threshold": ThresholdPooling(CHANNELS + 1, threshold=0.03),
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
    with seed_generators(seed):
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
