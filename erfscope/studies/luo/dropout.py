"""``luo-dropout``: dropout does not change the shape of the ERF.

Values are kept with the chance p and divided by it. The mean of the gradient over masks is then that of the net without
dropout; its mean square, over random weights, is 1 / p times as large per layer, the same factor everywhere, so that
sigma stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

import erfscope
from erfscope import theory
from erfscope.figures.chart_data import Chart, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.luo.nets import Design, Nets
from erfscope.studies.luo.rows import VARIANCE, Z_LIMIT, along_row, failures, generator, measured, verdict, with_error
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions

LAYERS, WIDTH = 5, 8
KEEPS = (1.0, 0.8, 0.5)
#: Parts of the runs, for standard errors of a total.
PARTS = 10
#: Without dropout, sizes of uniform weights hold to rounding.
EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number under one rate of dropout."""

    name: str
    section: str
    keep: float
    runs: int
    value: float
    se: float | None
    theory: float
    passed: bool


def study(asked: StudyOptions) -> StudyFindings:
    """Rates of 0, 0.2 and 0.5; 5 linear layers, uniform and random weights."""
    runs = asked.pick(full=2000, quick=400, smoke=100)
    rows: list[Row] = []
    maps = []
    for keep in asked.each("luo-dropout", KEEPS):
        rows += _mean(asked, keep, runs)
        found, values = _square(asked, keep, runs)
        rows += found
        maps.append((keep, values))
    rows.sort(key=lambda row: SECTIONS.index(row.section))
    return StudyFindings(
        columns=COLUMNS, section="section", rows=tuple(rows), conclusion=_conclusion(rows), picture=_picture(maps)
    )


SECTIONS = (
    "uniform weights: total of E[g]",
    "uniform weights: sigma of E[g]",
    "random weights: total of E[g²]",
    "random weights: sigma of E[g²]",
)


def _mean(asked: StudyOptions, keep: float, runs: int) -> list[Row]:
    """The mean over masks of the gradient of one net."""
    name = f"E[g], keep {keep:g}"
    draws = generator(asked, name)
    nets = Nets(Design(layers=LAYERS, keep=keep), runs, draws)
    pictures = nets.pictures(draws)
    total, total_se = totals(nets, pictures, "signed")
    spread = measured(nets, pictures, "signed")["sigma_row"]
    return [
        _row(f"total, keep {keep:g}", SECTIONS[0], keep, runs, total, total_se, 1.0),
        _row(
            f"sigma, keep {keep:g}",
            SECTIONS[1],
            keep,
            runs,
            float(spread),
            spread.se,
            theory.uniform_stack(LAYERS, 3).sigma_px,
        ),
    ]


def _square(asked: StudyOptions, keep: float, runs: int) -> tuple[list[Row], FloatArray]:
    """The mean square of the gradient over masks and weights, and its map."""
    name = f"E[g²], keep {keep:g}"
    draws = generator(asked, name)
    nets = Nets(Design(layers=LAYERS, width=WIDTH, weights="random", keep=keep), runs, draws)
    pictures = nets.pictures(draws)
    total, total_se = totals(nets, pictures, "energy")
    result = measured(nets, pictures, VARIANCE)
    assert result.map is not None
    spread = result["sigma_row"]
    rows = [
        _row(f"total of squares, keep {keep:g}", SECTIONS[2], keep, runs, total, total_se, keep**-LAYERS),
        _row(
            f"sigma of squares, keep {keep:g}",
            SECTIONS[3],
            keep,
            runs,
            float(spread),
            spread.se,
            theory.uniform_stack(LAYERS, 3).sigma_px,
        ),
    ]
    return rows, result.map.values


def totals(nets: Nets, pictures: Tensor, convention: str) -> tuple[float, float | None]:
    """Return the influence of all input pixels on the unit, not normalised: mean over the runs and standard error.

    Args:
        nets: What is measured.
        pictures: One per run, (runs, channels + 1, side, side).
        convention: ``"signed"`` or ``"energy"``.
    """
    side = nets.design.side

    def unit(nodes: Tensor) -> Tensor:
        out: Tensor = nets(nodes.T.reshape(1, -1, side, side)).flatten(1)
        return out

    parts = np.array_split(np.arange(len(pictures)), PARTS)
    found = [
        float(erfscope.influence(unit, pictures[part].flatten(2).transpose(1, 2), convention, [0]).values.sum())
        for part in parts
    ]
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(PARTS))


def _row(name: str, section: str, keep: float, runs: int, value: float, se: float | None, expected: float) -> Row:
    limit = EXACT * expected + Z_LIMIT * (se or 0.0)
    passed = abs(value - expected) <= limit
    return Row(name=name, section=section, keep=keep, runs=runs, value=value, se=se, theory=expected, passed=passed)


COLUMNS = (
    Column(title="statistic", text=lambda row: row.name, numeric=False),
    Column(title="runs", text=lambda row: str(row.runs), optional=True),
    Column(title="measured", text=lambda row: with_error(row.value, row.se)),
    Column(title="theory", text=lambda row: f"{row.theory:.3f}"),
    VERDICT,
)


def _conclusion(rows: list[Row]) -> str:
    least = min(KEEPS)
    total, square = (next(row for row in rows if row.section == SECTIONS[at] and row.keep == least) for at in (0, 2))
    sigmas = [row.value for row in rows if row.section == SECTIONS[3]]
    return (
        f"That dropout does not change the shape {verdict(rows)}: keeping {least:g} of the values before each of"
        f" {LAYERS} layers, the gradient adds up to {total.value:.3f} (1 without), its square to {square.value:.1f}"
        f" ({square.theory:.0f} = (1 / {least:g})^{LAYERS}), and sigma is {min(sigmas):.3f} to {max(sigmas):.3f} at all"
        f" rates (closed form {theory.uniform_stack(LAYERS, 3).sigma_px:.3f}).{failures(rows)}"
    )


def _picture(maps: list[tuple[float, FloatArray]]) -> Picture:
    shown = tuple(Shown(title=f"mean square of the gradient, keep {keep:g}", values=values) for keep, values in maps)
    curves = [along_row(f"keep {keep:g}", values, points=True) for keep, values in maps]
    curves.append(along_row("closed form", theory.uniform_stack(LAYERS, 3).kernel[None]))
    chart = Chart(title="along a row", x="px from the unit", y="share", curves=tuple(curves))
    return Picture(
        title="Dropout does not change the shape of the ERF",
        rows=(shown, (chart,)),
        note=f"{LAYERS} linear layers, random weights.",
    )
