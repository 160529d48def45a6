"""Graph convolution: features are mixed over neighbours with weights that do not depend on them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapters.blocks.graph_nets.graph import NORMALISATIONS, Graph, Normalisation
from erfscope.adapters.blocks.graph_nets.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, activation, one_of, per_node, whole


class GraphConv(nn.Module):
    """One layer: A X W, plus X B where there is a self term, plus a bias.

    Args:
        in_channels: c.
        out_channels: c'.
        normalisation: Of A; see :meth:`Graph.mix`.
        self_weight: Whether the node itself has weights of its own.
        bias: Whether there is a bias.
    """

    def __init__(
        self, in_channels: int, out_channels: int, normalisation: Normalisation, *, self_weight: bool, bias: bool
    ) -> None:
        super().__init__()
        self.normalisation = normalisation
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.lin_self = nn.Linear(in_channels, out_channels, bias=False) if self_weight else None
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """(B, c, H, W) -> (B, c', H, W)."""
        y = graph.mix(per_node(self.lin, x), self.normalisation)
        if self.lin_self is not None:
            y = y + per_node(self.lin_self, x)
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1)


class GCN(MapBlock):
    """A graph convolutional net: X -> act(A X W_1) -> ... -> A X W_L, without an activation after the last layer.

    Args:
        in_channels: c of the input.
        hidden_channels: c between the layers.
        num_layers: L.
        out_channels: c of the output; ``hidden_channels`` if None.
        act: Name of the activation; None for the linear net.
        graph: What :func:`as_graph` takes.
        normalisation: ``"none"``, ``"row"`` (D^-1 A) or ``"symmetric"`` (Kipf); see :meth:`Graph.mix`.
        self_weight: Adds X B, a term of the node itself: H' = act(D^-1 A H W^T + H B^T).
        bias: Whether every layer has a bias.

    Raises:
        ErfscopeError: an unknown name, or a number that is no positive whole one.

    Source: Kipf & Welling 2017, arXiv:1609.02907; Nicolicioiu & Duta, Theorems 1 and 2 (the linear and the ReLU net).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        act: str | None = "relu",
        *,
        graph: Any = "grid4",
        normalisation: Normalisation = "row",
        self_weight: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        one_of("normalisation", normalisation, NORMALISATIONS)
        last = hidden_channels if out_channels is None else out_channels
        widths = [in_channels, *[hidden_channels] * (whole("num_layers", num_layers) - 1), last]
        for width in widths:
            whole("every number of channels", width)
        self.graph = as_graph(graph)
        self.act = activation(act)
        self.convs = nn.ModuleList(
            GraphConv(a, b, normalisation, self_weight=self_weight, bias=bias) for a, b in itertools.pairwise(widths)
        )

    def on_map(self, x: Tensor) -> Tensor:
        """All layers, on the graph that the input has."""
        graph = self.graph.on(x)
        for number, conv in enumerate(self.convs):
            x = conv(x if number == 0 else self.act(x), graph)
        return x
