"""Node attention and pooling, scattered back to the nodes they came from, and the influence of leaving a node out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import count, einsum, matrix, vector
from erfscope.theory.closed_forms.softmax import masked_softmax


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
