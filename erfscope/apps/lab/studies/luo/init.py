"""``luo-init``: an initialisation that is less Gaussian, small in the middle of a kernel and large outside, widens the
ERF a little.

No kernel of three taps spreads further than [1/2, 0, 1/2]: sigma is sqrt(1.5) = 1.2247 times that of the uniform one,
and the ERF of many layers is a Gaussian all the same. Random weights whose variances have that profile give the mean
square of the gradient that sigma."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import EXACT, SECTIONS, WIDTHS, Design, Weights, columns, measure_design
from erfscope.apps.lab.studies.study import Claim, StudyFindings, StudyOptions, StudyRow, claim
from erfscope.show import Chart, ChartMap, Curve, Picture

#: Shares of the taps along one axis.
PROFILES: dict[str, tuple[float, ...]] = {
    "1/3 1/3 1/3": (1 / 3, 1 / 3, 1 / 3),
    "2/5 1/5 2/5": (0.4, 0.2, 0.4),
    "1/2 0 1/2": (0.5, 0.0, 0.5),
}


def study(asked: StudyOptions) -> StudyFindings:
    """Three profiles, as the weights themselves and as the variances of random ones."""
    wanted = list(itertools.product(WIDTHS, PROFILES))
    rows = [_measured(asked, *each) for each in asked.each("luo-init", wanted)]
    return StudyFindings(
        columns=columns("weights, kernel"), section="section", rows=rows, claims=_claims(rows), picture=_picture(rows)
    )


def _measured(asked: StudyOptions, weights: Weights, profile: str) -> StudyRow:
    layers, runs = asked.pick(full=(20, 100), quick=(20, 100), smoke=(8, 20))
    taps = PROFILES[profile]
    # Cumulants add over layers: taps at -1, 0 and 1 with shares a, 1 - 2a, a have the variance 2a and the fourth
    # cumulant 2a - 12 a^2.
    spread = 2 * taps[0]
    kurtosis = (spread - 3 * spread**2) / spread**2 / layers

    def has_kurtosis(row: StudyRow) -> bool:
        return weights == "random" or (row.kurtosis is not None and abs(row.kurtosis - kurtosis) < EXACT)

    design = Design(layers=layers, weights=weights, profile=taps, width=WIDTHS[weights])
    sigma = math.sqrt(theory.weighted_kernel_variance(taps, layers))
    how_many = runs if weights == "random" else 1
    return measure_design(asked, f"{weights}, {profile}", design, how_many, sigma=sigma, also=has_kurtosis)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    gains = {}
    for weights in WIDTHS:
        even, *_, sparse = (row for row in rows if row.section == SECTIONS[weights])
        gains[weights] = claim(
            f"no initialisation helps much: largest gain in sigma, {weights} weights",
            "1.2247 (closed form)",
            f"{sparse.sigma_px / even.sigma_px:.4f}",
            even.passed and sparse.passed,
        )
    last = rows[len(PROFILES) - 1]
    bell = claim(
        "its ERF tends to a Gaussian all the same", "excess kurtosis to 0", f"{last.kurtosis:+.3f}", last.passed
    )
    return [*gains.values(), bell]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    maps = tuple(ChartMap(title=row.name, values=row.maps["|g|"]) for row in rows)
    curves = []
    for row in rows[:3]:
        middle, line = (row.trf_px - 1) / 2, row.maps["|g|"].sum(0)
        # Without the middle tap every second pixel is out of reach.
        kept = np.flatnonzero(line)
        curves.append(Curve(label=row.name, x=list(kept - middle), y=list(line[kept] / line.max())))
    title = "gradient along a row, uniform weights"
    chart = Chart(title=title, x="px from the unit", y="of the largest", curves=tuple(curves))
    note = (
        "Names: shares of the taps along one axis. Maps: mean |g|; with no middle tap every second pixel is out of"
        " reach."
    )
    return Picture(title="Less-Gaussian initialisation", rows=(maps[:3], maps[3:], (chart,)), note=note)
