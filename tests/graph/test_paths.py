"""Shares of paths beside the gradient of a net that averages what it reads, on an input without borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Does
from torch import Tensor, nn

import erfscope
from erfscope.adapters.recorded import recording_of
from erfscope.core import Site


def averaging(channels: int, kernel: int, **options) -> nn.Conv2d:
    """A convolution that gives every channel the mean of what it reads."""
    layer = nn.Conv2d(channels, 1, kernel, bias=False, **options)
    nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
    return layer


def branches(rates: tuple[int, ...], *, added: bool) -> nn.Module:
    """A stem of stride 2, then dilated branches side by side, or a residual sum."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        x = m.stem(x)
        found = [branch(x) for branch in m.branches]
        return (x + found[0]) / 2 if added else m.join(torch.cat(found, 1))

    dilated = nn.ModuleList(averaging(1, 3, padding=rate, dilation=rate) for rate in rates)
    return Does(forward, stem=averaging(1, 3, stride=2, padding=1), branches=dilated, join=averaging(len(rates), 1))


def gradient(net: nn.Module, size: int, unit: int, axis: int) -> np.ndarray:
    x = torch.zeros(1, 1, size, size, requires_grad=True)
    net(x)[0, 0, unit, unit].backward()
    return x.grad[0, 0].sum(1 - axis).numpy()


@pytest.mark.parametrize(("rates", "added"), [((1, 2, 5), False), ((1, 9), False), ((3,), True), ((20,), True)])
@pytest.mark.parametrize("axis", [0, 1])
def test_paths_end_where_the_gradient_of_averages_does_and_the_rest_is_outside(rates, added, axis):
    """A larger input, of which the same unit is as far from the first border, has all of them; along one axis those
    that leave along the other are counted too."""
    net, size, unit = branches(rates, added=added), 24, 6
    recording = recording_of(erfscope.wrap(net, input_size=size, in_chans=1))
    found = Site(recording, "output").path_shares((unit, unit))[axis]
    large, shift = gradient(net, 200, 50, axis), 2 * (50 - unit)
    inside, outside = large[shift : shift + size], (large[:shift].sum(), large[shift + size :].sum())
    np.testing.assert_allclose(found.inside.sum() + found.outside.sum(), 1)
    # What leaves the stem's map lies outside of the image, or reads a pixel of its first row or last.
    np.testing.assert_allclose(found.inside[2:-2], inside[2:-2], atol=1e-6)
    np.testing.assert_allclose(found.outside, outside, atol=0.12)


def test_tokens_and_what_mixes_all_positions():
    """Attention has no border: only the projection of patches and the sum count."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        tokens = m.patches(x).flatten(2).mT
        return tokens + m.mix(tokens, tokens, tokens)[0]

    net = Does(forward, patches=nn.Conv2d(1, 8, 4, 4), mix=nn.MultiheadAttention(8, 1, batch_first=True))
    recording = recording_of(erfscope.wrap(net, input_size=32, in_chans=1))
    for found in Site(recording, "output").path_shares((3, 3)):
        np.testing.assert_allclose(found.inside, np.r_[np.zeros(12), np.full(4, 0.25), np.zeros(16)])
        assert found.outside.sum() == 0
