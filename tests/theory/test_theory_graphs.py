"""Closed forms of graph convolutions, against autograd of the forward equations written out."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closed import agree, jacobian

from erfscope import theory
from erfscope.apps.lab.influence_matrix.hops import hop_distances


def tensors(arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def directed(rng):
    """Weighted, with signs, not symmetric."""
    return rng.standard_normal((6, 6)) * (rng.random((6, 6)) < 0.6)


@pytest.fixture
def graph(rng):
    """Undirected, 0 and 1, with one isolated node (the last)."""
    upper = np.triu(rng.random((7, 7)) < 0.5, 1).astype(float)
    upper[:, -1] = 0
    assert (upper + upper.T).sum(1)[:-1].min() > 0
    return upper + upper.T


def gcn(adjacency, weights, relu):
    mixing, chain = torch.from_numpy(adjacency), tensors(weights)

    def forward(x):
        for weight in chain[:-1]:
            x = mixing @ x @ weight
            x = F.relu(x) if relu else x
        return mixing @ x @ chain[-1]

    return forward


WIDTHS = (3, 5, 4, 2)


@pytest.fixture
def weights(rng):
    return [rng.standard_normal(shape) for shape in itertools.pairwise(WIDTHS)]


def test_a_linear_gcn_is_a_power_of_the_adjacency_times_the_product_of_weights(rng, directed, weights):
    x = rng.standard_normal((6, 3))
    closed = theory.linear_gcn(directed, weights)
    agree(closed, jacobian(gcn(directed, weights, relu=False), x))
    # E0-04: row-major vec goes with A^L (x) W^T, and not with the printed W^T (x) A^L.
    flat, product = closed.reshape(6 * 2, 6 * 3), weights[0] @ weights[1] @ weights[2]
    agree(flat, np.kron(np.linalg.matrix_power(directed, 3), product.T))
    assert np.abs(flat - np.kron(product.T, np.linalg.matrix_power(directed, 3))).max() > 0.1


def test_the_order_of_weights_matters_and_the_sign_only_for_odd_depth(rng, directed):
    square = [rng.standard_normal((3, 3)) for _ in range(2)]
    linear = partial(theory.linear_gcn, directed)
    one, other = (theory.influence_of(linear(order), "jacobian") for order in (square, square[::-1]))
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(linear([-w for w in square]), linear(square))  # E0-05
    np.testing.assert_array_equal(linear([-square[0]]), -linear(square[:1]))


@pytest.mark.parametrize("convention", theory.INFLUENCES)
def test_the_direct_influence_of_a_linear_gcn_is_that_of_its_jacobian(directed, weights, convention):
    whole = theory.influence_of(theory.linear_gcn(directed, weights), convention)
    agree(theory.linear_gcn_influence(directed, weights, convention), whole)


def test_the_gradient_of_one_node_is_a_row_of_the_power_and_not_a_column(directed, weights):
    """Forward mixes with A, backward with its transpose."""
    x = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(gcn(directed, weights, relu=False)(x)[2].sum(), x)
    influence = theory.linear_gcn_influence(directed, weights, "signed")
    agree(influence[2], gradient.sum(1).numpy())
    assert np.abs(influence[:, 2] - gradient.sum(1).numpy()).max() > 0.1


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_relu_gcn_gates_what_flows_back(rng, directed, weights, layers):
    x = rng.standard_normal((6, 3))
    agree(theory.relu_gcn(directed, weights[:layers], x), jacobian(gcn(directed, weights[:layers], relu=True), x))
    gates = theory.relu_gates(directed, weights[:layers], x)
    assert [gate.shape for gate in gates] == [(6, 5), (6, 4)][: layers - 1]
    hidden = torch.from_numpy(x)
    for gate, weight in zip(gates, tensors(weights), strict=False):
        hidden = F.relu(torch.from_numpy(directed) @ hidden @ weight)
        np.testing.assert_array_equal(gate, hidden.numpy() > 0)


def test_gates_of_two_layers_run_over_column_i_and_not_row_i(rng, directed):
    """E0-10, for one channel: A_p (Z * column i of A)."""
    x, weights = rng.standard_normal((6, 1)), [np.array([[0.7]]), np.array([[-1.3]])]
    (gate,) = theory.relu_gates(directed, weights, x)
    measured = jacobian(gcn(directed, weights, relu=True), x)[:, 0, :, 0]
    agree(directed @ (gate * directed) * 0.7 * -1.3, measured)
    assert np.abs(directed @ (gate * directed.T) * 0.7 * -1.3 - measured).max() > 0.1


def test_a_scalar_mean_gcn_is_a_power(graph):
    closed = theory.mean_gcn_with_self_term(graph, [[[0.7]]] * 4, [[[-0.3]]] * 4)[:, 0, :, 0]
    agree(closed, np.linalg.matrix_power(0.7 * theory.mean_adjacency(graph) - 0.3 * np.eye(7), 4))


def test_the_renormalised_adjacency_is_a_rescaled_walk(graph):
    mixing = theory.renormalised_adjacency(graph)
    degree = graph.sum(1) + 1
    walk = np.linalg.matrix_power((graph + np.eye(7)) / degree[:, None], 5)
    agree(np.linalg.matrix_power(mixing, 5), np.sqrt(degree[:, None] / degree) * walk)
    assert np.abs(np.linalg.eigvals(mixing)).max() == pytest.approx(1, abs=1e-12)
    # E3-03: with c_ii and d = degree the operator is D^-1/2 A D^-1/2 + D^-1, whose powers grow.
    connected = graph[:-1, :-1]
    printed = theory.symmetric_adjacency(connected) + np.diag(1 / connected.sum(1))
    assert np.abs(np.linalg.eigvals(printed)).max() > 1.2
    assert mixing[-1, -1] == 1


def test_only_row_stochastic_mixing_gives_probabilities(graph):
    power = np.linalg.matrix_power(theory.mean_adjacency(graph, self_loops=True), 6)
    np.testing.assert_allclose(power.sum(1), 1, rtol=1e-14)
    assert np.abs(np.linalg.matrix_power(theory.renormalised_adjacency(graph), 6).sum(1) - 1).max() > 0.01
    assert theory.adjacency_power(graph, 6).max() > 1
    np.testing.assert_array_equal(theory.mean_adjacency(graph)[-1], 0)


def test_powers_of_a_graph_count_walks(graph):
    counted = np.zeros((7, 7))
    for walk in itertools.product(range(7), repeat=5):
        counted[walk[0], walk[-1]] += all(graph[a, b] for a, b in itertools.pairwise(walk))
    np.testing.assert_array_equal(theory.adjacency_power(graph, 4), counted)
    np.testing.assert_array_equal(theory.adjacency_power(graph, 0), np.eye(7))


def test_the_laplacian_sees_differences_and_not_degrees():
    """E2-03: the node of degree 1 changes most, those of degree 3 not at all."""
    edges = np.zeros((6, 6))
    for one, other in ((1, 2), (2, 3), (2, 6), (3, 4), (4, 5), (4, 6)):
        edges[one - 1, other - 1] = edges[other - 1, one - 1] = 1
    np.testing.assert_array_equal(theory.degrees(edges), [1, 3, 2, 3, 1, 2])
    operator, x = theory.laplacian(edges), np.array([10.0, 0, -5, -5, -5, -5])
    np.testing.assert_array_equal(operator @ np.ones(6), 0)
    change = operator @ x
    np.testing.assert_array_equal(change, [sum(edges[i] * (x[i] - x)) for i in range(6)])
    assert change[0] == np.abs(change).max() == 10
    assert change[1] == change[3] == 0


def mlp(weights, biases, final_relu):
    chain, shifts = tensors(weights), tensors(biases)

    def forward(x):
        for index, (weight, bias) in enumerate(zip(chain, shifts, strict=True)):
            x = x @ weight + bias
            if final_relu or index < len(chain) - 1:
                x = F.relu(x)
        return x

    return forward


def test_each_chebyshev_order_mixes_all_hops_up_to_its_own():
    """E3-04: T_0 belongs to the filter, and T_2 is no shell of two hops."""
    path = np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1)
    polynomials, hops = theory.chebyshev_polynomials(path, 4), hop_distances(path)
    np.testing.assert_array_equal(polynomials[0], np.eye(6))
    for order in range(4):
        assert np.count_nonzero(polynomials[order][hops > order]) == 0
        assert (np.abs(polynomials[order][hops == order]) > 0).all()
    assert (np.abs(np.diag(polynomials[2])) > 0).any()
    # On a spectrum in [-1, 1], T_k(cos t) = cos(k t).
    angles = np.arccos(np.clip(np.linalg.eigvalsh(polynomials[1]), -1, 1))
    np.testing.assert_allclose(np.linalg.eigvalsh(polynomials[3]), np.sort(np.cos(3 * angles)), atol=1e-7)


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_chebygin_scales_by_the_degree_of_the_node_that_receives(rng, graph, order, aggregation):
    x, weights = rng.standard_normal((7, 3)), [rng.standard_normal((3 * order, 5)), rng.standard_normal((5, 2))]
    biases = [rng.standard_normal(5), rng.standard_normal(2)]
    network = mlp(weights, biases, final_relu=True)
    edges = torch.from_numpy(graph + np.eye(7) if order == 1 else graph)
    degree = edges.sum(1)
    root = torch.where(degree > 0, degree.clamp(min=1) ** -0.5, 0.0)
    operator = root[:, None] * edges * root

    def forward(h, own_degree=False):
        basis = [operator @ h] if order == 1 else [h, -operator @ h]
        while len(basis) < order:
            basis.append(-2 * operator @ basis[-1] - basis[-2])
        if aggregation == "sum":
            scaled = basis if order == 1 else basis[1:]
            scaled = [degree[:, None] * part for part in scaled]
            if own_degree:
                scaled = [-operator @ (degree[:, None] * h), *scaled[1:]]
            basis = scaled if order == 1 else [h, *scaled]
        return network(torch.cat(basis, 1))

    closed = theory.chebygin(graph, weights, x, order, aggregation=aggregation, biases=biases, final_relu=True)
    agree(closed, jacobian(forward, x))
    if order > 1 and aggregation == "sum":  # E3-05: the notes scale neighbours by degrees of their own
        assert np.abs(closed - jacobian(lambda h: forward(h, own_degree=True), x)).max() > 0.1


def opposite(side):
    """Links of every cell with its point reflection."""
    return [((row, col), (side - 1 - row, side - 1 - col)) for row in range(side) for col in range(side)]


def test_a_grid_without_self_loops_is_a_checkerboard():
    """D5: (A^9)_pp = 0, also with a distant link, which keeps the colour of a cell."""
    colour = np.indices((21, 21)).sum(0).ravel() % 2
    power = theory.adjacency_power(theory.grid_adjacency(21, 21), 9)
    assert power[colour[:, None] == colour].max() == 0
    p = 10 * 21 + 4
    linked, looped = (
        theory.adjacency_power(theory.grid_adjacency(21, 21, self_loops=loops, links=opposite(21)), 9)
        for loops in (False, True)
    )
    assert linked[p, p] == 0 < looped[p, p]


def test_a_grid_has_the_neighbours_it_says():
    four, eight = (theory.grid_adjacency(4, 5, neighbours=number) for number in (4, 8))
    for array in (four, eight):
        np.testing.assert_array_equal(array, array.T)
    assert np.sort(np.unique(theory.degrees(four))).tolist() == [2, 3, 4]
    assert np.sort(np.unique(theory.degrees(eight))).tolist() == [3, 5, 8]
    rows, cols = np.indices((4, 5)).reshape(2, -1)
    down, across = np.abs(rows[:, None] - rows), np.abs(cols[:, None] - cols)
    np.testing.assert_array_equal(hop_distances(four), down + across)
    np.testing.assert_array_equal(hop_distances(eight), np.maximum(down, across))
    loops = theory.grid_adjacency(3, 3, self_loops=True, links=[((0, 0), (2, 2)), ((1, 1), (1, 1))])
    np.testing.assert_array_equal(np.diag(loops), 1)
    assert loops[0, 8] == loops[8, 0] == 1


def walked(side, start, steps):
    """Where a walk ends that stays, goes to a neighbour or to the point reflection, all alike: cell by cell, without
    matrices."""
    mass = {start: 1.0}
    for _ in range(steps):
        spread = {}
        for (row, col), share in mass.items():
            near = [(row, col), (row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]
            ends = {cell for cell in near if min(cell) >= 0 and max(cell) < side} | {(side - 1 - row, side - 1 - col)}
            for cell in ends:
                spread[cell] = spread.get(cell, 0.0) + share / len(ends)
        mass = spread
    return np.array([mass.get((row, col), 0.0) for row in range(side) for col in range(side)])


def test_the_21_by_21_grid_with_a_distant_link_has_two_modes():
    """D5: .493 around the unit and .469 around its partner (here within five steps of the unit (4, 4); the paper names
    no unit)."""
    grid = theory.grid_adjacency(21, 21, self_loops=True, links=opposite(21))
    mixing, unit, partner = theory.mean_adjacency(grid), 4 * 21 + 4, 16 * 21 + 16
    influence = theory.linear_gcn_influence(mixing, [[[1.0]]] * 9, "signed")
    agree(influence[unit], walked(21, (4, 4), 9))
    hops = hop_distances(theory.grid_adjacency(21, 21))
    modes = [influence[unit][hops[centre] <= 5].sum() for centre in (unit, partner)]
    assert modes == [pytest.approx(0.493, abs=5e-4), pytest.approx(0.469, abs=5e-4)]
    assert sorted(np.argsort(influence[unit])[-2:]) == [unit, partner]
    assert influence.sum(1) == pytest.approx(np.ones(441), abs=1e-13)
