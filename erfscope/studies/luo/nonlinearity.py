"""``luo-nonlinearity``: random nets of 20 layers with ReLU, tanh and sigmoid have Gaussian ERFs; those with ReLU the
least Gaussian.

With one channel the output of a ReLU net is often exactly zero, or no path to it is open: such a run has no gradient at
all, and stands in no map. With several channels hardly any run is dead, and all activations give the same |g| image, as
wide as the root of that of g²."""

from __future__ import annotations

from erfscope.figures.chart_data import Chart, Picture, Shown
from erfscope.studies.luo.nets import ACTIVATIONS, Activation, Design
from erfscope.studies.luo.rows import (
    DesignResult,
    Row,
    along_row,
    columns,
    failures,
    findings,
    measure_design,
    rms_sigma,
    verdict,
)
from erfscope.studies.study import StudyFindings, StudyOptions

WIDTH = 8


def study(asked: StudyOptions) -> StudyFindings:
    """Four activations, one channel and eight, 100 runs each."""
    layers, runs = asked.pick(full=20, quick=20, smoke=8), asked.pick(full=100, quick=100, smoke=40)
    acts: tuple[Activation, ...] = asked.pick(
        full=tuple(ACTIVATIONS), quick=tuple(ACTIVATIONS), smoke=("linear", "relu")
    )
    wanted: list[tuple[Activation, int]] = [(act, width) for width in (1, WIDTH) for act in acts]
    found = [_measured(asked, act, width, layers, runs) for act, width in asked.each("luo-nonlinearity", wanted)]
    return findings(found, columns(first="activation"), _conclusion, _picture(found))


def _measured(asked: StudyOptions, act: Activation, width: int, layers: int, runs: int) -> DesignResult:
    sampled = asked.effort == "smoke"

    def one_channel(row: Row) -> bool:
        # Single runs outweigh the others, so that the shape is not asked for; only a ReLU can be shut.
        return abs(row.abs_sigma_px / rms_sigma(layers) - 1) <= 0.2 and (row.dead > 0) == (act == "relu")

    def bell(row: Row) -> bool:
        near = abs(row.abs_sigma_px / rms_sigma(layers) - 1) <= (0.06 if sampled else 0.03)
        return near and (row.gaussian_r2 or 0.0) >= (0.9 if sampled else 0.98) and row.dead == 0

    design = Design(layers=layers, width=width, weights="random", activation=act)
    section = f"{width} channel{'s' if width > 1 else ''}"
    return measure_design(
        asked, f"{act}, {width}", design, runs, section=section, sigma=None, also=bell if width > 1 else one_channel
    )


def _conclusion(rows: tuple[Row, ...]) -> str:
    many = [row for row in rows if row.section != "1 channel"]
    one = {row.name.split(",")[0]: row for row in rows if row.section == "1 channel"}
    least = min(one.values(), key=lambda row: row.gaussian_r2 or 0.0)
    fits = ", ".join(f"{act} {row.gaussian_r2 or 0:.2f}" for act, row in one.items())
    expected = rms_sigma(many[0].layers)
    furthest = max(many, key=lambda row: abs(row.abs_sigma_px / expected - 1))
    least_of_all = (
        "the least Gaussian, as published" if least is one["relu"] else "not the least Gaussian, unlike in the paper"
    )
    return (
        f"That all are Gaussian {verdict(rows)}: with {WIDTH} channels the sigma of mean |g| is within"
        f" {abs(furthest.abs_sigma_px / expected - 1):.1%} of {expected:.2f} (the root of the variance image), R2 >="
        f" {min(row.gaussian_r2 or 0 for row in many):.3f}. With one channel {one['relu'].dead:.0%} of the ReLU nets"
        f" have no gradient at all, and R2 is {fits}: ReLU is {least_of_all}.{failures(rows)}"
    )


def _picture(found: list[DesignResult]) -> Picture:
    maps = tuple(Shown(title=f"{one.row.name.split(',')[0]}, {one.row.section}", values=one.absolute) for one in found)
    curves = tuple(along_row(one.row.name.split(",")[0], one.absolute) for one in found[len(found) // 2 :])
    chart = Chart(title=f"mean |g| along a row, {WIDTH} channels", x="px from the unit", y="share", curves=curves)
    note = (
        f"{found[0].row.layers} layers of 3 x 3, random weights and inputs, {found[0].row.runs} runs; runs without a"
        " gradient are left out."
    )
    return Picture(
        title="ERFs of random nets with nonlinearities",
        rows=(maps[: len(maps) // 2], maps[len(maps) // 2 :], (chart,)),
        note=note,
    )
