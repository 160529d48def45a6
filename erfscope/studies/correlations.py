"""``correlations``: does the ERF follow the correlations of the data? Nicolicioiu & Duta, section 4.1 and Fig. 1.

Every pixel of a 21 x 21 map is correlated with those around it and with those around the point opposite. A convolution cannot look there,
a GCN looks where its links lead, and dot-product attention with fixed weights follows the covariance in the mean over data (Theorem 3).
The paper names neither the widths of the two Gaussians nor the number of samples; those below are this study's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope import theory
from erfscope.adapters.blocks import GCN, SelfAttention
from erfscope.erfmap import FloatArray
from erfscope.studies.picture import Picture, Shown
from erfscope.studies.study import Asked, Column, Findings

SIDE, CHANNELS, FILTERS, HIDDEN, DEPTH = 21, 32, 24, 256, 9
#: The width of both Gaussians in pixels, and the weight of the one opposite.
SIGMA, RHO = 2.0, 0.5
UNIT, PARTNER = (4, 4), (16, 16)
#: Steps along the grid within which mass counts as around the unit, or around its partner.
NEAR = 5
TIED = "attention, keys = queries"
#: Samples with which one such layer is seen to follow the covariance.
LEAST = 100
#: What "follows the covariance" means, of Pearson's correlation.
FOLLOWS = 0.99
#: The P^9 of the grid with opposite links, within NEAR steps of the unit and of its partner.
MODES = (0.493, 0.469)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer of one net: its mean signed ERF, beside covariances."""

    name: str
    net: str
    layer: int
    #: |Pearson's correlation| of the ERF with the input's covariance, over all pixels but the unit; and with the layer's activations'.
    with_input: float
    with_activations: float
    #: Shares of |ERF| around the unit, and around its partner.
    near_unit: float
    near_partner: float
    #: Largest difference of |ERF| from the closed form P^L, for the linear GCN.
    error: float | None
    samples: int
    claim: str
    held: bool
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """What one layer of one net shows."""

    row: Row
    #: The mean signed ERF, and the covariance of the activations with that of the unit, both (21, 21).
    erf: FloatArray
    activations: FloatArray


def study(asked: Asked) -> Findings:
    """Every layer that the paper shows, beside the covariance of the data and of the layer's activations."""
    x = samples(max(asked.pick(full=1000, quick=60, smoke=8), LEAST), torch.Generator().manual_seed(asked.seed))
    found, every = [], nets(asked.seed)
    for number, (name, (net, layers)) in enumerate(every.items()):
        asked.tell(name, number, len(every))
        found += [_looked_at(name, net, layer, x[: _needed(name, layer, asked)], asked.seed) for layer in layers]
    rows = tuple(each.row for each in found)
    return Findings(
        columns=COLUMNS,
        rows=rows,
        conclusion=_conclusion(rows),
        passed=all(row.passed for row in rows),
        picture=_picture(found),
    )


def covariance() -> FloatArray:
    """The spatial covariance of every channel, (441, 441): (1 + rho^2) K(a, b) + 2 rho K(a, Rb), R the reflection in the middle."""
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


def nets(seed: int) -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    """The nets at random weights, float64, and the layers of each that are looked at, counted from 1."""
    graph = mixing() > 0

    def conv(number: int) -> nn.Module:
        return nn.Conv2d(CHANNELS if number == 1 else FILTERS, FILTERS, 3, padding=1)

    def gcn(number: int) -> nn.Module:
        return GCN(CHANNELS if number == 1 else FILTERS, FILTERS, 1, graph=graph.astype(np.float64), bias=False)

    def attention(number: int) -> SelfAttention:
        return SelfAttention(CHANNELS if number == 1 else HIDDEN, HIDDEN, mode="dot_product")

    def tied(number: int) -> nn.Module:
        layer = attention(number)
        layer.key = layer.query
        return layer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = {
            "convolution": (_stack(conv, DEPTH, relu=True), (4, DEPTH)),
            "linear GCN": (_stack(gcn, DEPTH, relu=False), (1, DEPTH)),
            "ReLU GCN": (_stack(gcn, DEPTH, relu=True), (DEPTH,)),
            TIED: (_stack(tied, 2, relu=False), (1, 2)),
            "attention": (_stack(attention, 2, relu=False), (1, 2)),
        }
    # The closed form is to be met to 1e-10; sampling noise is all that there is elsewhere.
    return {name: ((net.double() if name == "linear GCN" else net).eval(), layers) for name, (net, layers) in made.items()}


def _stack(layer: Callable[[int], nn.Module], depth: int, *, relu: bool) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, depth + 1):
        if relu and number > 1:
            parts[f"relu{number - 1}"] = nn.ReLU()
        parts[f"layer{number}"] = layer(number)
    return nn.Sequential(parts)


def _needed(name: str, layer: int, asked: Asked) -> int:
    """How many samples: what the claim about one layer of attention needs, even where the others have fewer."""
    count = asked.pick(full=1000, quick=60, smoke=8)
    return max(count, LEAST) if _is_tied(name, layer) else count


def _is_tied(name: str, layer: int) -> bool:
    return name == TIED and layer == 1


def _looked_at(name: str, net: nn.Sequential, layer: int, x: Tensor, seed: int) -> _Layer:
    x = x.to(next(net.parameters()).dtype)
    shown = x[:1] if name == "linear GCN" else x  # the map of a linear net is that of any sample
    result = erfscope.analyze(net, images=shown, layer=f"layer{layer}", unit=UNIT, convention="signed", measures=["r50"], seed=seed)
    assert result.map is not None
    erf, activations = result.map.values, _activation_covariance(net, layer, x)
    index = UNIT[0] * SIDE + UNIT[1]
    weights = np.abs(erf)
    near_unit, near_partner = (float(weights[_hops(cell) <= NEAR].sum()) for cell in (UNIT, PARTNER))
    error = None
    if name == "linear GCN":
        error = float(np.abs(weights.ravel() - np.linalg.matrix_power(mixing(), layer)[index]).max())
    alike = _alike(erf, covariance()[index].reshape(SIDE, SIDE))
    claim, held, needed = _claim(name, layer, alike, (near_unit, near_partner), error)
    row = Row(
        name=f"{name}, layer {layer}",
        net=name,
        layer=layer,
        with_input=alike,
        with_activations=_alike(erf, activations),
        near_unit=near_unit,
        near_partner=near_partner,
        error=error,
        samples=len(x),
        claim=claim,
        held=held,
        passed=held or not needed,
    )
    return _Layer(row=row, erf=erf, activations=activations)


def _claim(name: str, layer: int, alike: float, modes: tuple[float, float], error: float | None) -> tuple[str, bool, bool]:
    """What a layer is said to do, whether it does, and whether the study fails where it does not."""
    if error is not None:
        two = layer != DEPTH or all(abs(mode - said) < 5e-4 for mode, said in zip(modes, MODES, strict=True))
        return (f"equals P^{layer}, two modes" if layer == DEPTH else f"equals P^{layer}"), error <= 1e-10 and two, True
    if name == "convolution":
        return "no second mode", modes[1] == 0, True
    if name == "ReLU GCN":
        return "a second mode", modes[1] > 0.4, True
    # Theorem 3 is of one layer, and where keys are not queries its noise outweighs it at the samples that a study can afford.
    return "follows the covariance", alike > FOLLOWS, _is_tied(name, layer)


def _activation_covariance(net: nn.Sequential, layer: int, x: Tensor) -> FloatArray:
    """Covariance over samples of the channel sums of a layer's output, those of the unit with those of every pixel."""
    with torch.no_grad():
        sums = torch.cat([_up_to(net, f"layer{layer}", part).sum(1) for part in torch.split(x, 50)]).double()
    deviations = sums - sums.mean(0)
    return np.asarray((deviations * deviations[:, UNIT[0], UNIT[1], None, None]).mean(0).numpy())


def _up_to(net: nn.Sequential, last: str, x: Tensor) -> Tensor:
    names = [name for name, _ in net.named_children()]
    y: Tensor = net[: names.index(last) + 1](x)
    return y


def _alike(one: FloatArray, other: FloatArray) -> float:
    """|correlation| off the unit: the sign of a map is that of the weights, and says nothing."""
    off = _hops(UNIT) > 0
    return float(abs(np.corrcoef(one[off], other[off])[0, 1]))


def _hops(cell: tuple[int, int]) -> FloatArray:
    """Steps along the grid from a cell to every cell, (21, 21)."""
    row, col = np.indices((SIDE, SIDE))
    return np.asarray(abs(row - cell[0]) + abs(col - cell[1]), dtype=np.float64)


def _conclusion(rows: tuple[Row, ...]) -> str:
    by_name = {row.name: row for row in rows}
    tied, second = (by_name[f"{TIED}, layer {layer}"] for layer in (1, 2))
    free, conv, gcn = by_name["attention, layer 1"], by_name[f"convolution, layer {DEPTH}"], by_name[f"linear GCN, layer {DEPTH}"]
    return (
        f"Dot-product attention {'follows' if tied.held else 'does not follow'} the covariance of its input where keys are queries "
        f"(correlation {tied.with_input:.3f} off the unit; {second.with_input:.3f} after a second layer), "
        f"{'and' if free.held else 'not'} with weights of their own at {free.samples} samples ({free.with_input:.2f}; the mean of "
        f"Theorem 3 is then still below the noise); convolutions have "
        f"{conv.near_partner:.0%} of their ERF around the distant partner; the linear GCN equals P^9 to "
        f"{gcn.error:.0e}, {gcn.near_unit:.1%} around the unit and {gcn.near_partner:.1%} around its partner."
    )


def _picture(found: list[_Layer]) -> Picture:
    covered = covariance()[UNIT[0] * SIDE + UNIT[1]].reshape(SIDE, SIDE)
    by_name = {each.row.name: each for each in found}
    shallow, deep = (_panels(by_name[f"convolution, layer {layer}"]) for layer in (4, DEPTH))
    rows: list[tuple[Shown, ...]] = [(Shown(title="input, covariance", values=covered, unit=UNIT), shallow[0], deep[0], deep[-1])]
    rows += [_panels(by_name[name]) for name in (f"linear GCN, layer {DEPTH}", f"{TIED}, layer 1", f"{TIED}, layer 2")]
    return Picture(
        title="ERFs beside covariances, mean over data with random weights",
        rows=tuple(rows),
        note=f"Unit {UNIT}, whose data are correlated with those around {PARTNER}. ERFs are signed; their overall sign is the weights'.",
    )


def _panels(each: _Layer) -> tuple[Shown, ...]:
    """The ERF, without the unit, that on a logarithmic scale, and the covariance of the activations."""
    without = np.where(_hops(UNIT) > 0, each.erf, 0)
    short = each.row.name.replace("convolution", "conv").replace(TIED, "attention").replace("linear ", "").replace("layer ", "")
    return (
        Shown(title=f"{short}, ERF", values=each.erf, signed=True, unit=UNIT),
        Shown(title=f"{short}, no unit", values=without, signed=True),
        Shown(title=f"{short}, no unit", values=without, signed=True, log=True),
        Shown(title=f"{short}, covariance", values=each.activations, signed=True, unit=UNIT),
    )


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False, folds=True),
    Column(title="r input", text=lambda row: f"{row.with_input:.3f}"),
    Column(title="r activ.", text=lambda row: f"{row.with_activations:.3f}"),
    Column(title="at unit", text=lambda row: f"{row.near_unit:.1%}"),
    Column(title="at partner", text=lambda row: f"{row.near_partner:.1%}"),
    Column(title="error", text=lambda row: "" if row.error is None else f"{row.error:.0e}", optional=True),
    Column(title="samples", text=lambda row: str(row.samples), optional=True),
    Column(title="claim", text=lambda row: row.claim, numeric=False, folds=True),
    Column(title="held", text=lambda row: "yes" if row.held else "no", numeric=False),
)
