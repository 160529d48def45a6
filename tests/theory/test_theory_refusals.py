"""What the closed forms do not take is refused in one line that names it."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from erfscope import theory

rng = np.random.default_rng(5)
X, P, LINKS, W, WIDE = rng.standard_normal((8, 3)), rng.standard_normal(3), np.ones((8, 8)), np.ones((3, 2)), (2, 3)
BAD, EYE, NAN = np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]), np.eye(2), np.nan
JACOBIAN = rng.standard_normal((3, 2, 4, 5))
softmax = partial(theory.softmax_attention, X, W, W, W)
heads = partial(theory.multi_head_attention, X, W, W, W, W.T)
#: Two heads of four channels.
PARAMETERS = {"theta_l": np.ones((8, 3)), "theta_r": np.ones((8, 3)), "bias_l": np.ones(8), "bias_r": np.ones(8)}
gatv2, dead, gradients = (
    partial(form, **{"x": X, "adjacency": LINKS, "a": np.ones((2, 4)), **PARAMETERS})
    for form in (theory.gatv2, theory.dead_targets, theory.gatv2_parameter_gradients)
)
CALLS = [
    (lambda: theory.influence_of(np.ones((3, 4))), "shape (3, 4); it must be (m, c_out, n, c_in)"),
    (lambda: theory.chain(JACOBIAN, JACOBIAN), "takes (4, 5) (nodes, channels), the inner one gives (3, 2)"),
    (lambda: theory.with_residual(JACOBIAN), "turns (4, 5) into (3, 2)"),
    (lambda: theory.permuted(np.eye(3), [0, 1, 1]), "each of 0 .. 2 once"),
    (lambda: theory.permuted(np.ones(WIDE), [0, 1]), "needs a square one"),
    (
        lambda: theory.agreement([1.0, 2.0], [[1.0, 2.0]]),
        "shape (2,) cannot be compared with a closed form of",
    ),
    (lambda: theory.agreement(np.empty((0, 3)), np.empty((0, 3))), "cannot be compared"),
    (lambda: theory.boundary_bias(np.zeros(5)), "the interior's total influence is 0"),
    (lambda: theory.boundary_bias([]), "there are no totals"),
    (lambda: theory.dot_attention(X, np.ones((5, 3)), W, W), "w_q has shape (5, 3); it must be (3, any)"),
    (lambda: softmax(mask=np.ones((7, 6))), "the mask has shape (7, 6); it must be (8, 8)"),
    (lambda: softmax(mask=np.full((8, 8), -np.inf)), "is it additive"),
    (lambda: softmax(outputs=[8]), "indices in 0 .. 7, not [8]"),
    (lambda: heads(heads=3), "3 heads do not divide widths of 2, 2 and 2"),
    (lambda: heads(heads=2, pairwise="gaussian"), "pairwise is 'gaussian'"),
    (lambda: theory.uniform_stack(0, 3), "n is 0"),
    (lambda: theory.strided_dilated_stack([3, 3], [1]), "2 kernel sizes, 1 strides and 2 dilations"),
    (lambda: theory.residual_stack(3, 2), "1 layers of 2 taps have no middle pixel"),
    (
        lambda: theory.random_weight_energy(3, 3, 1.0, widths=[1, 1]),
        "3 layers have 4 widths, from input to output",
    ),
    (lambda: theory.random_weight_energy(1, 3, 1.0, widths=[1, 2], residual=True), "needs equal widths"),
    (lambda: theory.weighted_kernel_variance([0, 0]), "one of them positive"),
    (lambda: theory.gaussian_mass_radius(1.0, 1.0), "the share is 1.0"),
    (lambda: theory.relu_gcn_mean(LINKS, []), "weights is empty"),
    (lambda: theory.relu_gcn_mean(-LINKS, [1, 1, 1]), "non-negative adjacency only"),
    (lambda: theory.relu_gcn_random_weights(LINKS, np.eye(4)), "the covariance is for 4 nodes, but there are 8"),
    (lambda: theory.relu_gcn_random_weights(LINKS, np.eye(8), widths=(1, 1)), "three widths, not 2"),
    *(
        (partial(form, theta_l=np.ones((7, 3))), "theta_l has shape (7, 3); it must be (8, 3)")
        for form in (gatv2, dead)
    ),
    *((partial(form, bias_r=np.ones(3)), "bias_r has shape (3,); it must be (8,)") for form in (gatv2, dead)),
    *((partial(form, adjacency=BAD), "the adjacency is for 3 nodes, but there are 8") for form in (gatv2, dead)),
    (lambda: gradients(gradient=np.ones((8, 4))), "the gradient has shape"),
    (lambda: theory.linear_gcn(np.ones(WIDE), [EYE]), "the adjacency has shape (2, 3); it must be square"),
    (lambda: theory.linear_gcn(BAD * NAN, [EYE]), "the adjacency is nan at (0, 0); it must be finite"),
    (lambda: theory.linear_gcn(BAD, []), "weights is empty"),
    (lambda: theory.linear_gcn(BAD, [np.ones(WIDE)] * 2), "weights[1] has shape (2, 3); it must be (3, any)"),
    (lambda: theory.mean_adjacency(-BAD), "node 0 has links and the degree -1; a degree must be positive"),
    (lambda: theory.renormalised_adjacency(-2 * BAD), "node 0 has links and the degree -1"),
    (lambda: theory.adjacency_power(BAD, -1), "-1 steps were asked for"),
    (lambda: theory.chebnet(BAD, [EYE, np.ones(WIDE)]), "weights[1] has shape (2, 3); it must be (2, 2)"),
    (lambda: theory.chebnet(BAD, [EYE], lambda_max=0), "lambda_max is 0; it must be positive"),
    (lambda: theory.chebygin(BAD, [EYE], np.ones((3, 2)), 1, aggregation="max"), "aggregation is 'max'"),
    (lambda: theory.grid_adjacency(0, 3), "the height is 0"),
    (lambda: theory.linear_gcn_constant_weights(BAD, [3]), "1 widths were given"),
    (lambda: theory.top_k_pooling(X, P, 9), "9 nodes were asked for, but there are 8"),
    (lambda: theory.top_k_pooling(X, P, 0), "k is 0; it must be a whole number of at least 1"),
    (lambda: theory.top_k_nodes(X, 0 * P, 2), "p is 0"),
    (lambda: theory.leave_one_out(X, 1.0), "outputs_without has shape (8, 3), the output ()"),
    (lambda: theory.leave_one_out([NAN, 1.0], 1.0), "not finite"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
