"""``luo-skip``: skip connections make the ERF smaller, and do not change the theoretical receptive field.

The paper gives no size. In a linear net of blocks I + g V, V being a normalised kernel, a path takes each block's
branch with the chance g / (1 + g), so that the variance is n g / (1 + g) (k^2 - 1) / 12; for random weights the same
holds of the mean square of the gradient, with g = c k^2 C for c channels and weights of variance C per tap. Here g = 1,
and sigma is 1 / sqrt(2) of that of the plain stack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from erfscope.apps.lab import theory
from erfscope.apps.lab.studies.luo.stacks import SECTIONS, WIDTHS, Activation, Design, Weights, columns, measure_design
from erfscope.apps.lab.studies.study import Claim, StudyFindings, StudyOptions, StudyRow, claim, with_error
from erfscope.show import Chart, ChartMap, Curve, Picture


def study(asked: StudyOptions) -> StudyFindings:
    """Plain stacks beside those with skip connections, uniform and random weights; random ReLU nets, too, for which
    there is no form."""
    depths = asked.pick(full=(10, 20, 40), quick=(10, 20), smoke=(10,))
    wanted: list[tuple[str, int, bool]] = [
        *itertools.product(WIDTHS, depths, (False, True)),
        *(("random ReLU", depths[-1], skip) for skip in (False, True)),
    ]
    rows: list[StudyRow] = []
    for each in asked.each("luo-skip", wanted):
        rows.append(_measured(asked, *each, rows))
    return StudyFindings(
        columns=columns("weights, layers", shape=False),
        section="section",
        rows=rows,
        claims=_claims(rows),
        picture=_picture(rows, depths),
    )


def _measured(asked: StudyOptions, kind: str, n: int, skip: bool, before: Sequence[StudyRow]) -> StudyRow:
    def is_claimed(row: StudyRow) -> bool:
        """The field is the plain stack's; where there is no closed form, sigma is smaller by two standard errors."""
        is_smaller = True
        if kind == "random ReLU" and skip:
            plain = before[-1]
            error = math.hypot(plain.sigma_se_px or 0.0, row.sigma_se_px or 0.0)
            is_smaller = plain.sigma_px - row.sigma_px > 2 * error
        return is_smaller and row.trf_px == 2 * n + 1

    weights: Weights = "uniform" if kind == "uniform" else "random"
    activation: Activation = "relu" if kind == "random ReLU" else "linear"
    design = Design(layers=n, weights=weights, activation=activation, skip=skip, width=WIDTHS[weights])
    runs = 1 if kind == "uniform" else asked.pick(full=100, quick=50, smoke=20)
    sigma, section = (None, f"{kind}: sigma of g²") if kind == "random ReLU" else (_sigma(n, skip), "")
    return measure_design(asked, _name(kind, n, skip), design, runs, section=section, sigma=sigma, also=is_claimed)


def _sigma(n: int, skip: bool) -> float:
    return (theory.residual_stack(n, 3, gain=1.0) if skip else theory.uniform_stack(n, 3)).sigma_px


def _name(kind: str, n: int, skip: bool) -> str:
    return f"{kind}, {n}{', skips' if skip else ''}"


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    n, claims = rows[-1].layers, []
    for kind, form in (("uniform", " (closed form 0.7071)"), ("random", " (closed form 0.7071)"), ("random ReLU", "")):
        plain, skipping = (next(row for row in rows if row.name == _name(kind, n, skip)) for skip in (False, True))
        error = math.hypot(*((row.sigma_se_px or 0.0) / row.sigma_px for row in (plain, skipping)))
        ratio = skipping.sigma_px / plain.sigma_px
        text = f"skips make the ERF smaller: sigma over the plain stack's, {kind}, {n} layers"
        claims.append(claim(text, f"smaller{form}", with_error(ratio, ratio * error), plain.passed and skipping.passed))
    same = all(row.trf_px == 2 * row.layers + 1 for row in rows)
    return [*claims, claim("skips keep the TRF", "the same", "the same" if same else "differs", same)]


def _picture(rows: Sequence[StudyRow], depths: tuple[int, ...]) -> Picture:
    deepest = [row for row in rows if row.layers == depths[-1] and row.section != SECTIONS["uniform"]]
    maps = tuple(ChartMap(title=row.name, values=row.maps["|g|"]) for row in deepest)
    sigma_of = {row.name: row.sigma_px for row in rows}
    lines = (
        *(
            Curve(
                label=_name("closed form", 0, skip).replace(", 0", ""),
                x=depths,
                y=tuple(_sigma(n, skip) for n in depths),
            )
            for skip in (False, True)
        ),
        *(
            Curve(
                label=_name("random", 0, skip).replace(", 0", ""),
                x=depths,
                y=tuple(sigma_of[_name("random", n, skip)] for n in depths),
                points=True,
            )
            for skip in (False, True)
        ),
    )
    chart = Chart(title="sigma of the squared gradient", x="layers", y="px", curves=lines, log="xy")
    note = "Maps: mean |g|. Closed form: gain 1."
    return Picture(title="Skip connections make the ERF smaller", rows=(maps, (chart,)), note=note)
