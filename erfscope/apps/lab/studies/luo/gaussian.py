"""``luo-gaussian``: the ERF of a deep stack is a Gaussian, for uniform and for random weights, with and without
nonlinearities.

Weights that are all alike give the gradient itself the shape of a binomial, sigma = sqrt(n (k^2 - 1) / 12). Random ones
give that shape to the mean square of the gradient; the mean |gradient|, which the paper shows, is up to sqrt(2) wider.
Its fit by a Gaussian is the test."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import (
    ACTIVATIONS,
    EXACT,
    GAUSSIAN_R2,
    SECTIONS,
    WIDTHS,
    Activation,
    Design,
    Weights,
    along_row,
    columns,
    measure_design,
    rms_sigma,
)
from erfscope.apps.lab.studies.study import Claim, StudyFindings, StudyOptions, StudyRow, claim, holds
from erfscope.show import Chart, ChartMap, Curve, Picture

#: The least depth of random nets in the claims; those of 5 layers are still far from the limit.
DEEP = 10
#: How far sigma of a mean |gradient| may be from that of the binomial (uniform weights) or of its root (random ones),
#: as a share. Both leave out how nonlinearities and runs differ; over seeds the largest difference was 3 %.
NEAR = 0.1


def study(asked: StudyOptions) -> StudyFindings:
    """Depths of 5 to 40 layers, uniform and random weights, four activations; 20 runs each, and 100 at 20 layers."""
    depths = asked.pick(full=(5, 10, 20, 40), quick=(5, 10, 20), smoke=(10,))
    acts = list(ACTIVATIONS)[: asked.pick(full=4, quick=4, smoke=2)]
    wanted: list[tuple[Weights, Activation, int, int]] = [
        *(("uniform", act, n, 1 if act == "linear" else 20) for act in acts for n in depths),
        *(("random", act, n, 20) for act in acts for n in depths),
        *(("random", act, 20, 100) for act in acts if asked.effort in ("long", "full")),
    ]
    rows = [_measured(asked, *each) for each in asked.each("luo-gaussian", wanted)]
    rows.sort(key=lambda row: row.section, reverse=True)
    return StudyFindings(
        columns=columns("weights, layers"), section="section", rows=rows, claims=_claims(rows), picture=_picture(rows)
    )


def _measured(asked: StudyOptions, weights: Weights, act: Activation, n: int, runs: int) -> StudyRow:
    shape = theory.uniform_stack(n, 3)

    def is_binomial(row: StudyRow) -> bool:
        return row.kurtosis is not None and abs(row.kurtosis - (shape.excess_kurtosis or 0.0)) < EXACT

    def is_bell(row: StudyRow) -> bool:
        sigma = shape.sigma_px if weights == "uniform" else rms_sigma(n)
        return (row.gaussian_r2 or 0.0) >= GAUSSIAN_R2 and abs(row.abs_sigma_px / sigma - 1) <= NEAR

    design = Design(layers=n, width=WIDTHS[weights], weights=weights, activation=act)
    name = f"{weights}, {act}, {n}" + (f" x{runs}" if runs == 100 else "")
    sigma, also = shape.sigma_px if act == "linear" else None, is_binomial if runs == 1 else is_bell
    return measure_design(asked, name, design, runs, sigma=sigma, also=also)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    exact = [row for row in rows if row.runs == 1]
    gated = [row for row in rows if row.section == SECTIONS["uniform"] and row.theory_px is None]
    deep = [row for row in rows if row.section == SECTIONS["random"] and row.layers >= DEEP]
    error = max(abs(row.sigma_px / row.theory_px - 1) for row in exact)
    off = max(abs(row.abs_sigma_px / theory.uniform_stack(row.layers, 3).sigma_px - 1) for row in gated)
    last = max(deep, key=lambda row: (row.layers, row.runs))
    fits = [min(row.gaussian_r2 or 0.0 for row in some) for some in (gated, deep)]
    return [
        claim("uniform weights: a binomial", "sigma = sqrt(n (k² - 1) / 12)", f"to {error:.0e}", holds(exact)),
        claim(
            "uniform weights, nonlinearities: Gaussian",
            "Gaussian",
            f"R2 >= {fits[0]:.3f}, sigma to {off:.1%}",
            holds(gated),
        ),
        claim(f"random weights, {DEEP} layers or more: Gaussian", "Gaussian", f"R2 >= {fits[1]:.3f}", holds(deep)),
        claim(
            f"sigma of mean |g| of {last.layers} layers: that of the root of g²",
            f"{rms_sigma(last.layers):.2f} px",
            f"{last.abs_sigma_px:.2f} px ({theory.uniform_stack(last.layers, 3).sigma_px:.2f} of g²)",
            last.passed,
        ),
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    few = [row for row in rows if row.runs <= 20]
    shown = [row for row in few if row.layers == max(each.layers for each in rows if each.runs == 20)]
    drawn = [row for row in shown if row.section == SECTIONS["random"]]
    profiles = [row for row in shown if row in drawn or row.theory_px is not None]
    by_act = {act: [row for row in few if row.name.startswith(f"random, {act},")] for act in ACTIVATIONS}
    fits = tuple(
        Curve(label=act, x=[row.layers for row in some], y=[row.gaussian_r2 or 0.0 for row in some])
        for act, some in by_act.items()
        if some
    )
    lines = tuple(along_row(row.name, row.maps["|g|"]) for row in profiles)
    charts = (
        Chart(title=f"mean |g| of {shown[0].layers} layers along a row", x="px from the unit", y="share", curves=lines),
        Chart(title="fit of mean |g| by a Gaussian, random weights", x="layers", y="R2", curves=fits, log="x"),
    )
    return Picture(
        title="ERFs of deep stacks are Gaussian",
        rows=(tuple(ChartMap(title=row.name, values=row.maps["|g|"]) for row in drawn), charts),
        note="After Luo et al. 2016, section 4. 20 runs each.",
    )
