"""Complex weights and buffers keep their imaginary parts in another precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Does, conv
from oracle import plain_gradient
from torch import nn

import erfscope


def turned(m, x):
    """A filter in the frequency domain, and rotations of channels as in rotary embeddings."""
    y = torch.fft.irfft2(torch.fft.rfft2(m.stem(x)) * m.filter, s=x.shape[2:])
    pairs = torch.view_as_complex(y.unflatten(1, (2, 2)).movedim(2, -1).contiguous())
    return torch.view_as_real(pairs * m.turns).movedim(-1, 2).flatten(1, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_are_those_of_the_complex_model(dtype):
    turns = torch.polar(torch.ones(2, 16, 16), torch.rand(2, 16, 16) * 6)
    filtered = nn.Parameter(torch.randn(4, 16, 9, dtype=torch.complex64))
    net, x = Does(turned, stem=conv(), filter=filtered, turns=turns).eval(), torch.randn(1, 3, 16, 16)
    asked = {"layer": "output", "unit": (8, 8), "convention": "replknet", "measures": "r50"}
    result = erfscope.analyze(net, images=x, dtype=dtype, **asked)
    expected = plain_gradient(net, x, lambda y: y[0, :, 8, 8].relu()).relu().sum((0, 1))
    np.testing.assert_allclose(result.map.values, (expected / expected.sum()).numpy(), rtol=1e-3, atol=1e-6)
    assert net.filter.dtype == net.turns.dtype == torch.complex64
