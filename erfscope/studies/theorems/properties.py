"""Statements of the papers without a formula: modes, uniformity, correlations, support, and possible sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erfscope import theory
from erfscope.adapters.blocks import GCN, ChebNet, SelfAttention, on_nodes
from erfscope.influence_matrix import influence
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.theorems.case import Case, Draws, Outcome, array
from erfscope.studies.theorems.graphs import DUTA, distant_grid

SIDE = 21
#: A unit whose point reflection, (15, 15), lies beyond what nine 3 x 3 convolutions can see.
UNIT, PARTNER = 5 * SIDE + 5, 15 * SIDE + 15
#: One whose nine steps lead to the middle between the two.
NEARER, NEARER_PARTNER = 6 * SIDE + 6, 14 * SIDE + 14
MIDDLE = 10 * SIDE + 10


def near(cell: int, radius: float = 3.0) -> NDArray[np.bool_]:
    """Return which cells of the grid are within a radius of a cell."""
    row, col = np.divmod(np.arange(SIDE * SIDE), SIDE)
    inside: NDArray[np.bool_] = np.hypot(row - cell // SIDE, col - cell % SIDE) <= radius
    return inside


def _uniform(draws: Draws) -> Outcome:
    """Any activation, biases, 12 nodes: the spread over inputs and outputs, against the mean."""
    x, errors = draws.normal(12, 3), []
    for act in ("relu", "tanh", "gelu"):
        # Nodes share their gates, and few channels might all be shut.
        gcn = draws.fill(GCN(3, 24, 3, act=act, graph="full"))
        for convention in ("jacobian", "signed"):
            found = influence(on_nodes(gcn, 3, 4), x, convention).values
            errors.append(np.abs(found - found.mean()).max() / np.abs(found).max())
    return Outcome(error=float(max(errors)), limit=1e-12)


def _two_modes(draws: Draws) -> Outcome:
    """The unit and its partner are the peaks and hold nearly half each; the error is the middle over the lower peak."""
    gcn = draws.fill(GCN(1, 1, 9, act=None, graph=distant_grid(), bias=False))
    row = np.abs(influence(on_nodes(gcn, SIDE, SIDE), draws.normal(SIDE**2, 1), outputs=[NEARER]).values[0])
    share, modes = row / row.sum(), (NEARER, NEARER_PARTNER)
    halves = min(share[near(cell, 5.0)].sum() for cell in modes)
    peaks = tuple(int(np.where(near(cell), share, 0).argmax()) for cell in modes)
    valley = float(share[MIDDLE] / share[list(modes)].min())
    return Outcome(error=valley if peaks == modes and halves > 0.45 and valley > 0 else math.inf, limit=0.01)


def with_partner(draws: Draws, samples: int, channels: int) -> tuple[Tensor, FloatArray]:
    """Smooth inputs f = g + rho g(reflected), (samples, n, c), and their covariance with the unit.

    A mixture of two bumps that is a covariance by construction: (1 + rho^2) K(a, b) + 2 rho K(a, reflected b).
    """
    rho, width = 0.8, 1.5
    place = np.arange(SIDE)
    smooth = torch.from_numpy(np.exp(-(np.subtract.outer(place, place) ** 2) / (2 * width**2)))
    noise = draws.normal(samples, channels, SIDE, SIDE)
    g = smooth @ noise @ smooth
    kernel = torch.kron(smooth @ smooth, smooth @ smooth)
    covariance = (1 + rho**2) * kernel[UNIT] + 2 * rho * kernel[UNIT].flip(0)
    # Variance 1 at the unit; elsewhere it is smaller towards the border.
    scale = float(covariance[UNIT].sqrt())
    return ((g + rho * g.flip(-2, -1)) / scale).flatten(2).transpose(1, 2), array(covariance) / scale**2


def _follows_covariance(draws: Draws) -> Outcome:
    """One minus the correlation of the mean signed influence with the covariance, off the unit.

    Keys are those of the queries and values have positive weights, so that the factor of the covariance is not near
    zero by chance, where it would take many more samples."""
    x, covariance = with_partner(draws, draws.samples(1200), 8)
    layer = draws.fill(SelfAttention(8, 8, mode="dot_product"))
    layer.key = layer.query
    with torch.no_grad():
        layer.value.weight.abs_()
    row = influence(on_nodes(layer, SIDE, SIDE), x, "signed", [UNIT]).values[0]
    off = np.arange(SIDE**2) != UNIT
    return Outcome(
        error=1 - abs(float(np.corrcoef(row[off], covariance[off])[0, 1])), limit=0.05 if draws.quick else 0.01
    )


def _convolution(draws: Draws) -> Outcome:
    """Share of the mean influence within three cells of the partner, for nine 3 x 3 convolutions of 24 filters with
    ReLUs."""
    x, _ = with_partner(draws, draws.samples(16), 8)
    widths = [8, *[24] * 9]
    with seed_generators(draws.generator.initial_seed()):
        layers = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    net = nn.Sequential(*layers).double()
    row = influence(on_nodes(net, SIDE, SIDE), x, "jacobian", [UNIT]).values[0]
    return Outcome(error=float(row[near(PARTNER)].sum() / row.sum()), limit=0.01)


def _hops(draws: Draws) -> Outcome:
    """Influence further than K - 1 hops away."""
    net, grid = draws.fill(ChebNet(2, 2, K=3)), theory.grid_adjacency(5, 6)
    profiles = influence(on_nodes(net, 5, 6), draws.normal(30, 2)).hops(grid)
    return Outcome(error=max(float(profile.mass[3:].sum() + profile.unreachable) for profile in profiles), limit=0.0)


CASES: tuple[Case, ...] = (
    Case(name="full graph, same everywhere", source=f"{DUTA}, 4.2", kind="property", run=_uniform),
    Case(name="distant link, valley", source=f"{DUTA}, 4.1 (E0-07)", kind="property", run=_two_modes),
    Case(name="attention, 1 - correlation", source=f"{DUTA}, Thm 3, 4.1", kind="property", run=_follows_covariance),
    Case(name="convolution, at the partner", source=f"{DUTA}, 4.1", kind="property", run=_convolution),
    Case(name="chebnet, beyond K - 1 hops", source="Defferrard et al. 2016", kind="property", run=_hops),
)
