"""Layers that are polynomials of the graph's Laplacian: ChebyNet, and ChebyGIN, which puts a small net behind them."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor, nn

from erfscope.adapters.blocks.graph_nets.graph import Graph
from erfscope.adapters.blocks.graph_nets.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, activation, one_of, per_node, whole
from erfscope.errors import ErfscopeError

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
