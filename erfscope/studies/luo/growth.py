"""``luo-growth``: an ERF grows like the root of the depth, its fraction of the theoretical receptive field (TRF)
shrinks as 1/sqrt(depth).

The size is that of the paper, the root of the number of pixels above 4.55 % of the centre, and the slopes are those of
lines through its logarithm over that of the depth. At depths of 5 to 40 they are not yet 1/2 and -1/2, because a few
layers are no Gaussian: the published pair is that of the root of the variance image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from erfscope import theory
from erfscope.figures.chart_data import Chart, Curve, Picture
from erfscope.studies.luo.nets import Activation, Design, Nets, Weights
from erfscope.studies.luo.rows import RMS, failures, generator, measured, verdict
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions, cell

#: Luo et al. 2016, section 4: slopes of the size and of its ratio to the theoretical receptive field.
PUBLISHED = (0.56, -0.43)
#: Limit of a slope that is sampled; uniform weights have the slopes of the closed form.
LIMIT, EXACT = 0.03, 1e-9
WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Stacks of several depths."""

    name: str
    weights: Weights
    activation: Activation
    convention: Any
    #: Power that makes the measured image of the variance image: 1, or 1/2 for its root.
    power: float | None


FAMILIES = (
    Family(name="uniform, g", weights="uniform", activation="linear", convention="luo", power=1.0),
    Family(name="random, root of g²", weights="random", activation="linear", convention=RMS, power=0.5),
    Family(name="random, |g|", weights="random", activation="linear", convention="luo", power=None),
    Family(name="random ReLU, |g|", weights="random", activation="relu", convention="luo", power=None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One family: its slopes."""

    name: str
    runs: int
    layers: tuple[int, ...]
    sizes_px: tuple[float, ...]
    slope_size: float
    slope_ratio: float
    #: The closed form's, at the same depths; None where there is none.
    theory_size: float | None
    theory_ratio: float | None
    published_size: float = PUBLISHED[0]
    published_ratio: float = PUBLISHED[1]
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Four families of stacks, 5 to 40 layers."""
    depths = asked.pick(full=tuple(range(5, 41, 5)), quick=(5, 10, 20, 40), smoke=(5, 20))
    families = asked.pick(full=FAMILIES, quick=FAMILIES, smoke=FAMILIES[:2])
    rows = []
    for number, family in enumerate(families):
        runs = 1 if family.weights == "uniform" else asked.pick(full=100, quick=20, smoke=100)
        rows.append(_row(asked, family, depths, runs, number / len(families)))
    asked.tell("luo-growth", 1, 1)
    return StudyFindings(columns=COLUMNS, rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(rows))


def closed_form(n: int, power: float) -> float:
    """Size, at 4.55 % of the centre, of a power of the variance image of n random layers of 3 x 3."""
    line = theory.uniform_stack(n, 3).kernel ** power
    values = np.outer(line, line)
    return math.sqrt(np.count_nonzero(values > (1 - 0.9545) * values.max()))


def slopes(layers: Sequence[int], sizes: Sequence[float]) -> tuple[float, float]:
    """Log-log slopes over the depth, of the sizes and of their ratios to the theoretical receptive field's side 2 n +
    1."""
    depth = np.log(layers)
    ratios = np.divide(sizes, 2 * np.asarray(layers) + 1)
    return float(np.polyfit(depth, np.log(sizes), 1)[0]), float(np.polyfit(depth, np.log(ratios), 1)[0])


def _row(asked: StudyOptions, family: Family, depths: tuple[int, ...], runs: int, before: float) -> Row:
    sizes = []
    for done, n in enumerate(depths):
        asked.tell("luo-growth", round(100 * before + 25 * done / len(depths)), 100)
        draws = generator(asked, f"{family.name} {n}")
        design = Design(
            layers=n,
            width=1 if family.weights == "uniform" else WIDTH,
            weights=family.weights,
            activation=family.activation,
        )
        nets = Nets(design, runs, draws)
        sizes.append(float(measured(nets, nets.pictures(draws), family.convention)["luo_size"]))
    size, ratio = slopes(depths, sizes)
    expected = None if family.power is None else slopes(depths, [closed_form(n, family.power) for n in depths])
    limit = EXACT if family.weights == "uniform" else LIMIT
    # Families without a closed form are compared with the root of the variance image, at twice the limit.
    wanted, limit = (
        (expected, limit)
        if expected is not None
        else (slopes(depths, [closed_form(n, 0.5) for n in depths]), 2 * limit)
    )
    return Row(
        name=family.name,
        runs=runs,
        layers=depths,
        sizes_px=tuple(sizes),
        slope_size=size,
        slope_ratio=ratio,
        theory_size=None if expected is None else expected[0],
        theory_ratio=None if expected is None else expected[1],
        passed=abs(size - wanted[0]) <= limit and abs(ratio - wanted[1]) <= limit,
    )


COLUMNS = (
    Column(title="weights, image", text=lambda row: row.name, numeric=False),
    Column(title="runs", text=lambda row: str(row.runs), optional=True),
    Column(title="size", text=lambda row: cell(row.slope_size, "+.3f")),
    Column(title="theory", text=lambda row: cell(row.theory_size, "+.3f")),
    Column(title="paper", text=lambda row: f"{row.published_size:+.2f}"),
    Column(title="size / TRF", text=lambda row: cell(row.slope_ratio, "+.3f")),
    Column(title="theory", text=lambda row: cell(row.theory_ratio, "+.3f")),
    Column(title="paper", text=lambda row: f"{row.published_ratio:+.2f}"),
    VERDICT,
)


def _conclusion(rows: list[Row]) -> str:
    root = next(row for row in rows if row.name == "random, root of g²")
    uniform = next(row for row in rows if row.name == "uniform, g")
    return (
        f"Growth with the root of the depth {verdict(rows)}: log-log slopes over {root.layers[0]} to {root.layers[-1]}"
        f" layers are {root.slope_size:+.3f} and {root.slope_ratio:+.3f} for the root of the variance image (closed"
        f" form {root.theory_size:+.3f} and {root.theory_ratio:+.3f}, published {PUBLISHED[0]:+.2f} and"
        f" {PUBLISHED[1]:+.2f}), {uniform.slope_size:+.3f} and {uniform.slope_ratio:+.3f} for uniform weights; +1/2 and"
        f" -1/2 are their limits.{failures(rows)}"
    )


def _picture(rows: list[Row]) -> Picture:
    sizes = tuple(Curve(label=row.name, x=row.layers, y=row.sizes_px) for row in rows)
    ratios = tuple(
        Curve(
            label=row.name,
            x=row.layers,
            y=[size / (2 * n + 1) for n, size in zip(row.layers, row.sizes_px, strict=True)],
        )
        for row in rows
    )
    charts = (
        Chart(title="size of the ERF", x="layers", y="px", curves=sizes, log="xy"),
        Chart(
            title="its fraction of the theoretical receptive field (TRF)",
            x="layers",
            y="size / TRF",
            curves=ratios,
            log="xy",
        ),
    )
    note = "After Luo et al. 2016, section 4. Size: root of the number of pixels above 4.55 % of the value at the unit."
    return Picture(title="The ERF grows like the root of the depth", rows=(charts,), note=note)
