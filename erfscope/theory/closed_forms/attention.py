"""Jacobians of self-attention: dot product, softmax, several heads, and the Non-Local block around them.

Features are rows: q = X W_q, k = X W_k, v = X W_v. A bias on a projection is had by a column of ones: append it to x,
append the bias to that weight as its last row (zeros to the others), and leave the last input channel of the Jacobian
out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import count, einsum, matrix
from erfscope.theory.closed_forms.softmax import masked_softmax
from erfscope.theory.jacobian import with_residual

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
