"""Self-attention: E1 to E8 of docs/theory.md, on the blocks SelfAttention, NonLocal and Pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erfscope import adapters
from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import influence
from erfscope.apps.lab.influence_matrix.compute import NodeMap
from erfscope.apps.lab.studies.theorems.case import (
    Case,
    CaseOutcome,
    Draws,
    array,
    equals,
    expects,
    follows,
    grouped,
    worst,
)
from erfscope.apps.lab.studies.theorems.graphs import DUTA, moments_hold, redrawn
from erfscope.core import FloatArray

blocks = adapters.blocks

SIDE = (3, 4)
N = SIDE[0] * SIDE[1]


def projections(layer: nn.Module) -> tuple[FloatArray, FloatArray, FloatArray]:
    """W_q, W_k, W_v of a SelfAttention, each (c_in, c_out)."""
    query, key, value = (array(getattr(layer, name).weight.T) for name in ("query", "key", "value"))
    return query, key, value


def _dot(draws: Draws) -> CaseOutcome:
    """Check plain attention, and attention divided by n as in Non-Local networks; for some outputs only, too."""
    x, outcomes = draws.normal(N, 3), []
    for over_n in (False, True):
        layer = draws.fill(blocks.SelfAttention(3, 2, key_channels=4, mode="dot_product", over_n=over_n))
        jacobian = theory.dot_attention(array(x), *projections(layer), scale=1 / N if over_n else 1.0)
        fn = blocks.on_nodes(layer, *SIDE)
        outcomes += [follows(fn, x, jacobian), follows(fn, x, jacobian, [7, 0])]
    return worst(*outcomes)


def _softmax(draws: Draws) -> CaseOutcome:
    x, layer = draws.normal(N, 3), draws.fill(blocks.SelfAttention(3, 2, key_channels=4))
    return follows(blocks.on_nodes(layer, *SIDE), x, theory.softmax_attention(array(x), *projections(layer)))


def _masked(draws: Draws) -> CaseOutcome:
    """Check a given mask with a row that sees nothing, and a window, which the block computes from shifted copies."""
    x, outcomes = draws.normal(N, 3), []
    allowed = draws.uniform(N, N) < 0.5
    allowed[3] = False
    row, col = np.divmod(np.arange(N), SIDE[1])
    near = np.maximum(abs(row[:, None] - row), abs(col[:, None] - col)) <= 1
    given: list[tuple[dict[str, Any], FloatArray]] = [
        ({"mask": allowed}, array(allowed.double())),
        ({"window": 3}, near.astype(np.float64)),
    ]
    for words, mask in given:
        soft = draws.fill(blocks.SelfAttention(3, 2, **words))
        dot = draws.fill(blocks.SelfAttention(3, 2, mode="dot_product", over_n=False, **words))
        cases = (
            (soft, theory.softmax_attention(array(x), *projections(soft), mask=mask)),
            (dot, theory.dot_attention(array(x), *projections(dot), mask=mask)),
        )
        for layer, jacobian in cases:
            fn = blocks.on_nodes(layer, *SIDE)
            outcomes.append(follows(fn, x, jacobian))
            outside = influence(fn, x).values[(mask == 0) & ~np.eye(N, dtype=bool)]
            outcomes.append(CaseOutcome(error=float(outside.max()), limit=0.0))
    return worst(*outcomes)


def _heads(draws: Draws) -> CaseOutcome:
    x, outcomes = draws.normal(N, 3), []
    modes: tuple[tuple[Any, Any], ...] = (("softmax", "softmax"), ("dot_product", "dot"))
    for mode, pairwise in modes:
        layer = draws.fill(blocks.SelfAttention(3, 4, heads=2, key_channels=6, mode=mode, over_n=False))
        output = array(layer.proj.weight.T)
        jacobian = theory.multi_head_attention(array(x), *projections(layer), output, heads=2, pairwise=pairwise)
        outcomes.append(follows(blocks.on_nodes(layer, *SIDE), x, jacobian))
    return worst(*outcomes)


def with_bias(conv: Any) -> FloatArray:
    """Return a 1 x 1 convolution as a matrix (c_in + 1, c_out) for features with a column of ones."""
    return np.vstack([array(conv.weight)[:, :, 0, 0].T, array(conv.bias)[None]])


def slopes(norm: Any) -> FloatArray:
    """Return the factor of a frozen batch norm for each channel."""
    return array(norm.weight / torch.sqrt(norm.running_var + norm.eps))


def _non_local(draws: Draws) -> CaseOutcome:
    """With biases and batch norm, which the theory takes as a column of ones and as a factor."""
    x, outcomes = draws.normal(N, 3), []
    features = np.hstack([array(x), np.ones((N, 1))])
    kinds: tuple[tuple[Any, Any, bool], ...] = (
        ("embedded_gaussian", "softmax", False),
        ("embedded_gaussian", "softmax", True),
        ("dot_product", "dot", False),
    )
    for mode, pairwise, use_scale in kinds:
        block = draws.fill(blocks.NonLocal(3, 2, mode=mode, use_scale=use_scale))
        output = array(block.conv_out.weight)[:, :, 0, 0].T * slopes(block.norm)
        theta, phi, g = (with_bias(conv) for conv in (block.theta, block.phi, block.g))
        scale = 2**-0.5 if use_scale else None
        padded = np.pad(output, ((0, 0), (0, 1)))
        jacobian = theory.nonlocal_block(features, theta, phi, g, padded, pairwise=pairwise, scale=scale)
        outcomes.append(follows(blocks.on_nodes(block, *SIDE), x, jacobian[:, :3, :, :3]))
    return worst(*outcomes)


def _pipeline(draws: Draws) -> CaseOutcome:
    """Projection, batch norm, two attention layers, projection back, batch norm, residual: the chain rule on closed
    forms."""
    x = draws.normal(N, 5)
    block: Any = draws.fill(blocks.Pipeline(5, blocks.SelfAttention, inner=3))

    def projection(conv: nn.Conv2d, norm: nn.Module) -> FloatArray:
        matrix = array(conv.weight)[:, :, 0, 0] * slopes(norm)[:, None]
        return theory.linear_gcn(np.eye(N), [matrix.T])

    jacobian = projection(block.conv_in, block.norm_in)
    with torch.no_grad():
        hidden = blocks.on_nodes(nn.Sequential(block.conv_in, block.norm_in), *SIDE)(x)
        for layer in block.layers:
            jacobian = theory.chain(theory.softmax_attention(array(hidden), *projections(layer)), jacobian)
            hidden = blocks.on_nodes(layer, *SIDE)(hidden)
    jacobian = theory.chain(projection(block.conv_out, block.norm_out), jacobian)
    return follows(blocks.on_nodes(block, *SIDE), x, theory.with_residual(jacobian))


def _mean(draws: Draws) -> CaseOutcome:
    """One channel; and three, with queries of two and values of four."""
    outcomes = []
    for channels, keys, out in ((1, 1, 1), (3, 2, 4)):
        root = draws.normal(5, 5)
        x = root @ draws.normal(16 * draws.samples(500), 5, channels)
        layer = draws.fill(blocks.SelfAttention(channels, out, key_channels=keys, mode="dot_product", over_n=False))
        expected = theory.dot_attention_mean(array(root @ root.T), *projections(layer))
        outcomes.append(
            expects(influence(*grouped(blocks.on_nodes(layer, 1, 5), x, 16), "signed", [0, 1]), expected[:2], each=16)
        )
    return worst(*outcomes)


def _random(draws: Draws) -> CaseOutcome:
    """One channel: only the product of the three weights counts, and only its variance.

    Inputs mix uniform numbers, of fourth cumulant -6/5, so that the covariance of squares is not that of Gaussian ones;
    tails are lighter."""
    root = draws.normal(5, 5)
    x = root @ ((2 * draws.uniform(draws.samples(2000), 5, 1) - 1) * 3**0.5)
    covariance, squares = root @ root.T, root.square() @ root.square().T
    expected = theory.dot_attention_random_weights(array(covariance), squares=array(2 * covariance**2 - 1.2 * squares))
    layer = blocks.SelfAttention(1, 1, mode="dot_product", over_n=False).double()
    return moments_hold(redrawn(blocks.on_nodes(layer, 1, 5), layer, draws), x, expected)


def embedded(fn: NodeMap, position: Tensor) -> NodeMap:
    """Return the map after an absolute positional embedding."""
    return lambda x: fn(x + position)


def _permuted(draws: Draws) -> CaseOutcome:
    """Check that the statement holds without an embedding, and fails with one."""
    x, order = draws.normal(N, 3), torch.randperm(N, generator=draws.generator)
    fn = blocks.on_nodes(draws.fill(blocks.SelfAttention(3, heads=3)), *SIDE)
    moved = embedded(fn, draws.normal(N, 3))
    gaps = []
    for each in (fn, moved):
        expected = theory.permuted(influence(each, x), array(order))
        gaps.append(equals(influence(each, x[order]), expected).error or 0.0)
    return CaseOutcome(error=gaps[0] if gaps[1] > 1e-2 else float("inf"))


def _after_norm(draws: Draws) -> CaseOutcome:
    """Check that behind a LayerNorm the signed influence off the diagonal is rounding noise."""
    norm, layer = draws.fill(nn.LayerNorm(3)), draws.fill(blocks.SelfAttention(3, heads=3))
    attention, x = blocks.on_nodes(layer, *SIDE), draws.normal(N, 3)
    signed = influence(lambda y: y + attention(norm(y)), x, "signed").values
    scale = influence(lambda y: y + attention(norm(y)), x).values
    return CaseOutcome(
        error=float(np.abs(signed - 3 * np.eye(N)).max() / scale[~np.eye(N, dtype=bool)].max()), limit=1e-12
    )


CASES: tuple[Case, ...] = (
    Case(name="dot_attention", source=f"{DUTA}, Thm 3, 6 (E0-17)", kind="closed form", run=_dot),
    Case(name="softmax_attention", source=f"{DUTA}, Eq. 13", kind="closed form", run=_softmax),
    Case(name="attention, masks and windows", source=f"{DUTA}, Eq. 13, 14", kind="closed form", run=_masked),
    Case(name="multi_head_attention", source="Vaswani et al. 2017, 3.2.2", kind="closed form", run=_heads),
    Case(name="nonlocal_block", source="Wang et al. 2018", kind="closed form", run=_non_local),
    Case(name="attention, whole pipeline", source=f"{DUTA}, 4.2", kind="closed form", run=_pipeline),
    Case(name="dot_attention_mean", source=f"{DUTA}, Thm 3, Eq. 16", kind="expectation", run=_mean),
    Case(
        name="dot_attention_random_weights", source=f"{DUTA}, Eq. 18 (E0-19 to E0-21)", kind="expectation", run=_random
    ),
    Case(name="attention, permuted", source="Course report (E2-04)", kind="property", run=_permuted),
    Case(name="signed, after a LayerNorm", source="Ba et al. 2016, shift invariance", kind="property", run=_after_norm),
)
