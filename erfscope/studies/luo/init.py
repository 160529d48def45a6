"""``luo-init``: an initialisation that is less Gaussian, small in the middle of a kernel and large outside, widens the
ERF a little.

No kernel of three taps spreads further than [1/2, 0, 1/2]: sigma is sqrt(1.5) = 1.2247 times that of the uniform one,
and the ERF of many layers is a Gaussian all the same. Random weights whose variances have that profile give the mean
square of the gradient that sigma."""

from __future__ import annotations

import math

from erfscope import theory
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.studies.luo.nets import Design, Weights
from erfscope.studies.luo.rows import (
    EXACT,
    DesignResult,
    Row,
    columns,
    failures,
    findings,
    measure_design,
    section_of,
    verdict,
)
from erfscope.studies.study import StudyFindings, StudyOptions

WIDTH = 8
#: Shares of the taps along one axis.
PROFILES: dict[str, tuple[float, ...]] = {
    "1/3 1/3 1/3": (1 / 3, 1 / 3, 1 / 3),
    "2/5 1/5 2/5": (0.4, 0.2, 0.4),
    "1/2 0 1/2": (0.5, 0.0, 0.5),
}
WEIGHTS: tuple[Weights, ...] = ("uniform", "random")


def study(asked: StudyOptions) -> StudyFindings:
    """Three profiles, as the weights themselves and as the variances of random ones."""
    layers = asked.pick(full=20, quick=20, smoke=8)
    runs = asked.pick(full=100, quick=100, smoke=20)
    wanted = [(weights, profile) for weights in WEIGHTS for profile in PROFILES]
    found = [
        _measured(asked, weights, profile, layers, runs if weights == "random" else 1)
        for weights, profile in asked.each("luo-init", wanted)
    ]
    return findings(found, columns(first="weights, kernel"), _conclusion, _picture(found))


def _measured(asked: StudyOptions, weights: Weights, profile: str, layers: int, runs: int) -> DesignResult:
    taps = PROFILES[profile]
    design = Design(layers=layers, weights=weights, profile=taps, width=WIDTH if weights == "random" else 1)
    sigma = math.sqrt(theory.weighted_kernel_variance(taps, layers))
    # Cumulants add over layers: taps at -1, 0 and 1 with shares a, 1 - 2a, a have the variance 2a and the fourth
    # cumulant 2a - 12 a^2.
    spread = 2 * taps[0]
    kurtosis = (spread - 3 * spread**2) / spread**2 / layers

    def still_gaussian(row: Row) -> bool:
        return row.kurtosis is not None and abs(row.kurtosis - kurtosis) < EXACT

    also = still_gaussian if weights == "uniform" else None
    return measure_design(
        asked, f"{weights}, {profile}", design, runs, section=section_of(weights), sigma=sigma, also=also
    )


def _conclusion(rows: tuple[Row, ...]) -> str:
    gains = {
        weights: (
            next(row for row in rows if row.name == f"{weights}, 1/2 0 1/2").sigma_px
            / next(row for row in rows if row.name == f"{weights}, 1/3 1/3 1/3").sigma_px
        )
        for weights in WEIGHTS
    }
    last = next(row for row in rows if row.name == "uniform, 1/2 0 1/2")
    held = verdict(rows)
    return (
        f"That no initialisation helps much {held}: at best sigma is {gains['uniform']:.4f} times as large (closed form"
        f" 1.2247), and {gains['random']:.3f} for random weights; the ERF tends to a Gaussian all the same (excess"
        f" kurtosis {last.kurtosis or 0:+.3f} after {last.layers} layers; R2 is low because every second pixel is out"
        f" of its reach).{failures(rows)}"
    )


def _picture(found: list[DesignResult]) -> Picture:
    maps = tuple(Shown(title=one.row.name, values=one.absolute) for one in found)
    curves = []
    for one in found[:3]:
        middle, line = (one.row.trf_px - 1) / 2, one.absolute.sum(0)
        # Without the middle tap every second pixel is out of reach.
        kept = [at for at in range(len(line)) if line[at] > 0]
        curves.append(
            Curve(label=one.row.name, x=[at - middle for at in kept], y=[float(line[at] / line.max()) for at in kept])
        )
    chart = Chart(
        title="gradient along a row, uniform weights", x="px from the unit", y="of the largest", curves=tuple(curves)
    )
    note = (
        "Names: shares of the taps along one axis. Maps: mean |g|; with no middle tap every second pixel is out of"
        " reach."
    )
    return Picture(title="Less-Gaussian initialisation", rows=(maps[:3], maps[3:], (chart,)), note=note)
