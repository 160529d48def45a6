"""``luo-nonlinearity``: random nets of 20 layers with ReLU, tanh and sigmoid have Gaussian ERFs; those with ReLU the
least Gaussian.

With one channel the output of a ReLU net is often exactly zero, or no path to it is open: such a run has no gradient at
all, and stands in no map. With several channels hardly any run is dead, and all activations give the same |g| image, as
wide as the root of that of g²."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from erfscope.apps.lab.studies.luo.stacks import (
    ACTIVATIONS,
    WIDTHS,
    Activation,
    Design,
    along_row,
    columns,
    measure_design,
    rms_sigma,
)
from erfscope.apps.lab.studies.study import Claim, StudyFindings, StudyOptions, StudyRow, claim, holds
from erfscope.show import Chart, ChartMap, Picture


def study(asked: StudyOptions) -> StudyFindings:
    """Four activations, one channel and eight, 100 runs each."""
    acts = list(ACTIVATIONS)[: asked.pick(full=4, quick=4, smoke=2)]
    wanted = list(itertools.product((1, WIDTHS["random"]), acts))
    rows = [_measured(asked, act, width) for width, act in asked.each("luo-nonlinearity", wanted)]
    return StudyFindings(
        columns=columns("activation"), section="section", rows=rows, claims=_claims(rows), picture=_picture(rows)
    )


def _measured(asked: StudyOptions, act: Activation, width: int) -> StudyRow:
    layers, runs = asked.pick(full=(20, 100), quick=(20, 100), smoke=(8, 40))
    near, fit = asked.pick(full=(0.03, 0.98), quick=(0.03, 0.98), smoke=(0.06, 0.9))

    def is_claimed(row: StudyRow) -> bool:
        off = abs(row.abs_sigma_px / rms_sigma(layers) - 1)
        if width > 1:
            return bool(off <= near and (row.gaussian_r2 or 0.0) >= fit and row.dead == 0)
        # Single runs outweigh the others, so that the shape is not asked for; only a ReLU can be shut.
        return bool(off <= 0.2 and (row.dead > 0) == (act == "relu"))

    design = Design(layers=layers, width=width, weights="random", activation=act)
    section = f"{width} channel{'s' if width > 1 else ''}"
    return measure_design(asked, f"{act}, {width}", design, runs, section=section, also=is_claimed)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    one, many = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    expected = rms_sigma(rows[0].layers)
    off, relu = max(abs(row.abs_sigma_px / expected - 1) for row in many), one[1]
    fits = ", ".join(f"{row.name.split(',')[0]} {row.gaussian_r2 or 0:.2f}" for row in one)
    return [
        claim(
            "all activations give a Gaussian, 8 channels",
            f"Gaussian (sigma {expected:.2f} px)",
            f"R2 >= {min(row.gaussian_r2 or 0.0 for row in many):.3f}, sigma to {off:.1%}",
            holds(many),
        ),
        claim(
            "ReLU gives the least Gaussian ERF, 1 channel",
            "the least of all",
            f"R2 {fits}",
            relu.gaussian_r2 == min(row.gaussian_r2 for row in one),
        ),
        claim("some ReLU nets have no gradient at all, 1 channel", "some", f"{relu.dead:.0%}", relu.dead > 0),
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    half, names = len(rows) // 2, [row.name.split(",")[0] for row in rows]
    maps = [
        ChartMap(title=f"{name}, {row.section}", values=row.maps["|g|"]) for name, row in zip(names, rows, strict=True)
    ]
    curves = tuple(along_row(name, row.maps["|g|"]) for name, row in zip(names[half:], rows[half:], strict=True))
    title = f"mean |g| along a row, {WIDTHS['random']} channels"
    chart = Chart(title=title, x="px from the unit", y="share", curves=curves)
    note = (
        f"{rows[0].layers} layers of 3 x 3, random weights and inputs, {rows[0].runs} runs; runs without a gradient are"
        " left out."
    )
    panels = (tuple(maps[:half]), tuple(maps[half:]), (chart,))
    return Picture(title="ERFs of random nets with nonlinearities", rows=panels, note=note)
