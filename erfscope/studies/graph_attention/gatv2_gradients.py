"""``gatv2-gradients``: the gradients of a graph attention layer's parameters in closed form, and the nodes from which
one parameter gets none.

Neumeier et al. derive what Theta_L, Theta_R and a receive from a loss. A corollary: a node whose neighbours all have
the same slopes in the LeakyReLU sends nothing to Theta_R, and how many such nodes there are depends on how many
neighbours and channels a node has."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import erfscope
from erfscope import theory
from erfscope.adapters.blocks import GATv2, on_nodes
from erfscope.figures.chart_data import Chart, Curve, Picture
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions

CHANNELS, HEADS = 8, 2
DEGREES, WIDTHS = (1, 2, 4, 8), (1, 2, 8)
#: The largest error of a closed form in float64, relative to its largest number.
LIMIT = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Random graphs of one degree, and layers of one width at PyTorch Geometric's initialisation."""

    name: str
    #: Number of nodes that each node receives from, itself included, and channels per head.
    neighbours: int
    width: int
    #: Largest relative error of the closed forms against autograd: of the parameters' gradients, and of the Jacobian.
    error_gradients: float
    error_jacobian: float
    #: The same for the printed form, which first sums the attended values over their channels (E4-02).
    error_printed: float
    #: Share of nodes and heads that send Theta_R no gradient, by the theory and by autograd, and its standard error
    #: over graphs.
    dead: float
    dead_autograd: float
    dead_se: float
    #: Number of pairs of a node and a head, and of those for which theory and autograd differ.
    pairs: int
    differing: int
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """One graph and one layer."""

    gradients: float
    jacobian: float
    printed: float
    #: Which nodes and heads send Theta_R no gradient, (n, heads).
    dead: NDArray[np.bool_]
    dead_autograd: NDArray[np.bool_]


def study(asked: StudyOptions) -> StudyFindings:
    """Compare theory and autograd for all degrees and widths."""
    graphs, nodes = asked.pick(full=40, quick=8, smoke=2), asked.pick(full=40, quick=30, smoke=16)
    cases, rows = [(number, k, d) for number, (d, k) in enumerate(itertools.product(WIDTHS, DEGREES))], []
    for number, neighbours, width in asked.each("gatv2-gradients", cases):
        generator = torch.Generator().manual_seed(1000 * asked.seed + number)
        rows.append(_row(neighbours, width, [_one(neighbours, width, nodes, generator) for _ in range(graphs)]))
    return StudyFindings(columns=COLUMNS, rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(rows))


def _row(neighbours: int, width: int, found: list[_Graph]) -> Row:
    dead, dead_autograd = (np.array([getattr(each, name) for each in found]) for name in ("dead", "dead_autograd"))
    shares, differing = dead.mean((1, 2)), int((dead != dead_autograd).sum())
    gradients, jacobian = (max(getattr(each, name) for each in found) for name in ("gradients", "jacobian"))
    return Row(
        name=f"{neighbours} neighbours, {width} channels",
        neighbours=neighbours,
        width=width,
        error_gradients=gradients,
        error_jacobian=jacobian,
        error_printed=max(each.printed for each in found),
        dead=float(dead.mean()),
        dead_autograd=float(dead_autograd.mean()),
        dead_se=float(shares.std(ddof=1) / np.sqrt(len(shares))),
        pairs=dead.size,
        differing=differing,
        passed=max(gradients, jacobian) < LIMIT and not differing,
    )


def regular_graph(nodes: int, neighbours: int, generator: torch.Generator) -> Tensor:
    """Return an adjacency in which every node receives from itself and from random others, ``neighbours`` in all."""
    order = torch.rand(nodes, nodes, generator=generator).fill_diagonal_(-1).argsort(1)
    return torch.zeros(nodes, nodes, dtype=torch.float64).scatter_(1, order[:, :neighbours], 1.0)


def _one(neighbours: int, width: int, nodes: int, generator: torch.Generator) -> _Graph:
    seen = regular_graph(nodes, neighbours, generator)
    with seed_generators(int(torch.randint(2**31, (), generator=generator))):
        layer = GATv2(CHANNELS, width, heads=HEADS, graph=seen).double()
    x, g = (torch.randn(nodes, size, dtype=torch.float64, generator=generator) for size in (CHANNELS, HEADS * width))
    weights = {
        "theta_l": layer.lin_l.weight,
        "theta_r": layer.lin_r.weight,
        "a": layer.att[0],
        "bias_l": layer.lin_l.bias,
        "bias_r": layer.lin_r.bias,
    }
    given: dict[str, Any] = {name: weight.detach().numpy() for name, weight in weights.items()}
    function = on_nodes(layer, 1, nodes)
    closed = theory.gatv2_parameter_gradients(x.numpy(), seen.numpy(), **given, gradient=g.numpy())
    found = torch.autograd.grad((function(x) * g).sum(), [layer.lin_l.weight, layer.lin_r.weight, layer.att])
    jacobian = theory.influence_of(theory.gatv2(x.numpy(), seen.numpy(), **given), "jacobian")
    dead = theory.dead_targets(x.numpy(), seen.numpy(), **given)
    # Rounding is relative to the largest gradient, since that of Theta_R may be zero.
    scale = max(float(each.abs().max()) for each in found)
    pairs = zip((closed.theta_l, closed.theta_r, closed.a[None]), found, strict=True)
    printed = printed_target_gradient(x.numpy(), seen.numpy(), given, g.numpy())
    return _Graph(
        gradients=max(float(np.abs(one - other.numpy()).max()) for one, other in pairs) / scale,
        jacobian=theory.compare(erfscope.influence(function, x), jacobian).max_relative,
        printed=float(np.abs(printed - found[1].numpy()).max()) / scale,
        dead=dead,
        dead_autograd=_sent(layer, function(x), generator) < 1e-12,
    )


def _sent(layer: GATv2, y: Tensor, generator: torch.Generator) -> FloatArray:
    """Return the largest gradient that Theta_R gets from every node and head under a random loss, (n, heads)."""
    sent = np.zeros((len(y), HEADS))
    width = y.shape[1] // HEADS
    for node in range(len(y)):
        for head in range(HEADS):
            loss = y[node, head * width : (head + 1) * width] @ torch.randn(
                width, dtype=torch.float64, generator=generator
            )
            sent[node, head] = float(torch.autograd.grad(loss, layer.lin_r.weight, retain_graph=True)[0].abs().max())
    return sent


def printed_target_gradient(x: FloatArray, seen: FloatArray, given: dict[str, Any], g: FloatArray) -> FloatArray:
    """Return the gradient of Theta_R by the printed formula, in which A_j is the sum of the channels of Theta_L h_j,
    and the loss's gradient of channel t is a factor.

    Args:
        x: Node features, (n, c).
        seen: Adjacency, (n, n).
        given: Weights as :func:`erfscope.theory.closed_forms.gatv2` takes them.
        g: Gradient of the loss, (n, heads * d).

    Returns:
        (heads * d, c); right only where g is 1 in every channel of a head (erratum E4-02).
    """
    heads, width = given["a"].shape
    ones = np.ones_like(g)
    total = np.zeros((heads * width, x.shape[1]))
    for node in range(len(x)):
        # With a gradient of 1 in all channels of one node, A_j is the plain sum.
        alone = np.zeros_like(ones)
        alone[node] = 1
        own = theory.gatv2_parameter_gradients(x, seen, **given, gradient=alone)
        total += g[node][:, None] * own.theta_r
    return total


def _conclusion(rows: list[Row]) -> str:
    error = max(max(row.error_gradients, row.error_jacobian) for row in rows)
    narrow, wide = ([row for row in rows if row.width == width] for width in (WIDTHS[0], WIDTHS[-1]))
    single = min(row.dead_autograd for row in rows if row.neighbours == 1)
    differing, pairs = sum(row.differing for row in rows), sum(row.pairs for row in rows)
    alike = f"{differing} of {pairs} differ between" if differing else f"the same of all {pairs} in"
    return (
        f"Closed forms of the gradients and of the Jacobian {'equal' if error < LIMIT else 'differ from'} autograd's"
        f" (largest error {error:.0e}; as printed it is {max(row.error_printed for row in rows):.1f}). Theta_R gets no"
        f" gradient from {single:.0%} of nodes and heads with one neighbour; with {DEGREES[1]} of them from"
        f" {narrow[1].dead:.0%} at width {WIDTHS[0]} and {wide[1].dead:.1%} at width {WIDTHS[-1]}, with {DEGREES[-1]}"
        f" from {narrow[-1].dead:.0%} and {wide[-1].dead:.1%}: {alike} theory and autograd."
    )


def _picture(rows: list[Row]) -> Picture:
    curves = tuple(
        Curve(
            label=f"{width} channel{'s' * (width > 1)} per head",
            x=[row.neighbours for row in rows if row.width == width],
            y=[100 * row.dead for row in rows if row.width == width],
            error=[100 * row.dead_se for row in rows if row.width == width],
        )
        for width in WIDTHS
    )
    dead = Chart(
        title="No gradient to the target weights",
        x="neighbours, itself counted",
        y="nodes and heads (%)",
        curves=curves,
    )
    errors = Chart(
        title="Error against autograd",
        x="neighbours, itself counted",
        y="log10 of the relative error",
        curves=tuple(
            Curve(label=label, x=DEGREES, y=_decades(rows, name))
            for label, name in (
                ("gradients", "error_gradients"),
                ("Jacobian", "error_jacobian"),
                ("as printed", "error_printed"),
            )
        ),
    )
    return Picture(
        title="GATv2: gradients of the parameters",
        rows=((dead, errors),),
        note="Weights as initialised; Gaussian features.",
    )


def _decades(rows: list[Row], name: str) -> list[float]:
    """Return the largest error at every degree, in powers of ten; at least 1e-17, which keeps zero on the chart."""
    return [float(np.log10(max(1e-17, *(getattr(row, name) for row in rows if row.neighbours == k)))) for k in DEGREES]


COLUMNS = (
    Column(title="neighbours", text=lambda row: f"{row.neighbours}"),
    Column(title="width", text=lambda row: f"{row.width}"),
    Column(title="gradients", text=lambda row: f"{row.error_gradients:.0e}"),
    Column(title="Jacobian", text=lambda row: f"{row.error_jacobian:.0e}"),
    Column(title="printed", text=lambda row: f"{row.error_printed:.1e}"),
    Column(title="dead %", text=lambda row: f"{100 * row.dead:.1f} ± {100 * row.dead_se:.1f}"),
    Column(title="autograd %", text=lambda row: f"{100 * row.dead_autograd:.1f}"),
    VERDICT,
)
