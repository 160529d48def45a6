"""Claims about highest-density regions: closed forms, an independent sum, and what must not change them."""

from __future__ import annotations

import numpy as np
import pytest

from erfscope.show.drawn import shares


def test_shares_are_sums_over_stronger_cells_with_half_of_those_as_strong():
    np.testing.assert_allclose(shares(np.array([[4.0, 2.0], [2.0, 0.0]])), [[0.25, 0.75], [0.75, 1.0]])


def test_shares_agree_with_a_plain_sum_per_cell():
    weights = np.random.default_rng(0).integers(0, 5, (7, 9)).astype(float)
    plain = [
        [(weights[weights > w].sum() + weights[weights == w].sum() / 2) / weights.sum() for w in row] for row in weights
    ]
    np.testing.assert_allclose(shares(weights), plain, atol=1e-12)


def test_the_share_of_a_gaussian_is_that_within_the_radius():
    rows = np.arange(-60, 61)
    squares = rows[:, None] ** 2 + rows[None, :] ** 2
    found = shares(np.exp(-squares / (2 * 10**2)))
    # The cells inside a circle are as many as its area says but for a dozen of 628.
    np.testing.assert_allclose(found, 1 - np.exp(-squares / (2 * 10**2)), atol=0.02)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e12])
def test_shares_are_of_no_scale(scale):
    weights = np.random.default_rng(1).random((5, 5))
    np.testing.assert_allclose(shares(weights * scale), shares(weights), rtol=1e-9)


def test_a_flat_map_is_half_everywhere_whatever_its_rounding():
    weights = 1 + 1e-15 * np.random.default_rng(0).random((20, 20))
    np.testing.assert_allclose(shares(weights), 0.5)


def test_nothing_has_everything_that_is_stronger():
    assert (shares(np.zeros((2, 3))) == 1).all()
    assert shares(np.zeros((0, 3))).shape == (0, 3)
