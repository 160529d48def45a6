"""The planes of a reference that a page shows: an image, three slices of a volume, frames of a clip, or a line.

Every reference counts as one of three axes here: an image is one slice, and a sequence one row of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from erfscope.core import Axes, FloatArray, Images
from erfscope.show import drawn

#: Cells of a picture that a page holds, at most.
PICTURE_CELLS = 1 << 20
#: What planes run down and across: those of a picture, and the three slices of a volume, of which the first two have
#: one height, and the first and the last one width.
FLAT, SLICES = (1, 2), ((1, 2), (1, 0), (0, 2))
Entry = TypeVar("Entry")


def three(entries: Sequence[Entry], filler: Entry) -> tuple[Entry, ...]:
    """Entries of one to three axes, as of three."""
    return (*[filler] * (3 - len(entries)), *entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """A unit's map in one plane of the reference."""

    #: The axes that run down and across, and the cell along the third one.
    axes: tuple[int, int]
    cell: int
    #: The first block along both that is kept.
    first: tuple[int, int]
    #: Levels of the blocks, see :func:`levels`: (down, across).
    levels: NDArray[np.uint8]
    #: Share of the map that lies in the plane.
    share: float


def pairs_of(axes: Axes, frames: int) -> tuple[tuple[int, int], ...]:
    """What the planes of a unit's map run down and across; of a clip of so many frames."""
    kind = axes.noun
    return SLICES if kind == "volume" else (FLAT,) * (min(frames, drawn.FRAMES) if kind == "clip" else 1)


def planes_of(
    values: FloatArray, axes: Axes, cell: Sequence[int], field: Sequence[tuple[int, int]], block: int
) -> tuple[Plane, ...]:
    """A unit's map in the planes that are kept of it: those through its centre, and frames around its own.

    Args:
        values: The map, (*space), with sum 1.
        axes: What its axes are.
        cell: The cell of the unit's centre.
        field: First and last cell along each axis outside which the map is zero.
        block: Side of the blocks of a plane in cells; across the planes a block has one cell.
    """
    whole, own, field = values.reshape(three(values.shape, 1)), three(cell, 0), three(field, (0, 0))
    pairs = pairs_of(axes, len(whole))
    around = drawn.frames_around(own[0], len(whole)) if axes.noun == "clip" else ()
    every: dict[tuple[int, ...], tuple[FloatArray, NDArray[np.uint8]]] = {}
    found = []
    for number, pair in enumerate(pairs):
        (third,) = {0, 1, 2} - {*pair}
        at = around[number] if around else own[third]
        steps = tuple(1 if axis == third else block for axis in range(3))
        if not field[third][0] <= at <= field[third][1]:
            continue
        if steps not in every:
            part = tuple(
                slice(first // step * step, (last // step + 1) * step)
                for (first, last), step in zip(field, steps, strict=True)
            )
            sums = block_sums(whole[part], steps)
            every[steps] = sums, levels(sums)
        mass, shown = (np.moveaxis(each, (third, *pair), (0, 1, 2))[at - field[third][0]] for each in every[steps])
        first = (field[pair[0]][0] // block, field[pair[1]][0] // block)
        found.append(Plane(axes=pair, cell=at, first=first, levels=shown, share=float(mass.sum())))
    return tuple(found)


def block_sums(values: FloatArray, block: int | Sequence[int]) -> FloatArray:
    """Sums of a map over blocks of ``block`` cells along each axis from its first one on, the last ones cut off."""
    steps = [block] * values.ndim if isinstance(block, int) else block
    for axis, step in enumerate(steps):
        values = np.add.reduceat(values, np.arange(0, values.shape[axis], step), axis=axis)
    return values


def levels(weights: FloatArray) -> NDArray[np.uint8]:
    """A map in 8 bits: 0 where there is nothing, else 1 to 255 by the share that blocks at least as strong hold.

    The share is put on the scale ``share`` (:mod:`erfscope.show.drawn`), on which equal steps look equal.
    It counts a block itself, so that the mass of all blocks of one level is the difference between two shares.

    Args:
        weights: Any shape, non-negative, not all zero.
    """
    _, place = np.unique(weights, return_inverse=True)
    held = np.cumsum(np.bincount(place.ravel(), weights.ravel() / weights.sum())[::-1])[::-1]
    bright = np.interp(np.clip(held, 0, 1), drawn.SHARES, drawn.BRIGHTNESS)[place.reshape(weights.shape)]
    return np.where(weights > 0, 1 + np.rint(254 * bright), 0).astype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPicture:
    """What lies under the maps, in 8 bits: its slices side by side in one file."""

    shape: tuple[int, ...]
    #: Slices in a row of the file.
    columns: int
    url: str


def picture_of(feed: Images, rank: int) -> InputPicture:
    """The first input of a feed, of so many axes, in grey: an image as it is shown to the model; else the mean over
    channels of what the model is given, from its smallest value (of a volume or a clip a quantile) to its largest."""
    pixels = feed.pixels(0) if rank == 2 else None
    if pixels is not None:
        grey = pixels.mean(axis=-1)
    else:
        values = feed.batch([0])[0].double().mean(0).numpy()
        low, high = np.quantile(values, (0.0, 1.0) if rank == 1 else (0.005, 0.995))
        grey = 255 * np.clip((values - low) / max(high - low, np.finfo(float).tiny), 0, 1)
    grey = np.rint(grey).astype(np.uint8)
    while grey.size > PICTURE_CELLS:
        longest = int(np.argmax(grey.shape))
        grey = grey[tuple(slice(None, None, 2 if axis == longest else 1) for axis in range(grey.ndim))]
    depth, height, width = shape = three(grey.shape, 1)
    if rank == 1:
        depth, width = width, 1
    columns = max(1, min(depth, round((depth * height / width) ** 0.5)))
    sheet = np.zeros((-(-depth // columns) * columns, height, width), dtype=np.uint8)
    sheet[:depth] = grey.reshape(depth, height, width)
    tiled = sheet.reshape(-1, columns, height, width).transpose(0, 2, 1, 3).reshape(-1, columns * width)
    buffer, form = io.BytesIO(), "PNG" if rank == 1 else "JPEG"
    Image.fromarray(tiled).save(buffer, format=form, quality=85)
    url = f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return InputPicture(shape=shape, columns=columns, url=url)
