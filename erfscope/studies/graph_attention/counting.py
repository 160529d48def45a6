"""Nets that learn to count the green nodes of small graphs, with supervised or unsupervised attention.

Source: Knyazev et al. 2019, arXiv:1905.02850, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from erfscope import theory
from erfscope.restore import seed_generators
from erfscope.studies.graph_attention.colour_graphs import Counter, Graphs, colour_graphs
from erfscope.studies.study import StudyOptions
from erfscope.studies.training import descend, fit

SMALL, LARGE = range(4, 26), (30, 60, 100, 150, 200)
#: Weight of the Kullback-Leibler divergence between the attention and its target.
BETA = 10.0
#: Learning rate; that of the few numbers of the attention is ten times as high.
RATE = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Graphs to train with, and three sets to test with."""

    train: list[Graphs]
    small: list[Graphs]
    large: list[Graphs]
    unseen: list[Graphs]


def graphs_of(asked: StudyOptions) -> Data:
    """Return the data of a study; smoke runs have fewer graphs to test with."""
    share = asked.pick(full=1, quick=1, smoke=4)

    def made(count: int, sizes: Sequence[int], first: int, *, unseen: bool = False) -> list[Graphs]:
        seeds = [1000 * asked.seed + first + nodes for nodes in sizes]
        return [
            colour_graphs(count, nodes, torch.Generator().manual_seed(seed), unseen=unseen)
            for nodes, seed in zip(sizes, seeds, strict=True)
        ]

    return Data(
        train=made(24, SMALL, 0),
        small=made(40 // share, SMALL, 300),
        large=made(100 // share, LARGE, 600),
        unseen=made(100 // share, LARGE, 600, unseen=True),
    )


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


def train(
    counter: Counter, graphs: Sequence[Graphs], targets: Sequence[Tensor] | None, asked: StudyOptions, *about: str
) -> None:
    """Train a net to count, and its attention to match the targets.

    Args:
        counter: Trained in place.
        graphs: One batch each.
        targets: Target of the attention, (B, n) for each batch; None for unsupervised attention.
        asked: Effort of the training, and the folder where nets are kept.
        *about: Distinguishes this net from others of its kind.
    """
    epochs = asked.pick(full=150, quick=25, smoke=6)
    attention = [] if counter.pool is None else [counter.pool.weight]
    rest = [parameter for parameter in counter.parameters() if all(parameter is not each for each in attention)]
    optimizer = torch.optim.Adam(
        [{"params": rest, "lr": RATE}, *({"params": [each], "lr": 10 * RATE} for each in attention)]
    )

    def epoch(number: int) -> dict[str, float]:
        order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(number)).tolist()
        total = 0.0
        for which in order:
            counts, scores = counter(graphs[which].x, graphs[which].adjacency)
            loss = F.mse_loss(counts, graphs[which].count)
            if targets is not None:
                loss = loss + BETA * F.kl_div(scores.log_softmax(1), targets[which], reduction="batchmean")
            total += descend(optimizer, loss)
        if number + 1 == epochs * 3 // 4:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        return {"loss": total / len(order)}

    fit(
        asked,
        "-".join(["attention-pooling", *about]).replace(" ", "-"),
        counter,
        optimizer,
        epochs,
        epoch,
        beta=BETA,
        rate=RATE,
    )
