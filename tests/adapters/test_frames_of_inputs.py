"""Example inputs whose axes may be meant otherwise are read as documented, and the result says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import erfscope


class Clip(nn.Module):
    """Convolves clips of any number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, 2, 3, padding=1)

    def forward(self, clip):
        return self.conv(clip)


@pytest.mark.parametrize(
    ("shape", "is_said"),
    [((4, 3, 8, 8), True), ((3, 4, 8, 8), False), ((1, 3, 8, 8), False), ((3, 3, 8, 8), False), ((8, 2, 8, 8), False)],
)
def test_frames_before_channels_are_pointed_out(shape, is_said):
    result = erfscope.analyze(
        erfscope.wrap(Clip(shape[0]), inputs={"clip": torch.zeros(1, *shape)}), samples=1, measures="r50"
    )
    said = [finding.text for finding in result.findings if finding.text.startswith("clip is read as (B, C, T, H, W)")]
    assert bool(said) is is_said
