"""``luo-subsample-dilation``: three strided or dilated layers of fifteen make the ERF several times as wide; dilation
makes it flat.

Variances add: layer l gives (S_l d_l)^2 (k^2 - 1) / 12, S_l being the product of the strides before it. The paper does
not say which layers have the strides and dilations; here they are the 4th, 8th and 12th."""

from __future__ import annotations

from erfscope import theory
from erfscope.figures.chart_data import Chart, Picture, Shown
from erfscope.studies.luo.nets import Design, Weights
from erfscope.studies.luo.rows import (
    EXACT,
    DesignResult,
    Row,
    along_row,
    columns,
    failures,
    findings,
    measure_design,
    section_of,
    verdict,
)
from erfscope.studies.study import StudyFindings, StudyOptions

LAYERS, WIDTH = 15, 8
ONES = (1,) * LAYERS
#: Name of a change -> (strides, dilations).
CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "baseline": (ONES, ONES),
    "sub-sampling": (tuple(2 if layer in (4, 8, 12) else 1 for layer in range(1, LAYERS + 1)), ONES),
    "dilation": (ONES, tuple({4: 2, 8: 4, 12: 8}.get(layer, 1) for layer in range(1, LAYERS + 1))),
}


def study(asked: StudyOptions) -> StudyFindings:
    """Uniform and random weights, for the baseline and the two changes."""
    runs = asked.pick(full=100, quick=50, smoke=20)
    wanted = [(change, random) for random in (False, True) for change in CHANGES]
    found = [
        _measured(asked, change, runs if random else 1)
        for change, random in asked.each("luo-subsample-dilation", wanted)
    ]
    return findings(found, columns(first="weights, change"), _conclusion, _picture(found))


def _measured(asked: StudyOptions, change: str, runs: int) -> DesignResult:
    strides, dilations = CHANGES[change]
    shape = theory.strided_dilated_stack([3] * LAYERS, strides, dilations)

    def same_field(row: Row) -> bool:
        return row.trf_px == shape.trf_px

    def same_shape(row: Row) -> bool:
        return (
            same_field(row) and row.kurtosis is not None and abs(row.kurtosis - (shape.excess_kurtosis or 0.0)) < EXACT
        )

    weights: Weights = "uniform" if runs == 1 else "random"
    design = Design(
        layers=LAYERS, strides=strides, dilations=dilations, width=1 if runs == 1 else WIDTH, weights=weights
    )
    also = same_shape if runs == 1 else same_field
    return measure_design(
        asked, f"{weights}, {change}", design, runs, section=section_of(weights), sigma=shape.sigma_px, also=also
    )


def _conclusion(rows: tuple[Row, ...]) -> str:
    base, sub, dilated = (next(row for row in rows if row.name == f"uniform, {change}") for change in CHANGES)
    held = verdict(rows)
    return (
        f"That both widen the ERF {held}: from sigma {base.sigma_px:.3f} (TRF {base.trf_px}) to {sub.sigma_px:.3f}"
        f" ({sub.trf_px}) by sub-sampling and {dilated.sigma_px:.3f} ({dilated.trf_px}) by dilation, as variances add;"
        f" dilation leaves an excess kurtosis of {dilated.kurtosis or 0:.3f} (box -1.2, Gaussian 0), one layer having"
        f" two thirds of the variance.{failures(rows)}"
    )


def _picture(found: list[DesignResult]) -> Picture:
    maps = tuple(Shown(title=one.row.name, values=one.absolute) for one in found)
    curves = tuple(along_row(one.row.name, one.absolute) for one in found[:3])
    charts = (Chart(title="gradient along a row, uniform weights", x="px from the unit", y="share", curves=curves),)
    note = (
        "Of 15 layers the 4th, 8th and 12th have stride 2, or dilations 2, 4, 8. Maps: mean |g|, each over its"
        " theoretical receptive field."
    )
    return Picture(title="Sub-sampling and dilation widen the ERF", rows=(maps[:3], maps[3:], charts), note=note)
