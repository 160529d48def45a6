"""The studies after Luo et al.: each claim's statistic against its closed form, at a size for a test."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from erfscope import studies, theory
from erfscope.apps.lab.studies.luo import growth, init
from erfscope.apps.lab.studies.luo.stacks import VARIANCE, Design, Nets, measure_design, measure_nets, rms_sigma
from erfscope.apps.lab.studies.study import StudyOptions, StudyResult

NAMES = "luo-gaussian luo-growth luo-subsample-dilation luo-skip luo-dropout luo-nonlinearity luo-init"


@pytest.fixture(scope="module")
def results() -> dict[str, StudyResult]:
    return {name: studies.run(name, effort="smoke") for name in NAMES.split()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.split())
def test_every_claim_holds_and_is_shown(name, results, check_shown):
    result = results[name]
    assert result.passed, result.conclusion
    assert all(row.passed for row in result)
    check_shown(result)


@pytest.mark.slow
def test_stacks_have_the_sigmas_of_the_theory_and_strides_and_dilations_add_their_variances(results):
    result = results["luo-gaussian"]
    sigma = math.sqrt(10 * 8 / 12)
    assert result["uniform, linear, 10"].sigma_px == pytest.approx(sigma, rel=1e-9)
    row = result["random, linear, 10"]
    # 20 runs of 8 input channels: standard errors are 1 % to 2 % of sigma.
    assert abs(row.sigma_px - sigma) < 4 * row.sigma_se_px < 0.2 * sigma
    assert row.abs_sigma_px == pytest.approx(rms_sigma(10), rel=0.06)
    assert row.gaussian_r2 > 0.97
    assert row.dead == 0
    result = results["luo-subsample-dilation"]
    for change, trf, sigma, kurtosis in (
        ("baseline", 31, 3.162, -0.1),
        ("sub-sampling", 105, 13.565, None),
        ("dilation", 53, 8, -0.713),
    ):
        uniform, random = result[f"uniform, {change}"], result[f"random, {change}"]
        assert uniform.trf_px == random.trf_px == trf
        assert uniform.sigma_px == pytest.approx(sigma, abs=5e-4)
        assert kurtosis is None or uniform.kurtosis == pytest.approx(kurtosis, abs=5e-4)
        assert abs(random.sigma_px - uniform.sigma_px) < 4 * random.sigma_se_px < 0.3 * uniform.sigma_px


def test_slopes_and_rms_images_are_those_of_the_theory():
    depths = list(range(5, 41, 5))
    for power, slopes in ((1.0, (0.481, -0.481)), (0.5, (0.536, -0.426))):
        found = growth.slopes(depths, [growth.closed_form(n, power) for n in depths])
        assert found == pytest.approx(slopes, abs=2e-3)
    assert growth.slopes([4, 16], [2 * 9, 4 * 33]) == pytest.approx((math.log(4 * 33 / 18, 4), 0.5))
    assert theory.uniform_stack(20, 3).sigma_px == pytest.approx(3.651, abs=1e-3)
    assert rms_sigma(20) == pytest.approx(5.06, abs=5e-3)
    assert rms_sigma(2000) / theory.uniform_stack(2000, 3).sigma_px == pytest.approx(math.sqrt(2), rel=1e-3)


@pytest.mark.slow
def test_slopes_are_within_003_of_closed_forms_and_relu_nets_of_one_channel_die(results):
    result = results["luo-growth"]
    for row, tolerance in ((result["uniform, g"], 1e-12), (result["random, root of g²"], 0.03)):
        expected = (row.theory_size, row.theory_ratio)
        assert (row.slope_size, row.slope_ratio) == pytest.approx(expected, abs=tolerance)
    assert result["uniform, g"].sizes_px == pytest.approx([growth.closed_form(n, 1) for n in (5, 20)])
    # Where sizes go like the root of the depth and the fields like the depth, both slopes are a half.
    difference = growth.slopes(row.layers, [2 * n + 1 for n in row.layers])[0]
    assert row.slope_size - row.slope_ratio == pytest.approx(difference)
    result = results["luo-nonlinearity"]
    assert result["relu, 1"].dead > 0
    assert all(row.dead == 0 for row in result if row.name != "relu, 1")
    assert result["relu, 1"].gaussian_r2 == min(row.gaussian_r2 for row in result)
    for row in result:
        if row.section == "8 channels":
            assert row.abs_sigma_px == pytest.approx(rms_sigma(row.layers), rel=0.06)


@pytest.mark.slow
def test_skips_divide_sigma_by_the_root_of_two_and_the_least_gaussian_initialisation_gains_that_of_three_halves(
    results,
):
    sigma = {row.name: row.sigma_px for row in results["luo-skip"]}
    assert sigma["uniform, 10, skips"] / sigma["uniform, 10"] == pytest.approx(math.sqrt(0.5), rel=1e-9)
    assert sigma["random, 10, skips"] / sigma["random, 10"] == pytest.approx(math.sqrt(0.5), rel=0.08)
    assert sigma["random ReLU, 10, skips"] < sigma["random ReLU, 10"]
    assert {row.trf_px for row in results["luo-skip"]} == {21}
    sigma = {row.name: row.sigma_px for row in results["luo-init"]}
    gain = sigma["uniform, 1/2 0 1/2"] / sigma["uniform, 1/3 1/3 1/3"]
    assert gain == pytest.approx(1.2247, abs=5e-5)
    assert sigma["random, 1/2 0 1/2"] / sigma["random, 1/3 1/3 1/3"] == pytest.approx(gain, rel=0.08)
    # No three taps of one sign spread further.
    assert max(theory.weighted_kernel_variance(taps) for taps in init.PROFILES.values()) == pytest.approx(1)


@pytest.mark.slow
def test_dropout_scales_the_square_and_nothing_else(results):
    result, sigma = results["luo-dropout"], theory.uniform_stack(5, 3).sigma_px
    for keep in (1.0, 0.8, 0.5):
        mean, square = result[f"total, keep {keep:g}"], result[f"total of squares, keep {keep:g}"]
        assert abs(mean.value - 1) <= 4 * mean.se + 1e-9
        assert abs(square.value - keep**-5) <= 4 * square.se
        assert square.se < 0.2 * square.value
        assert result[f"sigma of squares, keep {keep:g}"].value == pytest.approx(sigma, rel=0.06)


@pytest.mark.slow
def test_nets_side_by_side_are_the_nets_one_by_one():
    """Each image sees its own weights, and the mean over runs of squared gradients is that of a loop over plain
    autograd."""
    design = Design(layers=3, width=2, weights="random", activation="tanh", strides=(1, 2, 1), dilations=(1, 1, 2))
    draws = torch.Generator().manual_seed(3)
    nets = Nets(design, 5, draws)
    pictures = nets.pictures(draws)
    expected = np.zeros((design.side, design.side))
    for run in range(5):
        x = pictures[run : run + 1, :2].clone().requires_grad_()
        h = torch.tanh(F.conv2d(x, nets.kernels[0][run]))
        h = torch.tanh(F.conv2d(h, nets.kernels[1][run], stride=2))
        y = F.conv2d(h, nets.kernels[2][run], dilation=2)
        torch.testing.assert_close(nets(pictures)[run], y[0], rtol=1e-12, atol=0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        expected += gradient[0].square().sum(0).numpy()
    values = measure_nets(nets, pictures, VARIANCE).map.values
    np.testing.assert_allclose(values, expected / expected.sum(), rtol=1e-9, atol=1e-15)


@pytest.mark.slow
def test_a_theory_that_is_off_by_a_millionth_or_a_sampled_sigma_that_is_far_from_it_fails():
    asked, design = StudyOptions(), Design(layers=4)
    sigma = theory.uniform_stack(4, 3).sigma_px
    assert measure_design(asked, "right", design, 1, sigma=sigma).passed
    assert not measure_design(asked, "wrong", design, 1, sigma=sigma * (1 + 1e-6)).passed
    assert not measure_design(asked, "right", design, 1, sigma=sigma, also=lambda _: False).passed
    sampled = Design(layers=4, width=8, weights="random")
    assert measure_design(asked, "a", sampled, 20, sigma=sigma).passed
    assert not measure_design(asked, "a", sampled, 20, sigma=sigma * 1.4).passed
