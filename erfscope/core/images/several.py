"""Images of several inputs of a model, which belong together by their numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erfscope.core.images.feed import Images, TextKind
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import Box, inside

if TYPE_CHECKING:
    from erfscope.core.values.model_facts import Preprocess


@dataclass(frozen=True, slots=True)
class SeveralImages:
    """The images of each input, in one tensor for all of them.

    Args:
        feeds: Images by the name of the input; as many for each.
        layout: Sizes and places of the inputs in the tensor.

    Raises:
        ErfscopeError: different numbers of images.
    """

    feeds: Mapping[str, Images]
    layout: Preprocess

    def __post_init__(self) -> None:
        counts = {name: feed.n for name, feed in self.feeds.items()}
        if len(set(counts.values())) > 1:
            texts = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ErfscopeError(f"each input takes as many images as the others, and there are {texts}")

    def of(self, reference: str) -> Images:
        """The images of one input; of an inner reference those of the first."""
        return self.feeds.get(reference, self._first)

    @property
    def _first(self) -> Images:
        return next(iter(self.feeds.values()))

    @property
    def n(self) -> int:
        """Number of images of each input."""
        return self._first.n

    @property
    def kind(self) -> str:
        """Their source: that of the first."""
        return self._first.kind

    @property
    def sha256(self) -> str:
        """Hash of what all of them are made from."""
        return hashlib.sha256("".join(feed.sha256 for feed in self.feeds.values()).encode()).hexdigest()

    @property
    def text(self) -> str:
        """One line for the report."""
        return self._first.text

    @property
    def value_bytes(self) -> int:
        """The most that one of them takes."""
        return max(feed.value_bytes for feed in self.feeds.values())

    @property
    def text_kind(self) -> TextKind:
        """Kind of :attr:`text`."""
        return self._first.text_kind

    def preprocess(self, own: Preprocess) -> Preprocess:
        """Each input has its own."""
        return own

    def name(self, index: int) -> str:
        """That of the first input."""
        return self._first.name(index)

    def batch(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """The tensor that holds all inputs, (B, C, *space), or the part of it inside a box; zero where no input is."""
        box = box or tuple((0, side) for side in self.layout.size)
        found = torch.zeros(
            len(indices), self.layout.channels, *(stop - first for first, stop in box), dtype=torch.float64
        )
        for name, feed in self.feeds.items():
            channels, *sides = self.layout.place(name) or ()
            own = tuple((first, min(stop, side.stop)) for (first, stop), side in zip(box, sides, strict=True))
            if all(first < stop for first, stop in own):
                found[:, channels][inside(own, [first for first, _ in box])] = feed.batch(indices, own)
        return found

    def remark(self, own: Preprocess) -> str | None:
        """That of the first input."""
        return self._first.remark(own)

    def pixels(self, index: int) -> NDArray[np.uint8] | None:
        """The image of the first input."""
        return self._first.pixels(index)
