"""Facts that a model brings along: where its numbers are from, and how an image becomes its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from erfscope.core.values.axes import Axes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor, nn

#: Where weights can be from.
Source = Literal["pretrained", "checkpoint", "random", "random-raw", "factory", "exported", "unknown", "given", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where a model's numbers come from."""

    #: "given" is a live module; "none" has no numbers, and is never measured.
    source: Source
    sha256: str | None = None
    seed: int | None = None
    #: How many residual branches start at zero and were switched on to be measured.
    reactivated: int = 0
    #: Pretrained weights were wanted by default and could not be had.
    fallback: bool = False
    #: Why not; of a factory why they are not known to be trained, of a checkpoint which keys were not used.
    reason: str | None = None
    #: The pretrained tag, checkpoint file or hub name.
    origin: str | None = None
    #: Keys of a checkpoint that were not used.
    ignored_keys: int = 0
    #: Files that may run code were read, because that was asked for.
    unsafe_load: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """How an image becomes the model's input, in two steps, so that several models can share the same pixels."""

    #: Spatial size of the input.
    size: tuple[int, ...]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    #: Image -> uint8 (H, W, C) at ``size``: resize and crop.
    crop: Callable[[Image], NDArray[np.uint8]]
    #: uint8 (B, H, W, C) -> float64 (B, C, H, W): scale and normalise.
    normalise: Callable[[NDArray[np.uint8]], Tensor]
    #: Whether ``normalise`` looks at each pixel alone; False where it does everything, as a user's own transform, so
    #: that the pixels that the model sees are unknown.
    pixelwise: bool = True
    #: What makes the pixels, in words; all that is done where ``normalise`` does everything.
    resize_text: str
    #: What scales them, in words; "" where nothing does.
    scale_text: str = ""
    #: What the axes of the input are.
    axes: Axes
    #: Which of "axes", "size", "mean", "std" neither the model nor the options state.
    assumed: tuple[str, ...] = ()
    #: The same for another number of channels, where that is a guess, by a first convolution if there is one.
    with_channels: Callable[[int], Preprocess] | None = None
    #: Of several inputs each, by name: one tensor holds them all, each with its channels behind those of the one before
    #: and with its first cell in the corner.
    parts: Mapping[str, Preprocess] = field(default_factory=dict)

    def of(self, reference: str) -> Preprocess:
        """That of the input that a reference is; of an inner reference all of it."""
        return self.parts.get(reference, self)

    def place(self, reference: str) -> tuple[slice, ...] | None:
        """Where one of several inputs lies in (C, *space) of the tensor that holds them all; None for other
        references."""
        first = 0
        for name, part in self.parts.items():
            if name == reference:
                return slice(first, first + part.channels), *(slice(0, side) for side in part.size)
            first += part.channels
        return None

    @property
    def steps_text(self) -> str:
        """Both steps in words."""
        return ", ".join(text for text in (self.resize_text, self.scale_text) if text)

    @property
    def text(self) -> str:
        """One line for the report: both steps, and which of their numbers are assumed."""
        return self.steps_text + (f"; assumed: {', '.join(self.assumed)}" if self.assumed else "")


class GivenModel(Protocol):
    """A module with the input that it takes."""

    module: nn.Module
    preprocess: Preprocess
