"""Jacobians of graph convolutions. Features are rows, X is (n, c); products of weights run W_1 W_2 ... W_L; nothing
acts after layer L.

Every layer here is a sum of terms M X W: a mixing of nodes (n, n) and a weight (c, c'). A gate is the derivative of a
ReLU, 1 or 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.apps.lab.theory.adjacency import adjacency_power, mean_adjacency
from erfscope.apps.lab.theory.arrays import einsum, matrix, square, weight_chain
from erfscope.apps.lab.theory.networks import influence_of
from erfscope.core import FloatArray

Terms = list[tuple[FloatArray, FloatArray]]
Gates = NDArray[np.bool_]


def linear_gcn(adjacency: ArrayLike, weights: Sequence[ArrayLike]) -> FloatArray:
    """Jacobian of Y = A^L X W_1 ... W_L: J[p, r, i, s] = (A^L)_pi (W_1 ... W_L)_sr.

    Args:
        adjacency: A, (n, n), not assumed symmetric.
        weights: L matrices (c_0, c_1), ..., (c_{L-1}, c_L).

    Returns:
        (n, c_L, n, c_0), whatever X is.

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorems 1 and 4 (docs/theory.md, D1); the order of the product is erratum E0-01.
    """
    product = _product(weights)
    return einsum("pi,sr->pris", adjacency_power(adjacency, len(weights)), product)


def linear_gcn_influence(
    adjacency: ArrayLike, weights: Sequence[ArrayLike], convention: str = "jacobian"
) -> FloatArray:
    """Influence matrix of :func:`linear_gcn` without its Jacobian: a power of A times one number.

    Args:
        adjacency: A, (n, n).
        weights: L matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        convention: As in :func:`erfscope.apps.lab.theory.influence_of`.

    Returns:
        (n, n): A^L, its absolute value or its square, times that convention's number for (W_1 ... W_L)^T.

    Raises:
        ErfscopeError: unknown convention.
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorem 1 (docs/theory.md, D1).
    """
    number = float(influence_of(_product(weights).T[None, :, None, :], convention)[0, 0])
    power = adjacency_power(adjacency, len(weights))
    if convention == "signed":
        return number * power
    return number * (np.square(power) if convention == "energy" else np.abs(power))


def relu_gcn(adjacency: ArrayLike, weights: Sequence[ArrayLike], x: ArrayLike) -> FloatArray:
    """Jacobian of X^(l+1) = ReLU(A X^(l) W_l) with a linear last layer, at X.

    grad^(L) = A^T grad_Y W_L^T, then grad^(l) = A^T (grad^(l+1) * Z^(l)) W_l^T with the gates Z^(l) = 1[A X^(l) W_l >
    0].

    Args:
        adjacency: A, (n, n), not assumed symmetric.
        weights: L matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        x: X, (n, c_0).

    Returns:
        (n, c_L, n, c_0).

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorems 2 and 5 (docs/theory.md, D3); the gradient is the one at l = 1 (erratum E0-09),
    and the gated product runs over column i of A (E0-10)."""
    array = square(adjacency)
    return _stack(_single(array, weights), matrix(x, "x", rows=len(array)))


def relu_gates(adjacency: ArrayLike, weights: Sequence[ArrayLike], x: ArrayLike) -> list[Gates]:
    """Gates Z^(1), ..., Z^(L-1) of :func:`relu_gcn`: where A X^(l) W_l is positive.

    Args:
        adjacency: A, (n, n).
        weights: L matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        x: X, (n, c_0).

    Returns:
        L - 1 arrays (n, c_l).

    Raises:
        ValueError: shapes that do not fit.

    Source: Nicolicioiu & Duta, Theorem 2 (docs/theory.md, D3).
    """
    array = square(adjacency)
    return _gates(_single(array, weights), matrix(x, "x", rows=len(array)))


def mean_gcn_with_self_term(
    adjacency: ArrayLike, weights: Sequence[ArrayLike], self_weights: Sequence[ArrayLike], x: ArrayLike | None = None
) -> FloatArray:
    """Jacobian of H' = ReLU(D^-1 A H W + H B), with a linear last layer; without X, of the same net without ReLU.

    Args:
        adjacency: A, (n, n), raw; isolated nodes keep their self term alone.
        weights: W_l, L matrices (c_{l-1}, c_l): the transposes of the report's, whose features are columns.
        self_weights: B_l, of the same shapes.
        x: X, (n, c_0), at which the ReLU gates are taken; None for a linear net.

    Returns:
        (n, c_L, n, c_0). Linear with one channel, it is ((wP + bI)^L)_pi with P = D^-1 A.

    Raises:
        ValueError: shapes that do not fit, or a bad degree.

    Source: the course report, Eq. 6 (docs/theory.md, D8); its "bias" is a self weight (erratum E2-09), and D^-1 needs a
    guard (E2-08)."""
    mixing = mean_adjacency(adjacency)
    mixed, own = weight_chain(weights), weight_chain(self_weights, name="self_weights")
    if [weight.shape for weight in mixed] != [weight.shape for weight in own]:
        raise ValueError(
            f"weights have shapes {[w.shape for w in mixed]}, self_weights {[w.shape for w in own]}; they must be the"
            " same"
        )
    layers = [[(mixing, w), (np.eye(len(mixing)), b)] for w, b in zip(mixed, own, strict=True)]
    return _stack(layers, None if x is None else matrix(x, "x", rows=len(mixing)))


def fully_connected_gcn(weights: Sequence[ArrayLike], x: ArrayLike) -> FloatArray:
    """Jacobian of a ReLU GCN with A = J/n, where all nodes are linked: every input has the same influence on every
    output.

    Each block is (W_1 Z_1 W_2 ... Z_{L-1} W_L)^T / n, with the gates Z_l that all nodes share.

    Args:
        weights: L matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        x: X, (n, c_0).

    Returns:
        (n, c_L, n, c_0), the same for all p and i.

    Raises:
        ValueError: shapes that do not fit.

    Source: a corollary of Nicolicioiu & Duta, Theorem 2 (docs/theory.md, D6); it holds for any activation. With a
        residual connection
    the identity is added: :func:`erfscope.apps.lab.theory.with_residual`.
    """
    chained = weight_chain(weights)
    features = matrix(x, "x", cols=chained[0].shape[0])
    hidden, product = features.mean(axis=0) @ chained[0], chained[0]
    for weight in chained[1:]:
        gate = hidden > 0
        hidden, product = (hidden * gate) @ weight, (product * gate) @ weight
    n = len(features)
    return np.broadcast_to(product.T[None, :, None, :] / n, (n, product.shape[1], n, product.shape[0])).copy()


def _product(weights: Sequence[ArrayLike]) -> FloatArray:
    chained = weight_chain(weights)
    return chained[0] if len(chained) == 1 else np.linalg.multi_dot(chained)


def _single(adjacency: FloatArray, weights: Sequence[ArrayLike]) -> list[Terms]:
    """Layers with one term each, A X W_l."""
    return [[(adjacency, weight)] for weight in weight_chain(weights)]


def _gates(layers: Sequence[Terms], x: FloatArray) -> list[Gates]:
    channels = layers[0][0][1].shape[0]
    if x.shape[1] != channels:
        raise ValueError(f"x has {x.shape[1]} channels, the first weight takes {channels}")
    gates = []
    for terms in layers[:-1]:
        before: FloatArray = np.sum([mixing @ x @ weight for mixing, weight in terms], axis=0)
        gates.append(before > 0)
        x = before * gates[-1]
    return gates


def _stack(layers: Sequence[Terms], x: FloatArray | None) -> FloatArray:
    """Jacobian of layers with a ReLU between each two, by the theorem's recursion; without X there is no ReLU."""
    gates = None if x is None else _gates(layers, x)
    jacobian: FloatArray = np.sum([einsum("pi,sr->pris", mixing, weight) for mixing, weight in layers[-1]], axis=0)
    for index in range(len(layers) - 2, -1, -1):
        gated = jacobian if gates is None else jacobian * gates[index]
        jacobian = np.sum(
            [einsum("prjt,ji,st->pris", gated, mixing, weight) for mixing, weight in layers[index]], axis=0
        )
    return jacobian
