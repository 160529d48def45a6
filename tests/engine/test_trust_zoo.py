"""What forward passes with noise say of models of many kinds as they are: their gradient is their derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import erfscope

FEW = {"measures": "r50,r90", "trust": True}


def agrees(result: erfscope.Result) -> bool:
    """Whether a gradient was compared, and is right."""
    assert (result.status, result.error) == ("ok", None)
    value, se = result.trust.ratio
    return not result.trust.disagrees and abs(value - 1) <= max(0.05, 3.5 * se) and se < 0.1


class ChannelsLast(nn.Module):
    """A convolution, then a norm of every cell, channels last, then another convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, 2, 1)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 4, H / 4, W / 4)."""
        return self.last(self.norm(self.first(x).movedim(1, -1)).movedim(-1, 1).tanh())


def test_noise_lands_on_an_inner_map_whose_channels_come_last():
    result = erfscope.analyze(ChannelsLast(), wrt="norm", images=torch.randn(4, 3, 24, 32), **FEW)
    assert agrees(result)
    assert result.trust.grey_levels is None


@pytest.mark.parametrize(("model", "wrt"), [("test_resnet", "layer1"), ("test_vit", "blocks.2")])
def test_noise_lands_on_an_inner_map_and_on_tokens(model, wrt):
    assert agrees(erfscope.analyze(model, wrt=wrt, input_size=64, samples=4, draws=2, weights="random", **FEW))
