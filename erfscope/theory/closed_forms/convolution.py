"""Effective receptive fields of stacked convolutions along one axis; over two axes an ERF is the outer product of two
such.

A kernel of uniform weights has the gradient of its taps' binomial: a distribution, whose variance, in squared pixels,
adds over layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import count

#: What Luo et al. count: pixels above this share of the centre's value.
LUO_SHARE = 1 - 0.9545


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """The ERF of one unit along one axis, as a distribution over the input's pixels."""

    #: (trf_px,), sum 1.
    kernel: FloatArray
    #: Distance of the centroid from the ERF's first pixel.
    mean_px: float
    variance_px2: float
    #: 0 for a Gaussian, -1.2 for a box; None for a single pixel.
    excess_kurtosis: float | None

    @property
    def trf_px(self) -> int:
        """Side of the theoretical receptive field."""
        return len(self.kernel)

    @property
    def sigma_px(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.variance_px2)


def uniform_stack(n: int, k: int) -> StackShape:
    """ERF of n layers with uniform kernels of k taps: o = v^(*n), variance n (k^2 - 1) / 12.

    Args:
        n: Layers.
        k: Taps per kernel.

    Returns:
        n (k - 1) + 1 pixels, mean n (k - 1) / 2, excess kurtosis -(k^4 - 1) / 120 n / variance^2. For k = 2 the kernel
        is C(n, t) / 2^n.

    Raises:
        ValueError: n or k below 1.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C1). The sigma is that of the energy (squared
    gradient) under random weights too; the amplitude's is sqrt(2) wider as n grows (erratum E1-04)."""
    return strided_dilated_stack([count(k, "k")] * count(n, "n"))


def binomial_asymptote(n: int) -> FloatArray:
    """The limit of C(n, t) / 2^n: exp(-(n - 2t)^2 / 2n) / sqrt(n pi / 2), for t = 0 ... n.

    Args:
        n: Layers of two taps.

    Returns:
        (n + 1,); at the centre too large by a share of 1 / 4n, 1.6e-3 for n = 160.

    Raises:
        ValueError: n below 1.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C1).
    """
    t = np.arange(count(n, "n") + 1, dtype=np.float64)
    bell: FloatArray = np.exp(-np.square(n - 2 * t) / (2 * n))
    return bell / math.sqrt(n * math.pi / 2)


def strided_dilated_variance(
    kernel_sizes: Sequence[int], strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None
) -> float:
    """Variance of the ERF of layers with strides and dilations: sum_l (S_l d_l)^2 (k_l^2 - 1) / 12, S_l the product of
    strides before l.

    Args:
        kernel_sizes: k_l, first layer first.
        strides: s_l; 1 if left out.
        dilations: d_l; 1 if left out.

    Returns:
        Squared pixels, along one axis.

    Raises:
        ValueError: lists of different lengths, or numbers below 1.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C5, C6). Which layers have the strides matters
    (erratum E1-12)."""
    return float(sum(spacing**2 * (k**2 - 1) / 12 for k, spacing in _spacings(kernel_sizes, strides, dilations)))


def strided_dilated_stack(
    kernel_sizes: Sequence[int], strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None
) -> StackShape:
    """ERF of layers with uniform kernels, strides and dilations: boxes with taps S_l d_l apart, convolved.

    Args:
        kernel_sizes: k_l, first layer first.
        strides: s_l; 1 if left out.
        dilations: d_l; 1 if left out.

    Returns:
        1 + sum_l (k_l - 1) S_l d_l pixels. Layers with large dilations are far from a Gaussian: one of them carries
        most of the variance.

    Raises:
        ValueError: lists of different lengths, or numbers below 1.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, B1, C5, C6); (k - 1) d S per layer, not k
    (erratum E1-09)."""
    kernel, fourth = np.ones(1), 0.0
    spaced = _spacings(kernel_sizes, strides, dilations)
    for k, spacing in spaced:
        box = np.zeros((k - 1) * spacing + 1)
        box[::spacing] = 1 / k
        kernel = np.convolve(kernel, box)
        fourth += _fourth_cumulant(k) * spacing**4
    variance = strided_dilated_variance(kernel_sizes, strides, dilations)
    return _shape(kernel, (len(kernel) - 1) / 2, variance, fourth)


def residual_stack(n: int, k: int, *, depth: int = 1, gain: float = 1.0) -> StackShape:
    """ERF of n blocks I + g V, V being ``depth`` uniform layers of k taps: variance n q sigma_v^2 g / (1 + g), TRF as
    without skips.

    With zero-mean random weights of variance C, c channels and depth 1, the expected energy has the shape of gain c k
    C, and so the variance n kC / (1 + kC) (k^2 - 1) / 12 for one channel.

    Args:
        n: Blocks.
        k: Taps per kernel.
        depth: q, layers within a block; depth * (k - 1) must be even, so that the skip meets a pixel.
        gain: g, sum of the branch's weights, at least 0.

    Returns:
        n depth (k - 1) + 1 pixels.

    Raises:
        ValueError: numbers out of range.

    Source: after Luo et al. 2016, arXiv:1701.04128, who give no size (docs/theory.md, C7); with g = 1 the sigma is 1 /
    sqrt(2) of the plain stack's."""
    branch = uniform_stack(depth, k)
    if branch.trf_px % 2 == 0:
        raise ValueError(
            f"{depth} layers of {k} taps have no middle pixel for the skip to meet; use an odd k, or an even depth"
        )
    if not 0 <= gain < math.inf:
        raise ValueError(f"the gain is {gain}; it must be at least 0")
    block = gain * branch.kernel
    block[branch.trf_px // 2] += 1
    kernel = np.ones(1)
    for _ in range(count(n, "n")):
        kernel = np.convolve(kernel, block / (1 + gain))
    share = gain / (1 + gain)
    variance = share * branch.variance_px2
    fourth = share * (depth * _fourth_cumulant(k) + 3 * branch.variance_px2**2) - 3 * variance**2
    return _shape(kernel, (len(kernel) - 1) / 2, n * variance, n * fourth)


def random_weight_energy(
    n: int, k: int, weight_variance: float, *, widths: Sequence[int] | None = None, residual: bool = False
) -> FloatArray:
    """Expected squared gradient of n layers with independent zero-mean weights, summed over output and input channels.

    Each layer spreads E[g^2] by C sum_a E[g^2](x - a): C^n times the counts o(t), times the number of channels of every
    layer. With residual connections each block, x + conv(x), spreads it by (delta + c C 1_k) instead. The mean of the
    gradient itself is 0, or delta.

    Args:
        n: Layers.
        k: Taps per kernel.
        weight_variance: C, of every weight.
        widths: Channels c_0 ... c_n, input first; all 1 if left out. With ``residual`` they must be equal.
        residual: Whether each layer has a skip connection; k must then be odd.

    Returns:
        (n (k - 1) + 1,), the expectation of the ``energy`` convention with all output channels.

    Raises:
        ValueError: numbers out of range.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C2, C7); the recursion holds for E[g^2] and
    starts at a fixed delta, not at Var[g] of a random seed (erratum E1-03)."""
    channels = [count(width, "a width") for width in (widths if widths is not None else [1] * (count(n, "n") + 1))]
    if len(channels) != n + 1:
        raise ValueError(f"{n} layers have {n + 1} widths, from input to output, not {len(channels)}")
    if not weight_variance >= 0:
        raise ValueError(f"the variance of the weights is {weight_variance}; it must be at least 0")
    if not residual:
        return uniform_stack(n, k).kernel * float(k * weight_variance) ** n * math.prod(channels)
    if len(set(channels)) > 1:
        raise ValueError(f"a residual connection needs equal widths, not {channels}")
    gain = channels[0] * k * weight_variance
    return residual_stack(n, k, gain=gain).kernel * (1 + gain) ** n * channels[0]


def weighted_kernel_variance(kernel: ArrayLike, n: int = 1) -> float:
    """Variance of the ERF of n layers with one non-negative kernel: n (sum m^2 w - (sum m w)^2).

    Args:
        kernel: (k,), non-negative; divided by its sum.
        n: Layers.

    Returns:
        Squared pixels. The less-Gaussian kernel [1/2, 0, 1/2] gives 1.5 times the uniform one's.

    Raises:
        ValueError: a negative or infinite weight, or none that is positive.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C3, C9); weights must be non-negative, not
    only sum to 1 (erratum E1-11)."""
    weights = np.asarray(kernel, dtype=np.float64)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(
            "a kernel must be a list of finite, non-negative weights, one of them positive, to have a variance"
        )
    share, m = weights / weights.sum(), np.arange(len(weights))
    return count(n, "n") * float(share @ np.square(m - share @ m))


def gaussian_mass_radius(sigma: float, share: float) -> float:
    """Radius that holds a share of a two-dimensional Gaussian: sigma sqrt(-2 ln(1 - share)).

    Args:
        sigma: Standard deviation per axis.
        share: In [0, 1).

    Returns:
        The radius; 1.1774 sigma for one half.

    Raises:
        ValueError: a share outside [0, 1).

    Source: the Rayleigh distribution of the radius (docs/theory.md, B5).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share is {share}; it must be in [0, 1)")
    return sigma * math.sqrt(-2 * math.log1p(-share))


def gaussian_luo_size(sigma: float) -> float:
    """Square root of the number of pixels of a Gaussian above 4.55 % of its centre: sqrt(pi) 2.486 sigma = 4.406 sigma.

    Args:
        sigma: Standard deviation per axis, in pixels.

    Returns:
        The size that Luo et al. plot.

    Source: Luo et al. 2016, arXiv:1701.04128, section 4 (docs/theory.md, B3); it is not 2 sigma (erratum E1-06). That
    contour encloses 95.45 % of the mass."""
    return math.sqrt(math.pi) * gaussian_mass_radius(sigma, 1 - LUO_SHARE)


def _spacings(
    kernel_sizes: Sequence[int], strides: Sequence[int] | None, dilations: Sequence[int] | None
) -> list[tuple[int, int]]:
    """(k_l, S_l d_l) per layer: taps, and input pixels between them."""
    sizes = [count(k, "a kernel size") for k in kernel_sizes]
    steps = [count(s, "a stride") for s in (strides if strides is not None else [1] * len(sizes))]
    rates = [count(d, "a dilation") for d in (dilations if dilations is not None else [1] * len(sizes))]
    if not sizes or not len(sizes) == len(steps) == len(rates):
        raise ValueError(
            f"there are {len(sizes)} kernel sizes, {len(steps)} strides and {len(rates)} dilations; give one per layer"
        )
    return [(k, math.prod(steps[:index]) * rate) for index, (k, rate) in enumerate(zip(sizes, rates, strict=True))]


def _fourth_cumulant(k: int) -> float:
    """Fourth cumulant of k equal taps one pixel apart; cumulants add under convolution."""
    return -(k**4 - 1) / 120


def _shape(kernel: FloatArray, mean: float, variance: float, fourth: float) -> StackShape:
    kernel.flags.writeable = False
    return StackShape(
        kernel=kernel,
        mean_px=mean,
        variance_px2=variance,
        excess_kurtosis=fourth / variance**2 if variance > 0 else None,
    )
