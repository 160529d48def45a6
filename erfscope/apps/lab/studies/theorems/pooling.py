"""Node attention and pooling: F1 to F3 and F5 of docs/theory.md, on the blocks TopKPooling, ThresholdPooling and
GCN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.theorems.case import Case, CaseOutcome, Draws, array, equals, follows, worst
from erfscope.apps.lab.studies.theorems.graphs import weights_of

blocks = adapters.blocks

KNYAZEV = "Knyazev et al. 2019"
N = 9


def _reweighting(draws: Draws) -> CaseOutcome:
    x, pool = draws.normal(N, 3), draws.fill(blocks.ThresholdPooling(3, threshold=0.0))
    return follows(blocks.on_nodes(pool, 3, 3), x, theory.attention_reweighting(array(x), array(pool.weight[0])))


def _top_k(draws: Draws) -> CaseOutcome:
    """Alone, and before a GCN on the same graph."""
    x, adjacency = draws.normal(N, 3), draws.graph(N)
    pool = draws.fill(blocks.TopKPooling(3, ratio=4))
    gcn = draws.fill(blocks.GCN(3, 2, 2, act=None, graph=adjacency, normalisation="none"))
    jacobian = theory.top_k_pooling(array(x), array(pool.weight[0]), 4)
    after = theory.chain(theory.linear_gcn(array(adjacency), weights_of(gcn)), jacobian)
    alone, then = blocks.on_nodes(pool, 1, N), blocks.on_nodes(nn.Sequential(pool, gcn), 1, N)
    return worst(follows(alone, x, jacobian), follows(then, x, after))


def _threshold(draws: Draws) -> CaseOutcome:
    """Nodes that are dropped still count, through the softmax."""
    x, pool = draws.normal(N, 3), draws.fill(blocks.ThresholdPooling(3))
    jacobian = theory.threshold_pooling(array(x), array(pool.weight[0]), 1 / N)
    dropped = np.setdiff1d(np.arange(N), theory.threshold_nodes(array(x), array(pool.weight[0]), 1 / N))
    if not len(dropped) or not np.abs(jacobian[:, :, dropped]).max() > 0:
        return CaseOutcome(error=float("inf"))
    return follows(blocks.on_nodes(pool, 3, 3), x, jacobian)


def _left_out(draws: Draws) -> CaseOutcome:
    """A sum over nodes of (A + I) X, where leaving node i out takes away d_i x_i + x_i + sum_j A_ij x_j."""
    upper = draws.graph(N).triu()
    adjacency, x = upper + upper.T, draws.normal(N, 1)

    def total(nodes: torch.Tensor) -> float:
        gcn: Any = blocks.GCN(
            1,
            1,
            1,
            act=None,
            graph=adjacency[nodes][:, nodes] + torch.eye(len(nodes)),
            normalisation="none",
            bias=False,
        ).double()
        nn.init.ones_(gcn.convs[0].lin.weight)
        with torch.no_grad():
            return float(blocks.on_nodes(gcn, 1, len(nodes))(x[nodes]).sum())

    every = torch.arange(N)
    without = [total(every[every != i]) for i in range(N)]
    changes = np.abs(array((adjacency.sum(1, keepdim=True) + 1) * x + adjacency @ x)).ravel()
    return equals(theory.leave_one_out(without, total(every)), changes / changes.sum())


CASES: tuple[Case, ...] = (
    Case(name="attention_reweighting", source=f"{KNYAZEV} (E3-01)", kind="closed form", run=_reweighting),
    Case(name="top_k_pooling", source="Gao & Ji 2019 (E3-06, E3-07)", kind="closed form", run=_top_k),
    Case(name="threshold_pooling", source=KNYAZEV, kind="closed form", run=_threshold),
    Case(name="leave_one_out", source=f"{KNYAZEV} (E3-10)", kind="closed form", run=_left_out),
)
