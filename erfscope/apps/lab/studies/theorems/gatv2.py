"""Graph attention: D13 to D15 of docs/theory.md, on the blocks GATv2 and GAT."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import influence
from erfscope.apps.lab.influence_matrix.compute import NodeMap
from erfscope.apps.lab.studies.theorems.case import Case, CaseOutcome, Draws, array, equals, follows, worst

blocks = adapters.blocks

NEUMEIER = "Neumeier et al."
N = 7


def parameters(layer: Any) -> dict[str, Any]:
    """Return the parameters of a GATv2 by their names in the theory."""
    return {
        "theta_l": array(layer.lin_l.weight),
        "theta_r": array(layer.lin_r.weight),
        "a": array(layer.att[0]),
        "bias_l": array(layer.lin_l.bias),
        "bias_r": array(layer.lin_r.bias),
    }


def _jacobian(draws: Draws) -> CaseOutcome:
    """One head and two, side by side and averaged, with the self-loops that PyTorch Geometric adds and without."""
    outcomes = []
    for heads, concat, loops in ((1, True, True), (2, True, True), (2, False, False)):
        x, adjacency = draws.normal(N, 3), draws.graph(N)
        layer = draws.fill(blocks.GATv2(3, 2, heads=heads, concat=concat, add_self_loops=loops, graph=adjacency))
        seen = array(adjacency) + loops * np.eye(N)
        outcomes.append(
            follows(blocks.on_nodes(layer, 1, N), x, theory.gatv2(array(x), seen, **parameters(layer), concat=concat))
        )
    return worst(*outcomes)


def _gradients(draws: Draws) -> CaseOutcome:
    """Of all parameters, for a loss with another weight on every output."""
    outcomes = []
    for concat in (True, False):
        x, adjacency = draws.normal(N, 3), draws.graph(N)
        layer: Any = draws.fill(blocks.GATv2(3, 2, heads=2, concat=concat, graph=adjacency))
        g = draws.normal(N, 4 if concat else 2)
        loss = (blocks.on_nodes(layer, 1, N)(x) * g).sum()
        found = torch.autograd.grad(
            loss, [layer.lin_l.weight, layer.lin_r.weight, layer.lin_l.bias, layer.lin_r.bias, layer.att, layer.bias]
        )
        seen = array(adjacency) + np.eye(N)
        stated = theory.gatv2_parameter_gradients(array(x), seen, **parameters(layer), gradient=array(g), concat=concat)
        closed = (stated.theta_l, stated.theta_r, stated.bias_l, stated.bias_r, stated.a[None], stated.bias)
        outcomes += [equals(array(one), other) for one, other in zip(found, closed, strict=True)]
    return worst(*outcomes)


def _dead(draws: Draws) -> CaseOutcome:
    """Nodes that the theory calls dead send no gradient to the target weights, and all others send some."""
    x, adjacency = draws.normal(20, 3), draws.graph(20, 0.1)
    layer: Any = draws.fill(blocks.GATv2(3, 2, heads=2, graph=adjacency))
    with torch.no_grad():
        layer.lin_r.bias.mul_(4)  # so that the LeakyReLUs are on one side at many nodes
    y, sent = blocks.on_nodes(layer, 1, 20)(x), np.zeros((20, 2))
    for p in range(20):
        for head in range(2):
            loss = (y[p, 2 * head : 2 * head + 2] * draws.normal(2)).sum()
            grad: Tensor = torch.autograd.grad(loss, layer.lin_r.weight, retain_graph=True)[0]
            sent[p, head] = float(grad.abs().max())
    dead = theory.dead_targets(array(x), array(adjacency) + np.eye(20), **parameters(layer))
    reported = layer.dead_targets(x.T.reshape(1, 3, 1, 20))[0].numpy()
    if not (dead == reported).all() or not dead.any() or dead.all() or sent[~dead].min() < 1e-9 * sent.max():
        return CaseOutcome(error=float("inf"))
    return CaseOutcome(error=float(sent[dead].max() / sent.max()), limit=1e-12)


def after(outer: NodeMap, inner: NodeMap) -> NodeMap:
    """One map after another."""
    return lambda x: outer(inner(x))


def _support(draws: Draws) -> CaseOutcome:
    """Exactly zero beyond the neighbours; two layers, beyond their neighbours."""
    x, adjacency, errors = draws.normal(N, 3), draws.graph(N, 0.15), []
    apart = theory.adjacency_power(array(adjacency) + np.eye(N), 1) == 0
    two = theory.adjacency_power(array(adjacency) + np.eye(N), 2) == 0
    for block in (blocks.GATv2, blocks.GAT):
        fn, gn = (blocks.on_nodes(draws.fill(block(3, 3, graph=adjacency)), 1, N) for _ in range(2))
        errors.append(influence(fn, x).values[apart].max())
        errors.append(influence(after(gn, fn), x).values[two].max(initial=0.0))
    return CaseOutcome(error=float(max(errors)), limit=0.0)


CASES: tuple[Case, ...] = (
    Case(name="gatv2", source=f"{NEUMEIER} (E4-01, E4-07)", kind="closed form", run=_jacobian),
    Case(name="gatv2_parameter_gradients", source=f"{NEUMEIER} (E4-02 to E4-06)", kind="closed form", run=_gradients),
    Case(name="dead_targets, no gradient", source=f"{NEUMEIER}, corollary", kind="property", run=_dead),
    Case(name="GAT, beyond neighbours", source="Velickovic et al. 2018", kind="property", run=_support),
)
