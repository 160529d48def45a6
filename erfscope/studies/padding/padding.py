"""``padding``: what six ways of padding do to the ERF, and whether a net can then tell where it is.

The total influence T(i) of an input on all outputs is the same everywhere for three of them, and differs at the border
for the others (the course report, Table 1). A net that can read positions uses them where they tell the class, and
fails where the positions of the classes change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.padding.red_green import PADDINGS, net1, padded, red_green
from erfscope.studies.study import Column, StudyFindings, StudyOptions, cell
from erfscope.studies.training import batches, descend, fit

#: The boundary-bias index of a kernel [1, 1, 1], and the report's accuracy with the two classes swapped, in
#: percent.
BIAS = {"replicate": 0.0, "full": 0.0, "circular": 0.0, "zero": 1 / 3, "valid": 2 / 3, "reflect": 1 / 3}
PUBLISHED = {"replicate": 93.8, "full": 88.9, "circular": 82.6, "zero": 6.4, "valid": 0.1, "reflect": 0.0}
#: Layers of the stack whose ERFs are shown, and the side of its input, which is odd to have a middle.
DEPTH, SIDE = 4, 21
#: Two units that no border reaches, counted in the map of a layer of the input's size.
INTERIOR = ((8, 8), (10, 11))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mode."""

    name: str
    #: T(i) of nine inputs in a line under a kernel [1, 1, 1], and the index max |T / T_interior - 1|.
    totals: tuple[float, ...]
    bias: float
    bias_published: float
    #: Half of the ERF of a uniform stack lies within this distance, in pixels, of the unit in the middle, on an edge,
    #: in a corner.
    r50_centre: float
    r50_edge: float
    r50_corner: float
    #: Largest difference between ERFs of two units that no border reaches, one shifted onto the other.
    shift_error: float
    #: Relative L1 difference between the ERF turned by 90 degrees and the ERF of the turned image: for kernels
    #: that a quarter turn does not change, and for others.
    turn_symmetric: float
    turn_other: float
    #: Accuracy of Net1 with classes where they were in training, and with the two swapped; None if it was not trained.
    accuracy: float | None
    accuracy_swapped: float | None
    published: float
    #: Whether Net1 does as the totals predict: it reads the order if they are uniform, and the position if not.
    held: bool | None
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Measure all modes, one row each."""
    trained = asked.pick(full=tuple(PADDINGS), quick=("full", "valid"), smoke=("valid",))
    maps: dict[str, list[FloatArray]] = {}
    rows = []
    for mode in asked.each("padding", PADDINGS):
        accuracies = _trained(mode, asked) if mode in trained else (None, None)
        row, maps[mode] = _measured(mode, accuracies, asked)
        rows.append(row)
    return StudyFindings(columns=COLUMNS, rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(rows, maps))


def _measured(
    mode: str, accuracies: tuple[float | None, float | None], asked: StudyOptions
) -> tuple[Row, list[FloatArray]]:
    totals, bias = line_totals(mode)
    uniform = _erfs(_stack(mode, asked.seed, uniform=True), "centre,edge,corner")
    shift = _shift_error(mode, asked.seed)
    turns = [turn_error(mode, asked.seed, symmetric=symmetric) for symmetric in (True, False)]
    exact = abs(bias - BIAS[mode]) < 1e-12 and shift < 1e-12 and turns[0] < 1e-9 < 1e-2 < turns[1]
    accuracy, swapped = accuracies
    row = Row(
        name=mode,
        totals=totals,
        bias=bias,
        bias_published=BIAS[mode],
        **{
            f"r50_{place}": float(result["r50"])
            for place, result in zip(("centre", "edge", "corner"), uniform, strict=True)
        },
        shift_error=shift,
        turn_symmetric=turns[0],
        turn_other=turns[1],
        accuracy=accuracy,
        accuracy_swapped=swapped,
        published=PUBLISHED[mode],
        held=None if swapped is None else (swapped > 0.5) == (BIAS[mode] == 0),
        passed=exact and (accuracy is None or accuracy > 0.6),
    )
    return row, [result.map.values for result in uniform]


def line_totals(mode: str, length: int = 9) -> tuple[tuple[float, ...], float]:
    """Return T(i) of a line of inputs under a kernel [1, 1, 1], and its boundary-bias index."""
    name, width = PADDINGS[mode]
    line = nn.Conv1d(1, 1, 3, padding=width, padding_mode=name, bias=False).double()
    nn.init.ones_(line.weight)

    def function(nodes: Tensor) -> Tensor:
        y: Tensor = line(nodes.T)
        return y.T

    influence = erfscope.influence(function, torch.ones(length, 1, dtype=torch.float64), "signed")
    found = influence.marginals(interior=range(3, length - 3))
    assert found.boundary_bias is not None
    return tuple(found.per_input.tolist()), found.boundary_bias


def _stack(mode: str, seed: int, *, uniform: bool = False, relu: bool = False) -> nn.Sequential:
    """Four padded convolutions in float64: uniform ones, or eight channels at random weights."""
    channels = 1 if uniform else 8
    with seed_generators(seed):
        layers: list[nn.Module] = [padded(1 if depth == 0 else channels, channels, mode) for depth in range(DEPTH)]
    if uniform:
        for layer in layers:
            nn.init.constant_(layer.weight, 1 / 9)  # type: ignore[arg-type]
    parts = [part for layer in layers for part in ((layer, nn.ReLU()) if relu else (layer,))]
    return nn.Sequential(*(parts[:-1] if relu else parts)).double()


def _erfs(net: nn.Sequential, unit: Any, x: Tensor | None = None) -> Sequence[Any]:
    given = torch.ones(1, 1, SIDE, SIDE, dtype=torch.float64) if x is None else x
    last = str(len(net) - 1)
    return erfscope.sweep(net, images=given, layer=last, unit=unit, convention="signed", measures=["r50"]).results


def _shift_error(mode: str, seed: int) -> float:
    """Units further from the border than the theoretical receptive field reaches have the same ERF, shifted."""
    net = _stack(mode, seed)
    grown = net(torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64)).shape[2] - SIDE
    units = [tuple(index + grown // 2 for index in unit) for unit in INTERIOR]
    one, other = (result.map.values for result in _erfs(net, ",".join("x".join(map(str, unit)) for unit in units)))
    moved = np.roll(one, [b - a for a, b in zip(*INTERIOR, strict=True)], (0, 1))
    return float(np.abs(moved - other).max())


def turn_error(mode: str, seed: int, *, symmetric: bool) -> float:
    """How far the ERF of an image that was turned by 90 degrees is from the turned ERF, in relative L1."""
    net = _stack(mode, seed, relu=True)
    if symmetric:
        with torch.no_grad():
            for layer in net[::2]:
                assert isinstance(layer, nn.Conv2d)
                layer.weight.copy_(torch.stack([layer.weight.rot90(turn, (2, 3)) for turn in range(4)]).mean(0))
    x = torch.randn(1, 1, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    straight, turned = (_erfs(net, "centre", picture)[0].map.values for picture in (x, x.rot90(1, (2, 3))))
    return float(np.abs(np.rot90(straight) - turned).sum() / np.abs(turned).sum())


def _trained(mode: str, asked: StudyOptions) -> tuple[float, float]:
    """Return the accuracy of Net1 with the classes in their places, and swapped."""
    count = asked.pick(full=1000, quick=400, smoke=200)
    epochs = asked.pick(full=15, quick=10 if mode == "full" else 4, smoke=4)
    seeds = [3 * asked.seed + offset for offset in range(3)]
    pictures, classes = red_green(count, torch.Generator().manual_seed(seeds[0]))
    with seed_generators(asked.seed):
        net = net1(mode)
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0, rho=0.9, weight_decay=5e-5)  # as the authors'

    def epoch(number: int) -> dict[str, float]:
        losses = [
            descend(optimizer, F.cross_entropy(net(pictures[some]), classes[some]))
            for some in batches(count, 50, number)
        ]
        return {"loss": losses[-1]}

    fit(asked, f"padding-{mode}", net, optimizer, epochs, epoch, pictures=count)
    with torch.no_grad():
        tests = [
            red_green(500, torch.Generator().manual_seed(seed), swapped=swapped)
            for seed, swapped in zip(seeds[1:], (False, True), strict=True)
        ]
        accuracy, swapped = (float((net(x).argmax(1) == y).float().mean()) for x, y in tests)
    return accuracy, swapped


def _conclusion(rows: Sequence[Row]) -> str:
    asked = [row for row in rows if row.held is not None]
    against = [
        f"{row.name} ({row.accuracy_swapped:.1%}, published {row.published:g} %)" for row in asked if not row.held
    ]
    kept = [f"{row.name} {row.accuracy_swapped:.1%}" for row in asked if row.held]
    uniform = ", ".join(row.name for row in rows if row.bias < 1e-12) or "no"
    off = ", ".join(f"{row.name} {row.bias:.3f}" for row in rows if row.bias >= 1e-12) or "none"
    error = max(abs(row.bias - row.bias_published) for row in rows)
    derived = "as derived" if error < 1e-12 else f"up to {error:.0e} from what was derived"
    bias = f"Influence is uniform for {uniform} padding; at the border it is off for the others ({off}), {derived}."
    swapped = f" Net1 with the classes swapped: as uniform influence suggests for {', '.join(kept) or 'none'}"
    turn = (
        f" Turning an image turns its ERF to {max(row.turn_symmetric for row in rows):.0e} if a quarter turn does not"
        " change the kernels."
    )
    return f"{bias}{swapped}; not for {', '.join(against) or 'none'}.{turn}"


def _picture(rows: Sequence[Row], maps: dict[str, list[FloatArray]]) -> Picture:
    lines = tuple(Curve(label=row.name, x=range(len(row.totals)), y=row.totals) for row in rows)
    totals = Chart(title="Total influence of an input", x="input", y="T", curves=lines)
    of_trained = [row for row in rows if row.accuracy is not None]
    places = range(len(of_trained))
    bars = (
        Curve(label="in place", x=places, y=[100 * (row.accuracy or 0) for row in of_trained], points=True),
        Curve(label="swapped", x=places, y=[100 * (row.accuracy_swapped or 0) for row in of_trained], points=True),
        Curve(label="swapped, published", x=places, y=[row.published for row in of_trained], points=True),
    )
    accuracy = Chart(title="Net1", x="", y="accuracy (%)", curves=bars, names=tuple(row.name for row in of_trained))
    shown = [
        tuple(Shown(title=f"{mode}, {place}", values=maps[mode][number]) for mode in maps)
        for number, place in enumerate(("centre", "edge", "corner"))
    ]
    return Picture(
        title="Padding: influence, ERFs of four uniform layers, and what a net reads", rows=((totals, accuracy), *shown)
    )


COLUMNS = (
    Column(title="padding", text=lambda row: row.name, numeric=False),
    Column(title="T(i)", text=lambda row: " ".join(f"{total:g}" for total in row.totals), numeric=False, optional=True),
    Column(title="bias", text=lambda row: f"{row.bias:.3f}"),
    Column(title="r50 mid", text=lambda row: f"{row.r50_centre:.2f}"),
    Column(title="edge", text=lambda row: f"{row.r50_edge:.2f}"),
    Column(title="corner", text=lambda row: f"{row.r50_corner:.2f}"),
    Column(title="shift", text=lambda row: f"{row.shift_error:.0e}", optional=True),
    Column(title="turn", text=lambda row: f"{row.turn_symmetric:.0e}/{row.turn_other:.2f}", optional=True),
    Column(title="acc. %", text=lambda row: cell(row.accuracy, ".1%", "-").rstrip("%")),
    Column(title="swapped", text=lambda row: cell(row.accuracy_swapped, ".1%", "-").rstrip("%")),
    Column(title="publ.", text=lambda row: f"{row.published:g}"),
    Column(title="held", text=lambda row: "-" if row.held is None else "yes" if row.held else "no", numeric=False),
)
