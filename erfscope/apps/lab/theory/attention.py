"""The softmax over a part of each row, with a defined result where that part is empty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.apps.lab.theory.arrays import count, einsum, matrix, square, vector
from erfscope.apps.lab.theory.networks import with_residual
from erfscope.core import FloatArray


def masked_softmax(logits: FloatArray, allowed: NDArray[np.bool_] | None = None) -> FloatArray:
    """Softmax along the last axis over the allowed entries.

    Args:
        logits: (..., n).
        allowed: The same shape; every entry if left out.

    Returns:
        The same shape, exactly 0 where not allowed; a row without an allowed entry is 0, not NaN.
    """
    masked = logits if allowed is None else np.where(allowed, logits, -np.inf)
    highest = masked.max(axis=-1, keepdims=True)
    exponentials = np.exp(masked - np.where(np.isneginf(highest), 0.0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1.0, total)


Pairwise = Literal["dot", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projected:
    """Queries of the asked outputs, keys and values of all nodes, and the weights as arrays."""

    rows: NDArray[np.intp]  # (m,)
    q: FloatArray  # (m, d)
    k: FloatArray  # (n, d)
    v: FloatArray  # (n, c_out)
    w_v: FloatArray  # (c_in, c_out)
    towards_keys: FloatArray  # (m, c_in): q_p W_k^T
    towards_queries: FloatArray  # (n, c_in): k_j W_q^T


def dot_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    *,
    scale: float = 1.0,
    mask: ArrayLike | None = None,
    outputs: Sequence[int] | None = None,
) -> FloatArray:
    """Jacobian of Y_p = scale sum_i mask_pi (q_p . k_i) v_i, attention by the dot product without a softmax.

    Block (p, i) is scale mask_pi (s_pi W_v^T + v_i^T (q_p W_k^T)) with s_pi = q_p . k_i, and on the diagonal
    scale sum_j mask_pj v_j^T (k_j W_q^T) is added, j = p included.

    Args:
        x: (n, c).
        w_q: (c, d).
        w_k: (c, d).
        w_v: (c, c_out).
        scale: 1, or 1/n as in Non-Local networks.
        mask: (n, n) factors, row = output; none if left out.
        outputs: Which outputs p; all if left out.

    Returns:
        (m, c_out, n, c); exactly 0 off the diagonal where the mask is 0.

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorems 3 and 6, Eq. 14 and 15 (docs/theory.md, E1, E3); s_pi is a scalar that
    multiplies W_v^T (erratum E0-16), and the bracketing of their proof does not hold while its result does (E0-17)."""
    parts = _project(x, w_q, w_k, w_v, outputs)
    n = len(parts.k)
    gain = scale * (np.ones((n, n)) if mask is None else matrix(mask, "the mask", rows=n, cols=n))[parts.rows]
    jacobian = einsum("pi,sr->pris", gain * (parts.q @ parts.k.T), parts.w_v)
    jacobian += einsum("pi,ir,ps->pris", gain, parts.v, parts.towards_keys)
    own = einsum("pj,jr,js->prs", gain, parts.v, parts.towards_queries)
    jacobian[np.arange(len(parts.rows)), :, parts.rows, :] += own
    return jacobian


def softmax_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    outputs: Sequence[int] | None = None,
) -> FloatArray:
    """Jacobian of Y = softmax(scale q k^T) v, scaled dot-product attention.

    Block (p, i) is a_pi W_v^T + scale a_pi (v_i - Y_p)^T (q_p W_k^T), and on the diagonal
    scale sum_j a_pj (v_j - Y_p)^T (k_j W_q^T) is added.

    Args:
        x: (n, c).
        w_q: (c, d).
        w_k: (c, d).
        w_v: (c, c_out).
        scale: 1 / sqrt(d) if left out; 1 is the embedded Gaussian of Non-Local networks.
        mask: (n, n) of bool, row = output, True where p may look at i; everywhere if left out. An output that may look
            nowhere is 0.
        outputs: Which outputs p; all if left out.

    Returns:
        (m, c_out, n, c); exactly 0 off the diagonal where the mask is False.

    Raises:
        ValueError: shapes that do not fit, or a mask of other numbers than 0 and 1.

    Source: Nicolicioiu & Duta, Eq. 13 (docs/theory.md, E2, E3), with d the width of q and k.
    """
    parts = _project(x, w_q, w_k, w_v, outputs)
    factor = 1 / math.sqrt(parts.k.shape[1]) if scale is None else scale
    allowed = None if mask is None else _allowed(mask, len(parts.k))[parts.rows]
    weights = masked_softmax(factor * (parts.q @ parts.k.T), allowed)
    centred = factor * weights[:, :, None] * (parts.v[None] - (weights @ parts.v)[:, None])
    jacobian = einsum("pi,sr->pris", weights, parts.w_v)
    jacobian += einsum("pir,ps->pris", centred, parts.towards_keys)
    own = einsum("pjr,js->prs", centred, parts.towards_queries)
    jacobian[np.arange(len(parts.rows)), :, parts.rows, :] += own
    return jacobian


def multi_head_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike,
    *,
    heads: int,
    pairwise: Pairwise = "softmax",
    scale: float | None = None,
    mask: ArrayLike | None = None,
    outputs: Sequence[int] | None = None,
) -> FloatArray:
    """Jacobian of concat_h(head_h) W_o: the sum of one-head attentions with value weights W_v,h W_o,h.

    Args:
        x: (n, c).
        w_q: (c, heads * d), head by head.
        w_k: (c, heads * d).
        w_v: (c, heads * d_v).
        w_o: (heads * d_v, c_out).
        heads: Number of heads.
        pairwise: ``softmax`` or ``dot``.
        scale: As in :func:`softmax_attention` (1 / sqrt(d) of one head) or :func:`dot_attention` (1), if left out.
        mask: As there, the same for all heads.
        outputs: Which outputs p; all if left out.

    Returns:
        (m, c_out, n, c).

    Raises:
        ValueError: shapes that do not fit, or widths that the heads do not divide.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2 (docs/theory.md, E5).
    """
    channels = matrix(x, "x").shape[1]
    query, key, value = (matrix(w, name, rows=channels) for w, name in ((w_q, "w_q"), (w_k, "w_k"), (w_v, "w_v")))
    output = matrix(w_o, "w_o", rows=value.shape[1])
    if query.shape[1] % count(heads, "heads") or key.shape[1] % heads or value.shape[1] % heads:
        raise ValueError(f"{heads} heads do not divide widths of {query.shape[1]}, {key.shape[1]} and {value.shape[1]}")
    split = [
        np.split(query, heads, axis=1),
        np.split(key, heads, axis=1),
        np.split(value, heads, axis=1),
        np.split(output, heads),
    ]
    jacobians = [_attention(x, q, k, v @ o, pairwise, scale, mask, outputs) for q, k, v, o in zip(*split, strict=True)]
    return np.asarray(sum(jacobians))


def nonlocal_block(
    x: ArrayLike,
    w_theta: ArrayLike,
    w_phi: ArrayLike,
    w_g: ArrayLike,
    w_z: ArrayLike,
    *,
    pairwise: Pairwise = "softmax",
    scale: float | None = None,
    mask: ArrayLike | None = None,
    alpha: float = 1.0,
) -> FloatArray:
    """Jacobian of a Non-Local block Y = X + alpha attention(theta X, phi X, g X) W_z.

    Args:
        x: (n, c).
        w_theta: Query weights, (c, d).
        w_phi: Key weights, (c, d).
        w_g: Value weights, (c, d_v).
        w_z: (d_v, c). A batch norm in eval mode that follows is a factor per column of it.
        pairwise: ``softmax`` (embedded Gaussian) or ``dot``.
        scale: 1 for ``softmax`` and 1/n for ``dot`` if left out, as published.
        mask: As in the attention that is chosen.
        alpha: Gain of the branch; 0 leaves the identity.

    Returns:
        (n, c, n, c). The residual connection adds c to the diagonal of the ``signed`` influence.

    Raises:
        ValueError: shapes that do not fit.

    Source: Wang et al. 2018, arXiv:1711.07971; Nicolicioiu & Duta, section 4.2 (docs/theory.md, E4).
    """
    features = matrix(x, "x")
    value = matrix(w_g, "w_g", rows=features.shape[1])
    weights = value @ matrix(w_z, "w_z", rows=value.shape[1], cols=features.shape[1])
    published = 1.0 if pairwise == "softmax" else 1 / max(len(features), 1)
    return with_residual(
        _attention(x, w_theta, w_phi, weights, pairwise, published if scale is None else scale, mask, None), alpha
    )


def _attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    pairwise: Pairwise,
    scale: float | None,
    mask: ArrayLike | None,
    outputs: Sequence[int] | None,
) -> FloatArray:
    if pairwise == "softmax":
        return softmax_attention(x, w_q, w_k, w_v, scale=scale, mask=mask, outputs=outputs)
    if pairwise == "dot":
        return dot_attention(x, w_q, w_k, w_v, scale=1.0 if scale is None else scale, mask=mask, outputs=outputs)
    raise ValueError(f"pairwise is {pairwise!r}; it must be 'softmax' or 'dot'")


def _project(x: ArrayLike, w_q: ArrayLike, w_k: ArrayLike, w_v: ArrayLike, outputs: Sequence[int] | None) -> _Projected:
    features = matrix(x, "x")
    n, channels = features.shape
    query = matrix(w_q, "w_q", rows=channels)
    key, value = matrix(w_k, "w_k", rows=channels, cols=query.shape[1]), matrix(w_v, "w_v", rows=channels)
    rows = np.arange(n) if outputs is None else np.asarray(outputs, dtype=np.intp)
    if rows.ndim != 1 or (rows.size and (rows.min() < 0 or rows.max() >= n)):
        raise ValueError(f"outputs must be a list of indices in 0 .. {n - 1}, not {outputs}")
    q, k = features[rows] @ query, features @ key
    return _Projected(
        rows=rows, q=q, k=k, v=features @ value, w_v=value, towards_keys=q @ key.T, towards_queries=k @ query.T
    )


def _allowed(mask: ArrayLike, n: int) -> NDArray[np.bool_]:
    given = matrix(mask, "the mask", rows=n, cols=n)
    if not np.isin(given, (0.0, 1.0)).all():
        raise ValueError(
            "the mask must be True where an output may look and False elsewhere; it holds other numbers (is it"
            " additive?)"
        )
    allowed: NDArray[np.bool_] = given == 1
    return allowed


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
