"""Sizes against closed forms: uniform convolution stacks, Gaussians, uniform maps, single cells, and invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up import box_field

from erfscope import MEASURES, ErfMap, ErfscopeError, Measure, Trf
from erfscope.core import Prepared
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.measures.prepared import Geometry

# fmt: off
NAMES = [
    "r50", "r90", "r95", "context_r50", "context_r90", "centroid_r50", "centroid_r90",
    "centroid_side50", "centroid_side99", "sigma_row", "sigma_col", "sigma_major", "sigma_minor",
    "anisotropy", "angle_deg", "offset", "side20", "side30", "side50", "side99", "area20", "area30", "area50", "area99",
    "extent50_row", "extent90_row", "extent50_col", "extent90_col",
    "center_share",
    "far_mass", "luo_size", "erf_trf", "entropy_area", "participation_area", "gaussian_sigma_row", "gaussian_sigma_col",
    "gaussian_r2", "best_shape", "kurtosis_row", "kurtosis_col", "coverage", "clipped",
]
# fmt: on


def trf_of(side, first, reference, **more) -> Trf:
    return box_field([(low, low + size - 1) for low, size in zip(first, side, strict=True)], reference, **more)


def erf_of(values, center, stride=(1.0, 1.0), trf=None, **more) -> ErfMap:
    return ErfMap(values=np.asarray(values, dtype=np.float64), center_px=center, stride_px=stride, trf=trf, **more)


def gaussian(shape, center, sigma, *, angle_deg=0.0) -> np.ndarray:
    """Gaussian with sigma (along the axis at ``angle_deg`` from +col towards +row, across it)."""
    row, col = np.arange(shape[0])[:, None] - center[0], np.arange(shape[1])[None, :] - center[1]
    turn = math.radians(angle_deg)
    along, across = col * math.cos(turn) + row * math.sin(turn), row * math.cos(turn) - col * math.sin(turn)
    return np.exp(-((along / sigma[0]) ** 2) / 2 - (across / sigma[1]) ** 2 / 2)


def uniform_stack(layers: int, kernel: int) -> ErfMap:
    line = np.ones(1)
    for _ in range(layers):
        line = np.convolve(line, np.full(kernel, 1 / kernel))
    side, center = len(line), (len(line) - 1) / 2
    return erf_of(
        np.outer(line, line), (center, center), trf=trf_of((side, side), (0, 0), (side, side)), scale="energy"
    )


def same(found: float | str | None, expected: float | str | None) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    return found == expected


def number(erf: ErfMap, name: str) -> float:
    value = measure_map(erf, [name])[name]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (5, 3), (20, 3), (40, 2), (7, 5), (4, 7)])
def test_sigma_and_kurtosis_of_a_uniform_convolution_stack_follow_luo(layers, kernel):
    found = measure_map(uniform_stack(layers, kernel))
    variance = layers * (kernel**2 - 1) / 12
    for axis in ("row", "col"):
        assert found[f"sigma_{axis}"] == pytest.approx(math.sqrt(variance), rel=1e-9)
        assert found[f"kurtosis_{axis}"] == pytest.approx(-(kernel**4 - 1) / 120 * layers / variance**2, rel=1e-9)
    assert found["anisotropy"] == pytest.approx(1, rel=1e-9)
    assert found["angle_deg"] is None
    assert found["offset"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("layers", "size", "trf"),
    [(5, 8.307, 11), (9, 11.0, 19), (10, 11.705, 21), (20, 16.155, 41), (40, 22.738, 81), (80, 32.265, 161)],
)
def test_luo_size_of_a_uniform_stack_matches_the_published_table(layers, size, trf):
    found = measure_map(uniform_stack(layers, 3), ["luo_size", "erf_trf"])
    assert found["luo_size"] == pytest.approx(size, abs=5e-4)
    assert found["erf_trf"] == pytest.approx(size / trf, abs=5e-4)


@pytest.mark.parametrize("layers", [1, 6, 15])
def test_participation_and_entropy_of_a_binomial_map_follow_from_the_binomials(layers):
    found = measure_map(uniform_stack(layers, 2))
    assert found["participation_area"] == pytest.approx((4**layers / math.comb(2 * layers, layers)) ** 2, rel=1e-12)
    line = [math.comb(layers, t) / 2**layers for t in range(layers + 1)]
    assert found["entropy_area"] == pytest.approx(math.exp(-2 * sum(p * math.log(p) for p in line)), rel=1e-12)


@pytest.mark.parametrize("sigma", [3.6, 5.0, 12.0])
@pytest.mark.parametrize("center", [(90.0, 110.0), (95.5, 103.5), (88.3, 120.7)])
def test_sizes_of_an_isotropic_gaussian_have_their_closed_forms(sigma, center):
    shape = (200, 240)
    found = measure_map(erf_of(gaussian(shape, center, (sigma, sigma)), center))
    for name, factor in {"r50": 1.17741, "r90": 2.14597, "r95": 2.44775}.items():
        assert found[name] == pytest.approx(factor * sigma, rel=5e-3)
    for name, factor in {"side20": 1.187, "side30": 1.503, "side50": 2.104, "side99": 5.613}.items():
        assert found[name] == pytest.approx(factor * sigma, rel=8e-3 if sigma < 5 else 4e-3)
        assert found[name.replace("side", "area")] == pytest.approx(found[name] ** 2 / (200 * 240), rel=1e-12)
    for name in ("sigma_row", "sigma_col", "sigma_major", "sigma_minor", "gaussian_sigma_row", "gaussian_sigma_col"):
        assert found[name] == pytest.approx(sigma, rel=1e-6)
    assert found["participation_area"] == pytest.approx(4 * math.pi * sigma**2, rel=1e-6)
    assert found["entropy_area"] == pytest.approx(2 * math.pi * math.e * sigma**2, rel=1e-6)
    assert found["luo_size"] == pytest.approx(4.4063 * sigma, rel=0.02)
    assert found["coverage"] == pytest.approx(2 * math.pi * sigma**2 * math.log(100) / (200 * 240), rel=0.02)
    assert found["gaussian_r2"] == pytest.approx(1, abs=1e-9)
    assert found["best_shape"] == "gaussian"
    assert found["kurtosis_row"] == pytest.approx(0, abs=1e-6)
    assert found["offset"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("shape", "sigma"), [((160, 160), 25.0), ((120, 200), 20.0)])
def test_far_mass_of_a_gaussian_is_its_tail_beyond_a_quarter_of_the_diagonal(shape, sigma):
    center = (shape[0] / 2 - 0.5, shape[1] / 2 - 0.5)
    values = gaussian(shape, center, (sigma, sigma))
    beyond = math.hypot(*shape) / 4
    # The tail is cut at the map's border: the closed form holds for the mass within the radius, over the mass within
    # the map.
    within = 2 * math.pi * sigma**2 * (1 - math.exp(-(beyond**2) / (2 * sigma**2)))
    assert number(erf_of(values, center), "far_mass") == pytest.approx(1 - within / values.sum(), abs=2e-3)


def test_center_share_of_a_gaussian_is_a_product_of_error_functions():
    # Wide along the rows' axis, in a cell that is wide along it too: exchanging the axes would give another number.
    erf = erf_of(gaussian((161, 161), (80, 80), (5.0, 14.0)), (80.0, 80.0), stride=(16.0, 8.0))
    # With an edge on a cell's centre the sum is the trapezoidal rule, whose error is f'(a) / 6 per axis (Euler and
    # Maclaurin).
    expected = 1.0
    for half, sigma in ((8, 14.0), (4, 5.0)):
        density = math.exp(-((half / sigma) ** 2) / 2) / sigma / math.sqrt(2 * math.pi)
        expected *= math.erf(half / sigma / math.sqrt(2)) - density * half / sigma**2 / 6
    assert number(erf, "center_share") == pytest.approx(expected, rel=1e-4)


def test_center_share_of_a_token_that_fills_its_cell_is_one_and_leaves_no_context():
    values = np.zeros((64, 64))
    values[16:32, 32:48] = 1
    found = measure_map(erf_of(values, (23.5, 39.5), stride=(16.0, 16.0)))
    assert found["center_share"] == pytest.approx(1, abs=1e-12)
    assert found["context_r50"] is None
    assert found["context_r90"] is None


def test_context_radii_ignore_whatever_the_own_cell_holds():
    context = gaussian((160, 160), (79.5, 79.5), (20.0, 20.0))
    hole = np.ones((160, 160))
    hole[72:88, 72:88] = 0
    peaked = context * hole + 1e3 * (1 - hole)
    erf, bare = (erf_of(values, (79.5, 79.5), stride=(16.0, 16.0)) for values in (peaked, context * hole))
    for share in ("50", "90"):
        assert number(erf, f"context_r{share}") == pytest.approx(number(bare, f"r{share}"), rel=1e-9)
    assert number(erf, "r50") < 8


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    place=st.tuples(st.floats(0.05, 0.95), st.floats(0.05, 0.95)),
)
def test_a_uniform_map_has_area_equal_to_the_share_wherever_the_unit_is(shape, place):
    center = (place[0] * (shape[0] - 1), place[1] * (shape[1] - 1))
    found = measure_map(erf_of(np.ones(shape), center))
    for share in (20, 30, 50, 99):
        assert found[f"area{share}"] == pytest.approx(share / 100, abs=1e-9)
    assert found["coverage"] == 1
    assert found["entropy_area"] == pytest.approx(math.prod(shape), rel=1e-9)
    assert found["participation_area"] == pytest.approx(math.prod(shape), rel=1e-9)
    assert found["luo_size"] == pytest.approx(math.sqrt(math.prod(shape)), rel=1e-9)
    assert found["sigma_row"] == pytest.approx(math.sqrt((shape[0] ** 2 - 1) / 12), rel=1e-9)
    assert found["gaussian_r2"] is None
    assert found["best_shape"] is None


def test_a_single_cell_at_the_unit_has_no_radius():
    values = np.zeros((31, 41))
    values[12, 20] = 3.5
    found = measure_map(erf_of(values, (12.0, 20.0), stride=(4.0, 4.0)))
    for name in ("r50", "r90", "r95", "sigma_row", "sigma_major", "sigma_minor", "offset", "far_mass", "side20"):
        assert found[name] == 0, name
    assert found["side99"] == pytest.approx(2 * (math.sqrt(0.99) - 0.5), rel=1e-9)
    for name in (
        "anisotropy",
        "angle_deg",
        "kurtosis_row",
        "context_r50",
        "gaussian_sigma_row",
        "gaussian_r2",
        "best_shape",
    ):
        assert found[name] is None, name
    assert found["center_share"] == 1
    assert found["luo_size"] == 1
    assert found["entropy_area"] == 1
    assert found["participation_area"] == 1


def test_a_single_cell_beside_the_unit_lies_at_its_distance():
    values = np.zeros((31, 41))
    values[15, 24] = 1
    found = measure_map(erf_of(values, (12.0, 20.0)))
    assert found["r50"] == pytest.approx(5, rel=1e-12)
    assert found["r90"] == pytest.approx(5.4, rel=1e-12)
    assert found["offset"] == pytest.approx(5, rel=1e-12)
    assert found["luo_size"] is None  # the unit's own value is zero


@pytest.mark.parametrize("angle", [-75.0, -45.0, -10.0, 0.0, 30.0, 60.0, 90.0])
def test_the_axes_of_a_rotated_gaussian_are_found(angle):
    center = (70.5, 68.0)
    found = measure_map(erf_of(gaussian((141, 141), center, (10.0, 4.0), angle_deg=angle), center))
    assert found["angle_deg"] == pytest.approx(angle, abs=1e-6)
    assert found["sigma_major"] == pytest.approx(10, rel=1e-6)
    assert found["sigma_minor"] == pytest.approx(4, rel=1e-6)
    assert found["anisotropy"] == pytest.approx(2.5, rel=1e-6)


@pytest.mark.parametrize("step", [(1, 1), (1, 2), (3, 2)])
def test_a_line_has_an_angle_but_no_anisotropy_whatever_the_rounding(step):
    for seed in range(30):
        values = np.zeros((60, 60))
        values[step[0] * np.arange(20), step[1] * np.arange(20)] = np.random.default_rng(seed).exponential(size=20)
        found = measure_map(erf_of(values, (7.3, 20.1)), ["angle_deg", "sigma_minor", "anisotropy"])
        assert found["angle_deg"] == pytest.approx(math.degrees(math.atan2(*step)))
        assert found["sigma_minor"] == 0
        assert found["anisotropy"] is None


def noisy() -> ErfMap:
    shape, center = (40, 56), (17.5, 31.0)
    values = gaussian(shape, center, (8.0, 5.0), angle_deg=25) * np.random.default_rng(5).gamma(3, size=shape)
    return erf_of(values, center, stride=(8.0, 4.0), trf=trf_of((61, 51), (-13, 6), shape))


@pytest.mark.parametrize("factor", [1e-12, 7.0, 1e9])
def test_no_measure_depends_on_the_scale_of_the_map(factor):
    erf = noisy()
    scaled = measure_map(erf_of(factor * erf.values, erf.center_px, erf.stride_px, erf.trf))
    for name, value in measure_map(erf).items():
        assert same(scaled[name], value), name


def test_transposing_the_map_swaps_rows_and_columns():
    erf = noisy()
    plain = measure_map(erf)
    turned = measure_map(
        erf_of(erf.values.T, erf.center_px[::-1], erf.stride_px[::-1], trf_of((51, 61), (6, -13), (56, 40)))
    )
    for name, value in plain.items():
        partner = name.replace("row", "COL").replace("col", "row").replace("COL", "col")
        if name == "angle_deg":
            value = 90 - value
        assert same(turned[partner], value), name


def test_a_signed_map_is_measured_by_its_absolute_value():
    erf = noisy()
    signs = np.where(np.random.default_rng(0).random(erf.values.shape) < 0.5, -1, 1)
    assert measure_map(
        erf_of(signs * erf.values, erf.center_px, erf.stride_px, erf.trf, scale="signed")
    ) == measure_map(erf)


def test_a_film_is_measured_on_its_sum_over_time_and_a_signal_on_its_one_axis():
    erf = noisy()
    film = erf_of(np.stack([0.25 * erf.values, 0.75 * erf.values]), (0.5, *erf.center_px), (1.0, *erf.stride_px))
    flat = erf_of(erf.values, erf.center_px, erf.stride_px)
    for name, value in measure_map(film).items():
        if MEASURES[name].axis == "time":
            continue
        assert same(value, measure_map(flat, [name])[name]), name
    line = np.exp(-((np.arange(101) - 40.0) ** 2) / 2 / 36)
    found = measure_map(erf_of(line, (40.0,), (2.0,)))
    assert found["sigma_time"] == pytest.approx(6, rel=1e-9)
    assert found["r50"] == pytest.approx(0.6745 * 6, rel=5e-3)
    assert found["gaussian_sigma_time"] == pytest.approx(6, rel=1e-6)
    assert "gaussian_sigma_row" not in found


def test_the_value_at_the_unit_is_the_mean_of_the_cells_nearest_to_it():
    values = np.zeros((8, 8))
    values[3:5, 3:5] = [[1.0, 2.0], [3.0, 6.0]]  # mean 3: of the 12 cells of 0.15 all are above 4.55 % of it, 0.136
    values[0, :] = 0.15
    assert number(erf_of(values, (3.5, 3.5)), "luo_size") == pytest.approx(math.sqrt(12))
    assert number(erf_of(values, (4.0, 4.0)), "luo_size") == pytest.approx(2)  # 4.55 % of 6 is 0.27
    assert number(erf_of(values, (3.5, 4.0)), "luo_size") == pytest.approx(2)  # of (2 + 6) / 2: 0.18
    assert number(erf_of(values, (3.0, 3.0)), "luo_size") == pytest.approx(math.sqrt(12))  # of 1


def test_erf_trf_divides_by_the_geometric_mean_of_the_unclipped_sides():
    values = np.ones((30, 40))
    assert number(erf_of(values, (3.0, 4.0), trf=trf_of((160, 40), (-77, -16), (30, 40))), "erf_trf") == pytest.approx(
        math.sqrt(1200) / 80
    )


def test_clipped_is_the_share_of_the_field_outside_the_reference():
    values = np.ones((100, 100))
    half_out = trf_of((60, 40), (-30, 20), (100, 100))
    assert number(erf_of(values, (0.0, 40.0), trf=half_out), "clipped") == pytest.approx(0.5)
    everywhere = trf_of((100, 100), (0, 0), (100, 100), global_by="attention")
    found = measure_map(erf_of(values, (0.0, 40.0), trf=everywhere))
    assert found["clipped"] == 0
    assert found["erf_trf"] is None
    assert measure_map(erf_of(values, (0.0, 40.0)), ["clipped", "erf_trf"]) == {"clipped": None, "erf_trf": None}


@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf])
def test_a_map_without_finite_mass_has_no_measures(fill):
    found = measure_map(erf_of(np.full((9, 9), fill), (4.0, 4.0), trf=trf_of((9, 9), (0, 0), (9, 9))))
    assert list(found) == NAMES
    assert set(found.values()) == {None}


def test_users_can_add_a_measure_and_numbers_that_are_not_finite_become_none(monkeypatch):
    for name, function in {"peak": lambda erf: erf.weights.max(), "broken": lambda erf: math.inf}.items():
        monkeypatch.setitem(
            MEASURES, name, Measure(name=name, kind="score", wider=None, formula="max p", function=function)
        )
    found = measure_map(erf_of([[1.0, 3.0]], (0.0, 0.0)), ["peak", "broken"])
    assert found == {"peak": 0.75, "broken": None}


def test_an_unknown_measure_is_named_with_the_nearest_one():
    with pytest.raises(ErfscopeError, match=r"unknown measure 'r_50'.*did you mean 'r50'"):
        measure_map(noisy(), ["r_50"])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(shape=(1, 2), corner=(0, 0), side=(1, 1), center=(0.0, 9.4e-132), seed=0, with_trf=False)
@example(shape=(15, 23), corner=(0, 5), side=(12, 1), center=(7.31, 9.77), seed=1, with_trf=False)
@example(shape=(2, 4), corner=(0, 0), side=(2, 2), center=(0.0, 0.0), seed=53, with_trf=True)
@example(shape=(2, 8), corner=(0, 0), side=(1, 3), center=(33.3, 1.7), seed=3, with_trf=False)
@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    corner=st.tuples(st.integers(-4, 28), st.integers(-4, 28)),
    side=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    center=st.tuples(st.floats(-5, 35), st.floats(-5, 35)),
    seed=st.integers(0, 999),
    with_trf=st.booleans(),
)
def test_zeros_around_a_map_are_measured_as_if_they_were_looked_at(shape, corner, side, center, seed, with_trf):
    low, high = zip(
        *((min(max(c, 0), n - 1), min(max(c + s, 1), n)) for c, s, n in zip(corner, side, shape, strict=True)),
        strict=True,
    )
    values = np.zeros(shape)
    inside = values[tuple(slice(a, max(b, a + 1)) for a, b in zip(low, high, strict=True))]
    inside[:] = np.random.default_rng(seed).random(inside.shape)
    erf = erf_of(values, center, (2.0, 3.0), trf_of(side, corner, shape) if with_trf else None)
    whole = Prepared(erf.magnitude, Geometry(erf))
    for name, found in measure_map(erf).items():
        expected = MEASURES[name].function(whole)
        # A fit's scales are as good as its end: two orders of summation end up to 1e-6 apart where the map hardly says
        # where that is.
        assert found == (
            expected if isinstance(expected, str | None) else pytest.approx(expected, rel=1e-6, abs=1e-9)
        ), name
