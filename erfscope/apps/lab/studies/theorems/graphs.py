"""Graph convolutions: D1 to D9 of docs/theory.md, on the block GCN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import influence
from erfscope.apps.lab.influence_matrix.compute import NodeMap
from erfscope.apps.lab.studies.theorems.case import (
    Case,
    CaseOutcome,
    Draws,
    array,
    equals,
    expects,
    follows,
    grouped,
    worst,
)
from erfscope.core import FloatArray

blocks = adapters.blocks

DUTA = "Nicolicioiu & Duta"
N = 7


def weights_of(gcn: Any) -> list[FloatArray]:
    """W_1 ... W_L of a GCN, each (c_in, c_out)."""
    return [array(conv.lin.weight.T) for conv in gcn.convs]


def scalar(block: nn.Module, n: int, channels: int) -> NodeMap:
    """A block as a map of one channel, whose derivative is the signed influence of the block: all inputs alike, outputs
    added up."""
    fn = blocks.on_nodes(block, 1, n)
    return lambda x: fn(x.expand(-1, channels)).sum(1, keepdim=True)


def redrawn(fn: NodeMap, block: nn.Module, draws: Draws) -> NodeMap:
    """The map of a block with fresh weights at every call: random signs, since only their mean and variance count.

    Squares of products of normal weights have tails too heavy for a sample of this size.
    """

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            for weight in block.parameters():
                weight.copy_((draws.uniform(*weight.shape) - 0.5).sign())
        return fn(x)

    return call


def correlated(draws: Draws, samples: int, n: int) -> tuple[Tensor, FloatArray]:
    """Gaussian inputs (samples, n, 1) and their covariance (n, n)."""
    root = draws.normal(n, n)
    return draws.normal(samples, n, 1).transpose(1, 2).matmul(root.T).transpose(1, 2), array(root @ root.T)


def _linear(draws: Draws) -> CaseOutcome:
    """On every kind of graph that the block can be built on."""
    x = draws.normal(12, 3)
    graphs: list[tuple[Any, FloatArray]] = [
        (given := draws.graph(12) * draws.uniform(12, 12), array(given)),
        ("grid4", theory.grid_adjacency(3, 4, self_loops=True)),
        ("grid8", theory.grid_adjacency(3, 4, neighbours=8, self_loops=True)),
        ("full", np.ones((12, 12))),
        ("knn", np.empty(0)),
    ]
    outcomes = []
    for graph, adjacency in graphs:
        gcn = draws.fill(blocks.GCN(3, 4, 3, 2, act=None, graph=graph, normalisation="none"))
        if graph == "knn":
            adjacency = array(blocks.NearestGraph(8).adjacency_of(x.T.reshape(1, 3, 3, 4))[0])
        outcomes.append(follows(blocks.on_nodes(gcn, 3, 4), x, theory.linear_gcn(adjacency, weights_of(gcn))))
    return worst(*outcomes)


def _constant(draws: Draws) -> CaseOutcome:
    adjacency, value = draws.graph(N), 0.7
    gcn = blocks.GCN(2, 4, 3, 3, act=None, graph=adjacency, normalisation="none", bias=False).double()
    for weight in gcn.parameters():
        nn.init.constant_(weight, value)
    expected = theory.linear_gcn_constant_weights(array(adjacency), (2, 4, 4, 3), value)
    return equals(influence(blocks.on_nodes(gcn, 1, N), draws.normal(N, 2), "signed"), expected)


def moments_hold(fn: NodeMap, x: Tensor, expected: theory.Moments) -> CaseOutcome:
    """Mean and variance of the signed influence of a map of one channel, on the first two outputs, each on half of the
    samples."""
    half, rows = len(x) // 2, [0, 1]
    mean, square = influence(fn, x[:half], "signed", rows), influence(fn, x[half:], "energy", rows)
    return worst(expects(mean, expected.mean[rows]), expects(square, expected.variance[rows]))


def _random(draws: Draws) -> CaseOutcome:
    adjacency = draws.graph(5)
    gcn = blocks.GCN(2, 2, 2, 2, act=None, graph=adjacency, normalisation="none", bias=False).double()
    x = torch.zeros(draws.samples(2000), 5, 1, dtype=torch.float64)
    return moments_hold(
        redrawn(scalar(gcn, 5, 2), gcn, draws), x, theory.linear_gcn_random_weights(array(adjacency), (2, 2, 2))
    )


def _relu(draws: Draws) -> CaseOutcome:
    adjacency, x = (draws.graph(N) - 0.4 * draws.uniform(N, N)).clamp(min=0), draws.normal(N, 3)
    gcn = draws.fill(blocks.GCN(3, 4, 3, 2, graph=adjacency, normalisation="none", bias=False))
    return follows(blocks.on_nodes(gcn, 1, N), x, theory.relu_gcn(array(adjacency), weights_of(gcn), array(x)))


def _relu_mean(draws: Draws) -> CaseOutcome:
    """Two and four layers: the printed halving at every layer would be off by four in the latter."""
    outcomes = []
    for weights in ((0.8, -1.1), (-0.9, 0.7, 1.2, -1.0)):
        adjacency = draws.graph(5) + torch.eye(5, dtype=torch.float64)
        x, _ = correlated(draws, 16 * draws.samples(500), 5)
        gcn: Any = blocks.GCN(1, 1, len(weights), graph=adjacency, normalisation="row", bias=False).double()
        for conv, weight in zip(gcn.convs, weights, strict=True):
            nn.init.constant_(conv.lin.weight, weight)
        expected = theory.relu_gcn_mean(theory.mean_adjacency(array(adjacency)), weights)
        outcomes.append(
            expects(influence(*grouped(blocks.on_nodes(gcn, 1, 5), x, 16), "signed", [0, 3]), expected[[0, 3]], each=16)
        )
    return worst(*outcomes)


def _relu_random(draws: Draws) -> CaseOutcome:
    adjacency = draws.graph(5)
    x, covariance = correlated(draws, draws.samples(2000), 5)
    gcn = blocks.GCN(1, 1, 2, graph=adjacency, normalisation="none", bias=False).double()
    return moments_hold(
        redrawn(blocks.on_nodes(gcn, 1, 5), gcn, draws), x, theory.relu_gcn_random_weights(array(adjacency), covariance)
    )


def _distant(draws: Draws) -> CaseOutcome:
    """The whole matrix of 441 x 441, each cell linked to its point reflection."""
    side = 5 if draws.quick else 21
    gcn = draws.fill(blocks.GCN(1, 1, 9, act=None, graph=distant_grid(), bias=False))
    fn, x = blocks.on_nodes(gcn, side, side), draws.normal(side * side, 1)
    gain = float(np.prod(weights_of(gcn)))
    return equals(influence(fn, x, "signed").values / gain, np.linalg.matrix_power(distant_walk(side), 9))


def distant_grid() -> nn.Module:
    """Four neighbours, self-loops, and a link to the point reflection."""
    return blocks.GridGraph(4, True, "opposite")


def distant_walk(side: int) -> FloatArray:
    """P = D^-1 (A + I + R) of that graph."""
    cells = [(row, col) for row in range(side) for col in range(side)]
    links = [(cell, (side - 1 - cell[0], side - 1 - cell[1])) for cell in cells]
    grid = theory.grid_adjacency(side, side, self_loops=True, links=links)
    return theory.mean_adjacency(grid)


def _renormalised(draws: Draws) -> CaseOutcome:
    """Also as sqrt(d_p / d_i) times the walk's probability."""
    gcn, x = draws.fill(blocks.GCN(2, 3, 4, act=None, normalisation="symmetric")), draws.normal(12, 2)
    grid = theory.grid_adjacency(3, 4)
    fn, weights = blocks.on_nodes(gcn, 3, 4), weights_of(gcn)
    root = np.sqrt(grid.sum(1) + 1)
    walks = np.linalg.matrix_power(theory.mean_adjacency(grid, self_loops=True), 4)
    by_walks = root[:, None] / root * walks * np.linalg.multi_dot(weights).sum()
    jacobian = theory.linear_gcn(theory.renormalised_adjacency(grid), weights)
    return worst(follows(fn, x, jacobian), equals(influence(fn, x, "signed"), by_walks))


def _self_term(draws: Draws) -> CaseOutcome:
    """With an isolated node, which keeps its self term alone; with and without a ReLU."""
    adjacency, x = draws.graph(N), draws.normal(N, 3)
    adjacency[2] = 0
    outcomes = []
    for act in ("relu", None):
        gcn = draws.fill(blocks.GCN(3, 4, 3, 2, act=act, graph=adjacency, self_weight=True, bias=False))
        own = [array(conv.lin_self.weight.T) for conv in gcn.convs]
        jacobian = theory.mean_gcn_with_self_term(array(adjacency), weights_of(gcn), own, array(x) if act else None)
        outcomes.append(follows(blocks.on_nodes(gcn, 1, N), x, jacobian))
    return worst(*outcomes)


def _walks(draws: Draws) -> CaseOutcome:
    """Counts of walks, and the Laplacian, which mixes with nothing but differences."""
    adjacency, x = draws.graph(N), draws.normal(N, 1)
    gcn = blocks.GCN(1, 1, 4, act=None, graph=adjacency, normalisation="none", bias=False).double()
    for weight in gcn.parameters():
        nn.init.constant_(weight, 1.0)
    counted = influence(blocks.on_nodes(gcn, 1, N), x, "signed")
    laplacian = influence(lambda y: adjacency.sum(1, keepdim=True) * y - adjacency @ y, x, "signed")
    walks, rows = theory.adjacency_power(array(adjacency), 4), theory.laplacian(array(adjacency))
    return worst(equals(counted, walks), equals(laplacian, rows), equals(laplacian.values.sum(1), np.zeros(N)))


def _full(draws: Draws) -> CaseOutcome:
    """Alone, and in a residual block, which adds the identity."""
    # Nodes share their gates, and few channels might all be shut.
    gcn, x = draws.fill(blocks.GCN(3, 24, 3, 3, graph="full", bias=False)), draws.normal(12, 3)
    fn, jacobian = blocks.on_nodes(gcn, 3, 4), theory.fully_connected_gcn(weights_of(gcn), array(x))
    return worst(follows(fn, x, jacobian), follows(lambda y: y + fn(y), x, theory.with_residual(jacobian)))


CASES: tuple[Case, ...] = (
    Case(name="linear_gcn", source=f"{DUTA}, Thm 1, 4 (E0-01)", kind="closed form", run=_linear),
    Case(name="linear_gcn_constant_weights", source=f"{DUTA}, Eq. 6", kind="closed form", run=_constant),
    Case(name="relu_gcn", source=f"{DUTA}, Thm 2, 5 (E0-10)", kind="closed form", run=_relu),
    Case(name="linear_gcn, distant links", source=f"{DUTA}, 4.1 (E0-07)", kind="closed form", run=_distant),
    Case(name="fully_connected_gcn", source=f"{DUTA}, 4.2", kind="closed form", run=_full),
    Case(name="renormalised_adjacency", source="Kipf & Welling 2017 (E3-03)", kind="closed form", run=_renormalised),
    Case(name="mean_gcn_with_self_term", source="Course report, Eq. 6 (E2-08)", kind="closed form", run=_self_term),
    Case(name="adjacency_power, laplacian", source="Course report (E2-02, E2-03)", kind="closed form", run=_walks),
    Case(name="linear_gcn_random_weights", source=f"{DUTA}, Eq. 8 (E0-06)", kind="expectation", run=_random),
    Case(name="relu_gcn_mean", source=f"{DUTA}, Eq. 61 (E0-12)", kind="expectation", run=_relu_mean),
    Case(name="relu_gcn_random_weights", source=f"{DUTA}, Eq. 65-70 (E0-13)", kind="expectation", run=_relu_random),
)
