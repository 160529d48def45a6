"""Complex weights and buffers keep their imaginary parts in another precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope


class Fourier(nn.Module):
    """A filter in the frequency domain, and rotations of channels as in rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.filter = nn.Parameter(torch.randn(4, 16, 9, dtype=torch.complex64))
        self.register_buffer("turns", torch.polar(torch.ones(2, 16, 16), torch.rand(2, 16, 16) * 6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.irfft2(torch.fft.rfft2(self.stem(x)) * self.filter, s=x.shape[2:])
        pairs = torch.view_as_complex(y.unflatten(1, (2, 2)).movedim(2, -1).contiguous())
        return torch.view_as_real(pairs * self.turns).movedim(-1, 2).flatten(1, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_are_those_of_the_complex_model(dtype):
    torch.manual_seed(0)
    net, x = Fourier().eval(), torch.randn(1, 3, 16, 16)
    asked = {
        "images": x,
        "input_size": (16, 16),
        "layer": "output",
        "unit": (8, 8),
        "convention": "replknet",
        "measures": "r50",
    }
    result = erfscope.analyze(net, dtype=dtype, **asked)
    leaf = x.clone().requires_grad_(True)
    expected = torch.autograd.grad(net(leaf)[0, :, 8, 8].relu().sum(), leaf)[0].relu().sum((0, 1))
    np.testing.assert_allclose(result.map.values, (expected / expected.sum()).numpy(), rtol=1e-3, atol=1e-6)
    assert net.filter.dtype == net.turns.dtype == torch.complex64
