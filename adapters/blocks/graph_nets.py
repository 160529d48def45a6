"""Graph convolutions on the nodes of a map: GCN, ChebNet and ChebyGIN, GIN, GAT and GATv2."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks.graph import NORMALISATIONS, Graph, Normalisation, masked_softmax, weighted
from erfscope.adapters.blocks.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, activation, as_pictures, one_of, per_node, whole
from erfscope.core.values.errors import ErfscopeError

LambdaMax = float | Literal["exact"]


class ChebNet(MapBlock):
    """Sum over k < K of T_k(L~) X W_k, with L~ = 2 L / lambda_max - I and L = I - D^-1/2 A D^-1/2, A without
    self-loops.

    A node reaches K - 1 hops.

    Args:
        in_channels: c of the input.
        out_channels: c of the output.
        K: Number of polynomials, T_0 among them.
        lambda_max: Largest eigenvalue of L: a number, 2 as usual, or ``"exact"`` to compute it for the map at hand.
        bias: Whether there is a bias.
        graph: What :func:`as_graph` takes; symmetric, as the Laplacian is.

    Raises:
        ErfscopeError: K below 1, a lambda_max that is not positive, or ``"exact"`` on a graph without a symmetric
            adjacency.

    Source: Defferrard et al. 2016, arXiv:1606.09375; parameters as in PyTorch Geometric's ``ChebConv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 3,
        *,
        lambda_max: LambdaMax = 2.0,
        bias: bool = True,
        graph: Any = "grid4",
    ) -> None:
        super().__init__()
        good = lambda_max == "exact" if isinstance(lambda_max, str) else lambda_max > 0
        if not good:
            raise ErfscopeError(f"lambda_max is a positive number or 'exact', not {lambda_max!r}")
        self.lambda_max = lambda_max
        self.graph = as_graph(graph)
        self.lins = nn.ModuleList(nn.Linear(in_channels, out_channels, bias=False) for _ in range(whole("K", K)))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        graph = self.graph.on(x)
        largest = largest_eigenvalue(self.graph, *x.shape[2:]) if self.lambda_max == "exact" else float(self.lambda_max)
        polynomials = chebyshev(graph, x, len(self.lins), largest)
        y = functools.reduce(torch.add, (per_node(lin, t) for lin, t in zip(self.lins, polynomials, strict=True)))
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1)


class ChebyGIN(MapBlock):
    """MLP of [T_0 X, d_p T_1 X, ..., d_p T_{K-1} X] with d_p the receiving node's degree; for K = 1, MLP of d~_p
    (D~^-1/2 A~ D~^-1/2 X)_p.

    As the authors' code has it, which differs from their formula: T_0 is not scaled, there is no epsilon, and
    lambda_max is 2.

    Args:
        in_channels: c of the input.
        out_channels: c of the output.
        K: Number of polynomials.
        hidden_channels: Width of the MLP's hidden layer, after which comes a ReLU; 0 for a single linear layer.
        aggregation: ``"sum"`` scales by degrees; ``"mean"`` does not, which is ChebyNet with an MLP.
        act: Activation after the last layer; the authors' nets have "relu".
        graph: What :func:`as_graph` takes.

    Source: Knyazev et al. 2019, arXiv:1905.02850, and github.com/bknyaz/graph_attention_pool, chebygin.py.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 2,
        hidden_channels: int = 0,
        aggregation: Literal["sum", "mean"] = "sum",
        *,
        act: str | None = None,
        graph: Any = "grid4",
    ) -> None:
        super().__init__()
        self.K, self.aggregation = whole("K", K), one_of("aggregation", aggregation, ("sum", "mean"))
        self.graph = as_graph(graph)
        hidden = whole("hidden_channels", hidden_channels, least=0)
        first = nn.Linear(in_channels * K, hidden or out_channels)
        self.fc = nn.Sequential(
            first, *([nn.ReLU(), nn.Linear(hidden, out_channels)] if hidden else []), activation(act)
        )

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        graph, scaled = self.graph.on(x), self.aggregation == "sum"
        if self.K == 1:
            y = graph.mix(x, "symmetric")
            y = y * graph.degree(x, self_loops=True) if scaled else y
        else:
            first, *rest = chebyshev(graph, x, self.K, 2.0)
            degree = graph.degree(x, self_loops=False)
            y = torch.cat([first, *(t * degree if scaled else t for t in rest)], 1)
        return per_node(self.fc, y)


def chebyshev(graph: Graph, x: Tensor, count: int, lambda_max: float | Tensor) -> list[Tensor]:
    """T_0(L~) x, ..., T_{count-1}(L~) x for a map (B, C, H, W), each of its shape.

    A node without neighbours has L = 1 on the diagonal, as in PyTorch Geometric.
    """

    def scaled(y: Tensor) -> Tensor:
        mixed = graph.mix(y, "symmetric", self_loops=False)
        if not isinstance(lambda_max, Tensor) and lambda_max == 2:
            return -mixed  # the node itself takes no part
        ratio = 2 / lambda_max
        return (ratio - 1) * y - ratio * mixed

    found = [x]
    if count > 1:
        found.append(scaled(x))
    while len(found) < count:
        found.append(2 * scaled(found[-1]) - found[-2])
    return found


def largest_eigenvalue(graph: Graph, height: int, width: int) -> float | Tensor:
    """Largest eigenvalue of L = I - D^-1/2 A D^-1/2, A without self-loops. The time grows as (height * width)^3.

    Raises:
        ErfscopeError: the adjacency is not symmetric, or depends on the features.
    """
    adjacency = graph.adjacency(height, width).double()
    if not adjacency.is_meta and not torch.equal(adjacency, adjacency.T):
        raise ErfscopeError("lambda_max='exact' needs a symmetric adjacency; give it as a number")
    adjacency = adjacency - torch.diag(adjacency.diagonal())
    degree = adjacency.sum(1)
    scale = torch.where(degree > 0, degree, 1).rsqrt()
    laplacian = torch.eye(len(degree), dtype=torch.float64, device=degree.device) - scale[:, None] * adjacency * scale
    largest: Tensor = torch.linalg.eigvalsh(laplacian)[-1]
    return largest if largest.is_meta else float(largest)


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
        #: What :meth:`~erfscope.adapters.blocks.graph.Graph.neighbours` takes: without ``add_self_loops``
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
