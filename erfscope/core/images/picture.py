"""A sequence of images at the model's input size, each read or drawn when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erfscope.core.values.errors import ErfscopeError

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stimuli:
    """A sequence of images that are read or drawn one at a time, when they are needed.

    Made by :func:`erfscope.core.images.open_pictures`, :func:`erfscope.core.images.open_arrays` and
    :func:`erfscope.core.images.synthetic`."""

    #: "image" (files), "array" (given from Python), or the kind of synthetic stimulus.
    kind: str
    #: One name per image, in order: the file's path as given, or "leaves[3]" and the like.
    names: tuple[str, ...]
    #: Where the images come from, for the report: "20 of 50000 images in 'val' (seed 0)".
    source: str
    #: Index -> uint8 (*space, C).
    draw: Callable[[int], Pixels]
    #: The hash that :attr:`sha256` shows. A function, since hashing files means to read them.
    digest: Callable[[], str]
    #: Index -> the largest value of an image as it is stored, and of its type; None where that is :attr:`draw`'s.
    largest: Callable[[int], tuple[int, int]] | None = None
    #: Version of the synthetic generator, counted up whenever its pixels change; 0 for files and arrays.
    version: int = 0
    #: Whether :attr:`source` is the name of the only file; it begins with a count otherwise.
    is_one_file: bool = False

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.names)

    @property
    def sha256(self) -> str:
        """Hash of the images' source, 64 hexadecimal digits.

        Files: of their bytes, one file after the other (``cat FILE ... | sha256sum``). Synthetic: of kind, seed,
        version, size and channels. Arrays: of their shapes and bytes.
        """
        return self.digest()

    def pixels(self, index: int) -> Pixels:
        """Read or draw one image, before scaling and normalisation.

        Args:
            index: Place in the whole sequence, whatever the batch or shard, 0 ... n - 1.

        Returns:
            uint8 (*space, C) at the model's input size, read-only; the same for the same index, in any order of calls.

        Raises:
            IndexError: no such place.
            ErfscopeError: the image's file cannot be read; the text names it.
        """
        if not 0 <= index < self.n:
            raise IndexError(f"image {index} was asked for; there are {self.n}")
        pixels = np.ascontiguousarray(self.draw(int(index)))
        pixels.flags.writeable = False
        return pixels

    def __len__(self) -> int:
        return self.n


def at_least_one(samples: int | None) -> None:
    """Refuse a number of samples below one.

    Raises:
        ErfscopeError: ``samples`` is below 1.
    """
    if samples is not None and samples < 1:
        raise ErfscopeError(f"samples={samples} (--samples {samples}) was asked for; give 1 or more")
