"""The table of measures: name, formula, kind, direction, and the pure function that computes each from a prepared
map.

To add one: a row here, its function beside those of its kind, its name in ``NAMES`` and an oracle in
``tests/measures/test_measures.py``; :data:`SHOWN` where every table is to show it, with its words in ``GLOSS`` of
``show/view/words.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from erfscope.core.answer.measures import counts
from erfscope.core.answer.measures.prepared import Prepared
from erfscope.core.answer.measures.shapes import MIN_R2
from erfscope.core.answer.measures.sizes import mass_of_box
from erfscope.core.values.axes import COL, DEPTH, ROW, TIME, Axes

Value = float | str | None
Kind = Literal["radius", "width", "sigma", "area", "share", "angle", "score", "shape"]
Unit = Literal["px", "px2", "deg", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure. To add your own: ``MEASURES["mine"] = Measure(name="mine", ...)``."""

    name: str
    #: What it is a size of, which decides its ratio to the input and to the TRF.
    kind: Kind
    #: +1 if a larger ERF makes it larger, -1 if smaller, None if neither.
    wider: Literal[1, -1] | None
    #: Whether the jackknife applies: not to counts of cells above a threshold, which are step functions of the map, and
    #: not to words.
    has_se: bool = True
    #: Whether it moves in steps, such as a count of cells, which rounding moves further than anything smooth.
    has_steps: bool = False
    #: Whether it is fitted by iterations, which end within about the root of the rounding error of the best fit.
    is_fit: bool = False
    #: Whether it is taken from the unit's own centre, so that units without a place have none.
    needs_center: bool = False
    #: The axis that it is of, where it is of one; references without it do not have the measure.
    axis: str = ""
    #: "px" and "px2" are cells of the reference.
    unit: Unit = ""
    #: One line.
    formula: str
    source: str = "erfscope"
    #: Wrong uses of it; continues the words "not for".
    not_for: str = ""
    #: None where the measure does not exist for a map; non-finite numbers count as None.
    function: Callable[[Prepared], Value]

    def of(self, erf: Prepared) -> Value:
        """Its value; None for a map without mass, for units without the place that it needs, and for numbers that are
        not finite."""
        if not erf.has_mass or (self.needs_center and not erf.geometry.has_center):
            return None
        value = self.function(erf)
        if value is None or isinstance(value, str):
            return value
        return float(value) if math.isfinite(value) else None


def _of_moments(name: str, index: int) -> Callable[[Prepared], Value]:
    return lambda erf: getattr(erf.moments, name)[index]


def _along(axis: str, function: Callable[[Prepared, int], Value]) -> Callable[[Prepared], Value]:
    """A function of a map and the place of an axis, for the axis of one name; None where distances are not taken over
    it."""

    def of(erf: Prepared) -> Value:
        names = erf.geometry.axes.names
        return function(erf, names.index(axis)) if axis in names else None

    return of


def _gaussian_sigma(erf: Prepared, axis: int) -> Value:
    fitted, geometry = erf.fit("gaussian"), erf.geometry
    if fitted is None or not fitted.is_usable or fitted.sigma[axis] < 1:
        return None
    return fitted.sigma[axis] * geometry.axes.spacing[axis]


def _time_share(erf: Prepared, place: int) -> Value:
    shares = erf.time_shares()
    return None if shares is None else shares[place]


def _centroid_radius(erf: Prepared, share: float) -> Value:
    return erf.around_centroid.radius(share)


def _centroid_side(erf: Prepared, share: float) -> Value:
    return erf.around_centroid.side(share)


def _center_share(erf: Prepared) -> Value:
    return mass_of_box(erf.weights, erf.geometry.own_cell)


def _far_mass(erf: Prepared) -> Value:
    geometry = erf.geometry
    sides = [side * step for side, step in zip(geometry.shape, geometry.steps, strict=True)]
    return float(erf.weights[geometry.distance > math.hypot(*sides) / 4].sum())


def _luo_size(erf: Prepared) -> float | None:
    size = counts.luo_size(erf.weights, erf.geometry.center_in_window)
    return None if size is None else size * erf.geometry.cell


def _in_units(erf: Prepared, count: float) -> float:
    """A number of cells as an area or a volume."""
    return count * erf.geometry.cell**erf.geometry.sides.rank


def _erf_trf(erf: Prepared) -> Value:
    side, size = erf.geometry.sides.field, _luo_size(erf)
    return None if side is None or size is None else size / side


def _clipped(erf: Prepared) -> Value:
    trf = erf.geometry.trf
    if trf is None or trf.is_global:
        return None if trf is None else 0.0
    return 1 - math.prod(last - first + 1 for first, last in trf.clipped_box_px) / math.prod(trf.size_px)


def _otherwise(share: int) -> str:
    """What a radius is at least where a second cell has any mass."""
    return f", else at least {share / 100 - 0.5:.2g}" if share > 50 else ""


LUO = "Luo et al. 2016"
DING = "after Ding et al. 2022 (RepLKNet), on the raw map and the unit's own centre"
KIM = "after Kim et al. 2023, on the raw map"
AXES = (ROW, COL, DEPTH, TIME)

_ENTRIES: list[Measure] = [
    *(
        Measure(
            name=f"r{share}",
            kind="radius",
            needs_center=True,
            wider=1,
            unit="px",
            formula=(
                f"smallest r >= 0 with sum_i p_i clip(r - d_i + 1/2, 0, 1) >= {share / 100}; d_i: distance to the unit;"
                f" 0 where one cell there has all mass{_otherwise(share)}"
            ),
            not_for=(
                "comparing where center_share is high: the unit's own cell then decides it; nor for ERFs that the input"
                " cuts off"
            ),
            function=partial(Prepared.radius, share=share / 100),
        )
        for share in (50, 90, 95)
    ),
    *(
        Measure(
            name=f"context_r{share}",
            kind="radius",
            needs_center=True,
            wider=1,
            unit="px",
            formula=(
                f"r{share} of p (1 - w_row w_col), the mass outside the unit's own stride cell; w as for center_share"
            ),
            not_for=(
                "how much a model looks beyond its own cell: it says how far, even where almost nothing is there (see"
                " center_share)"
            ),
            function=partial(Prepared.context_radius, share=share / 100),
        )
        for share in (50, 90)
    ),
    *(
        Measure(
            name=f"centroid_r{share}",
            kind="radius",
            wider=1,
            unit="px",
            formula=f"as r{share}, with d_i the distance to the centroid of p",
            not_for="how far a unit looks from where it stands: the centroid moves with the map",
            function=partial(_centroid_radius, share=share / 100),
        )
        for share in (50, 90)
    ),
    *(
        Measure(
            name=f"centroid_side{share}",
            kind="width",
            wider=1,
            unit="px",
            formula=f"as side{share}, with the distances to the centroid of p",
            not_for="how far a unit looks from where it stands: the centroid moves with the map",
            function=partial(_centroid_side, share=share / 100),
        )
        for share in (50, 99)
    ),
    *(
        Measure(
            name=f"sigma_{word}",
            kind="sigma",
            wider=1,
            unit="px",
            formula=f"sqrt(sum p ({word} - mean {word})^2), around the centroid",
            source="Luo et al. 2016 (on the energy map: sqrt(n (k^2 - 1) / 12))",
            not_for=(
                "maps with far tails or attention noise, which rule a second moment; Luo's closed forms hold on energy"
                " maps only"
            ),
            axis=word,
            function=_along(word, lambda erf, axis: erf.moments.sigma[axis]),
        )
        for word in AXES
    ),
    *(
        Measure(
            name=f"sigma_{word}",
            kind="sigma",
            wider=1,
            unit="px",
            formula=f"root of the {size} eigenvalue of the covariance of p around its centroid",
            not_for="maps with several separate peaks, and with far tails, which rule a second moment",
            function=_of_moments("principal", index),
        )
        for index, (word, size) in enumerate((("major", "largest"), ("minor", "smallest")))
    ),
    Measure(
        name="anisotropy",
        kind="score",
        wider=None,
        formula="sigma_major / sigma_minor; none if the minor axis is 0",
        not_for="units near a border, whose map the input cuts off on one side",
        function=lambda erf: erf.moments.anisotropy,
    ),
    Measure(
        name="angle_deg",
        kind="angle",
        wider=None,
        unit="deg",
        formula=(
            "angle of the major axis from +col towards +row, in (-90, 90]; none if the spread is the same in all"
            " directions"
        ),
        not_for="maps with an anisotropy near 1, whose axis is noise, nor for averages: angles wrap at 90 degrees",
        function=lambda erf: erf.moments.angle_deg,
    ),
    Measure(
        name="offset",
        kind="score",
        needs_center=True,
        wider=None,
        unit="px",
        formula="distance from the centroid of p to the unit's centre",
        not_for="the size of the ERF; near a border it shows the border, and noise always adds to it",
        function=lambda erf: math.hypot(*erf.moments.mean),
    ),
    *(
        Measure(
            name=f"side{share}",
            kind="width",
            needs_center=True,
            wider=1,
            unit="px",
            formula=(
                f"smallest 2a >= 0 with sum p w_row w_col >= {share / 100}; w(d; a) = clip(a + 1/2 - |d|, 0, 1), d:"
                " row, column distance to the unit"
            ),
            source=DING,
            not_for=(
                "Ding et al.'s tables, which take log10(x + 1) first and centre on the image: the `published` block has"
                " those"
            ),
            function=partial(Prepared.side, share=share / 100),
        )
        for share in (20, 30, 50, 99)
    ),
    *(
        Measure(
            name=f"area{share}",
            kind="share",
            needs_center=True,
            wider=1,
            formula=f"area of the side{share} square inside the input / (H W)",
            source=DING,
            not_for=(
                "units away from the centre, whose squares are cut at the border, nor for Ding et al.'s tables (see"
                " side)"
            ),
            function=partial(Prepared.area, share=share / 100),
        )
        for share in (20, 30, 50, 99)
    ),
    *(
        Measure(
            name=f"extent{share}_{word}",
            kind="width",
            needs_center=True,
            wider=1,
            unit="px",
            formula=(
                f"smallest 2a >= 0 with sum p w >= {share / 100}; w(d; a) = clip(a + 1/2 - |d|, 0, 1), d: {word}"
                " distance"
            ),
            not_for="the size of a map whose centroid lies far from its unit: it is centred on the unit",
            axis=word,
            function=partial(Prepared.extent, name=word, share=share / 100),
        )
        for word in AXES
        for share in (50, 90)
    ),
    Measure(
        name="lookback90",
        kind="width",
        needs_center=True,
        wider=1,
        unit="px",
        formula="length of time, back from the end of the unit's own step, that holds 0.9 of the mass up to there",
        not_for="models that look ahead: what comes after the step is left out",
        axis=TIME,
        function=partial(Prepared.lookback, share=0.9),
    ),
    *(
        Measure(
            name=f"{name}_share",
            kind="share",
            needs_center=True,
            wider=None,
            formula=(
                f"sum of p {where} the unit's own step of time: as many cells as its stride has, those of its index"
                " where there is one for each, else those around its centre; a cell counts by the part that lies there"
            ),
            not_for="models of different strides: a longer step holds more of any map",
            axis=TIME,
            function=partial(_time_share, place=place),
        )
        for place, (name, where) in enumerate((("past", "before"), ("present", "in"), ("future", "after")))
    ),
    Measure(
        name="center_share",
        kind="share",
        needs_center=True,
        wider=-1,
        formula=(
            "sum p w_row w_col with w(d; a) = clip(a + 1/2 - |d|, 0, 1) and a = stride / 2: the mass in the unit's own"
            " cell"
        ),
        not_for="models of different strides: a larger cell holds more of any map",
        function=_center_share,
    ),
    Measure(
        name="far_mass",
        kind="share",
        needs_center=True,
        wider=1,
        formula="sum of p further from the unit than a quarter of the reference's diagonal, sqrt(H^2 + W^2) / 4",
        not_for=(
            "inputs of different sizes, whose quarter diagonals differ; noise that is everywhere counts as far mass"
        ),
        function=_far_mass,
    ),
    Measure(
        name="luo_size",
        kind="width",
        needs_center=True,
        wider=1,
        has_se=False,
        has_steps=True,
        unit="px",
        formula=(
            "sqrt(number of cells above 4.55 % of the unit's value, the mean of the 1, 2 or 4 cells nearest to its"
            " centre)"
        ),
        source=LUO,
        not_for=(
            "maps with a sharp peak at the unit, such as a skip path's, where nearly nothing is above 4.55 % of it; it"
            " has no error"
        ),
        function=_luo_size,
    ),
    Measure(
        name="erf_trf",
        kind="score",
        needs_center=True,
        wider=1,
        has_se=False,
        has_steps=True,  # luo_size over a constant: the same steps
        formula="luo_size / side of the unclipped theoretical receptive field (TRF; geometric mean of its two sides)",
        source=LUO,
        not_for=(
            "models with global operations, which have none, nor for maps with a sharp peak at the unit (see luo_size)"
        ),
        function=_erf_trf,
    ),
    Measure(
        name="entropy_area",
        kind="area",
        wider=1,
        unit="px2",
        formula="exp(-sum p ln p), the effective number of cells",
        not_for="how far a unit looks: it counts cells wherever they are, noise in far ones included",
        function=lambda erf: _in_units(erf, counts.entropy_area(erf.weights)),
    ),
    Measure(
        name="participation_area",
        kind="area",
        wider=1,
        unit="px2",
        formula="1 / sum p^2, the effective number of cells",
        not_for="how far a unit looks: it counts cells wherever they are, and a sharp peak makes it one cell",
        function=lambda erf: _in_units(erf, counts.participation_area(erf.weights)),
    ),
    *(
        Measure(
            name=f"gaussian_sigma_{word}",
            kind="sigma",
            wider=1,
            is_fit=True,
            unit="px",
            formula=(
                f"s_{word} of the least-squares fit A exp(-((r - r0) / s_row)^2 / 2 - ((c - c0) / s_col)^2 / 2); none"
                f" if R2 < {MIN_R2}, it holds less than half of the mass, or s is below one cell"
            ),
            source=KIM,
            not_for="maps with a low gaussian_r2: a sharp peak on a broad base has no one sigma",
            axis=word,
            function=_along(word, _gaussian_sigma),
        )
        for word in AXES
    ),
    Measure(
        name="gaussian_r2",
        kind="score",
        wider=None,
        is_fit=True,
        formula=(
            "1 - residual / total sum of squares of that fit, over the part of the input that the theoretical receptive"
            " field reaches"
        ),
        source=KIM,
        not_for="a test of shape: any smooth blob scores high; compare best_shape and the kurtosis",
        function=lambda erf: None if (fitted := erf.fit("gaussian")) is None else fitted.r2,
    ),
    Measure(
        name="best_shape",
        kind="shape",
        wider=None,
        has_se=False,
        formula=(
            "which of A g((r - r0) / s_r) g((c - c0) / s_c), g = gaussian, box, laplace, has the highest R2; none if"
            f" R2 < {MIN_R2} or it holds less than half of the mass"
        ),
        not_for=(
            "a decision between shapes whose R2 are alike: it names the best however close the others are, without an"
            " error"
        ),
        function=lambda erf: erf.best_shape,
    ),
    *(
        Measure(
            name=f"kurtosis_{word}",
            kind="score",
            wider=None,
            formula=(
                f"excess kurtosis of p summed onto the {word} axis: 0 for a Gaussian, -1.2 for a box, 3 for a Laplace"
            ),
            not_for="small or cut maps: fourth moments hang on the outermost cells",
            axis=word,
            function=_along(word, lambda erf, axis: erf.moments.excess_kurtosis[axis]),
        )
        for word in AXES
    ),
    Measure(
        name="coverage",
        kind="share",
        wider=1,
        has_se=False,
        has_steps=True,
        formula="share of the reference's cells above 1 % of the peak",
        not_for="different numbers of images: noise and the peak's height move the threshold; it has no error",
        function=lambda erf: counts.coverage(erf.weights, math.prod(erf.geometry.shape)),
    ),
    Measure(
        name="clipped",
        kind="share",
        wider=None,
        formula=(
            "share of the box of the theoretical receptive field (TRF) that lies outside the reference; 0 if it is"
            " global"
        ),
        not_for="the ERF: it is geometry alone, and 0 for global TRFs whatever the map looks like",
        function=_clipped,
    ),
]

#: Every measure by its name, in the order of the report. A plain dict: add your own.
MEASURES: dict[str, Measure] = {entry.name: entry for entry in _ENTRIES}
#: What stands beside them in results of several inputs, and is no measure of one map.
INPUT_SHARE = "input_share"
#: Those that tables show, and that are computed unless others are asked for.
SHOWN = ("r50", "context_r50", "r90", "center_share", "far_mass", "erf_trf")
#: The same for units without a place.
SHOWN_WITHOUT_PLACE = ("centroid_r50", "centroid_r90", "entropy_area")


def shown_of(axes: Axes) -> tuple[str, ...]:
    """What stands beside these for references with an axis of time or of depth."""
    if TIME in axes.names:
        extents = ("lookback90",) if len(axes.names) == 1 else ("extent50_time", "extent90_time")
        return (*extents, "past_share", "present_share", "future_share")
    return tuple(f"extent50_{name}" for name in axes.names) if DEPTH in axes.names else ()
