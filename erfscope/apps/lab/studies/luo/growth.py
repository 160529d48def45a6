"""``luo-growth``: an ERF grows like the root of the depth, its fraction of the theoretical receptive field (TRF)
shrinks as 1/sqrt(depth).

The size is that of the paper, the root of the number of pixels above 4.55 % of the centre, and the slopes are those of
lines through its logarithm over that of the depth. At depths of 5 to 40 they are not yet 1/2 and -1/2, because a few
layers are no Gaussian: the published pair is that of the root of the variance image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import (
    EXACT,
    RMS,
    WIDTHS,
    Activation,
    Design,
    Weights,
    draw_nets,
    measure_nets,
)
from erfscope.apps.lab.studies.study import VERDICT, Claim, StudyColumn, StudyFindings, StudyOptions, StudyRow, claim
from erfscope.show import Chart, Curve, Picture

#: Luo et al. 2016, section 4: slopes of the size and of its ratio to the theoretical receptive field.
PUBLISHED = (0.56, -0.43)
#: Limit of a slope that is sampled; uniform weights have the slopes of the closed form.
LIMIT = 0.03
#: Name -> weights, activation, convention, and the power that makes the measured image of the variance image.
FAMILIES: dict[str, tuple[Weights, Activation, Any, float | None]] = {
    "uniform, g": ("uniform", "linear", "luo", 1.0),
    "random, root of g²": ("random", "linear", RMS, 0.5),
    "random, |g|": ("random", "linear", "luo", None),
    "random ReLU, |g|": ("random", "relu", "luo", None),
}


def study(asked: StudyOptions) -> StudyFindings:
    """Four families of stacks, 5 to 40 layers."""
    depths = asked.pick(full=tuple(range(5, 41, 5)), quick=(5, 10, 20, 40), smoke=(5, 20))
    families = list(FAMILIES)[: asked.pick(full=4, quick=4, smoke=2)]
    runs: dict[Weights, int] = {"uniform": 1, "random": asked.pick(full=100, quick=20, smoke=100)}
    sizes: dict[str, list[float]] = {name: [] for name in families}
    for name, n in asked.each("luo-growth", list(itertools.product(families, depths))):
        weights, activation, convention, _ = FAMILIES[name]
        design = Design(layers=n, width=WIDTHS[weights], weights=weights, activation=activation)
        found = measure_nets(*draw_nets(asked, f"{name} {n}", design, runs[weights]), convention)
        sizes[name].append(float(found["luo_size"]))
    rows = [_row(name, runs[FAMILIES[name][0]], depths, sizes[name]) for name in families]
    return StudyFindings(columns=COLUMNS, rows=rows, claims=_claims(rows), picture=_picture(rows))


def closed_form(n: int, power: float) -> float:
    """Size, at 4.55 % of the centre, of a power of the variance image of n random layers of 3 x 3."""
    line = theory.uniform_stack(n, 3).kernel ** power
    values = np.outer(line, line)
    return math.sqrt(np.count_nonzero(values > (1 - 0.9545) * values.max()))


def slopes(layers: Sequence[int], sizes: Sequence[float]) -> tuple[float, float]:
    """Log-log slopes over the depth, of the sizes and of their ratios to the theoretical receptive field's side 2 n +
    1."""
    ratios = np.divide(sizes, 2 * np.asarray(layers) + 1)
    size, ratio = (float(np.polyfit(np.log(layers), np.log(each), 1)[0]) for each in (sizes, ratios))
    return size, ratio


def _row(name: str, runs: int, depths: tuple[int, ...], sizes: Sequence[float]) -> StudyRow:
    weights, _, _, power = FAMILIES[name]
    found, expected = slopes(depths, sizes), slopes(depths, [closed_form(n, power or 0.5) for n in depths])
    # Families without a closed form are compared with the root of the variance image, at twice the limit.
    limit = EXACT if weights == "uniform" else LIMIT if power is not None else 2 * LIMIT
    return StudyRow(
        name=name,
        runs=runs,
        layers=depths,
        sizes_px=tuple(sizes),
        slope_size=found[0],
        slope_ratio=found[1],
        # The closed form's, at the same depths; None where there is none.
        theory_size=None if power is None else expected[0],
        theory_ratio=None if power is None else expected[1],
        published_size=PUBLISHED[0],
        published_ratio=PUBLISHED[1],
        passed=all(abs(one - other) <= limit for one, other in zip(found, expected, strict=True)),
    )


COLUMNS = (
    StudyColumn("weights, image", "{name}", numeric=False),
    StudyColumn("runs", "{runs}", optional=True),
    StudyColumn("size", "{slope_size:+.3f}"),
    StudyColumn("theory", "{theory_size:+.3f}"),
    StudyColumn("paper", "{published_size:+.2f}"),
    StudyColumn("size / TRF", "{slope_ratio:+.3f}"),
    StudyColumn("theory", "{theory_ratio:+.3f}"),
    StudyColumn("paper", "{published_ratio:+.2f}"),
    VERDICT,
)


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    root = next(row for row in rows if row.name == "random, root of g²")
    return [
        claim(
            f"{what} of the root of g² over the depth, log-log slope",
            f"{published:+.2f} (closed form {closed:+.3f})",
            f"{found:+.3f}",
            root.passed and abs(found - published) <= 2 * LIMIT,
            has_mechanism=root.passed,
        )
        for what, published, closed, found in (
            ("ERF size", PUBLISHED[0], root.theory_size, root.slope_size),
            ("ERF size / TRF", PUBLISHED[1], root.theory_ratio, root.slope_ratio),
        )
    ]


def _picture(rows: Sequence[StudyRow]) -> Picture:
    sizes = {row.name: row.sizes_px for row in rows}
    ratios = {row.name: [px / (2 * n + 1) for n, px in zip(row.layers, row.sizes_px, strict=True)] for row in rows}
    charts = tuple(
        Chart(
            title=title,
            x="layers",
            y=unit,
            curves=tuple(Curve(label=name, x=rows[0].layers, y=y) for name, y in values.items()),
            log="xy",
        )
        for title, unit, values in (
            ("size of the ERF", "px", sizes),
            ("its fraction of the theoretical receptive field (TRF)", "size / TRF", ratios),
        )
    )
    note = "After Luo et al. 2016, section 4. Size: root of the number of pixels above 4.55 % of the value at the unit."
    return Picture(title="The ERF grows like the root of the depth", rows=(charts,), note=note)
