"""``gatv2-gradients``: the gradients of a graph attention layer's parameters in closed form, and the nodes from which
one parameter gets none.

Neumeier et al. derive what Theta_L, Theta_R and a receive from a loss. A corollary: a node whose neighbours all have
the same slopes in the LeakyReLU sends nothing to Theta_R, and how many such nodes there are depends on how many
neighbours and channels a node has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import erfscope
from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.study import VERDICT, Claim, StudyColumn, StudyFindings, StudyOptions, StudyRow, claim
from erfscope.apps.lab.studies.theorems.gatv2 import parameters
from erfscope.apps.lab.studies.training import seeded
from erfscope.core import FloatArray
from erfscope.show import Chart, Curve, Picture

CHANNELS, HEADS = 8, 2
DEGREES, WIDTHS = (1, 2, 4, 8), (1, 2, 8)
#: The largest error of a closed form in float64, relative to its largest number.
LIMIT = 1e-10


def study(asked: StudyOptions) -> StudyFindings:
    """Compare theory and autograd for all degrees and widths."""
    graphs, nodes = asked.pick(full=40, quick=8, smoke=2), asked.pick(full=40, quick=30, smoke=16)
    rows = []
    for number, (width, k) in enumerate(asked.each("gatv2-gradients", list(itertools.product(WIDTHS, DEGREES)))):
        generator = torch.Generator().manual_seed(1000 * asked.seed + number)
        rows.append(_row(k, width, [_graph(k, width, nodes, generator) for _ in range(graphs)]))
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def _row(neighbours: int, width: int, found: Sequence[dict[str, Any]]) -> StudyRow:
    """Random graphs of one degree, and layers of one width at PyTorch Geometric's initialisation."""
    dead, dead_autograd = (np.array([each[name] for each in found]) for name in ("dead", "dead_autograd"))
    gradients, jacobian, printed = (max(each[name] for each in found) for name in ("gradients", "jacobian", "printed"))
    shares, differing = dead.mean((1, 2)), int((dead != dead_autograd).sum())
    return StudyRow(
        name=f"{neighbours} neighbours, {width} channels",
        # Number of nodes that each node receives from, itself included, and channels per head.
        neighbours=neighbours,
        width=width,
        # Largest relative error of the closed forms against autograd: of the parameters' gradients, of the Jacobian,
        # and of the printed form, which first sums the attended values over their channels (E4-02).
        error_gradients=gradients,
        error_jacobian=jacobian,
        error_printed=printed,
        # Share of nodes and heads that send Theta_R no gradient, by the theory and by autograd, and its standard error
        # over graphs.
        dead=float(dead.mean()),
        dead_autograd=float(dead_autograd.mean()),
        dead_se=float(shares.std(ddof=1) / np.sqrt(len(shares))),
        # Number of pairs of a node and a head, and of those for which theory and autograd differ.
        pairs=dead.size,
        differing=differing,
        passed=max(gradients, jacobian) < LIMIT and not differing,
    )


def regular_graph(nodes: int, neighbours: int, generator: torch.Generator) -> Tensor:
    """Return an adjacency in which every node receives from itself and from random others, ``neighbours`` in all."""
    order = torch.rand(nodes, nodes, generator=generator).fill_diagonal_(-1).argsort(1)
    return torch.zeros(nodes, nodes, dtype=torch.float64).scatter_(1, order[:, :neighbours], 1.0)


def _graph(neighbours: int, width: int, nodes: int, generator: torch.Generator) -> dict[str, Any]:
    """Return the relative errors of one graph and one layer, and which nodes and heads send Theta_R no gradient, (n,
    heads), by the theory and by autograd."""
    seen = regular_graph(nodes, neighbours, generator)
    with seeded(int(torch.randint(2**31, (), generator=generator))):
        layer = adapters.blocks.GATv2(CHANNELS, width, heads=HEADS, graph=seen).double()
    x, g = (torch.randn(nodes, size, dtype=torch.float64, generator=generator) for size in (CHANNELS, HEADS * width))
    given, function, graph = parameters(layer), adapters.blocks.on_nodes(layer, 1, nodes), (x.numpy(), seen.numpy())
    found = torch.autograd.grad((function(x) * g).sum(), [layer.lin_l.weight, layer.lin_r.weight, layer.att])
    closed = theory.gatv2_parameter_gradients(*graph, **given, gradient=g.numpy())
    errors = [
        float(np.abs(one - other.numpy()).max())
        for one, other in zip((closed.theta_l, closed.theta_r, closed.a[None]), found, strict=True)
    ]
    printed = printed_target_gradient(*graph, given, g.numpy())
    # Rounding is relative to the largest gradient, since that of Theta_R may be zero.
    scale = max(float(each.abs().max()) for each in found)
    jacobian = theory.influence_of(theory.gatv2(*graph, **given), "jacobian")
    return {
        "gradients": max(errors) / scale,
        "jacobian": theory.agreement(erfscope.influence(function, x), jacobian).max_relative,
        "printed": float(np.abs(printed - found[1].numpy()).max()) / scale,
        "dead": theory.dead_targets(*graph, **given),
        "dead_autograd": _sent(layer, function(x), generator) < 1e-12,
    }


def _sent(layer: adapters.blocks.GATv2, y: Tensor, generator: torch.Generator) -> FloatArray:
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
        given: Weights as :func:`erfscope.apps.lab.theory.attention` takes them.
        g: Gradient of the loss, (n, heads * d).

    Returns:
        (heads * d, c); right only where g is 1 in every channel of a head (erratum E4-02).
    """
    total = np.zeros((g.shape[1], x.shape[1]))
    for own, weight in zip(np.eye(len(x)), g, strict=True):
        # With a gradient of 1 in all channels of one node, A_j is the plain sum.
        alone = own[:, None] * np.ones_like(g)
        total += weight[:, None] * theory.gatv2_parameter_gradients(x, seen, **given, gradient=alone).theta_r
    return total


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    errors = {name: max(getattr(row, f"error_{name}") for row in rows) for name in ("gradients", "jacobian", "printed")}
    by_case = {(row.neighbours, row.width): row for row in rows}
    single = min(row.dead_autograd for row in rows if row.neighbours == 1)
    differing, pairs = sum(row.differing for row in rows), sum(row.pairs for row in rows)
    shares = {k: [100 * by_case[k, width].dead for width in (WIDTHS[0], WIDTHS[-1])] for k in (DEGREES[1], DEGREES[-1])}
    fewer = ", ".join(f"{k}: {narrow:.0f} and {wide:.1f} %" for k, (narrow, wide) in shares.items())
    return [
        *(
            claim(
                f"closed form of the {name}, against autograd", "exact", f"to {errors[name]:.0e}", errors[name] < LIMIT
            )
            for name in ("gradients", "jacobian")
        ),
        claim(
            "gradient of Theta_R as printed (erratum E4-02)",
            "exact",
            f"off by {errors['printed']:.1f}",
            errors["printed"] < LIMIT,
        ),
        claim("Theta_R gets no gradient from a node with one neighbour", "all", f"{single:.0%}", single == 1),
        claim(
            f"fewer such nodes with more neighbours and channels, widths {WIDTHS[0]} and {WIDTHS[-1]}",
            "fewer",
            fewer,
            shares[DEGREES[1]][0] > max(shares[DEGREES[1]][1], shares[DEGREES[-1]][0]),
        ),
        claim("they are those of the corollary", "the same", f"{pairs - differing} of {pairs}", not differing),
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    by_width = {width: [row for row in rows if row.width == width] for width in WIDTHS}
    curves = tuple(
        Curve(
            label=f"{width} channel{'s' * (width > 1)} per head",
            x=[row.neighbours for row in some],
            y=[100 * row.dead for row in some],
            error=[100 * row.dead_se for row in some],
        )
        for width, some in by_width.items()
    )
    titles = {"gradients": "error_gradients", "Jacobian": "error_jacobian", "as printed": "error_printed"}
    errors = tuple(Curve(label=label, x=DEGREES, y=_decades(rows, name)) for label, name in titles.items())
    x = "neighbours, itself counted"
    charts = (
        Chart(title="No gradient to the target weights", x=x, y="nodes and heads (%)", curves=curves),
        Chart(title="Error against autograd", x=x, y="log10 of the relative error", curves=errors),
    )
    note = "Weights as initialised; Gaussian features."
    return Picture(title="GATv2: gradients of the parameters", rows=(charts,), note=note)


def _decades(rows: Sequence[StudyRow], name: str) -> list[float]:
    """Return the largest error at every degree, in powers of ten; at least 1e-17, which keeps zero on the chart."""
    return [float(np.log10(max(1e-17, *(getattr(row, name) for row in rows if row.neighbours == k)))) for k in DEGREES]


COLUMNS = (
    StudyColumn("neighbours", "{neighbours}"),
    StudyColumn("width", "{width}"),
    StudyColumn("gradients", "{error_gradients:.0e}"),
    StudyColumn("Jacobian", "{error_jacobian:.0e}"),
    StudyColumn("printed", "{error_printed:.1e}"),
    StudyColumn("dead %", lambda row: f"{100 * row.dead:.1f} ± {100 * row.dead_se:.1f}"),
    StudyColumn("autograd %", lambda row: f"{100 * row.dead_autograd:.1f}"),
    VERDICT,
)
