"""Hop distances and the mass per hop, against graphs whose distances are known and a breadth-first search by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from erfscope.apps.lab.influence_matrix.hops import hop_distances, hop_profiles
from erfscope.core import ErfscopeError, HopProfile


def path(n: int) -> np.ndarray:
    """Neighbours on a line."""
    return np.eye(n, k=1) + np.eye(n, k=-1)


def hop_profile(mass, adjacency: np.ndarray, source: int) -> HopProfile:
    return hop_profiles([mass], adjacency, [source])[0]


def searched(adjacency: np.ndarray, source: int) -> list[float]:
    """Distances by breadth-first search along rows."""
    distance = {source: 0}
    queue = [source]
    for p in queue:
        for i in np.flatnonzero(adjacency[p]):
            if i not in distance:
                distance[int(i)] = distance[p] + 1
                queue.append(int(i))
    return [distance.get(i, np.inf) for i in range(len(adjacency))]


def test_distances_on_a_line_are_differences_of_positions_and_on_a_grid_city_blocks():
    expected = np.abs(np.subtract.outer(np.arange(7), np.arange(7)))
    np.testing.assert_array_equal(hop_distances(path(7)), expected)
    np.testing.assert_array_equal(hop_distances(path(7), [-1, 2]), expected[[6, 2]])
    grid = np.kron(path(4), np.eye(5)) + np.kron(np.eye(4), path(5))
    row, col = np.divmod(np.arange(20), 5)
    np.testing.assert_array_equal(hop_distances(grid, [7])[0], np.abs(row - row[7]) + np.abs(col - col[7]))
    before = grid.copy()
    np.testing.assert_array_equal(hop_distances(grid + np.eye(20)), hop_distances(grid))
    np.testing.assert_array_equal(grid, before)


def test_a_node_hears_along_its_row_and_not_along_its_column_and_stored_zeros_are_no_links():
    """0 receives from 1, 1 from 2; no node receives from 0."""
    directed = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(hop_distances(directed), [[0, 1, 2], [np.inf, 0, 1], [np.inf, np.inf, 0]])
    stored = scipy.sparse.csr_array(([0.0, 1.0], ([0, 1], [1, 0])), shape=(2, 2))
    np.testing.assert_array_equal(hop_distances(stored), [[0, np.inf], [1, 0]])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 2**32 - 1), st.floats(0.05, 0.5))
def test_distances_are_those_of_a_breadth_first_search_whatever_the_weights(n, seed, density):
    rng = np.random.default_rng(seed)
    adjacency = (rng.random((n, n)) < density) * rng.normal(size=(n, n))
    expected = [searched(adjacency, source) for source in range(n)]
    for form in (adjacency, scipy.sparse.csr_array(adjacency), scipy.sparse.coo_matrix(adjacency)):
        np.testing.assert_array_equal(hop_distances(form), expected)


def test_a_profile_adds_up_the_mass_of_each_hop_around_each_source_and_what_cannot_be_reached():
    profile = hop_profile([4, 1, 2, 1, 8], path(5), 2)
    np.testing.assert_allclose(profile.mass, [2 / 16, 2 / 16, 12 / 16], rtol=1e-15)
    assert profile.mass[0] == 2 / 16
    assert profile.mean_hop == pytest.approx(2 / 16 + 2 * 12 / 16, rel=1e-15)
    assert (profile.unreachable, profile.total) == (0, 16)
    masses = np.arange(1.0, 7).reshape(2, 3)
    for profile, mass, source in zip(hop_profiles(masses, path(3), [2, 0]), masses, (2, 0), strict=True):
        np.testing.assert_array_equal(profile.mass, hop_profile(mass, path(3), source).mass)
    profile = hop_profile([1, 3, 2, 2], np.kron(np.eye(2), path(2)), 0)
    np.testing.assert_allclose(profile.mass, [1 / 8, 3 / 8], rtol=1e-15)
    assert (profile.unreachable, profile.mean_hop) == (0.5, pytest.approx(0.75))
    profile = hop_profile([0, 5], np.zeros((2, 2)), 0)
    assert (profile.mean_hop, profile.unreachable, profile.mass[0]) == (None, 1, 0)
    profile = hop_profile(np.zeros(3), path(3), 1)
    assert (profile.mass.tolist(), profile.unreachable, profile.total, profile.mean_hop) == ([0, 0], 0, 0, None)


@pytest.mark.parametrize(
    ("mass", "adjacency", "source", "words"),
    [
        ([1, 1], np.ones((2, 3)), 0, r"shape \(2, 3\); it must be \(n, n\)"),
        ([1, 1], np.array([[0, np.nan], [1, 0]]), 0, "adjacency holds numbers that are not finite"),
        ([1, 1], path(2), 2, "no node 2; the graph has 2 nodes, numbers 0 to 1"),
        ([1, 1, 1], path(2), 0, r"shape \(1, 3\).*must be \(1, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(mass, adjacency, source, words):
    with pytest.raises(ErfscopeError, match=words):
        hop_profile(mass, adjacency, source)
    with pytest.raises(ErfscopeError, match=r"2 sources on a graph of 3 nodes; it must be \(2, 3\)"):
        hop_profiles(np.ones((1, 3)), path(3), [0, 1])
    with pytest.raises(ErfscopeError, match="no source is named"):
        hop_distances(path(3), [])
