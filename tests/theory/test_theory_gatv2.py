"""GATv2's closed forms, against autograd of the layer as PyTorch Geometric defines it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closed import agree, jacobian

from erfscope import theory

N, C, D, HEADS = 6, 3, 4, 2
NAMES = ("theta_l", "theta_r", "bias_l", "bias_r", "a")


def layer(adjacency, concat=True, slope=0.2):
    """All targets and heads at once: (target, source, head)."""
    linked = torch.from_numpy(adjacency != 0)[..., None]

    def forward(h, theta_l, theta_r, bias_l, bias_r, a):
        left, right = (h @ theta_l.T + bias_l).unflatten(1, a.shape), (h @ theta_r.T + bias_r).unflatten(1, a.shape)
        weights = (F.leaky_relu(right[:, None] + left[None], slope) * a).sum(-1).exp() * linked
        alpha = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
        y = torch.einsum("ijh,jhd->ihd", alpha, left)
        return y.flatten(1) if concat else y.mean(1)

    return forward


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def adjacency(rng):
    """Directed, weights that must not matter; node 4 listens to one node, node 5 to none."""
    links = (rng.random((N, N)) < 0.7) * rng.standard_normal((N, N))
    links[4:] = 0
    links[4, 1] = 2.0
    assert ((links != 0).sum(1)[:4] >= 2).all()
    return links


@pytest.fixture
def parameters(rng):
    shapes = ((HEADS * D, C), (HEADS * D, C), (HEADS * D,), (HEADS * D,), (HEADS, D))
    return dict(zip(NAMES, (rng.standard_normal(shape) for shape in shapes), strict=True))


@pytest.fixture
def x(rng):
    return rng.standard_normal((N, C))


def tensors(parameters):
    return [torch.from_numpy(parameters[name]) for name in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize(("concat", "slope"), [(True, 0.2), (False, 0.0), (True, 1.0)])
def test_the_jacobian_of_gatv2(x, adjacency, parameters, concat, slope):
    forward = layer(adjacency, concat, slope)
    measured = jacobian(lambda h: forward(h, *tensors(parameters)), x)
    closed = theory.gatv2(x, adjacency, **parameters, slope=slope, concat=concat)
    agree(closed, measured)
    unlinked = (adjacency == 0) & ~np.eye(N, dtype=bool)
    assert np.count_nonzero(theory.influence_of(closed)[unlinked]) == 0
    assert np.count_nonzero(closed[5]) == 0


def one_target(x, adjacency, parameters, i, head=0):
    """What the paper writes for one target: A_k's ingredients v, slope pattern s, alpha."""
    part = slice(head * D, (head + 1) * D)
    left = x @ parameters["theta_l"][part].T + parameters["bias_l"][part]
    right = x @ parameters["theta_r"][part].T + parameters["bias_r"][part]
    sources = np.flatnonzero(adjacency[i])
    u = right[i] + left[sources]
    s = np.where(u > 0, 1.0, 0.2)
    e = np.exp((s * u) @ parameters["a"][head])
    return left[sources], s, e / e.sum()


def test_the_pairwise_form_is_right_and_the_printed_sum_over_outputs_is_not(x, adjacency, parameters, rng):
    """E4-02: A_j is the loss's share g . v_j; summing outputs and multiplying by g_t afterwards is right only for equal
    g."""
    g, i = rng.standard_normal(D), 1
    upstream = np.zeros((N, D * HEADS))
    upstream[i, :D] = g
    v, s, alpha = one_target(x, adjacency, parameters, i)
    a = parameters["a"][0]

    def pairwise(value):
        total = np.zeros(D)
        for k in range(len(alpha)):
            for j in range(k):
                total += alpha[j] * alpha[k] * (value[j] - value[k]) * (s[j] - s[k])
        return total

    right = theory.gatv2_parameter_gradients(x, adjacency, **parameters, gradient=upstream).theta_r[:D]
    agree(np.outer(a * pairwise(v @ g), x[i]), right)
    printed = np.outer(a * pairwise(v.sum(1)) * g, x[i])
    assert np.abs(printed - right).max() > 0.01
    upstream[i, :D] = 0.7
    equal = theory.gatv2_parameter_gradients(x, adjacency, **parameters, gradient=upstream).theta_r[:D]
    agree(np.outer(a * pairwise(v.sum(1)) * 0.7, x[i]), equal)


def test_a_slope_of_one_kills_theta_r_everywhere(x, adjacency, parameters):
    assert theory.dead_targets(x, adjacency, **parameters, slope=1.0).all()
    assert theory.dead_targets(x, adjacency, **parameters).mean() < 1


def test_the_softmaxs_own_derivative_carries_its_weight(x, adjacency, parameters):
    """E4-01: alpha_1 (1 - alpha_1), not 1 - alpha_1."""
    _, _, alpha = one_target(x, adjacency, parameters, 1)
    own = jacobian(lambda e: e.softmax(0), np.log(alpha))[0, 0]
    assert own == pytest.approx(alpha[0] * (1 - alpha[0]), rel=1e-12)
    assert abs(own - (1 - alpha[0])) > 0.1
