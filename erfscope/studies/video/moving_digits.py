"""SyncMNIST: moving digits, two of them in step. The class is which two, or that no two are.

Source: Duta & Nicolicioiu 2019, arXiv:1904.05582, and Nicolicioiu & Duta, section 4.2; a font of 5 x 7 pixels stands in
for MNIST."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Rows of 0 to 9, five pixels each, as bits.
GLYPHS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large videos are."""

    frames: int = 10
    side: int = 128
    #: A digit is this many times 7 pixels high and wide.
    zoom: int = 2
    #: Digits in a video, all different, out of this many.
    digits: int = 5
    symbols: int = 10

    @property
    def classes(self) -> int:
        """Pairs of digits, and none."""
        return self.symbols * (self.symbols - 1) // 2 + 1


def moving_digits(
    count: int, distance: float, scale: Scale, generator: np.random.Generator, *, same: bool = False
) -> tuple[Tensor, Tensor]:
    """Videos (count, 1, T, H, W) of 0 and 1, and their classes (count,); the last class is that of none in step.

    Args:
        count: How many.
        distance: The largest distance in pixels between the two digits in step.
        scale: How large videos are.
        generator: Source of randomness.
        same: Whether digits stand and move alike in all videos, the first pair in step, so that only what they are
            differs.
    """
    pairs = list(itertools.combinations(range(scale.symbols), 2))
    videos, classes = (
        np.zeros((count, 1, scale.frames, scale.side, scale.side), dtype=np.float32),
        np.zeros(count, dtype=np.int64),
    )
    paths = _paths(True, distance, scale, generator)
    for number in range(count):
        chosen = generator.permutation(scale.symbols)[: scale.digits]
        # The paper's classes are equally frequent.
        in_step = same or int(generator.integers(scale.classes)) < len(pairs)
        if not same:
            paths = _paths(in_step, distance, scale, generator)
        for path, digit in zip(paths, chosen, strict=True):
            _draw(videos[number, 0], glyph(int(digit), scale.zoom), path)
        pair = (int(min(chosen[:2])), int(max(chosen[:2])))
        classes[number] = pairs.index(pair) if in_step else len(pairs)
    return torch.from_numpy(videos), torch.from_numpy(classes)


def glyph(digit: int, zoom: int) -> NDArray[np.float32]:
    """A digit in a square of 7 * zoom pixels, 0 and 1."""
    bits = np.array([[0, *(row >> bit & 1 for bit in range(4, -1, -1)), 0] for row in GLYPHS[digit]])
    return np.kron(bits, np.ones((zoom, zoom))).astype(np.float32)


def _paths(in_step: bool, distance: float, scale: Scale, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Where the digits' corners are, (T, 2) each; the first two move alike where they are in step."""
    paths = [_walk(scale, generator) for _ in range(scale.digits)]
    size = 7 * scale.zoom
    while in_step:
        # The second starts within the distance of the first, in whole pixels, and takes the same steps; another draw
        # where that leaves the frame.
        angle, length = generator.uniform(0, 2 * np.pi), generator.uniform(min(size, distance), distance)
        paths[0] = _walk(scale, generator)
        apart = np.rint([length * np.sin(angle), length * np.cos(angle)]).astype(np.int64)
        paths[1] = paths[0] + apart
        if np.hypot(*apart) <= distance and paths[1].min() >= 0 and paths[1].max() <= scale.side - size:
            break
    return paths


def _walk(scale: Scale, generator: np.random.Generator) -> NDArray[np.int64]:
    """A random walk that stays inside the frame."""
    reach, room = max(scale.side // 20, 1), scale.side - 7 * scale.zoom
    while True:
        steps = generator.integers(-reach, reach + 1, (scale.frames, 2))
        path: NDArray[np.int64] = generator.integers(0, room + 1, 2) + steps.cumsum(0)
        if path.min() >= 0 and path.max() <= room:
            return path


def _draw(video: NDArray[np.float32], digit: NDArray[np.float32], path: NDArray[np.int64]) -> None:
    size = len(digit)
    for frame, (row, col) in zip(video, path, strict=True):
        patch = frame[row : row + size, col : col + size]
        np.maximum(patch, digit, out=patch)
