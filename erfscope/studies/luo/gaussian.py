"""``luo-gaussian``: the ERF of a deep stack is a Gaussian, for uniform and for random weights, with and without
nonlinearities.

Weights that are all alike give the gradient itself the shape of a binomial, sigma = sqrt(n (k^2 - 1) / 12). Random ones
give that shape to the mean square of the gradient; the mean |gradient|, which the paper shows, is up to sqrt(2) wider.
Its fit by a Gaussian is the test."""

from __future__ import annotations

from erfscope import theory
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.studies.luo.nets import ACTIVATIONS, Activation, Design, Weights
from erfscope.studies.luo.rows import (
    EXACT,
    GAUSSIAN_R2,
    DesignResult,
    Row,
    along_row,
    columns,
    failures,
    findings,
    measure_design,
    rms_sigma,
    section_of,
    verdict,
)
from erfscope.studies.study import StudyFindings, StudyOptions

#: Channels between the layers of random nets: with one, single runs outweigh all others.
WIDTH = 8
#: The least depth of random nets in the conclusion; those of 5 layers are still far from the limit.
DEEP = 10
#: How far sigma of a mean |gradient| may be from that of the binomial (uniform weights) or of its root (random ones),
#: as a share. Both leave out how nonlinearities and runs differ; over seeds the largest difference was 3 %.
NEAR = 0.1


def study(asked: StudyOptions) -> StudyFindings:
    """Depths of 5 to 40 layers, uniform and random weights, four activations; 20 runs each, and 100 at 20 layers."""
    depths = asked.pick(full=(5, 10, 20, 40), quick=(5, 10, 20), smoke=(10,))
    activations: tuple[Activation, ...] = asked.pick(
        full=tuple(ACTIVATIONS), quick=tuple(ACTIVATIONS), smoke=("linear", "relu")
    )
    wanted: list[tuple[Weights, Activation, int, int]] = [("uniform", "linear", n, 1) for n in depths]
    wanted += [("uniform", act, n, 20) for act in activations if act != "linear" for n in depths]
    wanted += [("random", act, n, 20) for act in activations for n in depths]
    wanted += [("random", act, 20, 100) for act in activations if asked.effort == "full"]
    measure = {"uniform": _uniform, "random": _random}
    found = [measure[weights](asked, act, n, runs) for weights, act, n, runs in asked.each("luo-gaussian", wanted)]
    found.sort(key=lambda one: one.row.section, reverse=True)
    return findings(found, columns(first="weights, layers"), _conclusion, _picture(found))


def _uniform(asked: StudyOptions, act: Activation, n: int, runs: int) -> DesignResult:
    shape = theory.uniform_stack(n, 3)

    def binomial(row: Row) -> bool:
        return row.kurtosis is not None and abs(row.kurtosis - (shape.excess_kurtosis or 0.0)) < EXACT

    design, name, section = Design(layers=n, activation=act), f"uniform, {act}, {n}", section_of("uniform")
    if act != "linear":
        return measure_design(
            asked, name, design, runs, section=section, sigma=None, also=lambda row: _bell(row, shape.sigma_px)
        )
    return measure_design(asked, name, design, runs, section=section, sigma=shape.sigma_px, also=binomial)


def _random(asked: StudyOptions, act: Activation, n: int, runs: int) -> DesignResult:
    design = Design(layers=n, width=WIDTH, weights="random", activation=act)
    sigma = theory.uniform_stack(n, 3).sigma_px if act == "linear" else None
    name = f"random, {act}, {n}" + (f" x{runs}" if runs != 20 else "")
    return measure_design(
        asked, name, design, runs, section=section_of("random"), sigma=sigma, also=lambda row: _bell(row, rms_sigma(n))
    )


def _bell(row: Row, sigma: float) -> bool:
    return (row.gaussian_r2 or 0.0) >= GAUSSIAN_R2 and abs(row.abs_sigma_px / sigma - 1) <= NEAR


def _conclusion(rows: tuple[Row, ...]) -> str:
    deep = [row for row in rows if row.section.startswith("random") and row.layers >= DEEP]
    worst = min(deep, key=lambda row: row.gaussian_r2 or 0.0)
    exact = [row for row in rows if row.section.startswith("uniform") and row.theory_px is not None]
    error = max(abs(row.sigma_px / row.theory_px - 1) for row in exact if row.theory_px)
    last = max(deep, key=lambda row: (row.layers, row.runs))
    gated = [row for row in rows if row.section.startswith("uniform") and row.theory_px is None]
    off = max(abs(row.abs_sigma_px / theory.uniform_stack(row.layers, 3).sigma_px - 1) for row in gated)
    return (
        f"The Gaussian shape {verdict(rows)}: uniform weights follow sqrt(n (k² - 1) / 12) to {error:.0e}, and to"
        f" {off:.1%} with nonlinearities (R2 >= {min(row.gaussian_r2 or 0 for row in gated):.3f}); from {DEEP} layers"
        f" on the mean |g| of random nets is a Gaussian to R2 >= {worst.gaussian_r2 or 0:.3f} ({worst.name}); at"
        f" {last.layers} layers its sigma is {last.abs_sigma_px:.2f}, not the"
        f" {theory.uniform_stack(last.layers, 3).sigma_px:.2f} of g² (root of g²:"
        f" {rms_sigma(last.layers):.2f}).{failures(rows)}"
    )


def _picture(found: list[DesignResult]) -> Picture:
    deepest = max(one.row.layers for one in found if one.row.runs == 20)
    shown = [one for one in found if one.row.layers == deepest and one.row.runs <= 20]
    maps = tuple(
        Shown(title=one.row.name, values=one.absolute) for one in shown if one.row.section.startswith("random")
    )
    profiles = tuple(
        along_row(one.row.name, one.absolute)
        for one in shown
        if one.row.section.startswith("random") or one.row.theory_px is not None
    )
    fits = tuple(
        Curve(label=act, x=[row.layers for row in rows], y=[row.gaussian_r2 or 0.0 for row in rows])
        for act in ACTIVATIONS
        if (rows := [one.row for one in found if one.row.name.startswith(f"random, {act},") and one.row.runs == 20])
    )
    charts = (
        Chart(title=f"mean |g| of {deepest} layers along a row", x="px from the unit", y="share", curves=profiles),
        Chart(title="fit of mean |g| by a Gaussian, random weights", x="layers", y="R2", curves=fits, log="x"),
    )
    return Picture(
        title="ERFs of deep stacks are Gaussian",
        rows=(maps, charts),
        note="After Luo et al. 2016, section 4. 20 runs each.",
    )
