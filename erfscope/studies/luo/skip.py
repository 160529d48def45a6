"""``luo-skip``: skip connections make the ERF smaller, and do not change the theoretical receptive field.

The paper gives no size. In a linear net of blocks I + g V, V being a normalised kernel, a path takes each block's
branch with the chance g / (1 + g), so that the variance is n g / (1 + g) (k^2 - 1) / 12; for random weights the same
holds of the mean square of the gradient, with g = c k^2 C for c channels and weights of variance C per tap. Here g = 1,
and sigma is 1 / sqrt(2) of that of the plain stack."""

from __future__ import annotations

import math

from erfscope import theory
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.studies.luo.nets import Design, Weights
from erfscope.studies.luo.rows import (
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


def study(asked: StudyOptions) -> StudyFindings:
    """Plain stacks beside those with skip connections, uniform and random weights; random ReLU nets, too, for which
    there is no form."""
    depths = asked.pick(full=(10, 20, 40), quick=(10, 20), smoke=(10,))
    runs = asked.pick(full=100, quick=50, smoke=20)
    wanted: list[tuple[Weights, int, bool]] = [
        (weights, n, skip) for weights in WEIGHTS for n in depths for skip in (False, True)
    ]
    found = [
        _linear(asked, weights, n, skip, runs if weights == "random" else 1)
        for weights, n, skip in asked.each("luo-skip", wanted)
    ]
    found.append(_relu(asked, depths[-1], False, runs))
    found.append(_relu(asked, depths[-1], True, runs, plain=found[-1].row))
    return findings(found, columns(first="weights, layers", shape=False), _conclusion, _picture(found, depths))


WEIGHTS: tuple[Weights, ...] = ("uniform", "random")


def _linear(asked: StudyOptions, weights: Weights, n: int, skip: bool, runs: int) -> DesignResult:
    design = Design(layers=n, weights=weights, skip=skip, width=WIDTH if weights == "random" else 1)
    sigma = (theory.residual_stack(n, 3, gain=1.0) if skip else theory.uniform_stack(n, 3)).sigma_px
    section = section_of(weights)
    return measure_design(asked, _name(weights, n, skip), design, runs, section=section, sigma=sigma, also=_whole_field)


def _relu(asked: StudyOptions, n: int, skip: bool, runs: int, plain: Row | None = None) -> DesignResult:
    def smaller(row: Row) -> bool:
        """Than the plain stack, by two standard errors of the difference."""
        if plain is None:
            return True
        error = math.hypot(plain.sigma_se_px or 0.0, row.sigma_se_px or 0.0)
        return plain.sigma_px - row.sigma_px > 2 * error

    design = Design(layers=n, weights="random", activation="relu", skip=skip, width=WIDTH)
    name, section = _name("random ReLU", n, skip), "random ReLU: sigma of g²"
    return measure_design(
        asked, name, design, runs, section=section, sigma=None, also=lambda row: _whole_field(row) and smaller(row)
    )


def _name(weights: str, n: int, skip: bool) -> str:
    return f"{weights}, {n}{', skips' if skip else ''}"


def _whole_field(row: Row) -> bool:
    return row.trf_px == 2 * row.layers + 1


def _conclusion(rows: tuple[Row, ...]) -> str:
    pairs = {
        kind: [row for row in rows if row.name.startswith(f"{kind}, ")][-2:]
        for kind in ("uniform", "random", "random ReLU")
    }
    ratios = {kind: skipping.sigma_px / plain.sigma_px for kind, (plain, skipping) in pairs.items()}
    n = pairs["uniform"][0].layers
    same = all(_whole_field(row) for row in rows)
    held = verdict(rows)
    return (
        f"That skips make the ERF smaller {held}: at {n} layers sigma is {ratios['uniform']:.4f} times the plain"
        f" stack's for uniform and {ratios['random']:.3f} for random weights (closed form 0.7071),"
        f" {ratios['random ReLU']:.3f} with ReLUs; theoretical sizes"
        f" {'are the same' if same else 'differ'}.{failures(rows)}"
    )


def _picture(found: list[DesignResult], depths: tuple[int, ...]) -> Picture:
    deepest = [one for one in found if one.row.layers == depths[-1] and not one.row.name.startswith("uniform")]
    maps = tuple(Shown(title=one.row.name, values=one.absolute) for one in deepest)

    def points(weights: str, skip: bool) -> tuple[float, ...]:
        rows = {one.row.name: one.row for one in found}
        return tuple(rows[_name(weights, n, skip)].sigma_px for n in depths)

    def closed(skip: bool) -> tuple[float, ...]:
        return tuple((theory.residual_stack(n, 3) if skip else theory.uniform_stack(n, 3)).sigma_px for n in depths)

    lines = (
        *(Curve(label=f"closed form{', skips' if skip else ''}", x=depths, y=closed(skip)) for skip in (False, True)),
        *(
            Curve(label=f"random{', skips' if skip else ''}", x=depths, y=points("random", skip), points=True)
            for skip in (False, True)
        ),
    )
    chart = Chart(title="sigma of the squared gradient", x="layers", y="px", curves=lines, log="xy")
    return Picture(
        title="Skip connections make the ERF smaller",
        rows=(maps, (chart,)),
        note="Maps: mean |g|. Closed form: gain 1.",
    )
