"""Stacks of convolutions along one axis: C1 to C3 and C5 to C7 of docs/theory.md, on PyTorch's own convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from erfscope.apps.lab import theory
from erfscope.apps.lab.influence_matrix import influence
from erfscope.apps.lab.influence_matrix.compute import NodeMap
from erfscope.apps.lab.studies.theorems.case import Case, CaseOutcome, Draws, array, equals, expects, follows, worst
from erfscope.core import FloatArray

LUO = "Luo et al. 2016"
#: The layers that are strided or dilated in the stacks of Luo et al., counted from 1; the paper does not state them.
SPECIAL = (4, 8, 12)


def stack(
    kernels: Sequence[Tensor], strides: Sequence[int] = (), dilations: Sequence[int] = (), *, residual: bool = False
) -> NodeMap:
    """Return convolutions of a line of nodes (n, c), without padding; a skip connection around each takes the middle of
    its input.

    Args:
        kernels: (c_out, c_in, k) each.
        strides: One per layer, or none.
        dilations: One per layer, or none.
        residual: Whether each layer's input is added.
    """
    steps, rates = strides or [1] * len(kernels), dilations or [1] * len(kernels)

    def fn(x: Tensor) -> Tensor:
        line = x.T[None]
        for kernel, step, rate in zip(kernels, steps, rates, strict=True):
            out = functional.conv1d(line, kernel, stride=step, dilation=rate)
            margin = kernel.shape[2] // 2
            line = out + line[..., margin : line.shape[2] - margin] if residual else out
        return line[0].T

    return fn


def uniform(k: int) -> Tensor:
    """A kernel of k equal taps with sum 1."""
    return torch.full((1, 1, k), 1 / k, dtype=torch.float64)


def moments(row: FloatArray) -> tuple[float, float, float]:
    """Mean, variance and excess kurtosis of a row of weights."""
    t, share = np.arange(len(row)), row / row.sum()
    mean = float(share @ t)
    variance = float(share @ (t - mean) ** 2)
    return mean, variance, float(share @ (t - mean) ** 4) / variance**2 - 3


def has_shape(fn: NodeMap, shape: theory.StackShape, stride: int = 1) -> CaseOutcome:
    """Check that two neighbouring units see ``shape``, ``stride`` pixels apart, in every convention, and its
    moments."""
    n = shape.trf_px + stride
    jacobian = np.zeros((2, 1, n, 1))
    for p in (0, 1):
        jacobian[p, 0, p * stride : p * stride + shape.trf_px, 0] = shape.kernel
    x = torch.zeros(n, 1, dtype=torch.float64)
    row = influence(fn, x, "signed", [0]).values[0]
    named = (shape.mean_px, shape.variance_px2, shape.excess_kurtosis or 0.0)
    return worst(
        follows(fn, x, jacobian), *(equals([got], [stated]) for got, stated in zip(moments(row), named, strict=True))
    )


def _uniform(draws: Draws) -> CaseOutcome:
    sizes = ((9, 3), (20, 3), (6, 5), (7, 2))
    return worst(*(has_shape(stack([uniform(k)] * n), theory.uniform_stack(n, k)) for n, k in sizes))


def _two_taps(draws: Draws) -> CaseOutcome:
    n = 160
    row = influence(stack([uniform(2)] * n), torch.zeros(n + 1, 1, dtype=torch.float64), "signed").values[0]
    centre = slice(n // 2, n // 2 + 1)
    return equals(row[centre], theory.binomial_asymptote(n)[centre], limit=1.05 / (4 * n))


def _kernel(draws: Draws) -> CaseOutcome:
    outcomes = []
    for kernel in (torch.tensor([0.5, 0.0, 0.5]), draws.uniform(4)):
        taps = (kernel / kernel.sum()).double().view(1, 1, -1)
        row = influence(
            stack([taps] * 5), torch.zeros(5 * (taps.shape[2] - 1) + 1, 1, dtype=torch.float64), "signed"
        ).values[0]
        outcomes.append(equals([moments(row)[1]], [theory.weighted_kernel_variance(array(taps).ravel(), 5)]))
    return worst(*outcomes)


def _spaced(strides: Sequence[int], dilations: Sequence[int]) -> CaseOutcome:
    layers = 15
    steps, rates = [1] * layers, [1] * layers
    for place, step, rate in zip(SPECIAL, strides, dilations, strict=True):
        steps[place - 1], rates[place - 1] = step, rate
    shape = theory.strided_dilated_stack([3] * layers, steps, rates)
    return has_shape(stack([uniform(3)] * layers, steps, rates), shape, math.prod(steps))


def _strided_dilated(draws: Draws) -> CaseOutcome:
    """Three layers of stride 2, variance 184; dilations 2, 4 and 8, variance 64."""
    return worst(_spaced((2, 2, 2), (1, 1, 1)), _spaced((1, 1, 1), (2, 4, 8)))


def divided(fn: NodeMap, scale: float) -> NodeMap:
    """The map divided by a number."""
    return lambda x: fn(x) / scale


def _skips(draws: Draws) -> CaseOutcome:
    """The field of I + g V sums to (1 + g)^n; the theory's is divided by that."""
    outcomes = []
    for n, k, gain in ((8, 3, 1.0), (5, 5, 0.4)):
        block = uniform(k) * gain
        block[0, 0, k // 2] += 1
        skipping, fused = stack([gain * uniform(k)] * n, residual=True), stack([block] * n)
        scale = (1 + gain) ** n
        outcomes += [has_shape(divided(fn, scale), theory.residual_stack(n, k, gain=gain)) for fn in (skipping, fused)]
    return worst(*outcomes)


def _random(draws: Draws, widths: Sequence[int], *, residual: bool) -> CaseOutcome:
    """Fresh weights at every call; uniform ones, whose squares have lighter tails than normal ones'."""
    n, k, bound = len(widths) - 1, 3, 0.8

    def fn(x: Tensor) -> Tensor:
        kernels = [bound * (2 * draws.uniform(c_out, c_in, k) - 1) for c_in, c_out in itertools.pairwise(widths)]
        return stack(kernels, residual=residual)(x)

    x = torch.zeros(draws.samples(2000), n * (k - 1) + 1, widths[0], dtype=torch.float64)
    expected = theory.random_weight_energy(n, k, bound**2 / 3, widths=widths, residual=residual)
    return expects(influence(fn, x, "energy"), expected[None])


def _random_weights(draws: Draws) -> CaseOutcome:
    return _random(draws, (2, 3, 4), residual=False)


def _random_skips(draws: Draws) -> CaseOutcome:
    return _random(draws, (3, 3, 3), residual=True)


CASES: tuple[Case, ...] = (
    Case(name="uniform_stack", source=f"{LUO}, section 3", kind="closed form", run=_uniform),
    Case(name="weighted_kernel_variance", source=f"{LUO}, section 3 (E1-11)", kind="closed form", run=_kernel),
    Case(name="strided_dilated_stack", source=f"{LUO}, section 3 (E1-12)", kind="closed form", run=_strided_dilated),
    Case(name="residual_stack", source=f"after {LUO}, skips", kind="closed form", run=_skips),
    Case(name="random_weight_energy", source=f"{LUO}, section 3 (E1-03)", kind="expectation", run=_random_weights),
    Case(name="random_weight_energy, skips", source=f"after {LUO}, skips", kind="expectation", run=_random_skips),
    Case(name="binomial_asymptote, 1 / 4n", source=f"{LUO}, section 3", kind="property", run=_two_taps),
)
