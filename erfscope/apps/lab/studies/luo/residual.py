"""Two small residual nets, as deep as those of which Luo et al. watched the ERF during training."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class Block(nn.Module):
    """x + two convolutions of 3 x 3, then a ReLU.

    Args:
        channels: In and out.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, h, w) -> (B, C, h, w)."""
        out: Tensor = self.act(x + self.branch(x))
        return out


class Classifier(nn.Module):
    """17 residual blocks at full resolution, a mean over the map, a linear layer; theoretical receptive field 71 px.

    Args:
        width: Channels.
        classes: How many.
        blocks: How many.
    """

    def __init__(self, width: int, classes: int, blocks: int = 17) -> None:
        super().__init__()
        self.stem = _step(3, width, 1)
        self.body = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> scores (B, classes)."""
        out: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return out


class Segmenter(nn.Module):
    """Four strided convolutions with residual blocks after each, and scores at 1/16 of the resolution.

    With four blocks after each the theoretical receptive field is 511 px; that of the paper's net, of 16 blocks, is 505
    px.

    Args:
        width: Channels after the first convolution; twice as many after the second, four times as many from the third
            on.
        classes: How many.
        blocks: How many after each strided convolution.
    """

    def __init__(self, width: int, classes: int, blocks: int = 4) -> None:
        super().__init__()
        channels = [3, width, 2 * width, 4 * width, 4 * width]
        stages = [
            nn.Sequential(_step(before, after, 2), *(Block(after) for _ in range(blocks)))
            for before, after in pairwise(channels)
        ]
        self.body = nn.Sequential(*stages)
        self.head = nn.Conv2d(channels[-1], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> scores (B, classes, H / 16, W / 16), of the pixels at 0, 16, 32, ..."""
        out: Tensor = self.head(self.body(x))
        return out


def _step(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
