"""Distances along a graph, and how much of a mass over its nodes lies how many hops from one of them.

An adjacency A has A[p, i] not zero where node p receives from node i; only whether a weight is zero matters. The
distance from p to i is the smallest number of layers after which i can move p: steps along rows, 0 to p itself,
infinite where no path leads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from erfscope.core import ErfscopeError, FloatArray, HopProfile


def hop_distances(adjacency: Any, sources: Sequence[int] | None = None) -> FloatArray:
    """Hops from nodes to all nodes.

    Args:
        adjacency: (n, n), dense or a scipy sparse array or matrix; directed, of any weights, self-loops change nothing.
        sources: Nodes to start from, counted from the end where negative; all of them if None.

    Returns:
        (number of sources, n), whole numbers or infinity.

    Raises:
        ErfscopeError: the adjacency is not (n, n) or holds numbers that are not finite, or a source is no node.

    Source: Dijkstra's algorithm with steps of one, ``scipy.sparse.csgraph.dijkstra``.
    """
    from scipy.sparse import csgraph

    links = _links(adjacency)
    starts = _nodes(sources, links.shape[0])
    found: FloatArray = csgraph.dijkstra(links, directed=True, indices=starts, unweighted=True)
    return found


def hop_profiles(masses: ArrayLike, adjacency: Any, sources: Sequence[int]) -> tuple[HopProfile, ...]:
    """Shares of several masses by their hops, each around its own source.

    Args:
        masses: (k, n), of any scale; negative ones count by their absolute value.
        adjacency: As for :func:`hop_distances`.
        sources: The k nodes that hops are counted from.

    Raises:
        ErfscopeError: the masses do not fit the graph and the sources or are not finite, or as for
            :func:`hop_distances`.
    """
    rows, distances = np.asarray(masses, dtype=np.float64), hop_distances(adjacency, sources)
    if rows.shape != distances.shape:
        k, n = distances.shape
        raise ErfscopeError(
            f"the mass has shape {rows.shape}, but there are {k} sources on a graph of {n} nodes; it must be ({k}, {n})"
        )
    if not np.isfinite(rows).all():
        raise ErfscopeError("the mass holds numbers that are not finite")
    return tuple(HopProfile.of(row, hops) for row, hops in zip(rows, distances, strict=True))


def _links(adjacency: Any) -> Any:
    """Ones where there is a link: an entry of a sparse array that is stored and zero is none."""
    import scipy.sparse  # late: only graphs need it, and it takes longer to import than the rest of a result

    given = adjacency if scipy.sparse.issparse(adjacency) else np.asarray(adjacency)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.shape[0]:
        raise ErfscopeError(
            f"the adjacency has shape {given.shape}; it must be (n, n), with a row for each receiving node"
        )
    links = scipy.sparse.csr_matrix(given)  # whose indices fit all routines of csgraph, also in SciPy 1.11
    if not np.isfinite(links.data).all():
        raise ErfscopeError("the adjacency holds numbers that are not finite")
    return scipy.sparse.csr_matrix(links != 0).astype(np.float64)


def _nodes(sources: Sequence[int] | None, n: int) -> NDArray[np.intp]:
    """Sources, counted from the start."""
    if sources is None:
        return np.arange(n)
    try:
        asked = [operator.index(node) for node in sources]
    except TypeError:
        raise ErfscopeError(f"sources is {sources!r}; it must be a list of numbers of nodes") from None
    outside = [node for node in asked if not -n <= node < n]
    if outside or not asked:
        text = f"there is no node {outside[0]}" if outside else "no source is named"
        raise ErfscopeError(f"{text}; the graph has {n} nodes, numbers 0 to {n - 1}")
    return np.array([node % n for node in asked], dtype=np.intp)
