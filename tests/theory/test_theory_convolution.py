"""Fields of stacked convolutions in closed form, against autograd of the stacks, and the numbers of docs/theory.md."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from erfscope import theory


def field(forward, size):
    """Gradient of the middle output of a one-channel net on a line of ``size`` pixels."""
    x = torch.zeros(1, 1, size, dtype=torch.float64, requires_grad=True)
    y = forward(x)[0, 0]
    return torch.autograd.grad(y[len(y) // 2], x)[0][0, 0].numpy()


def stack(kernel_sizes, strides=None, dilations=None):
    strides, dilations = strides or [1] * len(kernel_sizes), dilations or [1] * len(kernel_sizes)

    def forward(x):
        for k, stride, dilation in zip(kernel_sizes, strides, dilations, strict=True):
            x = F.conv1d(x, torch.full((1, 1, k), 1 / k, dtype=torch.float64), stride=stride, dilation=dilation)
        return x

    return forward


def moments(kernel):
    t = np.arange(len(kernel))
    mean = kernel @ t
    variance = kernel @ (t - mean) ** 2
    return mean, variance, kernel @ (t - mean) ** 4 / variance**2 - 3


def test_printed_sizes_of_uniform_stacks():
    nine, four, twenty = (theory.uniform_stack(n, 3) for n in (9, 4, 20))
    assert (nine.trf_px, four.trf_px) == (19, 9)
    assert (nine.sigma_px, four.sigma_px) == (pytest.approx(2.449, abs=5e-4), pytest.approx(1.633, abs=5e-4))
    assert twenty.sigma_px == pytest.approx(3.65, abs=5e-3)
    assert twenty.excess_kurtosis == pytest.approx(-0.075, abs=5e-4)
    # The amplitude of the energy is the root: sqrt(2) wider in the limit, 5.06 here.
    root = np.sqrt(twenty.kernel)
    assert math.sqrt(moments(root / root.sum())[1]) == pytest.approx(5.06, abs=5e-3)
    single = theory.uniform_stack(3, 1)
    assert (single.trf_px, single.variance_px2, single.excess_kurtosis) == (1, 0, None)


def test_layers_of_all_kinds_together():
    sizes, strides, dilations = [3, 2, 5, 1, 4], [1, 2, 1, 3, 1], [2, 1, 3, 1, 2]
    gradient = field(stack(sizes, strides, dilations), 300)
    shape = theory.strided_dilated_stack(sizes, strides, dilations)
    where = np.flatnonzero(gradient)
    np.testing.assert_allclose(shape.kernel, gradient[where[0] : where[0] + shape.trf_px], rtol=1e-10, atol=1e-18)
    assert where[-1] - where[0] + 1 == shape.trf_px
    assert shape.variance_px2 == pytest.approx(moments(shape.kernel)[1], rel=1e-12)


def energies(layers, k, c, residual):
    """Exact mean energy over weights +-c, by going through all of them; one row per input channel counted."""
    total, nets = 0.0, 0
    shapes = [(outer, inner, k) for inner, outer in itertools.pairwise(layers)]
    for signs in itertools.product((-c, c), repeat=sum(math.prod(shape) for shape in shapes)):
        values, at = np.array(signs), 0
        weights = []
        for shape in shapes:
            weights.append(values[at : at + math.prod(shape)].reshape(shape))
            at += math.prod(shape)
        gradient = np.eye(layers[-1])[:, :, None]  # output channel, channel, pixel
        for weight in reversed(weights):
            wider = np.zeros((layers[-1], weight.shape[1], gradient.shape[2] + k - 1))
            for tap in range(k):
                wider[:, :, tap : tap + gradient.shape[2]] += np.einsum("rup,us->rsp", gradient, weight[:, :, tap])
            if residual:
                wider[:, :, k // 2 : k // 2 + gradient.shape[2]] += gradient
            gradient = wider
        total, nets = total + (gradient**2).sum((0, 1)), nets + 1
    return total / nets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("widths", "k", "residual"),
    [((1, 1, 1, 1), 3, False), ((1, 2, 1), 3, False), ((2, 1, 2), 2, False), ((1, 1, 1), 3, True)],
)
def test_the_expected_energy_of_random_weights_by_going_through_all_signs(widths, k, residual):
    """Only independence and the variance matter, so weights of two values are as good as normal ones, and exact."""
    expected = energies(widths, k, 0.8, residual)
    obtained = theory.random_weight_energy(len(widths) - 1, k, 0.64, widths=widths, residual=residual)
    np.testing.assert_allclose(obtained, expected, rtol=1e-12)


def test_the_energy_of_random_residual_blocks_has_its_own_width():
    """C7: n kC / (1 + kC) (k^2 - 1) / 12; C2: n (k^2 - 1) / 12."""
    n, k, variance = 5, 3, 0.4
    energy = theory.random_weight_energy(n, k, variance, residual=True)
    closed = n * (k * variance) / (1 + k * variance) * (k**2 - 1) / 12
    assert moments(energy / energy.sum())[1] == pytest.approx(closed, rel=1e-12)
    wide = theory.random_weight_energy(n, k, variance, widths=[3] * 6, residual=True)
    shape = theory.residual_stack(n, k, gain=3 * k * variance)
    np.testing.assert_allclose(wide / wide.sum(), shape.kernel, rtol=1e-12)
    plain = theory.random_weight_energy(n, k, variance, widths=[2, 3, 3, 3, 3, 1])
    assert plain.sum() == pytest.approx(2 * 3**4 * (k * variance) ** n, rel=1e-12)
    assert moments(plain / plain.sum())[1] == pytest.approx(n * (k**2 - 1) / 12, rel=1e-12)


def test_kernels_of_other_weights_add_their_variances():
    kernel = np.random.default_rng(0).random(5)
    taps = torch.from_numpy(kernel / kernel.sum())[None, None]
    gradient = field(lambda x: F.conv1d(F.conv1d(F.conv1d(F.conv1d(x, taps), taps), taps), taps), 60)
    assert theory.weighted_kernel_variance(kernel, 4) == pytest.approx(moments(gradient)[1], rel=1e-12)
    # C9: the weight at the ends.
    ratio = theory.weighted_kernel_variance([0.5, 0, 0.5]) / theory.weighted_kernel_variance([1, 1, 1])
    assert math.sqrt(ratio) == pytest.approx(1.2247, abs=5e-5)
    # E1-11: weights that only sum to 1 may have a negative "variance".
    signed = np.array([-0.5, 2.0, -0.5])
    assert signed @ np.array([1.0, 0, 1]) < 0
    with pytest.raises(ValueError, match="non-negative"):
        theory.weighted_kernel_variance(signed)


def test_sizes_of_a_gaussian():
    """B3, B5: counted on a fine Gaussian."""
    sigma = 40.0
    rows, cols = np.indices((401, 401)) - 200
    density = np.exp(-(rows**2 + cols**2) / (2 * sigma**2))
    assert theory.gaussian_luo_size(sigma) == pytest.approx(math.sqrt((density > 0.0455).sum()), rel=1e-3)
    assert theory.gaussian_luo_size(1.0) == pytest.approx(4.406, abs=5e-4)
    assert theory.gaussian_mass_radius(1.0, 0.9545) == pytest.approx(2.486, abs=5e-4)
    assert theory.gaussian_mass_radius(1.0, 0.5) == pytest.approx(1.1774, abs=5e-5)
    inside = density[np.hypot(rows, cols) <= theory.gaussian_mass_radius(sigma, 0.9)].sum()
    assert inside / (2 * math.pi * sigma**2) == pytest.approx(0.9, abs=2e-3)
    # E1-06: the contour at 4.55 % is not at 2 sigma, where 13.5 % are left.
    assert math.exp(-(theory.gaussian_mass_radius(1.0, 0.9545) ** 2) / 2) == pytest.approx(0.0455, rel=1e-12)
