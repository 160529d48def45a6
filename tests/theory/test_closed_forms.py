"""Sizes of real modules, through ``erfscope.analyze``, against closed forms and invariances.

Weights that are all positive make the gradient itself the product of the kernels, so that amplitude maps (``jacobian``,
``luo``) follow sigma^2 = n (k^2 - 1) / 12. For random weights that law holds for the mean squared gradient, the
``energy`` map."""

from __future__ import annotations

import math

import nets
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope.core import Result

DOUBLE = torch.float64


def analyze(
    net: nn.Module, size: tuple[int, ...], *, channels: int = 1, images: Tensor | None = None, **options
) -> Result:
    """Measure in float64 on one fixed ready tensor."""
    if images is None:
        images = torch.randn(1, channels, *size, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    return erfscope.analyze(net.double(), images=images, **{"layer": "output", **options})


def uniform(n: int, k: int = 3) -> nn.Sequential:
    """n convolutions of one channel with equal weights; those with strides, dilations and skips are in the study after
    Luo et al."""
    layers = [nn.Conv2d(1, 1, k, padding=k // 2, bias=False, dtype=DOUBLE) for _ in range(n)]
    for conv in layers:
        nn.init.constant_(conv.weight, 1 / k**2)
    return nn.Sequential(*layers)


def assert_spread(result: Result, trf: int, variance: float) -> None:
    assert result.ok
    assert result.trf.size_px == (trf, trf)
    for name in ("sigma_row", "sigma_col"):
        assert float(result[name]) == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert float(result["offset"]) < 1e-9


MOMENTS = "sigma_row,sigma_col,kurtosis_row,offset"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convention", "n", "k"),
    [("jacobian", 20, 3), ("luo", 4, 5), ("signed", 10, 3), ("replknet", 6, 5), ("kim", 5, 3), ("jacobian", 6, 5)],
)
def test_uniform_stacks_have_the_moments_of_the_closed_form(n, k, convention):
    side = n * (k - 1) + 5
    # replknet drops a unit that is negative: a bright picture keeps it positive.
    bright = torch.ones(1, 1, side, side + 2, dtype=DOUBLE)
    result = analyze(uniform(n, k), (side, side + 2), images=bright, convention=convention, measures=MOMENTS)
    variance = n * (k**2 - 1) / 12
    assert_spread(result, n * (k - 1) + 1, variance)
    assert float(result["kurtosis_row"]) == pytest.approx(-(k**4 - 1) / 120 * n / variance**2, rel=1e-9)


def trinomial(n: int, k: int = 3) -> np.ndarray:
    """Number of paths of n steps of a k-tap kernel to each offset."""
    row = np.ones(1)
    for _ in range(n):
        row = np.convolve(row, np.ones(k))
    return row


@pytest.mark.slow
def test_radii_of_a_deep_uniform_stack_are_those_of_a_gaussian():
    # n = 20: sigma 3.65, a Gaussian but for an excess kurtosis of -0.075. Also by brute force on the exact map, solved
    # for r.
    result = analyze(uniform(20), (45, 45), measures="r50,r90,gaussian_r2")
    row, distance = trinomial(20) / 3.0**20, np.hypot(*(np.indices((41, 41)) - 20))
    for name, share in (("r50", 0.5), ("r90", 0.9)):
        found = float(result[name])
        assert (np.outer(row, row) * np.clip(found - distance + 0.5, 0, 1)).sum() == pytest.approx(share, rel=1e-9)
        assert found == pytest.approx(math.sqrt(2 * 20 / 3) * math.sqrt(-2 * math.log(1 - share)), rel=1e-2)
    assert float(result["gaussian_r2"]) > 0.9995


def paths(channels: int, axes: int, k: int = 3) -> nn.Module:
    """A convolution whose every (channel, tap) has an output channel of its own, so that squared gradients add up over
    paths."""
    taps = k**axes
    conv = (nn.Conv1d if axes == 1 else nn.Conv2d)(channels, channels * taps, k, padding=k // 2, bias=False)
    conv.weight.data.zero_()
    for channel in range(channels):
        for tap, where in enumerate(np.ndindex((k,) * axes)):
            conv.weight.data[channel * taps + tap, channel][where] = -1.0 if (channel + tap) % 2 else 1.0
    return conv


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "n"), [(1, 4), (2, 2)])
def test_the_exact_energy_of_independent_paths_counts_them(axes, n):
    """The expectation over zero-mean random weights, made exact: variances add, sigma = sqrt(n (k^2 - 1) / 12)."""
    net = nn.Sequential(*(paths(3 ** (axes * i), axes) for i in range(n)))
    names = ("sigma_time",) if axes == 1 else ("sigma_row", "sigma_col")
    result = analyze(net, (2 * n + 5,) * axes, convention="energy", draws="all", measures=names)
    row = trinomial(n) / 3**n
    expected = np.pad(row if axes == 1 else np.outer(row, row), 2)
    np.testing.assert_allclose(result.map.values, expected, rtol=1e-9, atol=1e-15)
    for name in names:
        assert float(result[name]) == pytest.approx(math.sqrt(2 * n / 3), rel=1e-9)
    amplitude = analyze(net, (2 * n + 5,) * axes, convention="jacobian", draws="all", measures="r50")
    root = np.sqrt(expected)
    np.testing.assert_allclose(amplitude.map.values, root / root.sum(), rtol=1e-9, atol=1e-15)


def test_variances_of_stacked_kernels_add():
    """docs/theory.md, C3, with kernels that are neither uniform nor symmetric."""
    rng = np.random.default_rng(0)
    kernels = [rng.random((k, k)) for k in (3, 5, 1, 3, 7)]
    layers, variance, mean = [], np.zeros(2), np.zeros(2)
    for kernel in kernels:
        k = len(kernel)
        kernel /= kernel.sum()
        conv = nn.Conv2d(1, 1, k, padding=k // 2, bias=False, dtype=DOUBLE)
        conv.weight.data.copy_(torch.from_numpy(kernel))
        layers.append(conv)
        t = np.arange(k) - k // 2
        for axis in (0, 1):
            share = kernel.sum(1 - axis)
            mean[axis] += (t * share).sum()
            variance[axis] += (t**2 * share).sum() - (t * share).sum() ** 2
    result = analyze(nn.Sequential(*layers), (31, 33), measures="sigma_row,sigma_col,offset")
    assert float(result["sigma_row"]) ** 2 == pytest.approx(variance[0], rel=1e-9)
    assert float(result["sigma_col"]) ** 2 == pytest.approx(variance[1], rel=1e-9)
    assert float(result["offset"]) == pytest.approx(math.hypot(*mean), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["jacobian", "energy", "luo", "signed", "replknet", "kim"])
def test_scaling_the_last_layer_changes_no_size(convention):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1)).double()
    images = torch.randn(5, 3, 24, 24, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    before = analyze(net, (24, 24), images=images, convention=convention)
    for parameter in net[2].parameters():
        parameter.data *= 1e6
    after = analyze(net, (24, 24), images=images, convention=convention)
    np.testing.assert_allclose(after.map.values, before.map.values, rtol=1e-9, atol=1e-15)
    for name, value in before.measures.items():
        if isinstance(value.value, float) and not name.startswith("gaussian"):
            assert after[name].value == pytest.approx(value.value, rel=1e-8, abs=1e-9), name
            assert after[name].se == (None if value.se is None else pytest.approx(value.se, rel=1e-6, abs=1e-9)), name
    assert after.gradient_ratio == before.gradient_ratio


@pytest.mark.slow
def test_a_transposed_picture_gives_the_transposed_map_of_a_symmetric_net():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 5, 1, 2), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1)
    ).double()
    for parameter in net.parameters():
        if parameter.ndim == 4:
            parameter.data = (parameter.data + parameter.data.mT) / 2
    x = torch.randn(3, 3, 24, 30, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    plain = analyze(net, (24, 30), images=x, unit=(5, 9))
    turned = analyze(net, (30, 24), images=x.mT.contiguous(), unit=(9, 5))
    np.testing.assert_allclose(turned.map.values, plain.map.values.T, rtol=1e-9, atol=1e-15)
    assert turned.unit.center_px == plain.unit.center_px[::-1]
    for name in ("r50", "r90", "far_mass", "entropy_area", "sigma_major"):
        assert float(turned[name]) == pytest.approx(float(plain[name]), rel=1e-9)
    assert float(turned["sigma_row"]) == pytest.approx(float(plain["sigma_col"]), rel=1e-9)


def test_fully_connected_attention_with_equal_weights_sees_everything_alike():
    """docs/theory.md, D6: mixing by the mean of all positions gives a uniform map; a skip adds the unit itself."""
    torch.manual_seed(0)
    mix = nn.Conv2d(3, 3, 1, bias=False)

    def mean(own: float) -> nn.Module:
        return nets.Does(lambda m, x: m.mix(x).mean((2, 3), keepdim=True).expand_as(x) + own * x, mix=mix)

    result = analyze(mean(0), (6, 8), channels=3, draws="all", measures="far_mass,coverage")
    np.testing.assert_allclose(result.map.values, np.full((6, 8), 1 / 48), rtol=1e-9)
    assert result.trf.is_global
    assert float(result["coverage"]) == 1.0
    skipping = analyze(mean(1), (6, 8), channels=3, unit=(2, 3), draws="all", measures="far_mass")
    others = np.delete(skipping.map.values.ravel(), 2 * 8 + 3)
    np.testing.assert_allclose(others, others[0], rtol=1e-9)
    assert skipping.map.values[2, 3] > 10 * others[0]
