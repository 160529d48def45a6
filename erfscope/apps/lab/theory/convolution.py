"""Effective receptive fields of stacked convolutions along one axis; over two axes an ERF is the outer product of two
such.

A kernel of uniform weights has the gradient of its taps' binomial: a distribution, whose variance, in squared pixels,
adds over layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.apps.lab.theory.arrays import count, einsum, matrix, vector
from erfscope.apps.lab.theory.attention import masked_softmax
from erfscope.core import FloatArray

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


def attention_reweighting(x: ArrayLike, p: ArrayLike) -> FloatArray:
    """Jacobian of Z_i = alpha_i X_i, alpha = softmax(X p): block (i, j) is alpha_i delta_ij I + alpha_i (delta_ij -
    alpha_j) X_i^T p^T.

    Args:
        x: (n, c).
        p: (c,).

    Returns:
        (n, c, n, c).

    Raises:
        ValueError: shapes that do not fit.

    Source: Knyazev et al. 2019, arXiv:1905.02850 (docs/theory.md, F1); the weights sum to 1, not 0 (erratum E3-01).
    """
    features = matrix(x, "x")
    c = features.shape[1]
    direction = vector(p, "p", c)
    alpha = masked_softmax(features @ direction)
    change = np.diag(alpha) - np.outer(alpha, alpha)  # d alpha_i / d (Xp)_j
    own = einsum("ij,rs->irjs", np.diag(alpha), np.eye(c))
    return own + einsum("ij,ir,s->irjs", change, features, direction)


def threshold_pooling(x: ArrayLike, p: ArrayLike, threshold: float) -> FloatArray:
    """Jacobian of attention pooling that keeps the nodes with alpha_i above a threshold; the others' outputs are 0.

    Args:
        x: (n, c).
        p: (c,).
        threshold: Smallest attention to keep, itself not kept.

    Returns:
        (n, c, n, c), scattered back: rows of dropped nodes are 0. Their columns are not, since the softmax is over all
        nodes.

    Raises:
        ValueError: shapes that do not fit.

    Source: Knyazev et al. 2019, arXiv:1905.02850 (docs/theory.md, F3).
    """
    kept = threshold_nodes(x, p, threshold)
    jacobian = attention_reweighting(x, p)
    jacobian[np.setdiff1d(np.arange(len(jacobian)), kept)] = 0
    return jacobian


def threshold_nodes(x: ArrayLike, p: ArrayLike, threshold: float) -> NDArray[np.intp]:
    """Nodes that :func:`threshold_pooling` keeps, in the order of the nodes.

    Args:
        x: (n, c).
        p: (c,).
        threshold: Smallest attention to keep, itself not kept.

    Returns:
        Indices.

    Raises:
        ValueError: shapes that do not fit.

    Source: Knyazev et al. 2019, arXiv:1905.02850 (docs/theory.md, F3).
    """
    features = matrix(x, "x")
    return np.flatnonzero(masked_softmax(features @ vector(p, "p", features.shape[1])) > threshold)


def top_k_nodes(x: ArrayLike, p: ArrayLike, k: int) -> NDArray[np.intp]:
    """Nodes that Top-K pooling selects, by descending score X p / |p|; of equal scores the earlier node.

    Args:
        x: (n, c).
        p: (c,), not 0.
        k: How many, 1 to n.

    Returns:
        (k,) indices. The pooled graph's adjacency is ``adjacency[np.ix_(nodes, nodes)]``.

    Raises:
        ValueError: shapes that do not fit, p = 0, or k out of range.

    Source: Gao & Ji 2019, arXiv:1905.05178, and Knyazev et al. 2019 (docs/theory.md, F2); the order of the indices is
    this function's choice (erratum E3-07)."""
    scores = _scores(matrix(x, "x"), p)
    if count(k, "k") > len(scores):
        raise ValueError(f"{k} nodes were asked for, but there are {len(scores)}")
    return np.argsort(-scores, kind="stable")[:k]


def top_k_pooling(x: ArrayLike, p: ArrayLike, k: int, *, scattered: bool = True) -> FloatArray:
    """Jacobian of Top-K pooling X' = X[idx] * sigmoid(y[idx]), y = X p / |p|: g I + g (1 - g) X_i^T p^T / |p| with g =
    sigmoid(y_i).

    Args:
        x: (n, c).
        p: (c,), not 0.
        k: How many nodes are selected.
        scattered: Whether outputs are put back where they came from, the others being 0; else they stand in the order
            of :func:`top_k_nodes`.

    Returns:
        (n, c, n, c), or (k, c, n, c). Columns of nodes that are not selected are 0.

    Raises:
        ValueError: as :func:`top_k_nodes`.

    Source: Gao & Ji 2019, arXiv:1905.05178, and Knyazev et al. 2019 (docs/theory.md, F2); the indices are discrete, y
    is not, and the gate is what gives p a gradient (erratum E3-06)."""
    features = matrix(x, "x")
    n, c = features.shape
    nodes = top_k_nodes(features, p, k)
    direction = vector(p, "p", c)
    gate = 1 / (1 + np.exp(-_scores(features, direction)[nodes]))
    rise = einsum("i,ir,s->irs", gate * (1 - gate), features[nodes], direction / np.linalg.norm(direction))
    jacobian = np.zeros((n if scattered else len(nodes), c, n, c))
    jacobian[nodes if scattered else np.arange(len(nodes)), :, nodes, :] = gate[:, None, None] * np.eye(c) + rise
    return jacobian


def leave_one_out(outputs_without: ArrayLike, output: ArrayLike) -> FloatArray:
    """Influence of every node by leaving it out: |y_i - y| / sum_j |y_j - y|.

    Args:
        outputs_without: y_i, the output on the graph without node i, (n,) or (n, c).
        output: y, the output on the whole graph, a number or (c,).

    Returns:
        (n,), non-negative with sum 1; 1/n each if no node matters. The norm is Euclidean.

    Raises:
        ValueError: shapes that do not fit, no nodes, or numbers that are not finite.

    Source: Knyazev et al. 2019, arXiv:1905.02850, on weak supervision (docs/theory.md, F5); node i is removed, not its
    neighbourhood (erratum E3-10).
    """
    without, whole = np.asarray(outputs_without, dtype=np.float64), np.asarray(output, dtype=np.float64)
    if without.ndim not in (1, 2) or len(without) == 0 or without.shape[1:] != whole.shape:
        raise ValueError(
            f"outputs_without has shape {without.shape}, the output {whole.shape}; give (n,) and a number, or (n, c)"
            " and (c,)"
        )
    if not (np.isfinite(without).all() and np.isfinite(whole).all()):
        raise ValueError("an output is not finite, so that no influence can be taken from it")
    changes: FloatArray = np.linalg.norm((without - whole).reshape(len(without), -1), axis=1)
    total = float(changes.sum())
    return changes / total if total > 0 else np.full(len(changes), 1 / len(changes))


def _scores(features: FloatArray, p: ArrayLike) -> FloatArray:
    direction = vector(p, "p", features.shape[1])
    norm = float(np.linalg.norm(direction))
    if not norm > 0:
        raise ValueError("p is 0, so that it gives no node a score")
    return features @ direction / norm
