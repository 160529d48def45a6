"""Least-squares fits: shapes guess_layout themselves, and the fit agrees with scipy's general solver."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import box_field
from scipy.optimize import approx_fprime, least_squares

from erfscope import ErfMap, Trf
from erfscope.core.answer.measures import measure_map, shapes, with_errors
from erfscope.core.answer.measures.shapes import SHAPES, Axis, fit
from erfscope.core.values.axes import NAMES, Axes


def erf_of(values: np.ndarray, center: tuple[float, float], trf: Trf | None = None) -> ErfMap:
    return ErfMap(values=values, center_px=center, stride_px=(1.0, 1.0), trf=trf)


def outer(shape, center, sigma, g) -> np.ndarray:
    return np.outer(*(g((np.arange(n) - c) / s) for n, c, s in zip(shape, center, sigma, strict=True)))


def gauss(z):
    return np.exp(-(z**2) / 2)


def exponential(z):
    return np.exp(-np.sqrt(2) * np.abs(z))


@pytest.mark.parametrize(
    ("center", "sigma"), [((40.0, 33.0), (5.0, 5.0)), ((41.3, 50.5), (3.7, 9.2)), ((20.0, 70.0), (9.0, 2.0))]
)
def test_gaussian_box_and_laplace_maps_recognise_themselves(center, sigma):
    shape = (81, 97)
    found = measure_map(erf_of(outer(shape, center, sigma, gauss), center))
    assert found["best_shape"] == "gaussian"
    assert found["gaussian_sigma_row"] == pytest.approx(sigma[0], rel=2e-3)
    assert found["gaussian_sigma_col"] == pytest.approx(sigma[1], rel=2e-3)
    assert (
        measure_map(erf_of(outer(shape, center, sigma, lambda z: 1.0 * (np.abs(z) < 1.5)), center))["best_shape"]
        == "box"
    )
    assert measure_map(erf_of(outer(shape, center, sigma, exponential), center))["best_shape"] == "laplace"


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_centre_of_a_fit_lies_within_one_maps_length_of_the_map(sign):
    """Weights that grow towards one edge are fitted best by a Gaussian that is far away."""
    positions = np.arange(3.0, 15.0)
    found = fit(np.exp(sign * 0.3 * positions), [Axis(positions=positions, center=8.0, sigma=3.0)], "gaussian")
    assert found is not None
    assert found.center[0] == pytest.approx(14 + 12 if sign > 0 else 3 - 12, abs=1e-6)


def test_a_box_and_a_laplace_map_are_fitted_with_their_own_standard_deviation():
    side, positions = np.zeros(60), np.arange(60.0)
    side[20:38] = 1
    start = Axis(positions=positions, center=27.0, sigma=4.0)
    best = fit(np.outer(side, side), [start, start], "box")
    assert best is not None
    assert best.sigma == pytest.approx((18 / np.sqrt(12), 18 / np.sqrt(12)), rel=1e-4)
    assert best.center == pytest.approx((28.5, 28.5), abs=1e-3)
    assert best.r2 == pytest.approx(1, abs=1e-6)
    best = fit(outer((60, 60), (28.4, 28.4), (6.0, 6.0), exponential), [start, start], "laplace")
    assert best is not None
    assert best.sigma == pytest.approx((6, 6), rel=5e-3)
    assert best.center == pytest.approx((28.4, 28.4), abs=1e-2)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_derivatives_of_every_profile_agree_with_finite_differences(shape):
    positions = np.arange(20.0)
    values, by_center, by_scale = SHAPES[shape](positions, 9.37, 3.1)
    assert values.min() >= 0
    numeric = approx_fprime(
        np.array([9.37, np.log(3.1)]), lambda x: SHAPES[shape](positions, x[0], float(np.exp(x[1])))[0], 1e-7
    )
    np.testing.assert_allclose(np.stack([by_center, by_scale], axis=1), numeric, atol=2e-6)


def test_the_gaussian_fit_of_a_noisy_clipped_map_agrees_with_a_general_least_squares_solver():
    rng = np.random.default_rng(2)
    values = outer((60, 48), (12.2, 30.4), (9.0, 6.5), gauss) * rng.gamma(3, size=(60, 48)) + 0.05 * rng.random(
        (60, 48)
    )
    values[:5], values[41:], values[:, :8], values[:, 46:] = 0, 0, 0, 0
    trf = box_field([(5, 40), (8, 45)], (60, 48))
    data = values[5:41, 8:46] / values.sum()
    rows, cols = np.arange(5, 41)[:, None], np.arange(8, 46)[None, :]

    def residual(x):
        return (
            1e-3 * x[0] * np.exp(-(((rows - x[1]) / x[3]) ** 2) / 2 - ((cols - x[2]) / x[4]) ** 2 / 2) - data
        ).ravel()

    expected = least_squares(residual, [2.0, 15.0, 28.0, 8.0, 8.0], xtol=1e-14, ftol=1e-14, gtol=1e-14)
    r2 = 1 - 2 * expected.cost / np.sum((data - data.mean()) ** 2)
    assert 0.5 < r2 < 0.9
    found = measure_map(erf_of(values, (12.0, 30.0), trf))
    assert found["gaussian_sigma_row"] == pytest.approx(expected.x[3], rel=1e-5)
    assert found["gaussian_sigma_col"] == pytest.approx(expected.x[4], rel=1e-5)
    assert found["gaussian_r2"] == pytest.approx(r2, rel=1e-8)


@pytest.mark.parametrize("off", [0.0, 0.01, 0.3, 3.0])
def test_a_fit_that_begins_at_that_of_another_map_ends_where_any_fit_does(off):
    """Near it by Newton's steps alone, further off after a minimisation; with both axes free, and with a single row."""
    rng = np.random.default_rng(3)
    for height in (50, 1):
        noise = rng.gamma(5, size=(height, 70))
        values = outer((height, 70), (height // 2, 33.7), (6.0, 9.0), gauss) * noise
        row, col = (Axis(positions=np.arange(float(n)), center=n // 2 + 1.0, sigma=7.0) for n in values.shape)
        plain = fit(values, [row, col], "gaussian")
        starts = [
            Axis(
                positions=axis.positions,
                center=center + off * axis.is_free,
                sigma=sigma * np.exp(off * axis.is_free / 3),
            )
            for axis, center, sigma in zip((row, col), plain.center, plain.sigma, strict=True)
        ]
        near = fit(values, starts, "gaussian", is_near=True)
        assert [*near.center, *near.sigma, near.r2] == pytest.approx([*plain.center, *plain.sigma, plain.r2], rel=1e-9)


def test_a_map_that_is_no_gaussian_has_no_gaussian_sigma():
    values = np.random.default_rng(0).exponential(size=(64, 64)) ** 3
    found = measure_map(erf_of(values, (31.5, 31.5)))
    assert found["gaussian_r2"] < 0.5
    assert found["gaussian_sigma_row"] is None
    assert found["gaussian_sigma_col"] is None
    assert found["best_shape"] == "none"


def test_the_map_without_a_group_is_fitted_from_the_fit_of_all(monkeypatch):
    """The wide search from two starts is made of the whole map alone."""
    maps = [outer((21, 21), (10.0 + off, 10.0), (3.0, 2.0), gauss) for off in (0.0, 0.2, 0.1)]
    searched = []
    minimum = shapes._minimum
    monkeypatch.setattr(shapes, "_minimum", lambda *given: searched.append(1) or minimum(*given))
    names = ["gaussian_sigma_row", "gaussian_sigma_col"]
    erf, without = erf_of(sum(maps), (10.0, 10.0)), [sum(maps) - each for each in maps]
    measure_map(erf, names)
    alone = len(searched)
    found = with_errors(erf, without, names)
    assert alone > 0
    assert len(searched) == 2 * alone
    for place, row in enumerate(found["gaussian_sigma_row"].leave_one_out):
        assert row == pytest.approx(
            measure_map(erf_of(without[place], (10.0, 10.0)), names)["gaussian_sigma_row"], rel=1e-6
        )


def test_the_extent_along_an_axis_that_a_map_lacks_is_none_of_its_time():
    axes = Axes(names=NAMES["thw"], spacing=(40.0, 1.0, 1.0), units=("ms", "px", "px"))
    clip = ErfMap(values=np.ones((4, 5, 6)), center_px=(1.0, 2.0, 2.0), stride_px=(1.0,) * 3, axes=axes)
    found = measure_map(clip, ["extent50_time", "extent50_depth"])
    assert found["extent50_depth"] is None
    assert found["extent50_time"] > 0
