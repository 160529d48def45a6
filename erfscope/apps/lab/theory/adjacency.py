"""Graphs as matrices: how nodes mix. A[p, i] is the weight with which p receives from i."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from erfscope.apps.lab.theory.arrays import count, square
from erfscope.core import FloatArray

Position = tuple[int, int]


def degrees(adjacency: ArrayLike) -> FloatArray:
    """Degree d_p = sum_i A[p, i] of every node, as a receiver; 0 for an isolated one.

    Args:
        adjacency: (n, n), not assumed symmetric.

    Returns:
        (n,), non-negative.

    Raises:
        ValueError: not square, an entry that is not finite, a negative degree, or links that cancel to a degree of 0.

    Source: the course report (docs/theory.md, D9); its degree matrix has D_66 = 0 where 2 is right (erratum E2-01).
    """
    array = square(adjacency)
    degree: FloatArray = array.sum(axis=1)
    bad = np.flatnonzero((degree < 0) | ((degree == 0) & array.any(axis=1)))
    if bad.size:
        raise ValueError(
            f"node {bad[0]} has links and the degree {degree[bad[0]]:g}; a degree must be positive where there are"
            " links"
        )
    return degree


def mean_adjacency(adjacency: ArrayLike, *, self_loops: bool = False) -> FloatArray:
    """Row-stochastic mixing D^-1 A: every node takes the mean of its neighbours.

    Args:
        adjacency: (n, n).
        self_loops: Add the identity first.

    Returns:
        (n, n); rows sum to 1, the row of an isolated node is 0.

    Raises:
        ValueError: as :func:`degrees`.

    Source: Nicolicioiu & Duta, section 4.1, and the course report's Eq. 6 (docs/theory.md, D5, D8); D^-1 is undefined
    for isolated nodes in print (erratum E2-08). Only for such a matrix is (P^L)_pi the probability that a walk of L
    steps from p ends at i (E0-07)."""
    array = _with_loops(adjacency, self_loops)
    return _inverse(degrees(array))[:, None] * array


def renormalised_adjacency(adjacency: ArrayLike) -> FloatArray:
    """Kipf and Welling's mixing D~^-1/2 (A + I) D~^-1/2 with d~ = degree + 1.

    Args:
        adjacency: (n, n), without self-loops.

    Returns:
        (n, n). Its L-th power is sqrt(d~_p / d~_i) (P^L)_pi with P = D~^-1 (A + I), not a probability. An isolated node
        keeps itself.

    Raises:
        ValueError: as :func:`degrees`.

    Source: Kipf & Welling 2017, arXiv:1609.02907 (docs/theory.md, D7); with c_ii and d = degree it is another operator
    (erratum E3-03)."""
    array = _with_loops(adjacency, True)
    root = np.sqrt(_inverse(degrees(array)))
    return root[:, None] * array * root


def symmetric_adjacency(adjacency: ArrayLike) -> FloatArray:
    """D^-1/2 A D^-1/2, with 0 in place of d^-1/2 at isolated nodes.

    Args:
        adjacency: (n, n).

    Returns:
        (n, n).

    Raises:
        ValueError: as :func:`degrees`.

    Source: Defferrard et al. 2016, arXiv:1606.09375 (docs/theory.md, D11, D12); the normaliser is sqrt(d_i d_j)
    (erratum E3-02)."""
    array = square(adjacency)
    root = np.sqrt(_inverse(degrees(array)))
    return root[:, None] * array * root


def laplacian(adjacency: ArrayLike) -> FloatArray:
    """Laplacian L = D - A: (Lx)_i = sum_j A_ij (x_i - x_j), L1 = 0.

    Args:
        adjacency: (n, n).

    Returns:
        (n, n).

    Raises:
        ValueError: as :func:`degrees`.

    Source: the course report (docs/theory.md, D9); that the node of the highest degree changes most is false (erratum
    E2-03)."""
    array = square(adjacency)
    return np.diag(degrees(array)) - array


def adjacency_power(adjacency: ArrayLike, steps: int) -> FloatArray:
    """A^L: its entry (p, i) counts the walks (not paths) of L steps from p to i, if A holds 0 and 1.

    Args:
        adjacency: (n, n).
        steps: L, at least 0.

    Returns:
        (n, n); counts are exact up to 2^53.

    Raises:
        ValueError: not square, not finite, or negative steps.

    Source: the course report (docs/theory.md, D9, errata E2-02, E0-07).
    """
    if steps < 0:
        raise ValueError(f"{steps} steps were asked for; give 0 or more")
    return np.linalg.matrix_power(square(adjacency), steps)


def grid_adjacency(
    height: int,
    width: int,
    *,
    neighbours: int = 4,
    self_loops: bool = False,
    links: Iterable[tuple[Position, Position]] = (),
) -> FloatArray:
    """Links between neighbouring cells of a grid, and between distant ones. Cells are numbered row by row.

    Args:
        height: Rows.
        width: Columns.
        neighbours: 4, or 8 for the diagonals too.
        self_loops: Whether each cell is linked to itself. Without, a grid of 4 neighbours is bipartite: A^L has a
            checkerboard of zeros.
        links: Pairs ((row, col), (row, col)) to link in both directions.

    Returns:
        (height * width, height * width) of 0 and 1, symmetric.

    Raises:
        ValueError: other numbers, or a link that leaves the grid.

    Source: Nicolicioiu & Duta, section 4.1, a graph of 21 x 21 (docs/theory.md, D5).
    """
    if neighbours not in (4, 8):
        raise ValueError(f"a grid has 4 or 8 neighbours, not {neighbours}")
    shape = count(height, "the height"), count(width, "the width")
    rows, cols = (index.ravel() for index in np.indices(shape))
    down, right = (np.abs(axis[:, None] - axis[None, :]) for axis in (rows, cols))
    near = (down + right == 1) if neighbours == 4 else (np.maximum(down, right) == 1)
    array: FloatArray = near.astype(np.float64)
    for ends in links:
        if not all(0 <= row < height and 0 <= col < width for row, col in ends):
            raise ValueError(f"the link {ends} leaves the grid of {height} x {width} cells")
        one, other = (row * width + col for row, col in ends)
        array[one, other] = array[other, one] = 1
    if self_loops:
        np.fill_diagonal(array, 1)  # not added: a link may join a cell to itself, as the middle of a reflection does
    return array


def _with_loops(adjacency: ArrayLike, self_loops: bool) -> FloatArray:
    array = square(adjacency)
    return array + np.eye(len(array)) if self_loops else array


def _inverse(degree: FloatArray) -> FloatArray:
    """1 / degree, and 0 for a degree of 0."""
    return np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
