"""How the studies of stacks measure: all runs of a design in one measurement, and the row that comes of it."""

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
#: What is sampled must lie within this many standard errors.
Z_LIMIT = 4.0
#: What "is a Gaussian" means, of the R2 of the fit: binomials and their roots have 0.998, a box 0.78 and a Laplacian
#: 0.93.
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
#: Its root.
RMS = replace(VARIANCE, name="rms", scale="amplitude", root=True)
#: Runs that are computed together.
AT_ONCE = 25
MEASURES = ("sigma_row", "sigma_col", "gaussian_r2", "kurtosis_row", "luo_size", "erf_trf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One design: sizes of its ERF over all runs, beside what the theory says."""

    name: str
    section: str
    layers: int
    runs: int
    #: Share of the runs without any gradient; they are in no map.
    dead: float
    trf_px: int
    #: Along rows, of what the closed forms are about: the gradient where weights are uniform, its mean square where
    #: they are random.
    sigma_px: float
    sigma_se_px: float | None
    #: What the theory says sigma is; None where there is no closed form.
    theory_px: float | None
    #: Of the mean |gradient|, the image that Luo et al. show: sigma along rows, the size at 4.55 % of the centre, the
    #: fit by a Gaussian.
    abs_sigma_px: float
    luo_size_px: float | None
    gaussian_r2: float | None
    kurtosis: float | None
    #: How far sigma may be from the theory, in pixels; None where there is none.
    limit_px: float | None
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A row with its map, for the figure."""

    row: Row
    #: Mean |gradient|, (side, side), sum 1.
    absolute: FloatArray


def generator(asked: StudyOptions, name: str) -> torch.Generator:
    """Random numbers of one row: what other rows draw does not change them."""
    key = np.random.SeedSequence([asked.seed, *name.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(key) >> 1)


def measured(nets: Nets, pictures: torch.Tensor, convention: Any) -> Result:
    """ERF of one design over all its runs.

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


def seen(
    asked: StudyOptions,
    name: str,
    design: Design,
    runs: int,
    *,
    section: str,
    sigma: float | None,
    also: Callable[[Row], bool] | None = None,
) -> Seen:
    """Measure one design. Its row fails where sigma is off the theory, or ``also`` does not hold.

    Args:
        asked: Has the seed.
        name: Of the row.
        design: What is drawn.
        runs: How many nets.
        section: The heading that the row stands under.
        sigma: What the theory says; None where it says nothing.
        also: What else must hold.

    Raises:
        ValueError: neither is given, so that the row could not fail.
    """
    if sigma is None and also is None:
        raise ValueError(f"the row {name} has nothing that it is held against")
    draws = generator(asked, name)
    nets = Nets(design, runs, draws)
    pictures = nets.pictures(draws)
    absolute = measured(nets, pictures, "luo")
    told = absolute if design.weights == "uniform" else measured(nets, pictures, VARIANCE)
    assert absolute.map is not None
    assert absolute.trf is not None
    spread = told["sigma_row"]
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
    return Seen(row=row, absolute=absolute.map.values)


def _number(result: Result, name: str) -> float | None:
    value = result[name].value
    return value if isinstance(value, float) else None


def section_of(weights: Weights) -> str:
    """The heading of rows with these weights: of what sigma is."""
    return "uniform: sigma of g" if weights == "uniform" else "random: sigma of g²"


def rms_sigma(n: int, k: int = 3) -> float:
    """Sigma of the root of the variance image of n random layers of k taps: sqrt(2) times that image's own as n
    grows."""
    amplitude = np.sqrt(theory.uniform_stack(n, k).kernel)
    at = np.arange(len(amplitude)) - (len(amplitude) - 1) / 2
    return math.sqrt(float(amplitude @ at**2 / amplitude.sum()))


def with_error(value: float, se: float | None, digits: int = 3) -> str:
    """A value and its standard error, if it has one that shows."""
    return f"{value:.{digits}f}" + (f" ± {se:.{digits}f}" if se is not None and se >= 0.5 * 10**-digits else "")


def columns(*, first: str, shape: bool = True) -> tuple[Column, ...]:
    """Columns of :class:`Row`.

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
    found: Sequence[Seen], columns: tuple[Column, ...], conclude: Callable[[tuple[Row, ...]], str], picture: Picture
) -> StudyFindings:
    """What a study of stacks found: the rows under their headings, and what ``conclude`` says of them."""
    rows = tuple(one.row for one in found)
    return StudyFindings(columns=columns, section="section", rows=rows, conclusion=conclude(rows), picture=picture)


def along_row(label: str, values: FloatArray, *, points: bool = False) -> Curve:
    """The sums of a map's columns, by the distance to its middle in pixels."""
    line = values.sum(0)
    return Curve(label=label, x=[at - (len(line) - 1) / 2 for at in range(len(line))], y=list(line), points=points)


def verdict(rows: Sequence[Any]) -> str:
    """Whether a claim holds, as a conclusion says it."""
    return "holds" if all(row.passed for row in rows) else "does not hold everywhere"


def failures(rows: Sequence[Any]) -> str:
    """Which rows failed, for a conclusion; "" where none did."""
    failed = [row.name for row in rows if not row.passed]
    return f" Outside their limits: {', '.join(failed)}." if failed else ""
