"""``correlations``: does the ERF follow the correlations of the data? Nicolicioiu & Duta, section 4.1 and Fig. 1.

Every pixel of a 21 x 21 map is correlated with those around it and with those around the point opposite. A convolution
cannot look there, a GCN looks where its links lead, and dot-product attention with fixed weights follows the covariance
in the mean over data (Theorem 3). No theorem covers softmax attention (Eq. 13): while its scores are small it is a
uniform ERF plus that of the dot product; as they grow the softmax sharpens them, and the ERF follows the covariance
less closely."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.study import (
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    result_with_map,
)
from erfscope.apps.lab.studies.training import seeded
from erfscope.core import FloatArray
from erfscope.show import ChartMap, Picture

blocks = adapters.blocks

SIDE, CHANNELS, FILTERS, HIDDEN, DEPTH = 21, 32, 24, 256, 9
#: The width of both Gaussians in pixels, and the weight of the one opposite.
SIGMA, RHO = 2.0, 0.5
UNIT, PARTNER = (4, 4), (16, 16)
#: Samples that the spread of single ERFs is estimated from; a mean's standard error goes down with the root of their
#: number.
SPREAD_OF = 50
TIED, SOFT_TIED = "attention, keys = queries", "softmax attention, keys = queries"


def covariance() -> FloatArray:
    """The spatial covariance of every channel, (441, 441): (1 + rho^2) K(a, b) + 2 rho K(a, Rb), R the reflection in
    the middle."""
    line = np.arange(SIDE)
    kernel = np.exp(-((line[:, None] - line) ** 2) / (2 * SIGMA**2))
    plane = np.kron(kernel, kernel)
    return np.asarray((1 + RHO**2) * plane + 2 * RHO * plane[:, ::-1])


def samples(count: int, generator: torch.Generator) -> Tensor:
    """Maps f = g + rho (g o R) with independent channels, (count, 32, 21, 21), float64."""
    line = torch.arange(SIDE, dtype=torch.float64)
    kernel = torch.exp(-((line[:, None] - line) ** 2) / (2 * SIGMA**2))
    values, vectors = torch.linalg.eigh(kernel)
    root = vectors * values.clamp_min(0).sqrt()
    g: Tensor = root @ torch.randn(count, CHANNELS, SIDE, SIDE, dtype=torch.float64, generator=generator) @ root.T
    return g + RHO * g.flip(2, 3)


def mixing() -> FloatArray:
    """P of the GCN, row-normalised: four neighbours, the node itself, and the one opposite."""
    every = [(row, col) for row in range(SIDE) for col in range(SIDE)]
    links = [((row, col), (SIDE - 1 - row, SIDE - 1 - col)) for row, col in every]
    return theory.mean_adjacency(theory.grid_adjacency(SIDE, SIDE, self_loops=True, links=links))


def theorem_3(layer: blocks.SelfAttention) -> FloatArray:
    """The expected signed ERF of one layer of dot products at the unit, (441,), over samples with
    :func:`covariance`."""
    query, key, value = (linear.weight.detach().double().numpy().T for linear in (layer.query, layer.key, layer.value))
    return np.asarray(
        theory.dot_attention_mean(covariance(), query, key, value, scale=1 / SIDE**2)[UNIT[0] * SIDE + UNIT[1]]
    )


def signal_to_noise(layer: blocks.SelfAttention, x: Tensor) -> float:
    """How the ERF that Theorem 3 expects stands to the standard error of the mean over samples: its spread over the
    pixels, to their rms.

    Args:
        layer: Attention by dot products.
        x: Samples, (N, 32, 21, 21), at least two.
    """
    index, part = UNIT[0] * SIDE + UNIT[1], x[:SPREAD_OF]
    single = erfscope.influence(blocks.on_nodes(layer, SIDE, SIDE), part.flatten(2).transpose(1, 2), "signed", [index])
    assert single.se is not None
    off = np.arange(SIDE**2) != index
    noise = np.sqrt(np.square(single.se[0][off]).mean() * len(part) / len(x))
    return float(theorem_3(layer)[off].std() / noise)


def nets(seed: int) -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    """The nets at random weights, and the layers of each that are looked at, counted from 1."""
    graph = (mixing() > 0).astype(np.float64)

    def conv(c: int) -> nn.Module:
        return nn.Conv2d(c, FILTERS, 3, padding=1)

    def gcn(c: int) -> nn.Module:
        return blocks.GCN(c, FILTERS, 1, graph=graph, bias=False)

    def attention(softmax: bool, tied: bool, c: int) -> nn.Module:
        layer = blocks.SelfAttention(c, HIDDEN, mode="softmax" if softmax else "dot_product")
        if tied:
            layer.key = layer.query
        return layer

    with seeded(seed):
        made = {
            "convolution": (_stack(conv, DEPTH, FILTERS, relu=True), (4, DEPTH)),
            "linear GCN": (_stack(gcn, DEPTH, FILTERS), (1, DEPTH)),
            "ReLU GCN": (_stack(gcn, DEPTH, FILTERS, relu=True), (DEPTH,)),
            TIED: (_stack(partial(attention, False, True), 2, HIDDEN), (1, 2)),
            "attention": (_stack(partial(attention, False, False), 2, HIDDEN), (1, 2)),
            SOFT_TIED: (_stack(partial(attention, True, True), 2, HIDDEN), (1, 2)),
            "softmax attention": (_stack(partial(attention, True, False), 2, HIDDEN), (1, 2)),
        }
    # The closed form must hold to 1e-10; elsewhere there is only sampling noise.
    made["linear GCN"][0].double()
    return {name: (net.eval(), layers) for name, (net, layers) in made.items()}


def _stack(layer: Callable[[int], nn.Module], depth: int, width: int, *, relu: bool = False) -> nn.Sequential:
    """Layers of 32 channels, then ``width``, with ReLUs between them."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, depth + 1):
        if relu and number > 1:
            parts[f"relu{number - 1}"] = nn.ReLU()
        parts[f"layer{number}"] = layer(CHANNELS if number == 1 else width)
    return nn.Sequential(parts)


#: Steps along the grid within which mass counts as around the unit, or around its partner.
NEAR = 5
#: Samples that show that one layer of dot-product attention follows the covariance.
LEAST = 100
#: The least Pearson correlation of an ERF that "follows the covariance".
FOLLOWS = 0.99
#: The least one of an ERF that follows it loosely, as softmax attention's does.
LOOSELY = 0.85
#: Nets whose first layer Theorem 3 covers.
DOT = (TIED, "attention")
#: Name of a net -> its name in the figure.
SHORT = {
    "convolution": "conv",
    "linear GCN": "GCN",
    "ReLU GCN": "ReLU GCN",
    TIED: "dot",
    "attention": "dot, own",
    SOFT_TIED: "softmax",
    "softmax attention": "softmax, own",
}
#: The P^9 of the grid with opposite links, within NEAR steps of the unit and of its partner.
MODES = (0.493, 0.469)
INDEX = UNIT[0] * SIDE + UNIT[1]


def study(asked: StudyOptions) -> StudyFindings:
    """Compare every layer that the paper shows with the covariance of the data and of the layer's activations."""
    count = asked.pick(full=1000, quick=60, smoke=8)
    x = samples(max(count, LEAST), torch.Generator().manual_seed(asked.seed))
    rows = []
    for name, (net, layers) in asked.each("correlations", nets(asked.seed).items()):
        for layer in layers:
            # At least enough to show what one layer of attention follows.
            needed = max(count, LEAST) if layer == 1 and name in (TIED, SOFT_TIED) else count
            rows.append(_row(name, net, layer, x[:needed], asked.seed))
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def _row(name: str, net: nn.Sequential, layer: int, x: Tensor, seed: int) -> StudyRow:
    x = x.to(next(net.parameters()).dtype)
    shown = x[:1] if name == "linear GCN" else x  # the map of a linear net is that of any sample
    how = {"unit": UNIT, "convention": "signed", "measures": ["r50"], "seed": seed}
    erf = result_with_map(net, images=shown, layer=f"layer{layer}", **how).map.values
    activations, weights = _activation_covariance(net, layer, x), np.abs(erf)
    modes = tuple(float(weights[_hops(cell) <= NEAR].sum()) for cell in (UNIT, PARTNER))
    alike, error = _alike(erf, covariance()[INDEX].reshape(SIDE, SIDE)), None
    claimed, held = "follows the covariance", alike > FOLLOWS
    if name == "linear GCN":
        error = float(np.abs(weights.ravel() - np.linalg.matrix_power(mixing(), layer)[INDEX]).max())
        known = layer != DEPTH or all(abs(mode - each) < 5e-4 for mode, each in zip(modes, MODES, strict=True))
        claimed, held = f"equals P^{layer}" + (", two modes" if layer == DEPTH else ""), error <= 1e-10 and known
    elif name == "convolution":
        claimed, held = "no second mode", modes[1] == 0
    elif name == "ReLU GCN":
        claimed, held = "a second mode", modes[1] > 0.4
    return StudyRow(
        name=f"{name}, layer {layer}",
        net=name,
        layer=layer,
        # |Pearson's correlation| of the ERF with the input's covariance, over all pixels but the unit; and with the
        # layer's activations'.
        with_input=alike,
        with_activations=_alike(erf, activations),
        # Shares of |ERF| around the unit, and around its partner.
        near_unit=modes[0],
        near_partner=modes[1],
        # Largest difference of |ERF| from the closed form P^L, for the linear GCN.
        error=error,
        # The expectation of Theorem 3 over the standard error of the mean over the samples, for one layer of dot
        # products.
        signal_to_noise=signal_to_noise(net[0], x) if layer == 1 and name in DOT else None,  # type: ignore[arg-type]
        samples=len(x),
        claim=claimed,
        held=held,
        # Theorem 3 is of one layer of dot products, and where keys are not queries its noise outweighs it at the
        # samples of a study.
        passed=held or ("attention" in name and (name, layer) != (TIED, 1)),
        maps={"erf": erf, "activations": activations},
    )


def _activation_covariance(net: nn.Sequential, layer: int, x: Tensor) -> FloatArray:
    """Covariance over samples of the channel sums of a layer's output, those of the unit with those of every pixel."""
    names = [name for name, _ in net.named_children()]
    part = net[: names.index(f"layer{layer}") + 1]
    with torch.no_grad():
        sums = torch.cat([part(some).sum(1) for some in torch.split(x, 50)]).double()
    deviations = sums - sums.mean(0)
    return np.asarray((deviations * deviations[:, UNIT[0], UNIT[1], None, None]).mean(0).numpy())


def _alike(one: FloatArray, other: FloatArray) -> float:
    """|correlation| off the unit: the sign of a map is that of the weights, and says nothing."""
    off = _hops(UNIT) > 0
    return float(abs(np.corrcoef(one[off], other[off])[0, 1]))


def _hops(cell: tuple[int, int]) -> FloatArray:
    """Steps along the grid from a cell to every cell, (21, 21)."""
    row, col = np.indices((SIDE, SIDE))
    return np.asarray(abs(row - cell[0]) + abs(col - cell[1]), dtype=np.float64)


def _wanted(row: StudyRow) -> float:
    """With how many samples a net would follow the covariance: r^2 = s^2 / (s^2 + 1) for a signal s times the noise."""
    return float(row.samples / row.signal_to_noise**2 * FOLLOWS**2 / (1 - FOLLOWS**2))


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    published = {"no second mode": "0 % at the partner", "a second mode": "as the links lead"}
    uniform, claims = float((_hops(PARTNER) <= NEAR).mean()), []
    for row in rows:
        expected = published.get(row.claim, "the closed form")
        ours = f"{row.near_unit:.1%} at the unit, {row.near_partner:.1%} at the partner"
        if row.error is not None:
            ours = f"to {row.error:.0e}; {ours}"
        if row.claim == "follows the covariance":
            expected = f"as the covariance (uniform: {uniform:.0%} at the partner)"
            ours = f"r = {row.with_input:.3f} off the unit; {row.near_partner:.1%} at the partner"
        if row.signal_to_noise is not None:
            ours += f"; Theorem 3 is {row.signal_to_noise:.2g} standard errors, {_wanted(row):.0e} samples show it"
        follows = row.claim == "follows the covariance" and row.with_input > LOOSELY
        claims.append(claim(f"{row.name}: {row.claim}", expected, ours, row.held, has_mechanism=follows))
    return claims


def _picture(rows: Sequence[StudyRow]) -> Picture:
    """A column for every layer that the paper shows, and below them the covariance of the input beside the layers that
    are left."""
    shown = ["convolution, layer 4", f"convolution, layer {DEPTH}", f"linear GCN, layer {DEPTH}"]
    shown += [f"{name}, layer {layer}" for name in (TIED, SOFT_TIED) for layer in (1, 2)]
    by_name = {row.name: row for row in rows}
    grid = zip(*(_panels(by_name[name]) for name in shown), strict=True)
    others = [_panels(row)[1] for row in rows if row.name not in shown]
    covered = ChartMap(title="input", values=covariance()[INDEX].reshape(SIDE, SIDE), unit=UNIT)
    return Picture(
        title="ERFs beside covariances, mean over data with random weights",
        headings=(
            "ERF",
            "ERF without the unit",
            "ERF without the unit, logarithmic",
            "Covariance of the layer's activations with those of the unit",
            "Covariance of the input, and the other nets: ERF without the unit",
        ),
        rows=(*grid, (covered, *others)),
        note=(
            f"Unit {UNIT}, whose data are correlated with those around {PARTNER}. A name ends with its layer. Attention"
            " by dot products and by a softmax, keys = queries; where weights are own, keys have theirs. ERFs are"
            " signed; their overall sign is the weights'."
        ),
    )


def _panels(row: StudyRow) -> tuple[ChartMap, ...]:
    """The ERF, without the unit, that on a logarithmic scale, and the covariance of the activations."""
    without, name = np.where(_hops(UNIT) > 0, row.maps["erf"], 0), f"{SHORT[row.net]} {row.layer}"
    return (
        ChartMap(title=name, values=row.maps["erf"], signed=True, unit=UNIT),
        ChartMap(title=name, values=without, signed=True),
        ChartMap(title=name, values=without, signed=True, log=True),
        ChartMap(title=name, values=row.maps["activations"], signed=True, unit=UNIT),
    )


COLUMNS = (
    StudyColumn("net", "{name}", numeric=False, folds=True),
    StudyColumn("r input", "{with_input:.3f}"),
    StudyColumn("r activ.", "{with_activations:.3f}"),
    StudyColumn("at unit", "{near_unit:.1%}"),
    StudyColumn("at partner", "{near_partner:.1%}"),
    StudyColumn("error", "{error:.0e}", optional=True),
    StudyColumn("signal", "{signal_to_noise:.2g}", optional=True),
    StudyColumn("samples", "{samples}", optional=True),
    StudyColumn("claim", "{claim}", numeric=False, folds=True),
    StudyColumn("held", lambda row: "yes" if row.held else "no", numeric=False),
)
