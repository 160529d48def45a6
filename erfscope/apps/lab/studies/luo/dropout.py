"""``luo-dropout``: dropout does not change the shape of the ERF.

Values are kept with the chance p and divided by it. The mean of the gradient over masks is then that of the net without
dropout; its mean square, over random weights, is 1 / p times as large per layer, the same factor everywhere, so that
sigma stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

import erfscope
from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import (
    EXACT,
    VARIANCE,
    WIDTHS,
    Z_LIMIT,
    Design,
    Nets,
    Weights,
    along_row,
    draw_nets,
    measure_nets,
)
from erfscope.apps.lab.studies.study import (
    VERDICT,
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    holds,
    with_error,
)
from erfscope.show import Chart, ChartMap, Picture

LAYERS = 5
KEEPS = (1.0, 0.8, 0.5)
#: Parts of the runs, for standard errors of a total.
PARTS = 10
SIGMA = theory.uniform_stack(LAYERS, 3).sigma_px
#: Weights -> how rows name the gradient, the conventions of its map and of its total, and what claims add to its name.
IMAGES: dict[Weights, tuple[str, str, Any, str]] = {
    "uniform": ("E[g]", "signed", "signed", ""),
    "random": ("E[g²]", "energy", VARIANCE, " of squares"),
}


def study(asked: StudyOptions) -> StudyFindings:
    """Rates of 0, 0.2 and 0.5; 5 linear layers, uniform and random weights."""
    rows = [
        row for keep in asked.each("luo-dropout", KEEPS) for weights in IMAGES for row in _rows(asked, weights, keep)
    ]
    rows.sort(key=lambda row: (row.section[0] == "r", "sigma of E" in row.section))
    return StudyFindings(columns=COLUMNS, section="section", rows=rows, claims=_claims(rows), picture=_picture(rows))


def _rows(asked: StudyOptions, weights: Weights, keep: float) -> list[StudyRow]:
    """The gradient of one net, over masks, or its mean square over masks and weights: its total and its sigma."""
    image, convention, normalised, word = IMAGES[weights]
    runs = asked.pick(full=2000, quick=400, smoke=100)
    design = Design(layers=LAYERS, width=WIDTHS[weights], weights=weights, keep=keep)
    nets, pictures = draw_nets(asked, f"{image}, keep {keep:g}", design, runs)
    result = measure_nets(nets, pictures, normalised)
    spread = result["sigma_row"]
    expected = 1.0 if weights == "uniform" else keep**-LAYERS
    numbers = {"total": (*totals(nets, pictures, convention), expected), "sigma": (float(spread), spread.se, SIGMA)}
    return [
        StudyRow(
            name=f"{what}{word}, keep {keep:g}",
            section=f"{weights} weights: {what} of {image}",
            keep=keep,
            runs=runs,
            value=value,
            se=se,
            theory=wanted,
            passed=abs(value - wanted) <= EXACT * wanted + Z_LIMIT * (se or 0.0),
            maps={"g": result.map.values},
        )
        for what, (value, se, wanted) in numbers.items()
    ]


def totals(nets: Nets, pictures: Tensor, convention: str) -> tuple[float, float]:
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
    nodes = pictures.flatten(2).transpose(1, 2)
    found = [float(erfscope.influence(unit, nodes[part], convention, [0]).values.sum()) for part in parts]
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(PARTS))


COLUMNS = (
    StudyColumn("statistic", "{name}", numeric=False),
    StudyColumn("runs", "{runs}", optional=True),
    StudyColumn("measured", lambda row: with_error(row.value, row.se)),
    StudyColumn("theory", "{theory:.3f}"),
    VERDICT,
)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    least = {row.section: row for row in rows if row.keep == min(KEEPS)}
    names = {
        "uniform weights: total of E[g]": "the gradient's total stays",
        "random weights: total of E[g²]": "that of its square grows by 1 / keep per layer",
        "random weights: sigma of E[g²]": "sigma stays",
    }
    return [
        claim(
            f"dropout, {min(KEEPS):g} kept before each of {LAYERS} layers: {text}",
            f"{least[section].theory:.3f} (closed form)",
            with_error(least[section].value, least[section].se),
            holds([row for row in rows if row.section == section]),
        )
        for section, text in names.items()
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    squares = [row for row in rows if row.section == "random weights: sigma of E[g²]"]
    shown = tuple(
        ChartMap(title=f"mean square of the gradient, keep {row.keep:g}", values=row.maps["g"]) for row in squares
    )
    curves = [along_row(f"keep {row.keep:g}", row.maps["g"], points=True) for row in squares]
    curves.append(along_row("closed form", theory.uniform_stack(LAYERS, 3).kernel[None]))
    chart = Chart(title="along a row", x="px from the unit", y="share", curves=tuple(curves))
    note = f"{LAYERS} linear layers, random weights."
    return Picture(title="Dropout does not change the shape of the ERF", rows=(shown, (chart,)), note=note)
