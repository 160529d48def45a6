"""Graph attention: a node weighs its neighbours by their features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks.graph_nets.graph import masked_softmax, weighted
from erfscope.adapters.blocks.graph_nets.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, as_pictures, per_node, whole


class _GraphAttention(MapBlock):
    """What both layers share: heads side by side or averaged, self-loops, dropout of attention weights, and the
    output's bias."""

    def __init__(
        self,
        out_channels: int,
        heads: int,
        concat: bool,
        negative_slope: float,
        dropout: float,
        *,
        add_self_loops: bool,
        bias: bool,
        graph: Any,
    ) -> None:
        super().__init__()
        self.heads, self.out_channels = whole("heads", heads), whole("out_channels", out_channels)
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        #: What :meth:`~erfscope.adapters.blocks.graph_nets.graph.Graph.neighbours` takes: without ``add_self_loops``
        #: the graph decides.
        self.self_loops = True if add_self_loops else None
        self.graph = as_graph(graph)
        self.bias = nn.Parameter(torch.zeros(out_channels * heads if concat else out_channels)) if bias else None

    def _mixed(self, scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """From scores (B, heads, K, H, W) and neighbours' values to the output (B, C_out, H, W)."""
        weights = F.dropout(masked_softmax(scores, mask, 2), self.dropout, self.training)
        out = weighted(weights, values)
        y = out.flatten(1, 2) if self.concat else out.mean(1)
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1)

    def _per_head(self, x: Tensor, att: Tensor) -> Tensor:
        """Product with every head's vector: x (B, heads * d, *any) and att (1, heads, d) -> (B, heads, *any)."""
        heads = torch.unflatten(x, 1, (self.heads, -1))
        return (heads * att.view(1, self.heads, -1, *[1] * (x.dim() - 2))).sum(2)


class GATv2(_GraphAttention):
    """x'_p = b + sum_j alpha_pj v_j with v = lin_l x and alpha_p = softmax over neighbours j of att . LeakyReLU(lin_l
    x_j + lin_r x_p).

    Args:
        in_channels: c of the input.
        out_channels: d of every head.
        heads: Number of heads.
        concat: Whether heads are put side by side, heads * d channels, or averaged.
        negative_slope: Of the LeakyReLU.
        dropout: Share of attention weights that are dropped in training.
        add_self_loops: Whether a node is always its own neighbour; else the graph says.
        bias: Whether ``lin_l``, ``lin_r`` and the output have a bias.
        share_weights: Whether ``lin_r`` is ``lin_l``.
        graph: What :func:`as_graph` takes. Weights of links do not matter. ``"full"`` holds n * n values of every
            channel.

    Source: Brody et al. 2022, arXiv:2105.14491; parameters named and shaped as in PyTorch Geometric's ``GATv2Conv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        share_weights: bool = False,
        *,
        graph: Any = "grid4",
    ) -> None:
        super().__init__(
            out_channels, heads, concat, negative_slope, dropout, add_self_loops=add_self_loops, bias=bias, graph=graph
        )
        #: Of sources, and so of the values.
        self.lin_l = nn.Linear(whole("in_channels", in_channels), heads * out_channels, bias=bias)
        #: Of targets.
        self.lin_r = self.lin_l if share_weights else nn.Linear(in_channels, heads * out_channels, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        _glorot(self.lin_l, self.lin_r, self.att)

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        values, mask, hidden = self._hidden(x)
        return self._mixed(self._per_head(F.leaky_relu(hidden, self.negative_slope), self.att), values, mask)

    @torch.no_grad()
    def dead_targets(self, x: Tensor) -> Tensor:
        """Nodes and heads from which ``lin_r`` gets no gradient, whatever the loss.

        That is so where all neighbours lie on the same side of the LeakyReLU in every channel of the head, a single
        neighbour included: then ``lin_r`` adds the same number to all scores, and the softmax takes it out.

        Args:
            x: The layer's own input, (B, C, H, W) or (B, C, T, H, W).

        Returns:
            Bool (B, n, heads), (B T, n, heads) for video, with nodes counted row by row.

        Source: Neumeier et al., arXiv:2304.10939, a corollary of the gradient of the target weights (docs/theory.md,
        D14)."""
        _, mask, hidden = self._hidden(as_pictures(x))
        if self.lin_r is self.lin_l:
            # Shared weights get the gradient of the values.
            return torch.zeros(
                (hidden.shape[0], hidden.shape[-2] * hidden.shape[-1], self.heads), dtype=torch.bool, device=x.device
            )
        # Where both sides have the same slope there are no sides.
        high = hidden > 0 if self.negative_slope != 1 else torch.ones_like(hidden, dtype=torch.bool)
        same = (high | ~mask).all(2) | (~high | ~mask).all(2)
        return torch.unflatten(same, 1, (self.heads, -1)).all(2).flatten(2).transpose(1, 2)

    def _hidden(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The neighbours' values, their mask, and what the LeakyReLU is applied to, (B, heads * d, K, H, W)."""
        left = per_node(self.lin_l, x)
        right = left if self.lin_r is self.lin_l else per_node(self.lin_r, x)
        values, mask = self.graph.on(x).neighbours(left, self_loops=self.self_loops)
        return values, mask, values + right.unsqueeze(2)


class GAT(_GraphAttention):
    """x'_p = b + sum_j alpha_pj v_j with v = lin x and alpha_p = softmax over neighbours j of LeakyReLU(att_src . v_j +
    att_dst . v_p).

    Args:
        in_channels: c of the input.
        out_channels: d of every head.
        heads: Number of heads.
        concat: Whether heads are put side by side, heads * d channels, or averaged.
        negative_slope: Of the LeakyReLU.
        dropout: Share of attention weights that are dropped in training.
        add_self_loops: Whether a node is always its own neighbour; else the graph says.
        bias: Whether the output has a bias.
        graph: What :func:`as_graph` takes. Weights of links do not matter.

    Source: Velickovic et al. 2018, arXiv:1710.10903; parameters named and shaped as in PyTorch Geometric's ``GATConv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        *,
        graph: Any = "grid4",
    ) -> None:
        super().__init__(
            out_channels, heads, concat, negative_slope, dropout, add_self_loops=add_self_loops, bias=bias, graph=graph
        )
        self.lin = nn.Linear(whole("in_channels", in_channels), heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        _glorot(self.lin, self.att_src, self.att_dst)

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        graph, nodes = self.graph.on(x), per_node(self.lin, x)
        values, mask = graph.neighbours(nodes, self_loops=self.self_loops)
        sources, _ = graph.neighbours(self._per_head(nodes, self.att_src), self_loops=self.self_loops)
        scores = F.leaky_relu(sources + self._per_head(nodes, self.att_dst).unsqueeze(2), self.negative_slope)
        return self._mixed(scores, values, mask)


@torch.no_grad()
def _glorot(*parts: nn.Linear | nn.Parameter) -> None:
    """PyTorch Geometric's initialisation: Glorot's uniform one over the last two dimensions, biases zero."""
    for part in parts:
        nn.init.xavier_uniform_(part.weight if isinstance(part, nn.Linear) else part[0])
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
