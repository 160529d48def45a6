"""Attention, Non-Local, pooling and wide-kernel blocks against their equations, in float64."""

import pytest
import torch
import torch.nn.functional as F
from block_bench import H, N, W, close, function, made, nodes, same_in_another_order
from timm.layers import GlobalContext
from torch import nn
from torch.autograd.functional import jacobian

from erfscope.adapters.blocks import LargeKernel, NonLocal, SelfAttention, ThresholdPooling, TopKPooling, global_context
from erfscope.adapters.blocks.attention import attend
from erfscope.adapters.weights.reactivate import dormant, reactivate

C = 4
MASK = torch.rand(N, N, generator=torch.Generator().manual_seed(3)) < 0.4


def window_mask(size):
    rows, cols = torch.arange(N) // W, torch.arange(N) % W
    return ((rows[:, None] - rows).abs() <= size // 2) & ((cols[:, None] - cols).abs() <= size // 2)


def as_map(x):
    return x.T.reshape(1, -1, H, W)


def with_mask(name):
    """Options of a layer, and the mask that they mean."""
    masks = {"all": torch.ones(N, N, dtype=torch.bool), "mask": MASK, "window": window_mask(3)}
    return {"all": {}, "mask": {"mask": masks["mask"].float() * 2}, "window": {"window": 3}}[name], masks[name]


@pytest.mark.parametrize("seen", ["all", "mask", "window"])
@pytest.mark.parametrize("over_n", [True, False])
def test_dot_product_attention_has_the_jacobian_of_theorem_three(over_n, seen):
    options, mask = with_mask(seen)
    layer = made(SelfAttention, C, 3, 1, 2, mode="dot_product", over_n=over_n, **options)
    x, mask, scale = nodes(), mask.double(), 1 / N if over_n else 1.0
    wq, wk, wv = (lin.weight.T for lin in (layer.query, layer.key, layer.value))
    scores = (x @ wq) @ (x @ wk).T * mask * scale
    wanted = torch.einsum("pi,sr->pris", scores, wv)
    wanted += torch.einsum("pi,ir,ps->pris", mask * scale, x @ wv, x @ wq @ wk.T)
    own = torch.einsum("pj,jr,js->prs", mask * scale, x @ wv, x @ wk @ wq.T)
    wanted[range(N), :, range(N)] += own
    close(function(layer)(x), scores @ (x @ wv))
    found = jacobian(function(layer), x)
    close(found, wanted)
    assert not bool(found.abs().amax((1, 3))[(mask == 0) & ~torch.eye(N, dtype=torch.bool)].any())


@pytest.mark.parametrize("seen", ["all", "mask", "window"])
@pytest.mark.parametrize("use_scale", [True, False])
def test_softmax_attention_has_the_jacobian_of_its_closed_form(use_scale, seen):
    options, mask = with_mask(seen)
    layer = made(SelfAttention, C, 3, 1, 2, use_scale=use_scale, **options)
    x, scale = nodes(), 2**-0.5 if use_scale else 1.0
    wq, wk, wv = (lin.weight.T for lin in (layer.query, layer.key, layer.value))
    q, k, v = x @ wq, x @ wk, x @ wv
    a = (q @ k.T * scale).masked_fill(~mask, -torch.inf).softmax(1)
    y = a @ v
    centred = v[None] - y[:, None]
    wanted = torch.einsum("pi,sr->pris", a, wv) + scale * torch.einsum("pi,pir,ps->pris", a, centred, q @ wk.T)
    wanted[range(N), :, range(N)] += scale * torch.einsum("pj,pjr,js->prs", a, centred, k @ wq.T)
    close(function(layer)(x), y)
    found = jacobian(function(layer), x)
    close(found, wanted)
    assert not bool(found.abs().amax((1, 3))[~mask & ~torch.eye(N, dtype=torch.bool)].any())


@pytest.mark.parametrize("mode", ["softmax", "dot_product"])
@pytest.mark.parametrize("seen", ["all", "mask", "window"])
def test_heads_attend_by_themselves_and_are_projected_together(seen, mode):
    options, mask = with_mask(seen)
    layer = made(SelfAttention, C, 6, 2, 8, mode=mode, bias=True, **options)
    x, parts = nodes(), []
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    for head in range(2):
        scores = q[:, 4 * head : 4 * head + 4] @ k[:, 4 * head : 4 * head + 4].T
        weights = (scores / 2).masked_fill(~mask, -torch.inf).softmax(1) if mode == "softmax" else scores * mask / N
        parts.append(weights @ v[:, 3 * head : 3 * head + 3])
    close(function(layer)(x), layer.proj(torch.cat(parts, 1)))
    assert SelfAttention(C).proj is None
    assert SelfAttention(C, heads=2, proj=False).proj is None


@pytest.mark.parametrize("mode", ["softmax", "dot_product"])
def test_a_node_that_may_see_nothing_gets_zero_without_nan(mode):
    mask = MASK.clone()
    mask[5] = False
    layer = made(SelfAttention, C, mode=mode, mask=mask)
    x = nodes().requires_grad_()
    y = function(layer)(x)
    (gradient,) = torch.autograd.grad((y * y).sum() + y.sum(), x)
    assert not bool(y[5].any())
    assert bool(gradient.isfinite().all())
    assert not bool(jacobian(function(layer), nodes())[5].any())


def test_attention_is_the_same_in_another_order_of_the_nodes():
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    kinds = ((SelfAttention, {"heads": 2}), (NonLocal, {"mode": "concatenation"}), (NonLocal, {"mode": "gaussian"}))
    for layer in (made(kind, C, **options) for kind, options in kinds):
        same_in_another_order(layer, layer, order)


@pytest.mark.parametrize("sub_sample", [False, True])
@pytest.mark.parametrize("mode", ["embedded_gaussian", "gaussian", "dot_product", "concatenation"])
def test_a_non_local_block_is_its_equation(mode, sub_sample):
    layer = made(NonLocal, C, 2, mode, sub_sample=sub_sample)
    layer.norm.running_mean.normal_()
    layer.norm.running_var.uniform_(0.5, 2)
    x = nodes()

    def conv(part, y):
        return y if isinstance(part, nn.Identity) else y @ part.weight[..., 0, 0].T + part.bias

    def pooled(y):
        return F.max_pool2d(as_map(y), 2)[0].flatten(1).T if sub_sample else y

    theta, phi, g = conv(layer.theta, x), pooled(conv(layer.phi, x)), pooled(conv(layer.g, x))
    count = 2 if sub_sample else N
    if mode == "concatenation":
        pairs = torch.cat([theta[:, None].expand(-1, count, -1), phi[None].expand(N, -1, -1)], 2)
        weights = torch.relu(pairs @ layer.concat_project.weight.flatten()) / count
    elif mode == "dot_product":
        weights = theta @ phi.T / count
    else:
        weights = (theta @ phi.T / (2**0.5 if mode == "embedded_gaussian" else 1)).softmax(1)
    y = conv(layer.conv_out, weights @ g)
    norm = layer.norm
    y = (y - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    close(function(layer)(x), x + y)


@pytest.mark.parametrize("mode", ["embedded_gaussian", "gaussian", "dot_product"])
def test_a_non_local_window_is_the_mask_of_that_window(mode):
    one = made(NonLocal, C, 2, mode, 2, window=3)
    other = made(NonLocal, C, 2, mode, 2)
    words = {"softmax": mode != "dot_product", "scale": 1 / N if mode == "dot_product" else other.scale}
    other._attended = lambda theta, phi, g: attend(theta, phi, g, 2, **words, mask=window_mask(3))
    close(function(one)(nodes()), function(other)(nodes()))


@pytest.mark.parametrize(("norm", "name"), [(True, "norm.weight"), (False, "gamma")])
def test_a_fresh_non_local_block_is_the_identity_until_it_is_switched_on(norm, name):
    layer, x = NonLocal(C, norm=norm).eval(), torch.randn(2, C, H, W)
    assert torch.equal(layer(x), x)
    assert dormant(layer) == [name]
    assert reactivate(layer) == 1
    assert not torch.allclose(layer(x), x)
    open_one = NonLocal(C, norm=norm, zero_init=False)
    assert dormant(open_one) == []


def test_the_global_context_is_one_weighted_mean_for_all_cells():
    block = global_context(C, rd_channels=3).double()
    inner = block.block
    assert isinstance(inner, GlobalContext)
    x = nodes()
    alpha = (x @ inner.conv_attn.weight.flatten() + inner.conv_attn.bias).softmax(0)
    hidden = (alpha @ x) @ inner.mlp_add.fc1.weight[..., 0, 0].T + inner.mlp_add.fc1.bias
    norm = inner.mlp_add.norm
    hidden = torch.relu(F.layer_norm(hidden, (3,), norm.weight, norm.bias, norm.eps))
    added = hidden @ inner.mlp_add.fc2.weight[..., 0, 0].T + inner.mlp_add.fc2.bias
    close(function(block)(x), x + added)
    assert float((function(block)(x) - x).abs().max().detach()) > 1e-3
    still = global_context(C, zero_init=True)
    assert torch.equal(still(as_map(x.float())), as_map(x.float()))
    gate = global_context(C, fuse_add=False, fuse_scale=True).double()
    ratio = function(gate)(x) / x
    close(ratio, ratio[:1].expand_as(ratio))


def test_a_large_kernel_is_the_sum_of_two_outer_products():
    layer = made(LargeKernel, C, 3, 5, bias=False)
    left = torch.einsum("omd,mia->oiad", layer.conv_l2.weight[:, :, 0], layer.conv_l1.weight[..., 0])
    right = torch.einsum("oma,mid->oiad", layer.conv_r2.weight[..., 0], layer.conv_r1.weight[:, :, 0])
    x = torch.randn(2, C, 7, 8, dtype=torch.float64)
    close(layer(x), F.conv2d(x, left + right, padding=2))


@pytest.mark.parametrize("nonlinearity", ["sigmoid", "tanh"])
@pytest.mark.parametrize(("ratio", "count"), [(0.3, 4), (5, 5), (1.0, 12), (99, 12)])
def test_top_k_pooling_has_the_jacobian_of_its_closed_form(ratio, count, nonlinearity):
    layer = made(TopKPooling, C, ratio, nonlinearity)
    x = nodes()
    p = layer.weight[0] / layer.weight.norm()
    scores = (x @ p).detach()
    best = sorted(range(N), key=lambda i: -float(scores[i]))[:count]
    assert layer.selected(as_map(x)).flatten().nonzero().flatten().tolist() == sorted(best)
    wanted = torch.zeros(N, C, N, C, dtype=torch.float64)
    output = torch.zeros_like(x)
    for i in best:
        gate = getattr(torch, nonlinearity)(scores[i])
        slope = gate * (1 - gate) if nonlinearity == "sigmoid" else 1 - gate**2
        output[i] = gate * x[i]
        wanted[i, :, i] = gate * torch.eye(C, dtype=torch.float64) + slope * torch.outer(x[i], p)
    close(function(layer)(x), output)
    close(jacobian(function(layer), x), wanted)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.1])
def test_threshold_pooling_lets_dropped_cells_keep_an_influence(threshold):
    layer = made(ThresholdPooling, C, threshold)
    x, p = nodes(), layer.weight[0]
    alpha = (x @ p).softmax(0)
    kept = (alpha > (1 / N if threshold is None else threshold)).double()
    assert bool(kept.all()) == (threshold == 0)
    identity = torch.eye(N, dtype=torch.float64)
    wanted = torch.einsum("i,ij,rs->irjs", alpha, identity, torch.eye(C, dtype=torch.float64))
    wanted += torch.einsum("i,ij,ir,s->irjs", alpha, identity - alpha, x, p)
    close(function(layer)(x), (kept * alpha)[:, None] * x)
    close(jacobian(function(layer), x), kept[:, None, None, None] * wanted)


def test_top_k_pooling_by_softmax_weighs_by_all_cells_and_keeps_the_first_of_equals():
    layer, x = made(TopKPooling, C, 3, "softmax"), nodes()
    scores = x @ (layer.weight[0] / layer.weight.norm())
    kept = torch.zeros(N, dtype=torch.float64).scatter(0, scores.topk(3).indices, 1)
    close(function(layer)(x), (kept * scores.softmax(0))[:, None] * x)
    kept = TopKPooling(C, 5).selected(torch.ones(2, C, H, W))
    assert kept.flatten(1).nonzero()[:, 1].tolist() == [0, 1, 2, 3, 4] * 2
