"""Boxes of cells: parts of an image or a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: First cell and last + 1 along each axis.
Box = tuple[tuple[int, int], ...]


def sides(box: Box) -> tuple[int, ...]:
    """Cells along each axis."""
    return tuple(stop - first for first, stop in box)


def inside(box: Box, start: Sequence[int] | None = None) -> Any:
    """Index of the box's cells in an array whose last axes are the box's and begin at ``start`` (0 if None)."""
    begun = start or (0,) * len(box)
    return (..., *(slice(first - low, stop - low) for (first, stop), low in zip(box, begun, strict=True)))


def box_at(origin: Sequence[int], shape: Sequence[int]) -> Box:
    """The box of this shape that begins at ``origin``."""
    return tuple((first, first + side) for first, side in zip(origin, shape, strict=True))


def around(boxes: Sequence[Box]) -> Box:
    """The smallest box that holds all of them."""
    return tuple((min(side[0] for side in axis), max(side[1] for side in axis)) for axis in zip(*boxes, strict=True))


def size_text(size: Sequence[int | str]) -> str:
    """Sizes as the command line writes them, e.g. ``192x256``."""
    return "x".join(str(side) for side in size)
