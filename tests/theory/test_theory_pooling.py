"""Node attention and pooling in closed form; leaving nodes out."""

from __future__ import annotations

import numpy as np
from closed import agree

from erfscope import theory


def test_equal_scores_keep_the_order_of_the_nodes():
    x = np.array([[1.0], [2], [1], [2], [1]])
    assert theory.top_k_nodes(x, [3.0], 4).tolist() == [1, 3, 0, 2]


def test_leaving_out_takes_the_norm_of_vectors_and_is_uniform_where_nothing_matters():
    rng = np.random.default_rng(5)
    without, whole = rng.standard_normal((5, 3)), rng.standard_normal(3)
    change = np.sqrt(((without - whole) ** 2).sum(1))
    agree(theory.leave_one_out(without, whole), change / change.sum())
    np.testing.assert_array_equal(theory.leave_one_out([[1.0, 2.0]] * 4, [1.0, 2.0]), np.full(4, 0.25))
    np.testing.assert_array_equal(theory.leave_one_out([3.0, 3.0], 3.0), [0.5, 0.5])
