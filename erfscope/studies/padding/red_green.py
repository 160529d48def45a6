"""Two boxes, red and green, whose order is the class and whose height gives it away: does a net read the order, or
where the boxes are?

Red is left of green in the upper half, or green left of red in the lower half. Swapping the halves tells the two
apart. Source: Kayhan & van Gemert 2020, arXiv:2003.07064, section 4.2; their net and their numbers of pixels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
SIDE, BOX = 32, 4
#: First row of the boxes of either class, to which -4 ... 3 is added; other halves are 16 rows away.
OFFSETS, SPREAD, APART = (7, 23), 4, 16
#: Padding mode -> PyTorch's name of it, and how wide it is for a kernel of 3.
PADDINGS: dict[str, tuple[PaddingMode, int]] = {
    "replicate": ("replicate", 1),
    "full": ("zeros", 2),
    "circular": ("circular", 1),
    "zero": ("zeros", 1),
    "valid": ("zeros", 0),
    "reflect": ("reflect", 1),
}


def red_green(count: int, generator: torch.Generator, *, swapped: bool = False) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) of 0 and 1, and their classes: 0 for red left of green.

    Args:
        count: How many.
        generator: Source of randomness.
        swapped: Whether each class is in the half of the other.
    """
    classes = torch.arange(count) % 2
    tops = torch.tensor(OFFSETS)[classes] + (1 - 2 * classes) * (APART if swapped else 0)
    left = torch.randint(0, 10, (count,), generator=generator)
    gap = BOX + 1
    room = SIDE - BOX - gap - left
    right = left + gap + (torch.rand(count, generator=generator) * room).long()
    rows = tops + torch.randint(-SPREAD, SPREAD, (2, count), generator=generator)
    cells = torch.arange(SIDE)
    pictures = torch.zeros(count, 3, SIDE, SIDE)
    for first, column, row in ((True, left, rows[0]), (False, right, rows[1])):
        colour = classes if first else 1 - classes
        down = ((cells >= row[:, None]) & (cells < row[:, None] + BOX))[:, :, None]
        across = ((cells >= column[:, None]) & (cells < column[:, None] + BOX))[:, None]
        pictures[torch.arange(count), colour] += (down & across).float()
    return pictures, classes


def padded(in_channels: int, out_channels: int, mode: str, *, stride: int = 1) -> nn.Conv2d:
    """A convolution of 3 x 3 without a bias, padded in one of the modes of :data:`PADDINGS`."""
    name, width = PADDINGS[mode]
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=width, padding_mode=name, bias=False)


def net1(mode: str) -> nn.Sequential:
    """Four convolutions, the largest response anywhere, and a linear layer: logits of the two classes."""
    return nn.Sequential(
        *(padded(3, 32, mode), nn.ReLU()),
        *(padded(32, 32, mode, stride=2), nn.ReLU()),
        *(padded(32, 64, mode, stride=2), nn.ReLU()),
        *(padded(64, 64, mode, stride=2), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 2)),
    )
