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

NAMES = (
    "luo-gaussian",
    "luo-growth",
    "luo-subsample-dilation",
    "luo-skip",
    "luo-dropout",
    "luo-nonlinearity",
    "luo-init",
)


@pytest.fixture(scope="module")
def results() -> dict[str, StudyResult]:
    return {name: studies.run(name, effort="smoke") for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_claim_holds_and_is_shown(name, results, check_shown):
    result = results[name]
    assert result.passed, result.conclusion
    assert all(row.passed for row in result)
    check_shown(result)


@pytest.mark.slow
def test_uniform_stacks_have_the_sigma_of_the_binomial_and_random_ones_in_their_variance(results):
    result = results["luo-gaussian"]
    sigma = math.sqrt(10 * 8 / 12)
    assert result["uniform, linear, 10"].sigma_px == pytest.approx(sigma, rel=1e-9)
    row = result["random, linear, 10"]
    # 20 runs of 8 input channels: standard errors are 1 % to 2 % of sigma.
    assert abs(row.sigma_px - sigma) < 4 * row.sigma_se_px < 0.2 * sigma
    assert row.abs_sigma_px == pytest.approx(rms_sigma(10), rel=0.06)
    assert row.gaussian_r2 > 0.97
    assert row.dead == 0


def test_the_rms_image_of_20_layers_is_as_wide_as_the_theory_says():
    assert theory.uniform_stack(20, 3).sigma_px == pytest.approx(3.651, abs=1e-3)
    assert rms_sigma(20) == pytest.approx(5.06, abs=5e-3)
    assert rms_sigma(2000) / theory.uniform_stack(2000, 3).sigma_px == pytest.approx(math.sqrt(2), rel=1e-3)


def test_slopes_of_5_to_40_layers_are_those_of_the_theory():
    depths = list(range(5, 41, 5))
    assert growth.slopes(depths, [growth.closed_form(n, 1.0) for n in depths]) == pytest.approx(
        (0.481, -0.481), abs=2e-3
    )
    assert growth.slopes(depths, [growth.closed_form(n, 0.5) for n in depths]) == pytest.approx(
        (0.536, -0.426), abs=2e-3
    )
    assert growth.slopes([4, 16], [2 * 9, 4 * 33]) == pytest.approx((math.log(4 * 33 / 18, 4), 0.5))


@pytest.mark.slow
def test_measured_slopes_are_within_003_of_the_closed_forms(results):
    result = results["luo-growth"]
    uniform, root = result["uniform, g"], result["random, root of g²"]
    assert (uniform.slope_size, uniform.slope_ratio) == pytest.approx(
        (uniform.theory_size, uniform.theory_ratio), abs=1e-12
    )
    assert (root.slope_size, root.slope_ratio) == pytest.approx((root.theory_size, root.theory_ratio), abs=0.03)
    assert uniform.sizes_px == pytest.approx([growth.closed_form(n, 1) for n in (5, 20)])
    # Where sizes go like the root of the depth and the fields like the depth, both slopes are a half.
    assert root.slope_size - root.slope_ratio == pytest.approx(
        growth.slopes(root.layers, [2 * n + 1 for n in root.layers])[0]
    )


@pytest.mark.slow
def test_strides_and_dilations_add_their_variances(results):
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


@pytest.mark.slow
def test_skips_divide_sigma_by_the_root_of_two(results):
    result = results["luo-skip"]
    assert result["uniform, 10, skips"].sigma_px / result["uniform, 10"].sigma_px == pytest.approx(
        math.sqrt(0.5), rel=1e-9
    )
    assert result["random, 10, skips"].sigma_px / result["random, 10"].sigma_px == pytest.approx(
        math.sqrt(0.5), rel=0.08
    )
    assert result["random ReLU, 10, skips"].sigma_px < result["random ReLU, 10"].sigma_px
    assert {row.trf_px for row in result} == {21}


@pytest.mark.slow
def test_dropout_scales_the_square_and_nothing_else(results):
    result = results["luo-dropout"]
    for keep in (1.0, 0.8, 0.5):
        mean, square = result[f"total, keep {keep:g}"], result[f"total of squares, keep {keep:g}"]
        assert abs(mean.value - 1) <= 4 * mean.se + 1e-9
        assert abs(square.value - keep**-5) <= 4 * square.se
        assert square.se < 0.2 * square.value
        assert result[f"sigma of squares, keep {keep:g}"].value == pytest.approx(
            theory.uniform_stack(5, 3).sigma_px, rel=0.06
        )


@pytest.mark.slow
def test_relu_nets_of_one_channel_die_and_those_of_eight_do_not(results):
    result = results["luo-nonlinearity"]
    assert result["relu, 1"].dead > 0
    assert all(row.dead == 0 for row in result if row.name != "relu, 1")
    assert result["relu, 1"].gaussian_r2 == min(row.gaussian_r2 for row in result)
    for row in result:
        if row.section == "8 channels":
            assert row.abs_sigma_px == pytest.approx(rms_sigma(row.layers), rel=0.06)


@pytest.mark.slow
def test_the_least_gaussian_initialisation_gains_a_factor_of_the_root_of_three_halves(results):
    result = results["luo-init"]
    gain = result["uniform, 1/2 0 1/2"].sigma_px / result["uniform, 1/3 1/3 1/3"].sigma_px
    assert gain == pytest.approx(1.2247, abs=5e-5)
    assert result["random, 1/2 0 1/2"].sigma_px / result["random, 1/3 1/3 1/3"].sigma_px == pytest.approx(
        gain, rel=0.08
    )
    # No three taps of one sign spread further.
    assert max(theory.weighted_kernel_variance(taps) for taps in init.PROFILES.values()) == pytest.approx(1)


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
def test_a_theory_that_is_off_by_a_millionth_fails():
    asked, design = StudyOptions(), Design(layers=4)
    sigma = theory.uniform_stack(4, 3).sigma_px
    assert measure_design(asked, "right", design, 1, sigma=sigma).passed
    assert not measure_design(asked, "wrong", design, 1, sigma=sigma * (1 + 1e-6)).passed
    assert not measure_design(asked, "right", design, 1, sigma=sigma, also=lambda _: False).passed


@pytest.mark.slow
def test_a_sampled_sigma_far_from_the_theory_fails():
    design = Design(layers=4, width=8, weights="random")
    sigma = theory.uniform_stack(4, 3).sigma_px
    assert measure_design(StudyOptions(), "a", design, 20, sigma=sigma).passed
    assert not measure_design(StudyOptions(), "a", design, 20, sigma=sigma * 1.4).passed
