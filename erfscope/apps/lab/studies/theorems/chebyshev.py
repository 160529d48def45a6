"""Graph isomorphism networks and Chebyshev polynomials: D10 to D12 of docs/theory.md, on GIN, ChebNet and ChebyGIN."""

from __future__ import annotations

from typing import Any

from torch import nn

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.theorems.case import Case, CaseOutcome, Draws, array, follows, worst

blocks = adapters.blocks

N = 7


def network_of(layers: nn.Module) -> dict[str, Any]:
    """Weights and biases of the linear layers of a small net, as the theory takes them."""
    linear = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
    return {"weights": [array(layer.weight.T) for layer in linear], "biases": [array(layer.bias) for layer in linear]}


def _gin(draws: Draws) -> CaseOutcome:
    adjacency, x = draws.graph(N), draws.normal(N, 3)
    gin = draws.fill(blocks.GIN(3, 2, 5, eps=0.3, graph=adjacency))
    jacobian = theory.gin(array(adjacency), x=array(x), epsilon=float(gin.eps), **network_of(gin.nn))
    return follows(blocks.on_nodes(gin, 1, N), x, jacobian)


def _chebnet(draws: Draws) -> CaseOutcome:
    """With the eigenvalue 2 that is assumed, and with the true one."""
    grid, x, outcomes = theory.grid_adjacency(3, 4), draws.normal(12, 3), []
    values: tuple[tuple[Any, float | None], ...] = ((2.0, 2.0), ("exact", None))
    for given, largest in values:
        net = draws.fill(blocks.ChebNet(3, 2, K=4, lambda_max=given))
        jacobian = theory.chebnet(grid, [array(lin.weight.T) for lin in net.lins], lambda_max=largest)
        outcomes.append(follows(blocks.on_nodes(net, 3, 4), x, jacobian))
    return worst(*outcomes)


def _chebygin(draws: Draws) -> CaseOutcome:
    grid, x, outcomes = theory.grid_adjacency(3, 4), draws.normal(12, 3), []
    kinds: tuple[tuple[int, Any], ...] = ((1, "sum"), (3, "sum"), (3, "mean"))
    for order, aggregation in kinds:
        net = draws.fill(blocks.ChebyGIN(3, 2, K=order, hidden_channels=5, aggregation=aggregation))
        network = network_of(net.fc)
        jacobian = theory.chebygin(grid, x=array(x), order=order, aggregation=aggregation, **network)
        outcomes.append(follows(blocks.on_nodes(net, 3, 4), x, jacobian))
    return worst(*outcomes)


CASES: tuple[Case, ...] = (
    Case(name="gin", source="Xu et al. 2019, Eq. 4.1", kind="closed form", run=_gin),
    Case(name="chebnet", source="Defferrard et al. 2016 (E3-04)", kind="closed form", run=_chebnet),
    Case(name="chebygin", source="Knyazev et al. 2019 (E3-05)", kind="closed form", run=_chebygin),
)
