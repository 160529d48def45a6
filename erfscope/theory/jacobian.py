"""From a Jacobian to influence matrices, and what holds for them whatever the layer.

A Jacobian here is the full array ``J[p, r, i, s]`` of dY_pr / dX_is, shape (m, c_out, n, c_in): outputs first, inputs
last. An influence matrix (m, n) has one row per output p and one column per input i."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from erfscope.errors import unknown
from erfscope.maps.erf_map import FloatArray
from erfscope.theory.arrays import einsum

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
