"""``luo-subsample-dilation``: three strided or dilated layers of fifteen make the ERF several times as wide; dilation
makes it flat.

Variances add: layer l gives (S_l d_l)^2 (k^2 - 1) / 12, S_l being the product of the strides before it. The paper does
not say which layers have the strides and dilations; here they are the 4th, 8th and 12th."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import EXACT, WIDTHS, Design, Weights, along_row, columns, measure_design
from erfscope.apps.lab.studies.study import Claim, StudyFindings, StudyOptions, StudyRow, claim
from erfscope.show import Chart, ChartMap, Picture

LAYERS = 15
ONES = (1,) * LAYERS
#: Name of a change -> (strides, dilations).
CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "baseline": (ONES, ONES),
    "sub-sampling": (tuple(2 if layer in (4, 8, 12) else 1 for layer in range(1, LAYERS + 1)), ONES),
    "dilation": (ONES, tuple({4: 2, 8: 4, 12: 8}.get(layer, 1) for layer in range(1, LAYERS + 1))),
}


def study(asked: StudyOptions) -> StudyFindings:
    """Uniform and random weights, for the baseline and the two changes."""
    wanted = list(itertools.product(WIDTHS, CHANGES))
    rows = [_measured(asked, *each) for each in asked.each("luo-subsample-dilation", wanted)]
    return StudyFindings(
        columns=columns("weights, change"), section="section", rows=rows, claims=_claims(rows), picture=_picture(rows)
    )


def _measured(asked: StudyOptions, weights: Weights, change: str) -> StudyRow:
    strides, dilations = CHANGES[change]
    shape = theory.strided_dilated_stack([3] * LAYERS, strides, dilations)

    def has_shape(row: StudyRow) -> bool:
        is_flat = row.kurtosis is not None and abs(row.kurtosis - (shape.excess_kurtosis or 0.0)) < EXACT
        return row.trf_px == shape.trf_px and (is_flat or weights == "random")

    design = Design(layers=LAYERS, strides=strides, dilations=dilations, width=WIDTHS[weights], weights=weights)
    runs = 1 if weights == "uniform" else asked.pick(full=100, quick=50, smoke=20)
    return measure_design(asked, f"{weights}, {change}", design, runs, sigma=shape.sigma_px, also=has_shape)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    base, sub, dilated = rows[:3]
    sizes = [
        f"{row.sigma_px:.3f} px of {base.sigma_px:.3f} (TRF {row.trf_px} of {base.trf_px})" for row in (sub, dilated)
    ]
    flat = "three layers of fifteen: flatter than a Gaussian (0; a box -1.2)"
    return [
        claim("sub-sampling widens the ERF: sigma", "wider (variances add)", sizes[0], sub.passed and rows[4].passed),
        claim("dilation widens the ERF: sigma", "wider (variances add)", sizes[1], dilated.passed and rows[5].passed),
        claim(f"dilation, {flat}: excess kurtosis", "below 0", f"{dilated.kurtosis or 0:.3f}", dilated.passed),
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    maps = tuple(ChartMap(title=row.name, values=row.maps["|g|"]) for row in rows)
    curves = tuple(along_row(row.name, row.maps["|g|"]) for row in rows[:3])
    charts = (Chart(title="gradient along a row, uniform weights", x="px from the unit", y="share", curves=curves),)
    note = (
        "Of 15 layers the 4th, 8th and 12th have stride 2, or dilations 2, 4, 8. Maps: mean |g|, each over its"
        " theoretical receptive field."
    )
    return Picture(title="Sub-sampling and dilation widen the ERF", rows=(maps[:3], maps[3:], charts), note=note)
