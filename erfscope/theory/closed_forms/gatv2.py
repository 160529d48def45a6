"""GATv2: the Jacobian of its output, the gradients of its parameters, and where one of them cannot be trained.

Parameters are those of PyTorch Geometric's GATv2Conv: ``theta_l`` is ``lin_l.weight`` (source), ``theta_r`` is
``lin_r.weight`` (target), both (heads * d, c), and ``a`` is ``att``, (heads, d), or (d,) for one head. ``adjacency[i,
j]`` other than 0 says that i listens to j. It is taken as it is: PyTorch Geometric adds self-loops by default, so add
the identity to compare. A node that listens to none gets the bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import einsum, matrix, square, vector
from erfscope.theory.closed_forms.softmax import masked_softmax

SLOPE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatV2Gradients:
    """Gradients of a loss with respect to the parameters of one layer, each of its parameter's shape."""

    theta_l: FloatArray
    theta_r: FloatArray
    bias_l: FloatArray
    bias_r: FloatArray
    #: (heads, d), also for one head.
    a: FloatArray
    #: Of the bias that is added to the output.
    bias: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Intermediate values of one head for n targets i and n sources k."""

    theta_l: FloatArray  # (d, c)
    theta_r: FloatArray
    a: FloatArray  # (d,)
    v: FloatArray  # (n, d): theta_l h_k + bias
    u: FloatArray  # (n, n, d): theta_r h_i + theta_l h_k, with biases
    slopes: FloatArray  # (n, n, d): the slope of the LeakyReLU at u
    alpha: FloatArray  # (n, n), 0 where there is no link

    @property
    def centred(self) -> FloatArray:
        """alpha_ik (v_k - mean of v under alpha_i), (n, n, d)."""
        return self.alpha[:, :, None] * (self.v[None] - (self.alpha @ self.v)[:, None])


def gatv2(
    x: ArrayLike,
    adjacency: ArrayLike,
    theta_l: ArrayLike,
    theta_r: ArrayLike,
    a: ArrayLike,
    *,
    bias_l: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    slope: float = SLOPE,
    concat: bool = True,
) -> FloatArray:
    """Jacobian of h'_i = b + sum_k alpha_ik Theta_L h_k, alpha_i = softmax over N_i of a . LeakyReLU(Theta_R h_i +
    Theta_L h_k).

    With v_k = Theta_L h_k, its mean v under alpha_i, and the slope pattern s_ik of the LeakyReLU, dh'_i / dh_q is [q in
    N_i] alpha_iq (Theta_L + (v_q - v)(a * s_iq)^T Theta_L) + delta_qi sum_k alpha_ik (v_k - v)(a * s_ik)^T Theta_R.

    Args:
        x: Node features h, (n, c).
        adjacency: (n, n), receivers are rows; taken as it is, without added self-loops.
        theta_l: Source weights, (heads * d, c).
        theta_r: Target weights, (heads * d, c).
        a: Attention vectors, (heads, d) or (d,).
        bias_l: Bias of the source projection, (heads * d,).
        bias_r: Bias of the target projection, (heads * d,).
        slope: Negative slope of the LeakyReLU.
        concat: Whether heads stand side by side, or are averaged.

    Returns:
        (n, heads * d, n, c), or (n, d, n, c) for averaged heads. Exactly 0 outside the links and the diagonal.

    Raises:
        ValueError: shapes that do not fit.

    Source: Brody et al. 2022, arXiv:2105.14491; derivation after Neumeier et al., arXiv:2304.10939 (docs/theory.md,
    D13, errata E4-01, E4-03, E4-07)."""
    blocks = []
    for head in _heads(x, adjacency, theta_l, theta_r, a, bias_l=bias_l, bias_r=bias_r, slope=slope):
        pattern = head.a * head.slopes
        jacobian = einsum("iq,rs->irqs", head.alpha, head.theta_l)
        jacobian += einsum("iqr,iqs->irqs", head.centred, pattern @ head.theta_l)
        nodes = np.arange(len(head.alpha))
        jacobian[nodes, :, nodes, :] += einsum("ikr,iks->irs", head.centred, pattern @ head.theta_r)
        blocks.append(jacobian)
    return np.concatenate(blocks, axis=1) if concat else np.mean(blocks, axis=0)


def gatv2_parameter_gradients(
    x: ArrayLike,
    adjacency: ArrayLike,
    theta_l: ArrayLike,
    theta_r: ArrayLike,
    a: ArrayLike,
    *,
    gradient: ArrayLike,
    bias_l: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    slope: float = SLOPE,
    concat: bool = True,
) -> GatV2Gradients:
    """Gradients of the parameters, from the loss's gradient g with respect to the output.

    With A_k = g_i . v_k and S_k = A_k - sum_j alpha_j A_j, summed over targets i: dTheta_R[t, m] = h_i[m] a_t sum_k
    s_k[t] alpha_k S_k, dTheta_L[t, m] = sum_k h_k[m] (a_t s_k[t] alpha_k S_k + g_t alpha_k), da_t = sum_k alpha_k S_k
    LeakyReLU(u_k)_t, db = g.

    Args:
        x: Node features h, (n, c).
        adjacency: (n, n), receivers are rows.
        theta_l: Source weights, (heads * d, c).
        theta_r: Target weights, (heads * d, c).
        a: Attention vectors, (heads, d) or (d,).
        gradient: g, (n, heads * d), or (n, d) for averaged heads.
        bias_l: Bias of the source projection, (heads * d,).
        bias_r: Bias of the target projection, (heads * d,).
        slope: Negative slope of the LeakyReLU.
        concat: Whether heads stand side by side, or are averaged.

    Returns:
        One gradient per parameter, summed over nodes.

    Raises:
        ValueError: shapes that do not fit.

    Source: Neumeier et al., arXiv:2304.10939 (docs/theory.md, D14, errata E4-01 to E4-08). sum_k s_k alpha_k S_k is
    their pairwise sum sum_{j<k} alpha_j alpha_k (A_j - A_k)(s_j - s_k)."""
    features = matrix(x, "x")
    heads = list(_heads(features, adjacency, theta_l, theta_r, a, bias_l=bias_l, bias_r=bias_r, slope=slope))
    d = len(heads[0].a)
    given = matrix(gradient, "the gradient", rows=len(features), cols=d * len(heads) if concat else d)
    parts = [
        _of_head(head, features, given[:, d * k : d * (k + 1)] if concat else given / len(heads))
        for k, head in enumerate(heads)
    ]
    left, left_bias, right, right_bias, attention = (np.concatenate(part) for part in zip(*parts, strict=True))
    return GatV2Gradients(
        theta_l=left,
        theta_r=right,
        bias_l=left_bias,
        bias_r=right_bias,
        a=attention.reshape(len(heads), d),
        bias=given.sum(axis=0),
    )


def dead_targets(
    x: ArrayLike,
    adjacency: ArrayLike,
    theta_l: ArrayLike,
    theta_r: ArrayLike,
    a: ArrayLike,
    *,
    bias_l: ArrayLike | None = None,
    bias_r: ArrayLike | None = None,
    slope: float = SLOPE,
) -> NDArray[np.bool_]:
    """Nodes and heads that send no gradient to Theta_R, whatever the loss.

    That is so where all neighbours share the slope pattern of the LeakyReLU (in the coordinates in which ``a`` is not
    0), or where there is one neighbour at most: the target's own projection then shifts all logits alike, and the
    softmax does not notice.

    Args:
        x: Node features, (n, c).
        adjacency: (n, n), receivers are rows.
        theta_l: Source weights, (heads * d, c).
        theta_r: Target weights, (heads * d, c).
        a: Attention vectors, (heads, d) or (d,).
        bias_l: Bias of the source projection, (heads * d,).
        bias_r: Bias of the target projection, (heads * d,).
        slope: Negative slope of the LeakyReLU.

    Returns:
        (n, heads); its mean is the share of dead targets.

    Raises:
        ValueError: shapes that do not fit.

    Source: a corollary of the gradients of Neumeier et al., arXiv:2304.10939 (docs/theory.md, D14).
    """
    dead, linked = [], square(adjacency)[:, :, None] != 0
    for head in _heads(x, adjacency, theta_l, theta_r, a, bias_l=bias_l, bias_r=bias_r, slope=slope):
        highest = np.where(linked, head.slopes, -np.inf).max(axis=1)
        lowest = np.where(linked, head.slopes, np.inf).min(axis=1)
        dead.append(((highest <= lowest) | (head.a == 0)).all(axis=1))
    return np.stack(dead, axis=1)


def _of_head(head: _Head, x: FloatArray, g: FloatArray) -> tuple[FloatArray, ...]:
    """Gradients of one head: Theta_L, its bias, Theta_R, its bias, a."""
    scores = einsum("ikr,ir->ik", head.centred, g)  # alpha_k S_k
    through = head.a * head.slopes * scores[:, :, None]  # (n, n, d): what reaches u_ik
    source, target = through.sum(axis=0) + head.alpha.T @ g, through.sum(axis=1)
    return (
        source.T @ x,
        source.sum(axis=0),
        target.T @ x,
        target.sum(axis=0),
        einsum("ik,ikt->t", scores, head.slopes * head.u),
    )


def _heads(
    x: ArrayLike,
    adjacency: ArrayLike,
    theta_l: ArrayLike,
    theta_r: ArrayLike,
    a: ArrayLike,
    *,
    bias_l: ArrayLike | None,
    bias_r: ArrayLike | None,
    slope: float,
) -> Iterator[_Head]:
    features = matrix(x, "x")
    linked = square(adjacency, nodes=len(features)) != 0
    attention = matrix(np.atleast_2d(np.asarray(a, dtype=np.float64)), "a")
    d, size, channels = attention.shape[1], attention.size, features.shape[1]
    left, right = (
        matrix(given, name, rows=size, cols=channels) for given, name in ((theta_l, "theta_l"), (theta_r, "theta_r"))
    )
    source = features @ left.T + (0 if bias_l is None else vector(bias_l, "bias_l", size))
    target = features @ right.T + (0 if bias_r is None else vector(bias_r, "bias_r", size))
    for index, weight in enumerate(attention):
        part = slice(d * index, d * (index + 1))
        u = target[:, None, part] + source[None, :, part]
        slopes = np.where(u > 0, 1.0, slope)
        alpha = masked_softmax((slopes * u) @ weight, linked)
        yield _Head(
            theta_l=left[part], theta_r=right[part], a=weight, v=source[:, part], u=u, slopes=slopes, alpha=alpha
        )
