"""Jackknife errors of measures against simulation and closed forms; ratios to the input and to the TRF."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_up import box_field
from scipy import stats

from erfscope import MEASURES, ErfMap, Trf
from erfscope.core import Axes
from erfscope.core.answer.maps.accumulator import GroupSums
from erfscope.core.answer.measures import with_errors

SIDE = 33


def student(degrees: int) -> float:
    """What the error of so many groups, less one, is widened by."""
    return float(stats.t.ppf(0.95, degrees) / stats.norm.ppf(0.95))


def trf_of(box, **more) -> Trf:
    return box_field(box, (SIDE, SIDE), center_px=(16.0, 16.0), **more)


def erf_of(values, trf=None) -> ErfMap:
    return ErfMap(values=values / values.sum(), center_px=(16.0, 16.0), stride_px=(4.0, 4.0), trf=trf)


def run(rng: np.random.Generator, images: int = 20, groups: int = 10) -> GroupSums:
    """One simulated measurement: every image contributes a Gaussian of its own place and width, with a multiplicative
    noise."""
    positions, sums = np.arange(SIDE), GroupSums(shape=(SIDE, SIDE))
    for index in range(images):
        place, width = 16 + rng.normal(size=2), 4 * math.exp(0.2 * rng.normal())
        row, col = (np.exp(-(((positions - center) / width) ** 2) / 2) for center in place)
        contribution = np.outer(row, col) * rng.exponential(size=(SIDE, SIDE))
        sums.add(index % groups, contribution / contribution.sum())
    return sums


@pytest.mark.slow
def test_the_jackknife_error_of_a_radius_agrees_with_the_spread_of_independent_runs():
    rng, names = np.random.default_rng(11), ["r50", "r90", "sigma_row"]
    values, errors = {name: [] for name in names}, {name: [] for name in names}
    for _ in range(200):
        sums = run(rng)
        for name, found in with_errors(erf_of(sums.mean()), sums.leave_one_out(), names, groups=10).items():
            values[name].append(found.value)
            errors[name].append(found.se)
    for name in names:
        assert np.sqrt(np.mean(np.square(errors[name]))) == pytest.approx(np.std(values[name], ddof=1), rel=0.3), name


def test_the_errors_of_effective_numbers_hold_the_bias_of_noise():
    rng, cells = np.random.default_rng(4), 150
    sums = GroupSums(shape=(cells, cells))
    for group in range(10):
        sums.add(group, rng.exponential(size=(cells, cells)))
    erf = ErfMap(values=sums.mean(), center_px=(70.0, 70.0), stride_px=(4.0, 4.0))
    names = ["participation_area", "entropy_area"]
    plain, found = with_errors(erf, (), names), with_errors(erf, sums.leave_one_out(), names)
    # The mean of n maps with exponential noise has a relative variance of 1/n: 1 / sum p^2 is N / (1 + 1/n) where N is
    # true.
    assert plain["participation_area"].value == pytest.approx(cells**2 / 1.1, rel=0.01)
    for name in names:
        assert found[name].value == plain[name].value
        assert 0.9 < (cells**2 - found[name].value) / found[name].se < 1.1


def test_an_error_is_that_of_variance_and_bias_by_the_textbook_formulas():
    sums = run(np.random.default_rng(1))
    without = sums.leave_one_out()
    theta = with_errors(erf_of(sums.mean()), (), ["entropy_area"])["entropy_area"].value
    found = with_errors(erf_of(sums.mean()), without, ["entropy_area"], groups=10)["entropy_area"]
    parts = [with_errors(erf_of(part), (), ["entropy_area"])["entropy_area"].value for part in without]
    assert found.leave_one_out == pytest.approx(parts, rel=1e-12)
    assert found.value == theta
    variance, bias = 0.9 * np.sum((parts - np.mean(parts)) ** 2), 9 * (np.mean(parts) - theta)
    assert found.se == pytest.approx(student(9) * math.sqrt(variance + bias**2), rel=1e-12)


@pytest.mark.parametrize("groups", [4, 10])
def test_cells_that_each_image_has_alone_are_counted_without_an_error(groups):
    """Every image has one cell of its own: what is counted is images."""
    sums = GroupSums(shape=(SIDE, SIDE))
    for group, cell in enumerate(np.random.default_rng(0).choice(SIDE**2, groups, replace=False)):
        sums.add(group, np.eye(SIDE**2)[cell].reshape(SIDE, SIDE))
    found = with_errors(erf_of(sums.mean()), sums.leave_one_out(), ["entropy_area", "r50"])
    assert found["entropy_area"].value == pytest.approx(groups)
    assert (found["entropy_area"].se, found["entropy_area"].leave_one_out) == (None, ())
    assert found["r50"].se is not None


@pytest.mark.slow
def test_every_measure_with_an_error_gives_the_leave_one_out_values_of_a_plain_measurement():
    sums, trf = run(np.random.default_rng(2)), trf_of(((-4, 36), (1, 31)))
    without = sums.leave_one_out()
    found = with_errors(erf_of(sums.mean(), trf), without)
    parts = [with_errors(erf_of(part, trf)) for part in without]
    for name, value in found.items():
        if MEASURES[name].has_se:
            assert value.se is not None, name
            assert value.leave_one_out == pytest.approx([part[name].value for part in parts], rel=1e-5, abs=1e-9), name
        else:
            assert value.se is None
            assert value.leave_one_out == ()
    assert found["clipped"].se == 0


@pytest.mark.parametrize("groups", [0, 1, 2, 3, 4])
def test_fewer_than_four_groups_give_no_error(groups):
    sums = run(np.random.default_rng(3), images=max(groups, 1), groups=max(groups, 1))
    found = with_errors(
        erf_of(sums.mean()), sums.leave_one_out() if groups else (), ["r50", "entropy_area"], groups=groups
    )
    assert (found["r50"].se is not None) == (groups == 4)
    assert len(found["r50"].leave_one_out) == (groups if groups > 1 else 0)
    assert found["entropy_area"].value is not None


def test_the_error_of_an_angle_does_not_see_the_wrap_at_ninety_degrees():
    positions = np.arange(SIDE) - 16.0

    def tilted(angle_deg: float) -> np.ndarray:
        turn = math.radians(angle_deg)
        along = positions[None, :] * math.cos(turn) + positions[:, None] * math.sin(turn)
        across = positions[:, None] * math.cos(turn) - positions[None, :] * math.sin(turn)
        return np.exp(-((along / 5) ** 2) / 2 - (across / 2.5) ** 2 / 2)

    angles = [88.0, 89.0, 90.0, 91.0, 92.0]
    found = with_errors(erf_of(tilted(90)), [tilted(angle) for angle in angles], ["angle_deg"], groups=5)["angle_deg"]
    assert found.value == pytest.approx(90, abs=1e-6)
    assert min(found.leave_one_out) == pytest.approx(-89, abs=0.02)
    assert found.se == pytest.approx(student(4) * math.sqrt(0.8 * 10), rel=0.01)


def test_a_measure_that_is_missing_without_some_group_has_no_error():
    sums = run(np.random.default_rng(5))
    without = sums.leave_one_out()
    without[3] = np.zeros_like(without[3])
    found = with_errors(erf_of(sums.mean()), without, ["r50"])["r50"]
    assert found.value is not None
    assert found.se is None
    assert found.leave_one_out == ()


def test_ratios_follow_the_kind_of_the_measure():
    values = run(np.random.default_rng(6)).mean()
    box = ((-10, 20), (8, 24))  # 31 x 17 cells, of which 21 x 17 lie inside the reference
    found = with_errors(erf_of(values, trf_of(box)))
    whole = math.sqrt(31 * 17)
    expected = dict.fromkeys(("r50", "context_r90", "side50", "luo_size", "sigma_row", "gaussian_sigma_col"), 1)
    expected |= {"entropy_area": 2, "participation_area": 2}
    for name, power in expected.items():
        assert found[name].of_input == pytest.approx(found[name].value / SIDE**power), name
        assert found[name].of_trf == pytest.approx(found[name].value / whole**power), name
    for name in ("area50", "far_mass", "angle_deg", "gaussian_r2", "best_shape", "offset", "erf_trf"):
        assert found[name].of_input is None, name
        assert found[name].of_trf is None, name
    everywhere = with_errors(erf_of(values, trf_of(((0, 32), (0, 32)), global_by="attention")), (), ["r50"])["r50"]
    assert everywhere.of_trf is None
    assert everywhere.of_input is not None


def test_ratios_of_a_line_are_to_its_length() -> None:
    line = ErfMap(values=np.full(200, 1 / 200), center_px=(99.5,), stride_px=(1.0,))
    found = with_errors(line, names=["r50", "participation_area"])
    assert found["r50"].of_input == pytest.approx(found["r50"].value / 200)
    assert found["r50"].value == pytest.approx(50, abs=1)
    assert found["participation_area"].of_input == pytest.approx(1.0)
    assert with_errors(line, names=["luo_size"])["luo_size"].value == 200


@pytest.mark.slow
def test_the_error_of_an_offset_holds_what_noise_adds_to_it() -> None:
    """Centroids of Poisson counts scatter around the true one: the distance is too large, its square by twice the
    scatter."""
    rng, positions = np.random.default_rng(11), np.arange(SIDE) - 16.0
    for true in (0.0, 1.2):
        shape = np.exp(-(positions[:, None] ** 2 + (positions[None, :] - true) ** 2) / 32)
        found = []
        for _ in range(200):
            sums = GroupSums(shape=(SIDE, SIDE))
            for group in range(10):
                sums.add(group, rng.poisson(20 * shape / shape.sum()).astype(float))
            found.append(with_errors(erf_of(sums.mean()), sums.leave_one_out(), ["offset"])["offset"])
        noise = 2 * 16 / 200  # two axes of variance 16, a mean of 200 counts
        assert np.mean([each.value**2 for each in found]) == pytest.approx(true**2 + noise, rel=0.2)
        assert np.mean([abs(each.value - true) < 2 * each.se for each in found]) > 0.9


@pytest.mark.parametrize("thickness", [0.2, 5.0])
def test_the_thickness_of_the_only_slice_of_a_volume_is_part_of_no_size_in_its_plane(thickness):
    values, names = np.random.default_rng(6).random((1, 9, 12)), ("depth", "row", "col")
    axes = [Axes(names=names, spacing=(step, 1.0, 2.0), units=("mm",) * 3) for step in (1.0, thickness)]
    thin, found = (
        with_errors(ErfMap(values=values, center_px=(0.0, 4.0, 6.0), stride_px=(1.0, 2.0, 2.0), axes=own))
        for own in axes
    )
    assert {name for name in thin if thin[name] != found[name]} == {"extent90_depth"}
    assert (found["participation_area"].unit, thin["r50"].unit) == ("mm2", "mm")
