"""The studies after Luo et al.: each claim's statistic against its closed form, at a size for a test."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from erfscope import studies, theory
from erfscope.cli.study import WIDE, study_view
from erfscope.studies.luo import gaussian, growth, init, nonlinearity, skip
from erfscope.studies.luo.nets import ACTIVATIONS, Design, Nets
from erfscope.studies.luo.rows import VARIANCE, generator, measured, rms_sigma, seen
from erfscope.studies.study import StudyOptions, StudyResult

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


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_holds_and_is_told_drawn_and_listed(name, results, tmp_path):
    result = results[name]
    assert result.passed, result.conclusion
    assert all(row.passed for row in result)
    assert " holds" in result.conclusion
    assert len(result.table().splitlines()) == len(result) + 2
    result.figure(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert result.to_json()["rows"][0]["name"] == result.rows[0].name


def _shown(result: StudyResult, width: int) -> list[str]:
    """Lines of the terminal."""
    from rich.console import Console

    console = Console(width=width, color_system=None, file=io.StringIO())
    console.print(study_view(result, width=width))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal_without_losing_a_digit(name, width, results):
    lines = _shown(results[name], width)
    columns = [column for column in results[name].findings.columns if width >= WIDE or not column.optional]
    assert all(column.text(row) in "\n".join(lines) for row in results[name] for column in columns)
    assert max(map(len, lines)) <= width


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


def test_relu_nets_of_one_channel_die_and_those_of_eight_do_not(results):
    result = results["luo-nonlinearity"]
    assert result["relu, 1"].dead > 0
    assert all(row.dead == 0 for row in result if row.name != "relu, 1")
    assert result["relu, 1"].gaussian_r2 == min(row.gaussian_r2 for row in result)
    for row in result:
        if row.section == "8 channels":
            assert row.abs_sigma_px == pytest.approx(rms_sigma(row.layers), rel=0.06)


def test_the_least_gaussian_initialisation_gains_a_factor_of_the_root_of_three_halves(results):
    result = results["luo-init"]
    gain = result["uniform, 1/2 0 1/2"].sigma_px / result["uniform, 1/3 1/3 1/3"].sigma_px
    assert gain == pytest.approx(1.2247, abs=5e-5)
    assert result["random, 1/2 0 1/2"].sigma_px / result["random, 1/3 1/3 1/3"].sigma_px == pytest.approx(
        gain, rel=0.08
    )
    # No three taps of one sign spread further.
    assert max(theory.weighted_kernel_variance(taps) for taps in init.PROFILES.values()) == pytest.approx(1)


def test_the_same_seed_gives_the_same_rows_and_another_one_others(results):
    again, other = (studies.run("luo-gaussian", effort="smoke", seed=seed) for seed in (0, 1))
    assert again.rows == results["luo-gaussian"].rows
    assert other["random, linear, 10"] != again["random, linear, 10"]
    assert other.passed


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
    values = measured(nets, pictures, VARIANCE).map.values
    np.testing.assert_allclose(values, expected / expected.sum(), rtol=1e-9, atol=1e-15)


def test_a_row_that_is_held_against_nothing_is_refused():
    with pytest.raises(ValueError, match="the row any has nothing that it is held against"):
        seen(StudyOptions(), "any", Design(layers=2), 1, section="", sigma=None)


def test_a_shape_that_is_no_gaussian_or_of_another_width_fails(results):
    row = results["luo-gaussian"]["uniform, relu, 10"]
    sigma = theory.uniform_stack(10, 3).sigma_px
    assert gaussian._bell(row, sigma)
    # A product of Laplacians has an R2 of 0.93, a box one of 0.78.
    assert not gaussian._bell(replace(row, gaussian_r2=0.93), sigma)
    assert not gaussian._bell(replace(row, gaussian_r2=None), sigma)
    assert not gaussian._bell(row, 1.2 * sigma)


def test_a_relu_net_whose_skips_do_not_make_its_erf_smaller_fails(results):
    plain = results["luo-skip"]["random ReLU, 10"]
    assert skip._relu(StudyOptions(), 10, True, 20, plain=plain).row.passed
    assert not skip._relu(StudyOptions(), 10, True, 20, plain=replace(plain, sigma_px=plain.sigma_px / 2)).row.passed


def test_nets_of_one_channel_fail_where_they_die_without_a_relu_or_are_of_another_width(monkeypatch):
    asked = StudyOptions(effort="smoke")
    assert nonlinearity._measured(asked, "relu", 1, 8, 40).row.passed
    monkeypatch.setattr(nonlinearity, "rms_sigma", lambda _: 1.3 * rms_sigma(8))
    assert not nonlinearity._measured(asked, "relu", 1, 8, 40).row.passed
    monkeypatch.undo()
    monkeypatch.setitem(ACTIVATIONS, "tanh", torch.relu)
    assert not nonlinearity._measured(asked, "tanh", 1, 8, 40).row.passed


def test_a_theory_that_is_off_by_a_millionth_fails():
    asked, design = StudyOptions(), Design(layers=4)
    sigma = theory.uniform_stack(4, 3).sigma_px
    assert seen(asked, "right", design, 1, section="", sigma=sigma).row.passed
    assert not seen(asked, "wrong", design, 1, section="", sigma=sigma * (1 + 1e-6)).row.passed
    assert not seen(asked, "right", design, 1, section="", sigma=sigma, also=lambda _: False).row.passed


def test_a_sampled_sigma_far_from_the_theory_fails():
    design = Design(layers=4, width=8, weights="random")
    sigma = theory.uniform_stack(4, 3).sigma_px
    assert seen(StudyOptions(), "a", design, 20, section="", sigma=sigma).row.passed
    assert not seen(StudyOptions(), "a", design, 20, section="", sigma=sigma * 1.4).row.passed


def test_rows_draw_their_own_numbers():
    draw = lambda seed, name: torch.rand(3, generator=generator(StudyOptions(seed=seed), name)).tolist()  # noqa: E731
    assert draw(0, "a") == draw(0, "a")
    assert draw(0, "a") != draw(0, "b")
    assert draw(0, "a") != draw(1, "a")


def test_a_conclusion_names_what_failed(results):
    rows = results["luo-nonlinearity"].rows
    wrong = (replace(rows[0], passed=False), *rows[1:])
    assert "Outside their limits: linear, 1." in nonlinearity._conclusion(wrong)
    assert "does not hold everywhere" in nonlinearity._conclusion(wrong)


def test_the_longest_names_of_a_full_run_fit_80_columns(results):
    result = results["luo-gaussian"]
    row = replace(
        result["random, linear, 10"],
        name="random, sigmoid, 20 x100",
        sigma_px=13.545,
        sigma_se_px=0.112,
        luo_size_px=79.1,
    )
    full = replace(result, findings=replace(result.findings, rows=(row,)))
    shown = "\n".join(_shown(full, 80))
    assert all(column.text(row) in shown for column in full.findings.columns if not column.optional)
