"""Maps whose pixels are correlated with those around them and with those opposite, and the nets that look at them.

Source: Nicolicioiu & Duta, section 4.1. The paper names neither the widths of the two Gaussians nor the number of
samples; those below are this study's own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope import theory
from erfscope.adapters.blocks import GCN, SelfAttention, on_nodes
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators

SIDE, CHANNELS, FILTERS, HIDDEN, DEPTH = 21, 32, 24, 256, 9
#: The width of both Gaussians in pixels, and the weight of the one opposite.
SIGMA, RHO = 2.0, 0.5
UNIT, PARTNER = (4, 4), (16, 16)
#: Samples that the spread of single ERFs is estimated from; a mean's standard error goes down with the root of their
#: number.
SPREAD_OF = 50
TIED, SOFT_TIED = "attention, keys = queries", "softmax attention, keys = queries"


def covariance() -> FloatArray:
    """The spatial covariance of every channel, (441, 441): (1 + rho^2) K(a, b) + 2 rho K(a, Rb), R the reflection in
    the middle."""
    line = np.arange(SIDE)
    kernel = np.exp(-((line[:, None] - line) ** 2) / (2 * SIGMA**2))
    plane = np.kron(kernel, kernel)
    return np.asarray((1 + RHO**2) * plane + 2 * RHO * plane[:, ::-1])


def samples(count: int, generator: torch.Generator) -> Tensor:
    """Maps f = g + rho (g o R) with independent channels, (count, 32, 21, 21), float64."""
    line = torch.arange(SIDE, dtype=torch.float64)
    kernel = torch.exp(-((line[:, None] - line) ** 2) / (2 * SIGMA**2))
    values, vectors = torch.linalg.eigh(kernel)
    root = vectors * values.clamp_min(0).sqrt()
    g: Tensor = root @ torch.randn(count, CHANNELS, SIDE, SIDE, dtype=torch.float64, generator=generator) @ root.T
    return g + RHO * g.flip(2, 3)


def mixing() -> FloatArray:
    """P of the GCN, row-normalised: four neighbours, the node itself, and the one opposite."""
    every = [(row, col) for row in range(SIDE) for col in range(SIDE)]
    links = [((row, col), (SIDE - 1 - row, SIDE - 1 - col)) for row, col in every]
    return theory.mean_adjacency(theory.grid_adjacency(SIDE, SIDE, self_loops=True, links=links))


def theorem_3(layer: SelfAttention) -> FloatArray:
    """The expected signed ERF of one layer of dot products at the unit, (441,), over samples with
    :func:`covariance`."""
    query, key, value = (linear.weight.detach().double().numpy().T for linear in (layer.query, layer.key, layer.value))
    return np.asarray(
        theory.dot_attention_mean(covariance(), query, key, value, scale=1 / SIDE**2)[UNIT[0] * SIDE + UNIT[1]]
    )


def signal_to_noise(layer: SelfAttention, x: Tensor) -> float:
    """How the ERF that Theorem 3 expects stands to the standard error of the mean over samples: its spread over the
    pixels, to their rms.

    Args:
        layer: Attention by dot products.
        x: Samples, (N, 32, 21, 21), at least two.
    """
    index, part = UNIT[0] * SIDE + UNIT[1], x[:SPREAD_OF]
    single = erfscope.influence(on_nodes(layer, SIDE, SIDE), part.flatten(2).transpose(1, 2), "signed", [index])
    assert single.se is not None
    off = np.arange(SIDE**2) != index
    noise = np.sqrt(np.square(single.se[0][off]).mean() * len(part) / len(x))
    return float(theorem_3(layer)[off].std() / noise)


def nets(seed: int) -> dict[str, tuple[nn.Sequential, tuple[int, ...]]]:
    """The nets at random weights, and the layers of each that are looked at, counted from 1."""
    graph = (mixing() > 0).astype(np.float64)

    def conv(c: int) -> nn.Module:
        return nn.Conv2d(c, FILTERS, 3, padding=1)

    def gcn(c: int) -> nn.Module:
        return GCN(c, FILTERS, 1, graph=graph, bias=False)

    def attention(softmax: bool, tied: bool, c: int) -> nn.Module:
        layer = SelfAttention(c, HIDDEN, mode="softmax" if softmax else "dot_product")
        if tied:
            layer.key = layer.query
        return layer

    with seed_generators(seed):
        made = {
            "convolution": (_stack(conv, DEPTH, FILTERS, relu=True), (4, DEPTH)),
            "linear GCN": (_stack(gcn, DEPTH, FILTERS), (1, DEPTH)),
            "ReLU GCN": (_stack(gcn, DEPTH, FILTERS, relu=True), (DEPTH,)),
            TIED: (_stack(partial(attention, False, True), 2, HIDDEN), (1, 2)),
            "attention": (_stack(partial(attention, False, False), 2, HIDDEN), (1, 2)),
            SOFT_TIED: (_stack(partial(attention, True, True), 2, HIDDEN), (1, 2)),
            "softmax attention": (_stack(partial(attention, True, False), 2, HIDDEN), (1, 2)),
        }
    # The closed form must hold to 1e-10; elsewhere there is only sampling noise.
    made["linear GCN"][0].double()
    return {name: (net.eval(), layers) for name, (net, layers) in made.items()}


def _stack(layer: Callable[[int], nn.Module], depth: int, width: int, *, relu: bool = False) -> nn.Sequential:
    """Layers of 32 channels, then ``width``, with ReLUs between them."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, depth + 1):
        if relu and number > 1:
            parts[f"relu{number - 1}"] = nn.ReLU()
        parts[f"layer{number}"] = layer(CHANNELS if number == 1 else width)
    return nn.Sequential(parts)
