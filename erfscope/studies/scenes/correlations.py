"""``correlations``: does the ERF follow the correlations of the data? Nicolicioiu & Duta, section 4.1 and Fig. 1.

Every pixel of a 21 x 21 map is correlated with those around it and with those around the point opposite. A convolution
cannot look there, a GCN looks where its links lead, and dot-product attention with fixed weights follows the covariance
in the mean over data (Theorem 3). No theorem covers softmax attention (Eq. 13): while its scores are small it is a
uniform ERF plus that of the dot product; as they grow the softmax sharpens them, and the ERF follows the covariance
less closely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope.figures.chart_data import Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.scenes.correlated_maps import (
    DEPTH,
    PARTNER,
    SIDE,
    SOFT_TIED,
    TIED,
    UNIT,
    covariance,
    mixing,
    nets,
    samples,
    signal_to_noise,
)
from erfscope.studies.study import Column, StudyFindings, StudyOptions, cell

#: Steps along the grid within which mass counts as around the unit, or around its partner.
NEAR = 5
#: Samples that show that one layer of dot-product attention follows the covariance.
LEAST = 100
#: The least Pearson correlation of an ERF that "follows the covariance".
FOLLOWS = 0.99
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer of one net: its mean signed ERF, beside covariances."""

    name: str
    net: str
    layer: int
    #: |Pearson's correlation| of the ERF with the input's covariance, over all pixels but the unit; and with the
    #: layer's activations'.
    with_input: float
    with_activations: float
    #: Shares of |ERF| around the unit, and around its partner.
    near_unit: float
    near_partner: float
    #: Largest difference of |ERF| from the closed form P^L, for the linear GCN.
    error: float | None
    #: The expectation of Theorem 3 over the standard error of the mean over the samples, for one layer of dot products.
    signal_to_noise: float | None
    samples: int
    claim: str
    held: bool
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """The row of one layer of one net, with its maps."""

    row: Row
    #: The mean signed ERF, and the covariance of the activations with that of the unit, both (21, 21).
    erf: FloatArray
    activations: FloatArray


def study(asked: StudyOptions) -> StudyFindings:
    """Compare every layer that the paper shows with the covariance of the data and of the layer's activations."""
    x = samples(max(asked.pick(full=1000, quick=60, smoke=8), LEAST), torch.Generator().manual_seed(asked.seed))
    found, every = [], nets(asked.seed)
    for number, (name, (net, layers)) in enumerate(every.items()):
        asked.tell(name, number, len(every))
        found += [_looked_at(name, net, layer, x[: _needed(name, layer, asked)], asked.seed) for layer in layers]
    rows = tuple(each.row for each in found)
    return StudyFindings(columns=COLUMNS, rows=rows, conclusion=_conclusion(rows), picture=_picture(found))


def _needed(name: str, layer: int, asked: StudyOptions) -> int:
    """Return the number of samples: at least enough to show what one layer of attention follows."""
    count = asked.pick(full=1000, quick=60, smoke=8)
    return max(count, LEAST) if layer == 1 and name in (TIED, SOFT_TIED) else count


def _looked_at(name: str, net: nn.Sequential, layer: int, x: Tensor, seed: int) -> _Layer:
    x = x.to(next(net.parameters()).dtype)
    shown = x[:1] if name == "linear GCN" else x  # the map of a linear net is that of any sample
    result = erfscope.analyze(
        net, images=shown, layer=f"layer{layer}", unit=UNIT, convention="signed", measures=["r50"], seed=seed
    )
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
        signal_to_noise=signal_to_noise(net[0], x) if layer == 1 and name in DOT else None,  # type: ignore[arg-type]
        samples=len(x),
        claim=claim,
        held=held,
        passed=held or not needed,
    )
    return _Layer(row=row, erf=erf, activations=activations)


def _claim(
    name: str, layer: int, alike: float, modes: tuple[float, float], error: float | None
) -> tuple[str, bool, bool]:
    """Return the claim about a layer, whether it holds, and whether the study passes."""
    if error is not None:
        two = layer != DEPTH or all(abs(mode - known) < 5e-4 for mode, known in zip(modes, MODES, strict=True))
        return (f"equals P^{layer}, two modes" if layer == DEPTH else f"equals P^{layer}"), error <= 1e-10 and two, True
    if name == "convolution":
        return "no second mode", modes[1] == 0, True
    if name == "ReLU GCN":
        return "a second mode", modes[1] > 0.4, True
    # Theorem 3 is of one layer of dot products, and where keys are not queries its noise outweighs it at the samples of
    # a study.
    return "follows the covariance", alike > FOLLOWS, name == TIED and layer == 1


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
    tied, second, soft, soft_second = (
        by_name[f"{name}, layer {layer}"] for name in (TIED, SOFT_TIED) for layer in (1, 2)
    )
    free, own, own_second = (
        by_name[name] for name in ("attention, layer 1", "softmax attention, layer 1", "softmax attention, layer 2")
    )
    conv, gcn = by_name[f"convolution, layer {DEPTH}"], by_name[f"linear GCN, layer {DEPTH}"]
    return (
        f"Dot-product attention {'follows' if tied.held else 'does not follow'} the covariance of its input where keys"
        f" are queries (correlation {tied.with_input:.3f} off the unit; {second.with_input:.3f} after a second layer),"
        f" {'and' if free.held else 'not'} with weights of their own at {free.samples} samples ({free.with_input:.2f})."
        f" What Theorem 3 expects is {tied.signal_to_noise:.2g} times the standard error of the one mean and"
        f" {free.signal_to_noise:.2g} times that of the other, and it would take about {_wanted(free):.0e} samples to"
        " see it with weights of their own. Softmax attention, of which no theorem speaks, comes to"
        f" {soft.with_input:.2f} and {soft_second.with_input:.2f} in its two layers where keys are queries, and to"
        f" {own.with_input:.2f} and {own_second.with_input:.2f} with weights of its own; {own_second.near_partner:.0%}"
        " of the last one's ERF are around the partner, where a uniform ERF has"
        f" {float((_hops(PARTNER) <= NEAR).mean()):.0%}. Convolutions have {conv.near_partner:.0%} of their ERF there;"
        f" the linear GCN equals P^9 to {gcn.error:.0e}, {gcn.near_unit:.1%} around the unit and {gcn.near_partner:.1%}"
        " around its partner."
    )


def _wanted(row: Row) -> float:
    """With how many samples a net would follow the covariance: r^2 = s^2 / (s^2 + 1) for a signal s times the noise."""
    assert row.signal_to_noise is not None
    return row.samples / row.signal_to_noise**2 * FOLLOWS**2 / (1 - FOLLOWS**2)


def _picture(found: list[_Layer]) -> Picture:
    """A column for every layer that the paper shows, and below them the covariance of the input beside the layers that
    are left."""
    shown = ["convolution, layer 4", f"convolution, layer {DEPTH}", f"linear GCN, layer {DEPTH}"]
    shown += [f"{name}, layer {layer}" for name in (TIED, SOFT_TIED) for layer in (1, 2)]
    by_name = {each.row.name: each for each in found}
    grid = zip(*(_panels(by_name[name]) for name in shown), strict=True)
    covered = covariance()[UNIT[0] * SIDE + UNIT[1]].reshape(SIDE, SIDE)
    others = [_panels(each)[1] for each in found if each.row.name not in shown]
    return Picture(
        title="ERFs beside covariances, mean over data with random weights",
        headings=(
            "ERF",
            "ERF without the unit",
            "ERF without the unit, logarithmic",
            "Covariance of the layer's activations with those of the unit",
            "Covariance of the input, and the other nets: ERF without the unit",
        ),
        rows=(*grid, (Shown(title="input", values=covered, unit=UNIT), *others)),
        note=(
            f"Unit {UNIT}, whose data are correlated with those around {PARTNER}. A name ends with its layer. Attention"
            " by dot products and by a softmax, keys = queries; where weights are own, keys have theirs. ERFs are"
            " signed; their overall sign is the weights'."
        ),
    )


def _panels(each: _Layer) -> tuple[Shown, ...]:
    """The ERF, without the unit, that on a logarithmic scale, and the covariance of the activations."""
    without = np.where(_hops(UNIT) > 0, each.erf, 0)
    name = f"{SHORT[each.row.net]} {each.row.layer}"
    return (
        Shown(title=name, values=each.erf, signed=True, unit=UNIT),
        Shown(title=name, values=without, signed=True),
        Shown(title=name, values=without, signed=True, log=True),
        Shown(title=name, values=each.activations, signed=True, unit=UNIT),
    )


COLUMNS = (
    Column(title="net", text=lambda row: row.name, numeric=False, folds=True),
    Column(title="r input", text=lambda row: f"{row.with_input:.3f}"),
    Column(title="r activ.", text=lambda row: f"{row.with_activations:.3f}"),
    Column(title="at unit", text=lambda row: f"{row.near_unit:.1%}"),
    Column(title="at partner", text=lambda row: f"{row.near_partner:.1%}"),
    Column(title="error", text=lambda row: cell(row.error, ".0e"), optional=True),
    Column(title="signal", text=lambda row: cell(row.signal_to_noise, ".2g"), optional=True),
    Column(title="samples", text=lambda row: str(row.samples), optional=True),
    Column(title="claim", text=lambda row: row.claim, numeric=False, folds=True),
    Column(title="held", text=lambda row: "yes" if row.held else "no", numeric=False),
)
