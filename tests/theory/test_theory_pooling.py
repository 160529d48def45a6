"""Node attention and pooling in closed form, against autograd; leaving nodes out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from erfscope import theory


def jacobian(function, x):
    """(m, c_out, n, c_in) of a function of node features, by autograd."""
    return torch.autograd.functional.jacobian(function, torch.from_numpy(x)).numpy()


def agree(obtained, expected, tolerance=1e-12):
    assert obtained.shape == expected.shape
    assert np.abs(obtained - expected).max() <= tolerance * np.abs(expected).max()


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def x(rng):
    return rng.standard_normal((8, 3))


@pytest.fixture
def p(rng):
    return rng.standard_normal(3)


def test_reweighting_by_attention(x, p):
    closed = theory.attention_reweighting(x, p)
    agree(closed, jacobian(lambda h: (h @ torch.from_numpy(p)).softmax(0)[:, None] * h, x))


def test_top_k_pooling_scattered_and_in_order(x, p):
    direction = torch.from_numpy(p)

    def pooled(h):
        scores = h @ direction / direction.norm()
        nodes = scores.topk(4).indices
        return h[nodes] * scores[nodes].sigmoid()[:, None], nodes

    nodes = pooled(torch.from_numpy(x))[1].numpy()
    np.testing.assert_array_equal(theory.top_k_nodes(x, p, 4), nodes)
    compact = theory.top_k_pooling(x, p, 4, scattered=False)
    agree(compact, jacobian(lambda h: pooled(h)[0], x))
    scattered = theory.top_k_pooling(x, p, 4)
    agree(scattered, jacobian(lambda h: torch.zeros_like(h).index_copy(0, pooled(h)[1], pooled(h)[0]), x))
    influence = theory.influence_of(scattered)
    assert np.flatnonzero(influence.any(0)).tolist() == np.flatnonzero(influence.any(1)).tolist() == sorted(nodes)
    assert np.count_nonzero(influence - np.diag(np.diag(influence))) == 0


def test_a_gcn_after_top_k_pooling_sees_the_nodes_that_are_left(rng, x, p):
    adjacency, weight, direction = rng.random((8, 8)), rng.standard_normal((3, 2)), torch.from_numpy(p)
    nodes = theory.top_k_nodes(x, p, 5)
    smaller = adjacency[np.ix_(nodes, nodes)]

    def forward(h):
        scores = h @ direction / direction.norm()
        index = scores.topk(5).indices
        return (
            torch.from_numpy(adjacency)[index][:, index]
            @ (h[index] * scores[index].sigmoid()[:, None])
            @ torch.from_numpy(weight)
        )

    agree(
        theory.chain(theory.linear_gcn(smaller, [weight]), theory.top_k_pooling(x, p, 5, scattered=False)),
        jacobian(forward, x),
    )


def test_equal_scores_keep_the_order_of_the_nodes():
    x = np.array([[1.0], [2], [1], [2], [1]])
    assert theory.top_k_nodes(x, [3.0], 4).tolist() == [1, 3, 0, 2]


def test_dropped_nodes_keep_an_influence_on_threshold_pooling(x, p):
    direction = torch.from_numpy(p)

    def forward(h):
        alpha = (h @ direction).softmax(0)
        return torch.where((alpha > 0.1)[:, None], alpha[:, None] * h, torch.zeros_like(h))

    closed = theory.threshold_pooling(x, p, 0.1)
    agree(closed, jacobian(forward, x))
    kept = theory.threshold_nodes(x, p, 0.1)
    assert 1 < len(kept) < 8
    influence = theory.influence_of(closed)
    assert (influence[kept] > 0).all()
    assert np.flatnonzero(influence.any(1)).tolist() == kept.tolist()
    assert np.count_nonzero(theory.threshold_pooling(x, p, 1.0)) == 0


def test_leaving_a_node_out_of_a_linear_model(rng):
    """F5: on sum_pq (A + I)_pq x_q a node counts by d_i x_i + x_i + sum_j A_ij x_j, it and not its neighbourhood
    removed (E3-10)."""
    upper = np.triu(rng.random((6, 6)) < 0.5, 1)
    adjacency, x = (upper + upper.T).astype(float), rng.standard_normal(6)

    def model(nodes):
        return (adjacency[np.ix_(nodes, nodes)] + np.eye(len(nodes))).sum(0) @ x[nodes]

    everyone = np.arange(6)
    without = [model(np.delete(everyone, i)) for i in everyone]
    change = np.abs(adjacency.sum(1) * x + x + adjacency @ x)
    agree(theory.leave_one_out(without, model(everyone)), change / change.sum())


def test_leaving_out_takes_the_norm_of_vectors_and_is_uniform_where_nothing_matters(rng):
    without, whole = rng.standard_normal((5, 3)), rng.standard_normal(3)
    change = np.sqrt(((without - whole) ** 2).sum(1))
    agree(theory.leave_one_out(without, whole), change / change.sum())
    np.testing.assert_array_equal(theory.leave_one_out([[1.0, 2.0]] * 4, [1.0, 2.0]), np.full(4, 0.25))
    np.testing.assert_array_equal(theory.leave_one_out([3.0, 3.0], 3.0), [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, p: theory.top_k_pooling(x, p, 9), "9 nodes were asked for, but there are 8"),
        (lambda x, p: theory.top_k_pooling(x, p, 0), "k is 0; it must be a whole number of at least 1"),
        (lambda x, p: theory.top_k_nodes(x, 0 * p, 2), "p is 0"),
        (lambda x, p: theory.attention_reweighting(x, p[:2]), r"p has shape \(2,\); it must be \(3,\)"),
        (lambda x, p: theory.threshold_pooling(x[0], p, 0.1), r"x has shape \(3,\)"),
        (lambda x, p: theory.leave_one_out(x, 1.0), r"outputs_without has shape \(8, 3\), the output \(\)"),
        (lambda x, p: theory.leave_one_out([], 1.0), "outputs_without has shape"),
        (lambda x, p: theory.leave_one_out([np.nan, 1.0], 1.0), "not finite"),
    ],
)
def test_bad_input_is_named(x, p, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(x, p)
    assert "\n" not in str(caught.value)
