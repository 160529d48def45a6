"""Images of a red and a green box: red is left of green in the upper half, or green left of red in the lower half.

Swapping the halves tells whether a net reads the order or the position. Source: Kayhan & van Gemert 2020,
arXiv:2003.07064, section 4.2, with their sizes in pixels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Side of an image of boxes, side of a box, first row of the boxes of either class, to which -4 ... 3 is added.
PICTURE, BOX, OFFSETS, SPREAD = 32, 4, (7, 23), 4
#: The left box begins in one of so many columns, the right one anywhere behind it.
LEFTS = 10


def red_green(count: int, generator: torch.Generator, *, swapped: bool = False) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) of 0 and 1, and their classes: 0 for red left of green.

    Args:
        count: How many.
        generator: Source of randomness.
        swapped: Whether each class is in the half of the other.
    """
    classes = torch.arange(count) % 2
    tops = torch.tensor(OFFSETS)[1 - classes if swapped else classes]
    left, gap = torch.randint(0, LEFTS, (count,), generator=generator), BOX + 1
    right = left + gap + (torch.rand(count, generator=generator) * (PICTURE - BOX - gap - left)).long()
    rows = tops + torch.randint(-SPREAD, SPREAD, (2, count), generator=generator)
    cells, pictures = torch.arange(PICTURE), torch.zeros(count, 3, PICTURE, PICTURE)
    for colour, column, row in ((classes, left, rows[0]), (1 - classes, right, rows[1])):
        down = ((cells >= row[:, None]) & (cells < row[:, None] + BOX))[:, :, None]
        across = ((cells >= column[:, None]) & (cells < column[:, None] + BOX))[:, None]
        pictures[torch.arange(count), colour] += (down & across).float()
    return pictures, classes


def circular_limit() -> float:
    """Return the largest accuracy that a net with circular padding can have, whose strides multiply to 8.

    What it answers does not change when an image is shifted around by 8 px. So all that tells the class is how far the
    green box is right of the red one, modulo the image's side, and where the red one is modulo 8: a net that knows how
    often each pair occurs in either class takes the more frequent class.
    """
    often = np.zeros((2, 8, PICTURE))
    for left in range(LEFTS):
        rights = np.arange(left + BOX + 1, PICTURE - BOX)
        for right in rights:
            often[0, left % 8, right - left] += 1 / len(rights)
            often[1, right % 8, left - right] += 1 / len(rights)
    return float(often.max(0).sum() / often.sum())
