"""Graphs of coloured nodes, and a net that counts the green ones through attention pooling.

Source: Knyazev et al. 2019, arXiv:1905.02850, the data set COLORS: n nodes and n to 2 n links, up to ten green nodes.
As in the authors' code (github.com/bknyaz/graph_attention_pool) there is a fourth channel, which only unseen colours
use, and the attention reads the colours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks import ThresholdPooling, TopKPooling

#: Colours that a net is trained on, and the channels of a node.
COLOURS, CHANNELS, GREEN, MOST = 3, 4, 1, 10
WIDTH = 64


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
