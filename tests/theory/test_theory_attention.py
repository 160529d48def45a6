"""Closed forms of self-attention and the Non-Local block, against autograd of the forward equations written out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closed import agree, jacobian

from erfscope import theory


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


def test_the_proofs_missing_transpose_gives_something_else(rng, x):
    """E0-17: X_p W_q W_k, as printed, type-checks for square weights only, and is wrong for them."""
    w_q, w_k, w_v = (rng.standard_normal((4, 4)) for _ in range(3))
    measured = jacobian(dot((w_q, w_k, w_v)), x)
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    p, i = 1, 5
    right, printed = ((q[p] @ k[i]) * w_v.T + np.outer(v[i], q[p] @ w) for w in (w_k.T, w_k))
    agree(right, measured[p, :, i])
    assert np.abs(printed - measured[p, :, i]).max() > 0.1


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


@pytest.mark.parametrize("pairwise", ["softmax", "dot"])
def test_heads_side_by_side_are_projected_together(rng, x, mask, pairwise):
    w_q, w_k, w_v, w_o = (rng.standard_normal(shape) for shape in ((4, 6), (4, 6), (4, 9), (9, 2)))
    one = softmax if pairwise == "softmax" else dot
    parts = zip(*(np.split(w, 3, axis=1) for w in (w_q, w_k, w_v)), strict=True)
    heads = [one(part, mask=mask) for part in parts]
    measured = jacobian(lambda h: torch.cat([head(h) for head in heads], 1) @ torch.from_numpy(w_o), x)
    closed_form = partial(theory.multi_head_attention, x, w_q, w_k, w_v, w_o, heads=3, pairwise=pairwise, mask=mask)
    agree(closed_form()[:-1], measured[:-1])
    agree(closed_form(outputs=[4]), closed_form()[[4]])


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
