"""Closed forms of self-attention and the Non-Local block, against autograd of the forward equations written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from erfscope import theory


def jacobian(function, x):
    """(m, c_out, n, c_in) of a function of node features, by autograd."""
    return torch.autograd.functional.jacobian(function, torch.from_numpy(x)).numpy()


def agree(obtained, expected, tolerance=1e-12):
    assert obtained.shape == expected.shape
    assert np.abs(obtained - expected).max() <= tolerance * np.abs(expected).max()


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def x(rng):
    return rng.standard_normal((7, 4))


@pytest.fixture
def weights(rng):
    """W_q, W_k of width 3, W_v of width 5."""
    return rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), rng.standard_normal((4, 5))


@pytest.fixture
def mask(rng):
    """Which output looks where; the last output looks nowhere, output 2 not at itself."""
    allowed = rng.random((7, 7)) < 0.6
    allowed[2, 2], allowed[-1] = False, False
    allowed[:-1, 0] = True
    return allowed


def dot(weights, scale=1.0, mask=None):
    w_q, w_k, w_v = (torch.from_numpy(w) for w in weights)
    factors = 1.0 if mask is None else torch.from_numpy(np.asarray(mask, dtype=float))
    return lambda h: (scale * factors * ((h @ w_q) @ (h @ w_k).T)) @ (h @ w_v)


def softmax(weights, mask=None, scale=None):
    """PyTorch's own attention."""
    w_q, w_k, w_v = (torch.from_numpy(w) for w in weights)
    allowed = None if mask is None else torch.from_numpy(mask)
    return lambda h: F.scaled_dot_product_attention(
        (h @ w_q)[None], (h @ w_k)[None], (h @ w_v)[None], allowed, scale=scale
    )[0]


def test_dot_product_attention_has_the_theorems_jacobian(x, weights):
    agree(theory.dot_attention(x, *weights), jacobian(dot(weights), x))
    agree(theory.dot_attention(x, *weights, scale=1 / 7), jacobian(dot(weights, scale=1 / 7), x))


def test_a_mask_of_factors_cuts_dot_product_attention_exactly(rng, x, weights, mask):
    closed = theory.dot_attention(x, *weights, mask=mask)
    agree(closed, jacobian(dot(weights, mask=mask), x))
    outside = ~mask & ~np.eye(7, dtype=bool)
    assert np.count_nonzero(theory.influence_of(closed)[outside]) == 0
    assert np.count_nonzero(closed[-1]) == 0
    factors = rng.standard_normal((7, 7))
    agree(theory.dot_attention(x, *weights, mask=factors), jacobian(dot(weights, mask=factors), x))


def test_the_proofs_missing_transpose_gives_something_else(rng, x):
    """E0-17: X_p W_q W_k, as printed, type-checks for square weights only, and is wrong for them."""
    w_q, w_k, w_v = (rng.standard_normal((4, 4)) for _ in range(3))
    measured = jacobian(dot((w_q, w_k, w_v)), x)
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    p, i = 1, 5
    right, printed = ((q[p] @ k[i]) * w_v.T + np.outer(v[i], q[p] @ w) for w in (w_k.T, w_k))
    agree(right, measured[p, :, i])
    assert np.abs(printed - measured[p, :, i]).max() > 0.1


def test_softmax_attention_has_the_jacobian_of_pytorchs(x, weights):
    agree(theory.softmax_attention(x, *weights), jacobian(softmax(weights), x))
    agree(theory.softmax_attention(x, *weights, scale=1.0), jacobian(softmax(weights, scale=1.0), x))


def test_a_mask_cuts_softmax_attention_exactly_and_leaves_no_nan(x, weights, mask):
    closed = theory.softmax_attention(x, *weights, mask=mask)
    agree(closed[:-1], jacobian(softmax(weights, mask=mask), x)[:-1])
    outside = ~mask & ~np.eye(7, dtype=bool)
    assert np.count_nonzero(theory.influence_of(closed)[outside]) == 0
    assert np.count_nonzero(closed[-1]) == 0
    assert (
        np.abs(closed[2, :, 2]).max() > 0
    )  # an output sees itself through its query even where it may not look at itself


def test_large_logits_do_not_overflow(x, weights):
    w_q, w_k, w_v = weights
    closed = theory.softmax_attention(x, 1e3 * w_q, w_k, w_v)
    assert np.isfinite(closed).all()
    agree(closed, jacobian(softmax((1e3 * w_q, w_k, w_v)), x), 1e-9)


@pytest.mark.parametrize("form", [theory.dot_attention, theory.softmax_attention])
def test_asked_outputs_are_rows_of_the_whole(x, weights, mask, form):
    whole = form(x, *weights, mask=mask)
    agree(form(x, *weights, mask=mask, outputs=[5, 0, 3]), whole[[5, 0, 3]])
    assert form(x, *weights, outputs=[]).shape == (0, 5, 7, 4)


def with_ones(x):
    return np.hstack([x, np.ones((len(x), 1))])


def test_several_heads_with_biases_are_pytorchs_multi_head_attention(rng, x):
    """Biases by a column of ones, as the module's docstring says."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    nn.init.normal_(layer.in_proj_bias)
    measured = jacobian(lambda h: layer(h[None], h[None], h[None], need_weights=False)[0][0], x)
    weight, bias = layer.in_proj_weight.detach().numpy(), layer.in_proj_bias.detach().numpy()
    projections = [np.vstack([weight[4 * k : 4 * k + 4].T, bias[4 * k : 4 * k + 4]]) for k in range(3)]
    closed = theory.multi_head_attention(with_ones(x), *projections, layer.out_proj.weight.detach().numpy().T, heads=2)
    agree(closed[..., :4], measured)


@pytest.mark.parametrize("pairwise", ["softmax", "dot"])
def test_heads_side_by_side_are_projected_together(rng, x, mask, pairwise):
    w_q, w_k, w_v, w_o = (rng.standard_normal(shape) for shape in ((4, 6), (4, 6), (4, 9), (9, 2)))
    one = softmax if pairwise == "softmax" else dot
    heads = [
        one((w_q[:, 2 * h : 2 * h + 2], w_k[:, 2 * h : 2 * h + 2], w_v[:, 3 * h : 3 * h + 3]), mask=mask)
        for h in range(3)
    ]
    measured = jacobian(lambda h: torch.cat([head(h) for head in heads], 1) @ torch.from_numpy(w_o), x)
    closed = theory.multi_head_attention(x, w_q, w_k, w_v, w_o, heads=3, pairwise=pairwise, mask=mask)
    agree(closed[:-1], measured[:-1])
    one_output = theory.multi_head_attention(x, w_q, w_k, w_v, w_o, heads=3, pairwise=pairwise, mask=mask, outputs=[4])
    agree(one_output, closed[[4]])


@pytest.mark.parametrize("pairwise", ["softmax", "dot"])
@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_a_non_local_block_is_its_branch_beside_the_identity(rng, x, pairwise, alpha):
    """The published forms: embedded Gaussian without a scale, dot product over n."""
    w_theta, w_phi, w_g, w_z = (rng.standard_normal(shape) for shape in ((4, 3), (4, 3), (4, 2), (2, 4)))
    theta, phi, g, z = (torch.from_numpy(w) for w in (w_theta, w_phi, w_g, w_z))

    def forward(h):
        pairs = (h @ theta) @ (h @ phi).T
        pairs = pairs.softmax(1) if pairwise == "softmax" else pairs / len(h)
        return h + alpha * (pairs @ (h @ g) @ z)

    closed = theory.nonlocal_block(x, w_theta, w_phi, w_g, w_z, pairwise=pairwise, alpha=alpha)
    agree(closed, jacobian(forward, x))
    branch = theory.influence_of((closed - np.eye(28).reshape(7, 4, 7, 4)), "signed")
    agree(theory.influence_of(closed, "signed"), branch + 4 * np.eye(7))
    identity = theory.nonlocal_block(x, w_theta, w_phi, w_g, w_z, pairwise=pairwise, alpha=0.0)
    np.testing.assert_array_equal(identity.reshape(28, 28), np.eye(28))


@pytest.mark.parametrize("form", [theory.dot_attention, theory.softmax_attention])
def test_attention_is_equivariant_until_positions_are_embedded(rng, x, weights, form):
    order = rng.permutation(7)
    position = rng.standard_normal((7, 4))

    def influence(h):
        return theory.influence_of(form(h, *weights), "jacobian")

    agree(influence(x[order]), theory.permuted(influence(x), order))
    np.testing.assert_array_equal(theory.permuted(influence(x), np.arange(7)), influence(x))
    assert np.abs(influence(x[order]) - influence(x)).max() > 1e-3  # E2-04: equivariant, not invariant
    assert np.abs(influence(x[order] + position) - theory.permuted(influence(x + position), order)).max() > 1e-3


def test_two_layers_chain(rng, x):
    first, second = ([rng.standard_normal((4, 4)) / 2 for _ in range(3)] for _ in range(2))
    inner, outer = softmax(first), softmax(second)
    hidden = inner(torch.from_numpy(x)).numpy()
    closed = theory.chain(theory.softmax_attention(hidden, *second), theory.softmax_attention(x, *first))
    agree(closed, jacobian(lambda h: outer(inner(h)), x))


def test_one_output_of_a_large_grid_is_had_without_the_whole(rng):
    """n = 4096: the whole Jacobian would take 4 GiB for four channels."""
    x = rng.standard_normal((4096, 4))
    weights = [rng.standard_normal((4, 4)) / 4 for _ in range(3)]
    closed = theory.softmax_attention(x, *weights, outputs=[17])
    leaf = torch.from_numpy(x).requires_grad_(True)
    w_q, w_k, w_v = (torch.from_numpy(w) for w in weights)
    y = ((leaf[17] @ w_q) @ (leaf @ w_k).T / math.sqrt(4)).softmax(0) @ (leaf @ w_v)
    rows = [torch.autograd.grad(y[r], leaf, retain_graph=True)[0].numpy() for r in range(4)]
    agree(closed[0], np.stack(rows))


W = np.ones((4, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: theory.dot_attention(x, np.ones((5, 3)), W, W), r"w_q has shape \(5, 3\); it must be \(4, any\)"),
        (lambda x: theory.dot_attention(x, W, np.ones((4, 2)), W), r"w_k has shape \(4, 2\); it must be \(4, 3\)"),
        (lambda x: theory.softmax_attention(x[0], W, W, W), r"x has shape \(4,\)"),
        (
            lambda x: theory.softmax_attention(x, W, W, W, mask=np.ones((7, 6))),
            r"the mask has shape \(7, 6\); it must be \(7, 7\)",
        ),
        (lambda x: theory.softmax_attention(x, W, W, W, mask=np.full((7, 7), -np.inf)), "is it additive"),
        (lambda x: theory.softmax_attention(x, W, W, W, outputs=[7]), r"indices in 0 .. 6, not \[7\]"),
        (lambda x: theory.multi_head_attention(x, W, W, W, W.T, heads=2), "2 heads do not divide widths of 3, 3 and 3"),
        (
            lambda x: theory.multi_head_attention(x, W, W, W, W.T, heads=3, pairwise="gaussian"),
            "pairwise is 'gaussian'",
        ),
        (
            lambda x: theory.multi_head_attention(x, W, W, W, W, heads=3),
            r"w_o has shape \(4, 3\); it must be \(3, any\)",
        ),
        (lambda x: theory.nonlocal_block(x, W, W, W, W.T[:, :3]), r"w_z has shape \(3, 3\); it must be \(3, 4\)"),
    ],
)
def test_bad_shapes_are_named(x, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(x)
    assert "\n" not in str(caught.value)
