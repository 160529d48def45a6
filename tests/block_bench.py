"""Layers of blocks as functions of the nodes of a small map, in float64."""

from __future__ import annotations

import torch
from torch import nn

from erfscope.adapters.blocks import on_nodes

H, W = 3, 4
N = H * W
TIGHT = {"rtol": 0, "atol": 1e-10}


def nodes(channels=4):
    return torch.randn(N, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def made(kind, *args, **options):
    """A layer whose parameters are all drawn, biases and those that start at zero too."""
    torch.manual_seed(0)
    layer = kind(*args, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer


def function(layer):
    return on_nodes(layer, H, W)


def close(found, wanted, **bounds):
    """Equal but for rounding."""
    torch.testing.assert_close(found, wanted, **TIGHT | bounds)


def same_in_another_order(one, other, order, *x):
    close(function(one)(nodes(*x))[order], function(other)(nodes(*x)[order]))
