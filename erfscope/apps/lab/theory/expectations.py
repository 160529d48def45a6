"""Expectations and variances of signed influence over random inputs and weights.

Where weights are random they are independent with mean 0. Inputs have mean 0 and a spatial covariance (n, n), the same
for all channels, which are independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from erfscope.apps.lab.theory.adjacency import adjacency_power
from erfscope.apps.lab.theory.arrays import count, einsum, matrix, square
from erfscope.core import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and variance of an influence matrix over random weights (or inputs), as the theory gives them."""

    mean: FloatArray
    variance: FloatArray


def linear_gcn_constant_weights(adjacency: ArrayLike, widths: Sequence[int], value: float = 1.0) -> FloatArray:
    """Signed influence of a linear GCN whose weights are all equal: value^L c_0 c_1 ... c_L (A^L)_pi.

    Args:
        adjacency: A, (n, n).
        widths: c_0 ... c_L, L + 1 numbers.
        value: Every weight.

    Returns:
        (n, n).

    Raises:
        ValueError: fewer than two widths, or a bad adjacency.

    Source: Nicolicioiu & Duta, Eq. 6 (docs/theory.md, D2); c^{L+1} for equal widths.
    """
    layers = _layers(widths)
    return value**layers * math.prod(widths) * adjacency_power(adjacency, layers)


def linear_gcn_random_weights(adjacency: ArrayLike, widths: Sequence[int], *, sigma: float = 1.0) -> Moments:
    """Signed influence of a linear GCN over weights of mean 0: mean 0, variance sigma^2L c_0 c_1 ... c_L ((A^L)_pi)^2.

    Args:
        adjacency: A, (n, n).
        widths: c_0 ... c_L.
        sigma: Standard deviation of every weight.

    Returns:
        Mean and variance, (n, n). Without self-loops or normalisation A^L need not decrease with distance.

    Raises:
        ValueError: fewer than two widths, or a bad adjacency.

    Source: Nicolicioiu & Duta, Eq. 8 (docs/theory.md, D2); the variance goes with the square of (A^L)_pi (erratum
    E0-06), and the proof needs entries that are uncorrelated, not independent (E0-08)."""
    layers = _layers(widths)
    variance = sigma ** (2 * layers) * math.prod(widths) * np.square(adjacency_power(adjacency, layers))
    return Moments(mean=np.zeros_like(variance), variance=variance)


def relu_gcn_mean(adjacency: ArrayLike, weights: Sequence[float]) -> FloatArray:
    """Mean signed influence of a ReLU GCN with one channel and fixed weights, over inputs X with the distribution of
    -X.

    One layer has no gate: A w. Two: (A^2)_pi w_1 w_2 / 2. More, for A >= 0: (A^L)_pi w_1 ... w_L / 2 if w_2 ... w_{L-1}
    are all positive, else 0.

    Args:
        adjacency: A, (n, n), non-negative for three layers and more.
        weights: w_1 ... w_L.

    Returns:
        (n, n).

    Raises:
        ValueError: no weights, a bad adjacency, or one with negative entries where that matters.

    Source: Nicolicioiu & Duta, Eq. 11 and 61 (docs/theory.md, D4). The printed (1/2)^{L-1} holds for L = 2 only
    (erratum E0-12): once a node is positive, positive weights keep all that it feeds positive. X must be jointly
    symmetric, with no atom at 0 (E0-11)."""
    array, layers = square(adjacency), len(weights)
    if layers == 0:
        raise ValueError("weights is empty; give one number per layer")
    if layers > 2 and (array < 0).any():
        raise ValueError(
            "with three layers or more this holds for a non-negative adjacency only; this one has negative entries"
        )
    product = math.prod(float(weight) for weight in weights) * adjacency_power(array, layers)
    if layers == 1:
        return product
    return product / 2 if all(weight > 0 for weight in weights[1:-1]) else np.zeros_like(product)


def relu_gcn_random_weights(
    adjacency: ArrayLike, covariance: ArrayLike, *, widths: Sequence[int] = (1, 1, 1), sigma: float = 1.0
) -> Moments:
    """Signed influence of a ReLU GCN of two layers over Gaussian inputs and weights: mean 0, variance a sum over pairs
    of gates.

    The variance is sigma^4 c_0 c_1 c_2 sum_kl A_pk A_ki A_pl A_li (1/4 + asin(rho_kl) / 2 pi), with rho the
    correlations of A X.

    Args:
        adjacency: A, (n, n).
        covariance: Spatial covariance of X, (n, n).
        widths: c_0, c_1, c_2.
        sigma: Standard deviation of every weight.

    Returns:
        Mean and variance, (n, n).

    Raises:
        ValueError: another number of widths, or shapes that do not fit.

    Source: Nicolicioiu & Duta, Eq. 65 to 70 (docs/theory.md, D4). Independence of w_1 and Z is not needed (erratum
    E0-13); the double sum stands once (E0-14)."""
    if len(widths) != 3:
        raise ValueError(f"two layers have three widths, not {len(widths)}")
    array = square(adjacency)
    spread = array @ square(covariance, "the covariance", nodes=len(array)) @ array.T
    deviation = np.sqrt(np.clip(np.diag(spread), 0, None))
    scale = np.outer(deviation, deviation)
    rho = np.clip(np.divide(spread, scale, out=np.zeros_like(spread), where=scale > 0), -1, 1)
    np.fill_diagonal(rho, 1.0)  # exactly: the slope of the arcsine is infinite there
    both_on = np.where(scale > 0, 0.25 + np.arcsin(rho) / (2 * math.pi), 0.0)
    paths = einsum("pk,ki->pik", array, array)  # A_pk A_ki
    variance = sigma**4 * math.prod(widths) * einsum("pik,kl,pil->pi", paths, both_on, paths)
    return Moments(mean=np.zeros_like(variance), variance=variance)


def dot_attention_mean(
    covariance: ArrayLike, w_q: ArrayLike, w_k: ArrayLike, w_v: ArrayLike, *, scale: float = 1.0
) -> FloatArray:
    """Mean signed influence of dot-product self-attention with fixed weights: it follows the covariance of the input.

    E = kappa C_pi + delta_pi lambda tr C, with kappa = tr(W_q W_k^T) sum W_v + (W_v 1) . (W_q W_k^T 1) and
    lambda = (W_v 1) . (W_k W_q^T 1). With one channel: 2 w C_pi off the diagonal, w (2 C_pp + tr C) on it.

    Args:
        covariance: C, (n, n), of each of the channels.
        w_q: (c, d).
        w_k: (c, d).
        w_v: (c, c_out).
        scale: Factor of the attention, 1 or 1/n.

    Returns:
        (n, n).

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorem 3 with Eq. 16 and 84 for one channel (docs/theory.md, E6), here extended to
    several. Only the *signed* mean over data with fixed weights shows it so plainly."""
    spread = square(covariance, "the covariance")
    query = matrix(w_q, "w_q")
    pair = query @ matrix(w_k, "w_k", rows=query.shape[0], cols=query.shape[1]).T
    value = matrix(w_v, "w_v", rows=query.shape[0])
    summed = value.sum(axis=1)
    kappa = np.trace(pair) * value.sum() + summed @ pair.sum(axis=1)
    own = summed @ pair.sum(axis=0)
    return scale * np.asarray(kappa * spread + own * np.trace(spread) * np.eye(len(spread)))


def dot_attention_random_weights(
    covariance: ArrayLike, *, weight_variance: float = 1.0, squares: ArrayLike | None = None
) -> Moments:
    """Signed influence of dot-product self-attention with one channel over inputs and a weight w = w_q w_k w_v of mean
    0.

    Mean 0; variance 4 V[w] (Cov(X_p^2, X_i^2) + V_p V_i) off the diagonal, and on it V[w] sum_jl b_j b_l (Cov(X_j^2,
    X_l^2) + V_j V_l) with b_p = 3 and 1 elsewhere.

    Args:
        covariance: C, (n, n).
        weight_variance: V[w].
        squares: Cov(X_j^2, X_l^2), (n, n); 2 C^2, that of Gaussian inputs, if left out.

    Returns:
        Mean and variance, (n, n). V_p V_i is a floor: correlation shows weakly.

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Eq. 18 and 88 to 101, corrected (docs/theory.md, E7): the cross terms run over l != j
    (erratum E0-19), the diagonal ones carry b_j^2 (E0-20) and fourth moments (E0-21)."""
    spread = square(covariance, "the covariance")
    given = (
        2 * np.square(spread) if squares is None else square(squares, "the covariance of squares", nodes=len(spread))
    )
    products = given + np.outer(np.diag(spread), np.diag(spread))  # E[X_j^2 X_l^2]
    b = np.ones_like(spread) + 2 * np.eye(len(spread))
    variance = 4 * weight_variance * products
    np.fill_diagonal(variance, weight_variance * einsum("pj,jl,pl->p", b, products, b))
    return Moments(mean=np.zeros_like(variance), variance=variance)


def _layers(widths: Sequence[int]) -> int:
    if len(widths) < 2:
        raise ValueError(f"{len(widths)} widths were given; L layers have L + 1, from input to output")
    return len([count(width, "a width") for width in widths]) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Distance between two arrays."""

    #: Largest |difference|; infinite if a number is not finite.
    max_absolute: float
    #: The same, divided by the largest |value| of the closed form.
    max_relative: float
    #: Where the difference is largest: (p, i) of an influence matrix.
    worst: tuple[int, ...]

    def within(self, tolerance: float = 1e-10) -> bool:
        """Whether the relative error is at most ``tolerance``; never so if a number is not finite."""
        return self.max_relative <= tolerance


def agreement(influence: ArrayLike, closed_form: ArrayLike) -> Agreement:
    """Compare a measured array with its closed form.

    The relative error is max |difference| / max |closed form|, not the largest ratio of entries: closed forms are
    exactly 0 outside their support, and rounding of a sum grows with its largest terms, not with what is left of them.
    Where the closed form is 0 everywhere, the relative error is the absolute one.

    Args:
        influence: (m, n), such as an :class:`erfscope.Influence`; other shapes (a whole Jacobian) serve as well.
        closed_form: What the theory gives, of the same shape.

    Returns:
        Errors, and where the worst is.

    Raises:
        ValueError: different shapes, or empty ones.

    Source: the limit of ``erfscope study theorems`` is 1e-10; the engine and the closed forms differ by some 1e-14 in
    float64."""
    obtained = np.asarray(influence, dtype=np.float64)
    expected = np.asarray(closed_form, dtype=np.float64)
    if obtained.shape != expected.shape or obtained.size == 0:
        raise ValueError(
            f"an influence of shape {obtained.shape} cannot be compared with a closed form of shape {expected.shape}"
        )
    difference = _difference(obtained, expected)
    worst = np.unravel_index(int(difference.argmax()), difference.shape)
    largest, scale = float(difference[worst]), float(np.abs(expected).max())
    relative = largest / scale if 0 < scale < np.inf else largest
    return Agreement(max_absolute=largest, max_relative=relative, worst=tuple(int(index) for index in worst))


def _difference(obtained: FloatArray, expected: FloatArray) -> FloatArray:
    """|obtained - expected|, infinite wherever one of the two is not finite."""
    finite = np.isfinite(obtained) & np.isfinite(expected)
    difference: FloatArray = np.subtract(obtained, expected, out=np.full(obtained.shape, np.inf), where=finite)
    return np.abs(difference)
