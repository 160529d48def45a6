"""Monte-Carlo counterparts of ``erfscope.theory.expectations`` and of the random-weight convolutions.

They draw nets and inputs, propagate and average; each takes its random generator as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from theory_averages import MonteCarlo, SampledMoments, average, moments

from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import count, einsum, matrix, square

#: A covariance may have an eigenvalue this far below 0, as a share of the largest, through rounding.
ROUNDING = 1e-10


def sample_linear_gcn(
    adjacency: ArrayLike,
    widths: Sequence[int],
    generator: np.random.Generator,
    *,
    sigma: float = 1.0,
    samples: int = 100_000,
) -> SampledMoments:
    """Draws for :func:`erfscope.theory.linear_gcn_random_weights`: weights are normal, the gradient goes back layer by
    layer.

    Args:
        adjacency: A, (n, n).
        widths: c_0 ... c_L.
        generator: Source of randomness.
        sigma: Standard deviation of every weight.
        samples: Number of nets.

    Returns:
        Mean and variance of the signed influence, (n, n).

    Raises:
        ValueError: as the closed form.

    Source: Nicolicioiu & Duta, Eq. 8 (docs/theory.md, D2).
    """
    array = square(adjacency)
    n = len(array)

    def draw(size: int) -> FloatArray:
        gradient = np.broadcast_to(np.eye(n)[None, :, :, None], (size, n, n, widths[-1]))
        for c_in, c_out in zip(widths[-2::-1], widths[:0:-1], strict=True):
            weight = sigma * generator.standard_normal((size, c_out, c_in))
            through = (gradient.reshape(size, n * n, c_out) @ weight).reshape(size, n, n, c_in)
            gradient = einsum("bpjs,ji->bpis", through, array)
        signed: FloatArray = gradient.sum(axis=3)
        return signed

    return moments(draw, samples, cells=n * n * max(widths))


def sample_relu_gcn_mean(
    adjacency: ArrayLike,
    weights: Sequence[float],
    covariance: ArrayLike,
    generator: np.random.Generator,
    *,
    samples: int = 200_000,
) -> MonteCarlo:
    """Draws for :func:`erfscope.theory.relu_gcn_mean`: inputs are Gaussian, gates and gradients are those of each
    input.

    Args:
        adjacency: A, (n, n).
        weights: w_1 ... w_L.
        covariance: Of the input, (n, n).
        generator: Source of randomness.
        samples: Number of inputs.

    Returns:
        Mean signed influence, (n, n).

    Raises:
        ValueError: not a covariance, or shapes that do not fit.

    Source: Nicolicioiu & Duta, Eq. 11 and 61 (docs/theory.md, D4).
    """
    array = square(adjacency)
    n, root = len(array), _root(covariance, len(array))

    def draw(size: int) -> FloatArray:
        x, gates = generator.standard_normal((size, n)) @ root.T, []
        for weight in weights[:-1]:
            before = weight * (x @ array.T)
            gates.append(before > 0)
            x = np.maximum(before, 0)
        gradient = np.broadcast_to(weights[-1] * array, (size, n, n))
        for weight, gate in zip(weights[-2::-1], gates[::-1], strict=True):
            gradient = weight * ((gradient * gate[:, None, :]).reshape(size * n, n) @ array).reshape(size, n, n)
        return gradient

    return average(draw, samples, cells=n * n)


def sample_relu_gcn_random_weights(
    adjacency: ArrayLike,
    covariance: ArrayLike,
    generator: np.random.Generator,
    *,
    widths: Sequence[int] = (1, 1, 1),
    sigma: float = 1.0,
    samples: int = 200_000,
) -> SampledMoments:
    """Draws for :func:`erfscope.theory.relu_gcn_random_weights`: normal weights and Gaussian inputs, two layers.

    Args:
        adjacency: A, (n, n).
        covariance: Spatial covariance of the input, (n, n).
        generator: Source of randomness.
        widths: c_0, c_1, c_2.
        sigma: Standard deviation of every weight.
        samples: Number of nets, each with an input of its own.

    Returns:
        Mean and variance of the signed influence, (n, n).

    Raises:
        ValueError: not a covariance, or shapes that do not fit.

    Source: Nicolicioiu & Duta, Eq. 65 to 70 (docs/theory.md, D4).
    """
    array = square(adjacency)
    n, root = len(array), _root(covariance, len(array))
    c_in, c_hidden, c_out = widths

    def draw(size: int) -> FloatArray:
        first = sigma * generator.standard_normal((size, c_in, c_hidden))
        second = sigma * generator.standard_normal((size, c_hidden, c_out))
        x = root @ generator.standard_normal((size, n, c_in))
        gates = (array @ x @ first > 0).astype(np.float64)
        through = einsum("bkt,bt->bk", gates, second.sum(axis=2) * first.sum(axis=1))
        return ((array * through[:, None, :]).reshape(size * n, n) @ array).reshape(size, n, n)

    return moments(draw, samples, cells=n * n + n * max(widths) + c_in * c_hidden + c_hidden * c_out)


def sample_dot_attention_mean(
    covariance: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    generator: np.random.Generator,
    *,
    scale: float = 1.0,
    samples: int = 100_000,
) -> MonteCarlo:
    """Draws for :func:`erfscope.theory.dot_attention_mean`: inputs are Gaussian with independent channels.

    Args:
        covariance: (n, n).
        w_q: (c, d).
        w_k: (c, d).
        w_v: (c, c_out).
        generator: Source of randomness.
        scale: Factor of the attention.
        samples: Number of inputs.

    Returns:
        Mean signed influence, (n, n).

    Raises:
        ValueError: not a covariance, or shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorem 3, summed over channels (docs/theory.md, E1, E6).
    """
    root, query = _root(covariance), matrix(w_q, "w_q")
    key = matrix(w_k, "w_k", rows=query.shape[0], cols=query.shape[1])
    value = matrix(w_v, "w_v", rows=query.shape[0])
    n, channels = len(root), query.shape[0]

    def draw(size: int) -> FloatArray:
        x = root @ generator.standard_normal((size, n, channels))
        q, k, v = x @ query, x @ key, (x @ value).sum(axis=2)
        signed: FloatArray = q @ k.transpose(0, 2, 1) * value.sum() + (q @ key.sum(axis=0))[:, :, None] * v[:, None, :]
        signed[:, np.arange(n), np.arange(n)] += (v * (k @ query.sum(axis=0))).sum(axis=1)[:, None]
        return scale * signed

    return average(draw, samples, cells=n * n + n * (channels + key.shape[1]))


def sample_dot_attention_random_weights(
    covariance: ArrayLike, generator: np.random.Generator, *, weight_variance: float = 1.0, samples: int = 400_000
) -> SampledMoments:
    """Draws for :func:`erfscope.theory.dot_attention_random_weights`: Gaussian inputs of one channel, a normal weight
    w.

    The product w_q w_k w_v enters by its variance only, so one normal number stands for it: its tails are lighter, and
        the test sharper.

    Args:
        covariance: (n, n).
        generator: Source of randomness.
        weight_variance: V[w].
        samples: Number of nets, each with an input of its own.

    Returns:
        Mean and variance of the signed influence, (n, n).

    Raises:
        ValueError: not a covariance.

    Source: Nicolicioiu & Duta, Eq. 18 and 88 (docs/theory.md, E7).
    """
    root = _root(covariance)
    n = len(root)

    def draw(size: int) -> FloatArray:
        x = generator.standard_normal((size, n)) @ root.T
        signed: FloatArray = 2 * x[:, :, None] * x[:, None, :]
        signed[:, np.arange(n), np.arange(n)] += np.square(x).sum(axis=1)[:, None]
        return signed * (math.sqrt(weight_variance) * generator.standard_normal((size, 1, 1)))

    return moments(draw, samples, cells=n * n)


def sample_random_weight_energy(
    n: int,
    k: int,
    weight_variance: float,
    generator: np.random.Generator,
    *,
    widths: Sequence[int] | None = None,
    residual: bool = False,
    samples: int = 50_000,
) -> MonteCarlo:
    """Draws for :func:`erfscope.theory.random_weight_energy`: convolutions with normal weights, the gradient of one
    unit goes back.

    Args:
        n: Layers.
        k: Taps per kernel.
        weight_variance: C, of every weight.
        generator: Source of randomness.
        widths: Channels c_0 ... c_n; all 1 if left out.
        residual: Whether each layer has a skip connection.
        samples: Number of nets.

    Returns:
        Squared gradient summed over output and input channels, (n (k - 1) + 1,).

    Raises:
        ValueError: fewer than two draws.

    Source: Luo et al. 2016, arXiv:1701.04128, section 3 (docs/theory.md, C2, C7).
    """
    channels = list(widths) if widths is not None else [1] * (count(n, "n") + 1)
    outputs = channels[-1]

    def draw(size: int) -> FloatArray:
        gradient = np.broadcast_to(np.eye(outputs), (1, size, outputs, outputs))  # pixel, net, output channel, channel
        for c_in, c_out in zip(channels[-2::-1], channels[:0:-1], strict=True):
            weight = math.sqrt(weight_variance) * generator.standard_normal((k, size, c_out, c_in))
            wider = np.zeros((len(gradient) + k - 1, size, outputs, c_in))
            for tap in range(k):
                wider[tap : tap + len(gradient)] += gradient @ weight[tap]
            if residual:
                wider[k // 2 : k // 2 + len(gradient)] += gradient
            gradient = wider
        energy: FloatArray = np.square(gradient).sum(axis=(2, 3)).T
        return energy

    return average(draw, samples, cells=(n * (k - 1) + 1) * outputs * max(channels))


def _root(covariance: ArrayLike, nodes: int | None = None) -> FloatArray:
    """R with R R^T = covariance, also where the covariance is singular."""
    spread = square(covariance, "the covariance", nodes=nodes)
    if not np.allclose(spread, spread.T, rtol=ROUNDING, atol=0):
        raise ValueError("the covariance is not symmetric")
    values, vectors = np.linalg.eigh(spread)
    if values.min() < -ROUNDING * np.abs(values).max():
        raise ValueError(f"the covariance has the eigenvalue {values.min():.3g}; it must be positive semi-definite")
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))
