"""Sort-of-CLEVR: six coloured squares and circles, with questions about one of them or about its relation to the
others.

Source: Santoro et al. 2017, arXiv:1706.01427, section 4.3; rendered with numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIDE, RADIUS = 75, 5
#: Red, green, blue, orange, grey, yellow.
COLOURS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 156, 0), (128, 128, 128), (255, 255, 0)]) / 255
OBJECTS = len(COLOURS)
#: yes, no, square, circle, 1 to 6.
ANSWERS = 10
YES, NO, SQUARE, CIRCLE, ONE = range(5)
#: Which object, which of two groups, which of three questions.
QUESTION = OBJECTS + 2 + 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenes:
    """Images with twenty questions each."""

    #: (B, 3, 75, 75), 0 to 1 less a half.
    pictures: Tensor
    #: (B, 20, 11): ten that are about one object, then ten that are relational.
    questions: Tensor
    #: (B, 20)
    answers: Tensor


def scenes(count: int, generator: np.random.Generator) -> Scenes:
    """Random scenes.

    Args:
        count: How many.
        generator: Source of randomness.
    """
    made = [_scene(generator) for _ in range(count)]
    pictures, questions, answers = (np.stack(part) for part in zip(*made, strict=True))
    return Scenes(
        pictures=torch.from_numpy(pictures).float(),
        questions=torch.from_numpy(questions).float(),
        answers=torch.from_numpy(answers),
    )


def _scene(generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    centres = _centres(generator)
    round_ = generator.integers(0, 2, OBJECTS).astype(bool)
    asked = [
        (int(generator.integers(OBJECTS)), relational, int(generator.integers(3)))
        for relational in (False,) * 10 + (True,) * 10
    ]
    questions = np.zeros((len(asked), QUESTION))
    for row, (which, relational, kind) in zip(questions, asked, strict=True):
        row[[which, OBJECTS + relational, OBJECTS + 2 + kind]] = 1
    answers = [_related(*one[::2], centres, round_) if one[1] else _alone(*one[::2], centres, round_) for one in asked]
    return drawn(centres, round_), questions, np.array(answers)


def _centres(generator: np.random.Generator) -> NDArray[np.int64]:
    """Places for all objects that do not overlap, (6, 2)."""
    found: list[NDArray[np.int64]] = []
    while len(found) < OBJECTS:
        place = generator.integers(RADIUS, SIDE - RADIUS, 2)
        if all(np.hypot(*(place - other)) > 2 * RADIUS * 2**0.5 for other in found):
            found.append(place)
    return np.stack(found)


def drawn(centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """An image (3, 75, 75) of circles and squares on white, less a half.

    Args:
        centres: (6, 2), row and column.
        round_: Which are circles, (6,).
    """
    picture = np.ones((3, SIDE, SIDE))
    rows, cols = np.indices((SIDE, SIDE))
    for (row, col), circle, colour in zip(centres, round_, COLOURS, strict=True):
        down, across = abs(rows - row), abs(cols - col)
        inside = down**2 + across**2 <= RADIUS**2 if circle else np.maximum(down, across) <= RADIUS
        picture[:, inside] = colour[:, None]
    return picture - 0.5


def _alone(which: int, kind: int, centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> int:
    """Is it round? Is it on the left? Is it in the upper half?"""
    if kind == 0:
        return CIRCLE if round_[which] else SQUARE
    row, col = centres[which]
    return YES if (col if kind == 1 else row) < SIDE / 2 else NO


def _related(which: int, kind: int, centres: NDArray[np.int64], round_: NDArray[np.bool_]) -> int:
    """What shape has the nearest? The furthest? How many have its shape, itself among them?"""
    if kind == 2:
        return ONE + int((round_ == round_[which]).sum()) - 1
    distance = np.hypot(*(centres - centres[which]).T)
    other = (
        int(np.where(np.arange(OBJECTS) == which, np.inf, distance).argmin()) if kind == 0 else int(distance.argmax())
    )
    return CIRCLE if round_[other] else SQUARE
