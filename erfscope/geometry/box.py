"""Boxes of cells: parts of an image or a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: First cell and last + 1 along each axis.
Box = tuple[tuple[int, int], ...]


def sides(box: Box) -> tuple[int, ...]:
    """Return the number of cells along each axis."""
    return tuple(stop - first for first, stop in box)


def inside(box: Box, start: Sequence[int] | None = None) -> Any:
    """Return the index of a box's cells in an array whose last axes are the box's and begin at ``start`` (0 if
    None)."""
    begun = start or (0,) * len(box)
    return (..., *(slice(first - low, stop - low) for (first, stop), low in zip(box, begun, strict=True)))


def box_at(origin: Sequence[int], shape: Sequence[int]) -> Box:
    """Return the box of this shape that begins at ``origin``."""
    return tuple((first, first + side) for first, side in zip(origin, shape, strict=True))


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that contains all boxes."""
    return tuple((min(side[0] for side in axis), max(side[1] for side in axis)) for axis in zip(*boxes, strict=True))


def size_text(size: Sequence[int | str]) -> str:
    """Return a size as the command line writes it, e.g. ``192x256``."""
    return "x".join(str(side) for side in size)
