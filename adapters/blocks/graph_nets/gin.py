"""The graph isomorphism network's layer: sums of neighbours, kept apart from the node itself, through a small net."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapters.blocks.graph_nets.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, per_node, whole


class GIN(MapBlock):
    """MLP((1 + eps) x_p + sum over the neighbours of p), with neighbours taken without self-loops and without
    normalisation.

    Args:
        in_channels: c of the input.
        out_channels: c of the output; ``in_channels`` if None.
        hidden_channels: Width of the MLP's hidden layer; ``out_channels`` if None.
        eps: Weight of the node itself beyond 1.
        train_eps: Whether eps is learnt.
        graph: What :func:`as_graph` takes.

    Source: Xu et al. 2019, arXiv:1810.00826; ``nn`` and ``eps`` as in PyTorch Geometric's ``GINConv``.
    """

    eps: float | nn.Parameter

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        hidden_channels: int | None = None,
        eps: float = 0.0,
        train_eps: bool = False,
        *,
        graph: Any = "grid4",
    ) -> None:
        super().__init__()
        out = whole("out_channels", in_channels if out_channels is None else out_channels)
        hidden = whole("hidden_channels", out if hidden_channels is None else hidden_channels)
        self.graph = as_graph(graph)
        self.nn = nn.Sequential(nn.Linear(whole("in_channels", in_channels), hidden), nn.ReLU(), nn.Linear(hidden, out))
        # A number where it is not learnt: as a buffer of a float32 module it would stay rounded after ``.double()``.
        self.eps = nn.Parameter(torch.full((1,), float(eps))) if train_eps else float(eps)

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        total = self.graph.on(x).mix(x, "none", self_loops=False)
        return per_node(self.nn, (1 + self.eps) * x + total)
