"""Statements of the papers without a formula: modes, uniformity and support."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import influence
from erfscope.apps.lab.studies.theorems.case import Case, CaseOutcome, Draws
from erfscope.apps.lab.studies.theorems.graphs import DUTA, distant_grid

blocks = adapters.blocks

SIDE = 21
#: A unit, its point reflection, and the middle between the two, where nine steps lead from either.
UNIT, PARTNER, MIDDLE = 6 * SIDE + 6, 14 * SIDE + 14, 10 * SIDE + 10


def near(cell: int, radius: float = 3.0) -> NDArray[np.bool_]:
    """Return which cells of the grid are within a radius of a cell."""
    row, col = np.divmod(np.arange(SIDE * SIDE), SIDE)
    inside: NDArray[np.bool_] = np.hypot(row - cell // SIDE, col - cell % SIDE) <= radius
    return inside


def _uniform(draws: Draws) -> CaseOutcome:
    """Any activation, biases, 12 nodes: the spread over inputs and outputs, against the mean."""
    x, errors = draws.normal(12, 3), []
    for act in ("relu", "tanh", "gelu"):
        # Nodes share their gates, and few channels might all be shut.
        gcn = draws.fill(blocks.GCN(3, 24, 3, act=act, graph="full"))
        for convention in ("jacobian", "signed"):
            found = influence(blocks.on_nodes(gcn, 3, 4), x, convention).values
            errors.append(np.abs(found - found.mean()).max() / np.abs(found).max())
    return CaseOutcome(error=float(max(errors)), limit=1e-12)


def _two_modes(draws: Draws) -> CaseOutcome:
    """The unit and its partner are the peaks and hold nearly half each; the error is the middle over the lower peak."""
    gcn = draws.fill(blocks.GCN(1, 1, 9, act=None, graph=distant_grid(), bias=False))
    row = np.abs(influence(blocks.on_nodes(gcn, SIDE, SIDE), draws.normal(SIDE**2, 1), outputs=[UNIT]).values[0])
    share, modes = row / row.sum(), (UNIT, PARTNER)
    halves = min(share[near(cell, 5.0)].sum() for cell in modes)
    peaks = tuple(int(np.where(near(cell), share, 0).argmax()) for cell in modes)
    valley = float(share[MIDDLE] / share[list(modes)].min())
    return CaseOutcome(error=valley if peaks == modes and halves > 0.45 and valley > 0 else math.inf, limit=0.01)


def _hops(draws: Draws) -> CaseOutcome:
    """Influence further than K - 1 hops away."""
    net, grid = draws.fill(blocks.ChebNet(2, 2, K=3)), theory.grid_adjacency(5, 6)
    profiles = influence(blocks.on_nodes(net, 5, 6), draws.normal(30, 2)).hops(grid)
    return CaseOutcome(
        error=max(float(profile.mass[3:].sum() + profile.unreachable) for profile in profiles), limit=0.0
    )


CASES: tuple[Case, ...] = (
    Case(name="full graph, same everywhere", source=f"{DUTA}, 4.2", kind="property", run=_uniform),
    Case(name="distant link, valley", source=f"{DUTA}, 4.1 (E0-07)", kind="property", run=_two_modes),
    Case(name="chebnet, beyond K - 1 hops", source="Defferrard et al. 2016", kind="property", run=_hops),
)
