"""Images of shapes, drawn from formulas: training data for small nets, without a download.

A shape has one grey or colour, which is independent of its kind, so that the class of a pixel inside it depends on its
outline alone, which may be far away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erfscope.maps.erf_map import FloatArray

Inside = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]
#: Whether a point (u, v) lies inside the shape, which fits into the unit circle.
SHAPES: Mapping[str, Inside] = {
    "disk": lambda u, v: u**2 + v**2 < 0.8,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.7) < 0.2,
    "triangle": lambda u, v: (v > -0.5) & (np.sqrt(3) * abs(u) + v < 1),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 0.95),
}
#: Class of a pixel of the background.
BACKGROUND = len(SHAPES)
#: Standard deviation of the noise on every pixel and channel, of values in [0, 1].
NOISE = 0.08


def single(count: int, side: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One shape per image, somewhere near its middle, at any angle.

    Args:
        count: How many images.
        side: Of an image, in pixels.
        generator: Source of randomness.

    Returns:
        Images (count, 3, side, side), about -2 to 2, and the number of each one's shape (count,).
    """
    kinds = generator.integers(len(SHAPES), size=count)
    pictures = _ground(count, side, generator)
    for picture, kind in zip(pictures, kinds, strict=True):
        radius = generator.uniform(0.25, 0.45) * side
        _paint(picture, _mask(kind, side, generator.uniform(0.4, 0.6, 2) * side, radius, generator), generator)
    return _finished(pictures, generator), torch.from_numpy(kinds)


def scenes(count: int, side: int, generator: np.random.Generator, *, reach: int = 128) -> tuple[Tensor, Tensor]:
    """Several shapes per image, of which later ones hide earlier ones: five where the reach is the side.

    Args:
        count: How many images.
        side: Of an image, in pixels.
        generator: Source of randomness.
        reach: What a shape's radius is measured by: 0.12 to 0.25 of it, in pixels.

    Returns:
        Images (count, 3, side, side), about -2 to 2, and the kind of every pixel (count, side, side): a shape's number,
        or BACKGROUND.
    """
    pictures, labels = _ground(count, side, generator), np.full((count, side, side), BACKGROUND)
    for picture, label in zip(pictures, labels, strict=True):
        for kind in generator.integers(len(SHAPES), size=round(5 * (side / reach) ** 2)):
            inside = _mask(
                kind, side, generator.uniform(0, 1, 2) * side, generator.uniform(0.12, 0.25) * reach, generator
            )
            _paint(picture, inside, generator)
            label[inside] = kind
    return _finished(pictures, generator), torch.from_numpy(labels)


def _ground(count: int, side: int, generator: np.random.Generator) -> FloatArray:
    """Images of one dark colour each, (count, side, side, 3)."""
    return np.broadcast_to(generator.uniform(0, 0.4, (count, 1, 1, 3)), (count, side, side, 3)).copy()


def _mask(kind: int, side: int, center: FloatArray, radius: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    angle = generator.uniform(0, 2 * np.pi)
    rows, cols = np.mgrid[:side, :side]
    y, x = (rows - center[0]) / radius, (cols - center[1]) / radius
    return list(SHAPES.values())[kind](np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y)


def _paint(picture: FloatArray, inside: NDArray[np.bool_], generator: np.random.Generator) -> None:
    """Fill a part of an image (side, side, 3) with one bright colour."""
    picture[inside] = generator.uniform(0.5, 1, 3)


def _finished(pictures: FloatArray, generator: np.random.Generator) -> Tensor:
    noisy = pictures + NOISE * generator.standard_normal(pictures.shape)
    return torch.from_numpy(((noisy - 0.5) * 4).transpose(0, 3, 1, 2).astype(np.float32))
