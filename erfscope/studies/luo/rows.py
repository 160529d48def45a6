"""The measurement of all runs of a stack's design, and the row that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import erfscope
from erfscope import theory
from erfscope.figures.chart_data import Curve, Picture
from erfscope.maps.erf_map import FloatArray
from erfscope.results.result import Result
from erfscope.studies.luo.nets import Design, Nets, Weights
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions, cell

#: Closed forms of uniform weights hold to rounding.
EXACT = 1e-9
#: Sampled sizes must lie within this many standard errors.
Z_LIMIT = 4.0
#: The least R2 of a fit by a Gaussian to an ERF that "is a Gaussian": binomials and their roots have 0.998, a box 0.78
#: and a Laplacian 0.93.
GAUSSIAN_R2 = 0.95
#: The variance image of Luo et al.: the mean over runs of the squared gradient, not divided by each run's total, which
#: would bias it.
VARIANCE = erfscope.Convention(
    name="variance",
    readout=lambda y, _: y.sum(1),
    contribution=lambda g: g.square().sum(1),
    scale="energy",
    readout_text="sum_c y_c",
    contribution_text="sum_s g_s^2, mean over runs",
    source="Luo et al. 2016, arXiv:1701.04128, section 3",
)
#: The root of the variance image.
RMS = replace(VARIANCE, name="rms", scale="amplitude", root=True)
#: Runs that are computed together.
AT_ONCE = 25
MEASURES = ("sigma_row", "sigma_col", "gaussian_r2", "kurtosis_row", "luo_size", "erf_trf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One design: sizes of its ERF over all runs, and those of the theory."""

    name: str
    section: str
    layers: int
    runs: int
    #: Share of the runs without any gradient; they are in no map.
    dead: float
    trf_px: int
    #: Sigma along rows, of the image of the closed forms: the gradient for uniform weights, its mean square for random
    #: ones.
    sigma_px: float
    sigma_se_px: float | None
    #: Sigma by the theory; None if there is no closed form.
    theory_px: float | None
    #: Of the mean |gradient|, the image that Luo et al. show: sigma along rows, the size at 4.55 % of the centre, the
    #: fit by a Gaussian.
    abs_sigma_px: float
    luo_size_px: float | None
    gaussian_r2: float | None
    kurtosis: float | None
    #: How far sigma may be from the theory, in pixels; None if there is no closed form.
    limit_px: float | None
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DesignResult:
    """A row with its map, for the figure."""

    row: Row
    #: Mean |gradient|, (side, side), sum 1.
    absolute: FloatArray


def generator(asked: StudyOptions, name: str) -> torch.Generator:
    """Return the generator of one row, whose numbers do not depend on other rows."""
    key = np.random.SeedSequence([asked.seed, *name.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(key) >> 1)


def measured(nets: Nets, pictures: torch.Tensor, convention: Any) -> Result:
    """Measure the ERF of one design over all its runs.

    Raises:
        ErfscopeError: no run has a gradient.
    """
    side = nets.design.side
    adapter = erfscope.wrap(
        nets, input_size=(side, side), in_chans=pictures.shape[1], mean=(0.0,), std=(1.0,), name="stack"
    )
    # The unit sees all of its input, so that there is nothing to crop.
    result = erfscope.analyze(
        adapter, images=pictures, layer="unit", convention=convention, measures=MEASURES, batch_size=AT_ONCE, plain=True
    )
    if result.map is None:
        raise erfscope.ErfscopeError(f"none of the {nets.runs} nets has a gradient: {result.error}")
    return result


def measure_design(
    asked: StudyOptions,
    name: str,
    design: Design,
    runs: int,
    *,
    section: str,
    sigma: float | None,
    also: Callable[[Row], bool] | None = None,
) -> DesignResult:
    """Measure one design. Its row fails if sigma differs from the theory, or if ``also`` does not hold.

    Args:
        asked: Has the seed.
        name: Name of the row.
        design: Design of the nets.
        runs: Number of nets.
        section: Heading of the row.
        sigma: Sigma by the theory; None if there is no closed form.
        also: Another condition that must hold.

    Raises:
        ValueError: neither is given, so that the row could not fail.
    """
    if sigma is None and also is None:
        raise ValueError(f"the row {name} needs sigma or also, which it could fail")
    draws = generator(asked, name)
    nets = Nets(design, runs, draws)
    pictures = nets.pictures(draws)
    absolute = measured(nets, pictures, "luo")
    compared = absolute if design.weights == "uniform" else measured(nets, pictures, VARIANCE)
    assert absolute.map is not None
    assert absolute.trf is not None
    spread = compared["sigma_row"]
    limit = None if sigma is None else EXACT * sigma + Z_LIMIT * (spread.se or 0.0)
    row = Row(
        name=name,
        section=section,
        layers=design.layers,
        runs=runs,
        dead=absolute.input.n_dead / runs,
        trf_px=absolute.trf.size_px[0],
        sigma_px=float(spread),
        sigma_se_px=spread.se,
        theory_px=sigma,
        abs_sigma_px=float(absolute["sigma_row"]),
        luo_size_px=_number(absolute, "luo_size"),
        gaussian_r2=_number(absolute, "gaussian_r2"),
        kurtosis=_number(absolute, "kurtosis_row"),
        limit_px=limit,
        passed=sigma is None or abs(float(spread) - sigma) <= (limit or 0.0),
    )
    row = replace(row, passed=row.passed and (also is None or also(row)))
    return DesignResult(row=row, absolute=absolute.map.values)


def _number(result: Result, name: str) -> float | None:
    value = result[name].value
    return value if isinstance(value, float) else None


def section_of(weights: Weights) -> str:
    """Return the heading of rows with these weights, which says what sigma is the spread of."""
    return "uniform: sigma of g" if weights == "uniform" else "random: sigma of g²"


def rms_sigma(n: int, k: int = 3) -> float:
    """Return sigma of the root of the variance image of n random layers of k taps; it tends to sqrt(2) times sigma of
    the variance image."""
    amplitude = np.sqrt(theory.uniform_stack(n, k).kernel)
    at = np.arange(len(amplitude)) - (len(amplitude) - 1) / 2
    return math.sqrt(float(amplitude @ at**2 / amplitude.sum()))


def with_error(value: float, se: float | None, digits: int = 3) -> str:
    """Return a value, and its standard error unless that rounds to zero."""
    return f"{value:.{digits}f}" + (f" ± {se:.{digits}f}" if se is not None and se >= 0.5 * 10**-digits else "")


def columns(*, first: str, shape: bool = True) -> tuple[Column, ...]:
    """Return the columns of :class:`Row`.

    Args:
        first: Title of the first one.
        shape: Whether to show the fit by a Gaussian.
    """
    fit = (
        Column(title="R2", text=lambda row: cell(row.gaussian_r2, ".3f")),
        Column(title="kurtosis", text=lambda row: cell(row.kurtosis, ".2f"), optional=True),
    )
    return (
        Column(title=first, text=lambda row: row.name, numeric=False),
        Column(title="runs", text=lambda row: str(row.runs), optional=True),
        Column(title="dead", text=lambda row: f"{row.dead:.0%}", optional=True),
        Column(title="TRF", text=lambda row: str(row.trf_px)),
        Column(title="sigma", text=lambda row: with_error(row.sigma_px, row.sigma_se_px)),
        Column(title="theory", text=lambda row: cell(row.theory_px, ".3f")),
        Column(title="of |g|", text=lambda row: cell(row.abs_sigma_px, ".2f")),
        Column(title="size", text=lambda row: cell(row.luo_size_px, ".1f")),
        *(fit if shape else ()),
        VERDICT,
    )


def findings(
    found: Sequence[DesignResult],
    columns: tuple[Column, ...],
    conclude: Callable[[tuple[Row, ...]], str],
    picture: Picture,
) -> StudyFindings:
    """Return the findings of a study of stacks: rows under headings, and the conclusion that ``conclude`` draws."""
    rows = tuple(one.row for one in found)
    return StudyFindings(columns=columns, section="section", rows=rows, conclusion=conclude(rows), picture=picture)


def along_row(label: str, values: FloatArray, *, points: bool = False) -> Curve:
    """Return the sums of a map's columns, over the distance to its middle in pixels."""
    line = values.sum(0)
    return Curve(label=label, x=[at - (len(line) - 1) / 2 for at in range(len(line))], y=list(line), points=points)


def verdict(rows: Sequence[Any]) -> str:
    """Say for a conclusion whether a claim holds."""
    return "holds" if all(row.passed for row in rows) else "does not hold everywhere"


def failures(rows: Sequence[Any]) -> str:
    """Say for a conclusion which rows failed; "" if none did."""
    failed = [row.name for row in rows if not row.passed]
    return f" Outside their limits: {', '.join(failed)}." if failed else ""
