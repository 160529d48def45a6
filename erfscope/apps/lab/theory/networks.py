"""Jacobians of graph layers that end in a small network per node, or filter the Laplacian's spectrum: GIN, ChebyNet,
ChebyGIN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from erfscope.apps.lab.theory.adjacency import degrees, renormalised_adjacency, symmetric_adjacency
from erfscope.apps.lab.theory.arrays import biases_of, count, einsum, matrix, square, weight_chain
from erfscope.core import FloatArray, unknown

#: Eigenvalue of the Laplacian that ChebyNet assumes where none is computed.
LAMBDA_MAX = 2.0


def mlp_slopes(
    x: ArrayLike, weights: Sequence[ArrayLike], biases: Sequence[ArrayLike] | None = None, *, final_relu: bool = False
) -> FloatArray:
    """Derivative of a network that acts on every node alone: linear layers with a ReLU between each two.

    Args:
        x: (n, c_0).
        weights: Matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        biases: (c_1,), ..., (c_L,); zero if left out.
        final_relu: Whether a ReLU follows the last layer too.

    Returns:
        (n, c_L, c_0): d out_r / d in_s at every node.

    Raises:
        ValueError: shapes that do not fit.

    Source: the chain rule, for docs/theory.md, D10, D12.
    """
    chained = weight_chain(weights)
    hidden = matrix(x, "x", cols=chained[0].shape[0])
    slopes = np.broadcast_to(np.eye(hidden.shape[1]), (len(hidden), hidden.shape[1], hidden.shape[1]))
    for index, (weight, bias) in enumerate(zip(chained, biases_of(biases, chained), strict=True)):
        hidden, slopes = hidden @ weight + bias, einsum("nts,tr->nrs", slopes, weight)
        if final_relu or index < len(chained) - 1:
            gate = hidden > 0
            hidden, slopes = hidden * gate, slopes * gate[:, :, None]
    return slopes


def gin(
    adjacency: ArrayLike,
    weights: Sequence[ArrayLike],
    x: ArrayLike,
    *,
    epsilon: float = 0.0,
    biases: Sequence[ArrayLike] | None = None,
    final_relu: bool = False,
) -> FloatArray:
    """Jacobian of a graph isomorphism layer MLP((1 + eps) h_p + sum_i A_pi h_i): ((1 + eps) I + A)_pi times MLP' at
    node p.

    Args:
        adjacency: A, (n, n), raw, without self-loops.
        weights: The network's matrices (c_0, c_1), ..., (c_{L-1}, c_L).
        x: (n, c_0).
        epsilon: Extra weight of the node itself.
        biases: The network's biases, zero if left out.
        final_relu: Whether a ReLU follows the network.

    Returns:
        (n, c_L, n, c_0).

    Raises:
        ValueError: shapes that do not fit.

    Source: Xu et al. 2019, arXiv:1810.00826, Eq. 4.1 (docs/theory.md, D10).
    """
    array = square(adjacency)
    mixing = (1 + epsilon) * np.eye(len(array)) + array
    slopes = mlp_slopes(mixing @ matrix(x, "x", rows=len(array)), weights, biases, final_relu=final_relu)
    return einsum("pi,prs->pris", mixing, slopes)


def chebyshev_polynomials(adjacency: ArrayLike, order: int, *, lambda_max: float | None = LAMBDA_MAX) -> FloatArray:
    """T_0 ... T_{K-1} of the scaled Laplacian 2 L_sym / lambda_max - I, with L_sym = I - D^-1/2 A D^-1/2.

    Args:
        adjacency: A, (n, n), without self-loops.
        order: K, how many polynomials.
        lambda_max: Largest eigenvalue of L_sym; the usual 2 turns the scaled Laplacian into -D^-1/2 A D^-1/2. None to
            compute it, for a symmetric graph.

    Returns:
        (K, n, n). T_k is 0 beyond k hops.

    Raises:
        ValueError: a bad adjacency or order, or an eigenvalue that is not positive or not real.

    Source: Defferrard et al. 2016, arXiv:1606.09375 (docs/theory.md, D11); T_0 belongs to it, and T_2 reaches hops 0, 1
    and 2 (erratum E3-04)."""
    mixing = symmetric_adjacency(adjacency)
    unit = np.eye(len(mixing))
    if lambda_max is None:
        if not np.allclose(mixing, mixing.T, rtol=1e-12, atol=0):
            raise ValueError(
                "the largest eigenvalue was asked for, but the adjacency is not symmetric; give lambda_max"
            )
        lambda_max = float(np.linalg.eigvalsh(unit - mixing).max())
    if not lambda_max > 0:
        raise ValueError(f"lambda_max is {lambda_max}; it must be positive")
    scaled = 2 * (unit - mixing) / lambda_max - unit
    polynomials = [unit, scaled]
    while len(polynomials) < count(order, "the order K"):
        polynomials.append(2 * scaled @ polynomials[-1] - polynomials[-2])
    return np.stack(polynomials[: int(order)])


def chebnet(adjacency: ArrayLike, weights: Sequence[ArrayLike], *, lambda_max: float | None = LAMBDA_MAX) -> FloatArray:
    """Jacobian of a ChebyNet layer sum_k T_k X Theta_k: J[p, r, i, s] = sum_k T_k[p, i] Theta_k[s, r].

    Args:
        adjacency: A, (n, n), without self-loops.
        weights: Theta_0 ... Theta_{K-1}, all (c_in, c_out).
        lambda_max: As in :func:`chebyshev_polynomials`.

    Returns:
        (n, c_out, n, c_in), whatever X is; exactly 0 beyond K - 1 hops.

    Raises:
        ValueError: as :func:`chebyshev_polynomials`, or weights of different shapes.

    Source: Defferrard et al. 2016, arXiv:1606.09375 (docs/theory.md, D11, erratum E3-04).
    """
    if len(weights) == 0:
        raise ValueError("weights is empty; give one matrix (c_in, c_out) per order")
    c_in, c_out = matrix(weights[0], "weights[0]").shape
    stacked = np.stack([matrix(given, f"weights[{k}]", rows=c_in, cols=c_out) for k, given in enumerate(weights)])
    polynomials = chebyshev_polynomials(adjacency, len(weights), lambda_max=lambda_max)
    return einsum("kpi,ksr->pris", polynomials, stacked)


def chebygin(
    adjacency: ArrayLike,
    weights: Sequence[ArrayLike],
    x: ArrayLike,
    order: int,
    *,
    aggregation: Literal["sum", "mean"] = "sum",
    biases: Sequence[ArrayLike] | None = None,
    final_relu: bool = False,
) -> FloatArray:
    """Jacobian of a ChebyGIN layer as its authors' code has it: a network on concat(X, d T_1 X, ..., d T_{K-1} X).

    For K = 1 the network acts on d~ (D~^-1/2 (A + I) D~^-1/2 X) instead. Orders of 1 and more are scaled by the degree
    of the node that receives, X itself is not.

    Args:
        adjacency: A, (n, n), without self-loops.
        weights: The network's matrices; the first is (K c, c_1), orders outermost.
        x: (n, c).
        order: K.
        aggregation: ``mean`` leaves the scaling by degrees out.
        biases: The network's biases, zero if left out.
        final_relu: Whether a ReLU follows the network, as in the authors' layers.

    Returns:
        (n, c_out, n, c).

    Raises:
        ValueError: shapes that do not fit, a bad degree or an unknown aggregation.

    Source: Knyazev et al. 2019, arXiv:1905.02850, and their code (docs/theory.md, D12), which is not the formula of
    erratum E3-05. Theirs adds 1e-7 to degrees before the root, this does not: the two differ by a relative 1e-7 / d.
    """
    if aggregation not in ("sum", "mean"):
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'sum' or 'mean'")
    array = square(adjacency)
    features, k = matrix(x, "x", rows=len(array)), count(order, "the order K")
    mixing = renormalised_adjacency(array)[None] if k == 1 else chebyshev_polynomials(array, k)
    if aggregation == "sum":
        mixing = mixing.copy()
        mixing[0 if k == 1 else slice(1, None)] *= (degrees(array) + (k == 1))[:, None]
    mixed = np.concatenate(list(mixing @ features), axis=1)
    slopes = mlp_slopes(mixed, weights, biases, final_relu=final_relu)
    by_order = slopes.reshape(len(array), slopes.shape[1], k, features.shape[1])
    return einsum("prks,kpi->pris", by_order, mixing)


#: Convention -> how the block (c_out, c_in) of an output and an input becomes one number.
INFLUENCES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "jacobian": lambda j: np.sqrt(einsum("pris,pris->pi", j, j)),
    "energy": lambda j: einsum("pris,pris->pi", j, j),
    "luo": lambda j: np.abs(j.sum(axis=1)).sum(axis=2),
    "signed": lambda j: j.sum(axis=(1, 3)),
    "abs": lambda j: np.abs(j).sum(axis=(1, 3)),
}


def influence_of(jacobian: ArrayLike, convention: str = "jacobian") -> FloatArray:
    """Influence of every input on every output, from the full Jacobian.

    Args:
        jacobian: (m, c_out, n, c_in).
        convention: ``jacobian`` is the Frobenius norm of the block (p, i), ``energy`` its square, ``luo`` sum_s |sum_r
            J|, ``signed`` sum_rs J, ``abs`` sum_rs |J|.

    Returns:
        (m, n).

    Raises:
        ErfscopeError: unknown convention.
        ValueError: not four axes.

    Source: Nicolicioiu & Duta, Eq. 1 (``signed``); Luo et al. 2016, arXiv:1701.04128 (``luo``); docs/theory.md, A2 says
    when they differ."""
    if convention not in INFLUENCES:
        raise unknown("convention", convention, INFLUENCES)
    return INFLUENCES[convention](_four_axes(jacobian, "the Jacobian"))


def chain(outer: ArrayLike, inner: ArrayLike) -> FloatArray:
    """Jacobian of ``outer`` after ``inner``, each taken where it works: the chain rule on full arrays.

    Args:
        outer: (m, c_out, k, c), at the value that the inner layer gives.
        inner: (k, c, n, c_in).

    Returns:
        (m, c_out, n, c_in).

    Raises:
        ValueError: shapes that do not fit.

    Source: the chain rule (docs/theory.md, A3): J_total = J_head J_stem.
    """
    left, right = _four_axes(outer, "the outer Jacobian"), _four_axes(inner, "the inner Jacobian")
    if left.shape[2:] != right.shape[:2]:
        raise ValueError(
            f"the outer Jacobian takes {left.shape[2:]} (nodes, channels), the inner one gives {right.shape[:2]}"
        )
    return np.tensordot(left, right, axes=2)


def with_residual(jacobian: ArrayLike, alpha: float = 1.0) -> FloatArray:
    """Jacobian of x + alpha f(x): the identity beside the branch.

    Args:
        jacobian: That of f, (n, c, n, c).
        alpha: Gain of the branch.

    Returns:
        (n, c, n, c). The ``signed`` influence gains c on its diagonal.

    Raises:
        ValueError: f does not keep the shape.

    Source: Nicolicioiu & Duta, section 4.2 (docs/theory.md, D6, E4).
    """
    branch = _four_axes(jacobian, "the Jacobian")
    if branch.shape[:2] != branch.shape[2:]:
        raise ValueError(
            f"a residual branch must keep the shape, but this one turns {branch.shape[2:]} into {branch.shape[:2]}"
        )
    n, c = branch.shape[:2]
    return alpha * branch + np.eye(n * c).reshape(n, c, n, c)


def permuted(matrix: ArrayLike, permutation: ArrayLike) -> FloatArray:
    """Influence matrix of a permutation-equivariant layer on permuted nodes: E(PX) = P E(X) P^T.

    Args:
        matrix: E(X), (n, n).
        permutation: (n,) indices; PX is ``x[permutation]``.

    Returns:
        (n, n), its entry (a, b) is that of (permutation[a], permutation[b]).

    Raises:
        ValueError: not square, or not a permutation.

    Source: the course report (docs/theory.md, E8), with erratum E2-04: equivariant, not invariant. It does not hold
    with an absolute positional embedding."""
    given, order = np.asarray(matrix, dtype=np.float64), np.asarray(permutation)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise ValueError(f"an influence matrix of shape {given.shape} was given; permuting nodes needs a square one")
    if order.shape != given.shape[:1] or not np.array_equal(np.sort(order), np.arange(len(given))):
        raise ValueError(f"the permutation must hold each of 0 .. {len(given) - 1} once")
    moved: FloatArray = given[np.ix_(order, order)]
    return moved


def boundary_bias(totals: ArrayLike, interior: float | None = None) -> float:
    """How unevenly a layer treats its border: max |T / T_interior - 1|.

    Args:
        totals: T(i) = sum_p of the influence of input i on output p, of any shape.
        interior: T far from the border; the value in the middle if left out.

    Returns:
        The index, 0 for circular, full and replicate padding; 1/3 for zero and reflect and 2/3 for no padding, with a
        kernel [1, 1, 1].

    Raises:
        ValueError: no totals, or an interior of 0.

    Source: the course report, Table 1, on padding (docs/theory.md, C11).
    """
    total = np.asarray(totals, dtype=np.float64)
    if total.size == 0:
        raise ValueError("there are no totals; give one per input")
    middle = float(total[tuple(size // 2 for size in total.shape)]) if interior is None else interior
    if middle == 0:
        raise ValueError("the interior's total influence is 0, so that nothing can be compared with it")
    return float(np.abs(total / middle - 1).max())


def _four_axes(given: ArrayLike, name: str) -> FloatArray:
    array = np.asarray(given, dtype=np.float64)
    if array.ndim != 4:
        raise ValueError(f"{name} has shape {array.shape}; it must be (m, c_out, n, c_in)")
    return array
