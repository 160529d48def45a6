"""Expectations and variances in closed form: exact sums over small distributions, quadrature, and draws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from closed import agree

from erfscope import theory


@pytest.fixture
def rng():
    return np.random.default_rng(2024)


@pytest.fixture
def mixing(rng):
    """Row-stochastic, directed, with self-loops."""
    links = (rng.random((5, 5)) < 0.5) * rng.random((5, 5)) + np.eye(5)
    return links / links.sum(1, keepdims=True)


@pytest.fixture
def covariance(rng):
    root = rng.standard_normal((5, 5))
    return root @ root.T / 5


def signs(count):
    return itertools.product((-1.0, 1.0), repeat=count)


def test_random_weights_of_a_linear_gcn_by_going_through_all_signs(mixing):
    """Variance of the signed influence: with the square of A^L (E0-06), times all widths."""
    widths, sigma = (1, 2, 3, 1), 0.7
    sums = []
    for values in signs(2 + 6 + 3):
        values = sigma * np.array(values)
        weights = [values[:2].reshape(1, 2), values[2:8].reshape(2, 3), values[8:].reshape(3, 1)]
        sums.append(theory.linear_gcn_influence(mixing, weights, "signed"))
    closed = theory.linear_gcn_random_weights(mixing, widths, sigma=sigma)
    agree(closed.variance, np.square(sums).mean(0))
    assert np.abs(np.mean(sums, 0)).max() < 1e-12
    np.testing.assert_array_equal(closed.mean, 0)


def test_squares_of_entries_of_a_product_of_random_matrices_are_correlated(rng):
    """E0-08: the entries themselves are not; Cov((AB)_11^2, (AB)_12^2) = 2n."""
    left, right = rng.standard_normal((100_000, 1, 4)), rng.standard_normal((100_000, 4, 2))
    assert np.cov(np.square(left @ right)[:, 0].T)[0, 1] == pytest.approx(2 * 4, rel=0.1)


@pytest.mark.parametrize("weights", [(0.8, -1.1), (-0.9, 0.7, 1.2, -1.0), (0.5, 1.5, -0.4), (1.0, -0.2, 0.7), (0.6,)])
def test_mean_of_a_relu_gcn_from_an_input_and_its_mirror_image(mixing, rng, weights):
    """For any X the mean over X and -X is the closed form already: exactly one of two opposite inputs opens a gate
    (E0-12)."""
    x = rng.standard_normal((5, 1))
    chain = [np.array([[weight]]) for weight in weights]
    both = [theory.influence_of(theory.relu_gcn(mixing, chain, sign * x), "signed") for sign in (1, -1)]
    closed = theory.relu_gcn_mean(mixing, weights)
    agree(closed, np.mean(both, 0))
    printed = math.prod(weights) * np.linalg.matrix_power(mixing, len(weights)) / 2 ** (len(weights) - 1)
    assert np.allclose(closed, printed) is (len(weights) <= 2)


def test_each_coordinates_symmetry_is_not_enough():
    """E0-11: X_1 symmetric and X_2 symmetric, but not together."""
    pairs = np.array([(-3.0, 2.0), (1.0, 2.0), (3.0, -2.0), (-1.0, -2.0), (1.0, 2.0), (-1.0, -2.0)])
    skewed = np.array([(-1.0, 2.0), (2.0, -1.0), (1.0, 1.0), (-2.0, -2.0)])  # each coordinate is symmetric, X~-X fails
    for column in skewed.T:
        np.testing.assert_array_equal(np.sort(column), np.sort(-column))
    assert (skewed.sum(1) > 0).mean() == 0.75
    assert (pairs.sum(1) > 0).mean() == 0.5


def worst_z(drawn, closed):
    """How many standard errors of the mean over draws (B, n, n) it is from a closed form, at most."""
    never = drawn.std(0) == 0
    assert (np.broadcast_to(closed, never.shape)[never] == 0).all()
    return (np.abs(drawn.mean(0) - closed) / (drawn.std(0) / math.sqrt(len(drawn)) + never)).max()


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 3, 2)])
def test_random_weights_of_a_relu_gcn_by_draws(mixing, covariance, rng, widths):
    closed = theory.relu_gcn_random_weights(mixing, covariance, widths=widths, sigma=0.9)
    samples, (c_in, c_hidden, c_out) = 60_000, widths
    first = 0.9 * rng.standard_normal((samples, c_in, c_hidden))
    second = 0.9 * rng.standard_normal((samples, c_hidden, c_out))
    x = np.linalg.cholesky(covariance) @ rng.standard_normal((samples, 5, c_in))
    gates = (mixing @ x @ first > 0).astype(float)
    through = np.einsum("bkt,bt->bk", gates, second.sum(2) * first.sum(1))
    drawn = (mixing * through[:, None]) @ mixing
    assert worst_z(drawn, closed.mean) < 4
    assert worst_z(np.square(drawn), closed.variance) < 4
    apart = np.linalg.inv(mixing) @ np.linalg.inv(mixing).T
    independent = theory.relu_gcn_random_weights(mixing, apart, widths=widths, sigma=0.9)
    assert worst_z(np.square(drawn), independent.variance) > 4  # correlation of the gates matters


def test_gates_that_always_agree_halve_the_square(mixing):
    """rho = 1 everywhere: E = (A^2)^2 / 2. And a node that hears nothing never opens."""
    closed = theory.relu_gcn_random_weights(mixing, np.ones((5, 5)))
    agree(closed.variance, np.square(mixing @ mixing) / 2)
    deaf = mixing.copy()
    deaf[3] = 0
    assert np.isfinite(theory.relu_gcn_random_weights(deaf, np.ones((5, 5))).variance).all()


def test_mean_of_attention_over_all_signs_and_one_channel_follows_the_covariance(rng, covariance):
    # The signed influence is quadratic in X, so any distribution with these second moments gives the mean exactly.
    root, weights = rng.standard_normal((4, 4)), [rng.standard_normal((2, d)) for d in (3, 3, 5)]
    maps = []
    for values in signs(8):
        x = root @ np.array(values).reshape(4, 2)
        maps.append(theory.influence_of(theory.dot_attention(x, *weights, scale=0.25), "signed"))
    agree(theory.dot_attention_mean(root @ root.T, *weights, scale=0.25), np.mean(maps, 0))
    # Eq. 16: 2 w C_pi off the diagonal, 2 w V_p + w sum V_j on it; (n + 2) w V for equal variances.
    w = 0.7 * -1.3 * 0.5
    closed = theory.dot_attention_mean(covariance, [[0.7]], [[-1.3]], [[0.5]])
    agree(closed, 2 * w * covariance + w * np.trace(covariance) * np.eye(5))
    flat = theory.dot_attention_mean(2 * np.eye(5), [[0.7]], [[-1.3]], [[0.5]])
    agree(np.diag(flat), np.full(5, (5 + 2) * w * 2))


PRINTED = np.array([[1.0, 0.6, 0.3], [0.6, 1.0, 0.2], [0.3, 0.2, 1.0]])


def gaussian_expectation(function, covariance):
    """Exact mean of a polynomial of degree up to nine, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    root, total = np.linalg.cholesky(covariance), 0.0
    for index in itertools.product(range(5), repeat=len(covariance)):
        total = total + math.prod(weights[list(index)]) / (2 * math.pi) ** (len(covariance) / 2) * function(
            root @ nodes[list(index)]
        )
    return total


def scalar_influence(x):
    """Signed influence with w = 1, from the full Jacobian."""
    one = np.ones((1, 1))
    return theory.influence_of(theory.dot_attention(x[:, None], one, one, one), "signed")


def test_variance_of_attention_and_the_two_printed_slips():
    closed = theory.dot_attention_random_weights(PRINTED).variance
    agree(closed, gaussian_expectation(lambda x: scalar_influence(x) ** 2, PRINTED))
    assert closed[0, 0] == pytest.approx(52.56, abs=1e-9)
    # E0-19: cross terms over l != p instead of l != j.
    products, b = 2 * PRINTED**2 + 1, np.array([3.0, 1, 1])
    slip = b**2 @ np.diag(products) + sum(b[j] * b[m] * products[j, m] for j in range(3) for m in range(3) if m != 0)
    assert slip == pytest.approx(49.86, abs=1e-9)
    # E0-20: sum b_j^2 is n + 8, sum b_j would be n + 2; shown by fourth moments alone.
    alone = theory.dot_attention_random_weights(np.eye(3), squares=2 * np.eye(3)).variance[0, 0]
    assert alone - 2 * (3 * 1 + 3 * 1 + 1 * 1) == pytest.approx(3 * (3 + 8))


def test_variance_of_attention_for_inputs_that_are_not_gaussian(rng):
    """E0-21: fourth moments enter, and are taken as given."""
    root = rng.standard_normal((4, 4))
    inputs = np.array([root @ np.array(values) for values in signs(4)])
    squares = np.cov((inputs**2).T, bias=True)
    closed = theory.dot_attention_random_weights(root @ root.T, weight_variance=0.3, squares=squares).variance
    agree(closed, 0.3 * np.mean([scalar_influence(x) ** 2 for x in inputs], 0))
