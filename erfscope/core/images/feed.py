"""Inputs of the model, image by image: pixels through its own normalisation, or a ready tensor."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from erfscope.core.images import Stimuli
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.unit import Box, inside

if TYPE_CHECKING:
    from erfscope.core.values.model_facts import Preprocess

#: What a line about inputs says: how many there are, the one file's name, or the shape of a tensor.
TextKind = Literal["count", "file", "tensor"]
#: Kinds of images that are resized and cropped; the others are drawn at the input's size.
_CROPPED = ("image", "array")
#: The largest value of an image that is nearly black, as a share of what its type holds: 14 bits in 16 are a quarter.
DARK = 0.26
#: Times of what a model's images reach, beyond which values are of another scale.
FAR = 20


class Images(Protocol):
    """A numbered sequence of inputs."""

    @property
    def n(self) -> int:
        """Number of inputs."""

    @property
    def kind(self) -> str:
        """Their source: "image", a synthetic kind, "array", "tensor", "volume" or "sound"."""

    @property
    def sha256(self) -> str:
        """Hash of what they are made from."""

    @property
    def text(self) -> str:
        """One line for the report."""

    @property
    def value_bytes(self) -> int:
        """Memory that one image takes at the worst moment of its making, per pixel and channel."""

    @property
    def text_kind(self) -> TextKind:
        """Kind of :attr:`text`."""

    def of(self, reference: str) -> Images:
        """Those of the input that a reference is, of several; all of them else."""

    def preprocess(self, own: Preprocess) -> Preprocess:
        """The measured model's own preprocessing, with the resize and crop of these inputs."""

    def name(self, index: int) -> str:
        """Name of one input."""

    def batch(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Inputs (B, C_in, *space) on the CPU, or the part of them inside a box of pixels.

        Raises:
            ErfscopeError: an image cannot be read.
        """

    def pixels(self, index: int) -> NDArray[np.uint8] | None:
        """The image as shown to the model, (H, W, C); None where there is none."""

    def remark(self, own: Preprocess) -> str | None:
        """What is unusual about the values of the first input, and what to do; None where nothing is.

        Raises:
            ErfscopeError: it cannot be read.
        """


@dataclass(frozen=True, slots=True)
class PictureImages:
    """Images at the model's size, normalised by the model's own rule."""

    stimuli: Stimuli
    normalise: Callable[[NDArray[np.uint8]], Tensor]
    #: Whether that looks at each pixel alone, so that a part of an image may be normalised by itself.
    pixelwise: bool = False
    #: The resize and crop, as text, of the model that made the pixels; "" where it is the measured model itself.
    cropped_as: str = ""

    @property
    def n(self) -> int:
        """Number of images."""
        return self.stimuli.n

    @property
    def kind(self) -> str:
        """ "image", "array" or a synthetic kind."""
        return self.stimuli.kind

    @property
    def sha256(self) -> str:
        """Hash of the files, or of the synthetic definition."""
        return self.stimuli.sha256

    @property
    def text(self) -> str:
        """One line for the report."""
        return self.stimuli.source

    @property
    def value_bytes(self) -> int:
        """Measured at 4096 x 4096: files, leaves and noise 9.5 to 13, correlated noise 72 for its Fourier
        transforms."""
        return 73 if self.kind == "correlated" else 13

    @property
    def text_kind(self) -> TextKind:
        """A count, or the name of the only file."""
        return "file" if self.stimuli.is_one_file else "count"

    def of(self, _reference: str) -> Images:
        """These are the images of the only input."""
        return self

    def preprocess(self, own: Preprocess) -> Preprocess:
        """The resize and crop that made the pixels, then the model's own mean and std."""
        if not own.pixelwise:
            return own
        made = self.cropped_as or own.resize_text
        return replace(own, resize_text=made if self.kind in _CROPPED else "drawn at the input's size")

    def name(self, index: int) -> str:
        """The file, or e.g. ``leaves[3]``."""
        return self.stimuli.names[index]

    def batch(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Inputs (B, C_in, *space), or a part of them."""
        pictures = [self.stimuli.pixels(index) for index in indices]
        if self.pixelwise and box:
            # The last axis of pixels is the channels'.
            return self.normalise(np.stack([pixels[inside((*box, (0, pixels.shape[-1])))] for pixels in pictures]))
        inputs = self.normalise(np.stack(pictures))
        return inputs[inside(box)] if box else inputs

    def pixels(self, index: int) -> NDArray[np.uint8] | None:
        """The image, (H, W, C)."""
        return self.stimuli.pixels(index)

    def remark(self, own: Preprocess) -> str | None:
        """Whether the image is nearly black, as one of 12 bits in a file of 16 is."""
        # Resampling overshoots what is in the file.
        if self.kind not in _CROPPED or (shown := int(self.stimuli.pixels(0).max())) >= 2 * DARK * 255:
            return None
        largest, most = self.stimuli.largest(0) if self.stimuli.largest else (shown, 255)
        if largest >= DARK * most:
            return None
        times = most // (most if largest == 0 else (1 << largest.bit_length()) - 1)
        advice = f"multiply the values by {times} and save the images again" if times > 1 else "give other images"
        read = " (8 bits are read)" if self.stimuli.largest and most == 255 else ""
        return f"nearly black: the largest value of {self.name(0)} is {largest:,} of {most:,}{read}; {advice}"


@dataclass(frozen=True, slots=True)
class TensorImages:
    """A ready tensor (B, C_in, *space) in the model's own input space, used as it is."""

    tensor: Tensor

    def __post_init__(self) -> None:
        if self.tensor.ndim < 3 or self.tensor.ndim > 5 or not self.tensor.is_floating_point() or len(self.tensor) == 0:
            raise ErfscopeError(
                "a ready tensor is floating, (B, C, H, W) for images, with one to three axes behind the channels, not"
                f" {self.tensor.dtype} of shape {tuple(self.tensor.shape)}; uint8 images go in as numpy arrays (H,"
                " W, 3), token ids with erfscope.wrap(model, inputs={...}), an example of them"
            )

    @property
    def n(self) -> int:
        """Its batch size."""
        return len(self.tensor)

    @property
    def kind(self) -> str:
        """Always "tensor"."""
        return "tensor"

    @property
    def sha256(self) -> str:
        """Hash of its bytes."""
        return hashlib.sha256(self.tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()

    @property
    def text(self) -> str:
        """One line for the report."""
        return f"tensor {'x'.join(str(side) for side in self.tensor.shape)}"

    @property
    def value_bytes(self) -> int:
        """Nothing: it is there already."""
        return 0

    @property
    def text_kind(self) -> TextKind:
        """Always "tensor"."""
        return "tensor"

    def of(self, _reference: str) -> Images:
        """This is the only input."""
        return self

    def preprocess(self, own: Preprocess) -> Preprocess:
        """Nothing is done to a ready tensor."""
        assumed = ("axes",) if "axes" in own.assumed else ()
        return replace(own, resize_text="none (a ready tensor)", scale_text="", assumed=assumed)

    def name(self, index: int) -> str:
        """E.g. ``tensor[3]``."""
        return f"tensor[{index}]"

    def batch(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """The rows of these indices, or a part of them."""
        return (self.tensor[inside(box)] if box else self.tensor)[list(indices)]

    def pixels(self, index: int) -> NDArray[np.uint8] | None:
        """Nothing: the tensor is already normalised."""
        return None

    def remark(self, own: Preprocess) -> str | None:
        """Whether its values are far from those of images in the model's input space, as 0 to 255 are."""
        usual = max((max(abs(m), abs(1 - m)) / s for m, s in zip(own.mean, own.std, strict=False)), default=1.0)
        largest = float(self.tensor[0].abs().max())
        if len(own.size) != 2 or largest <= FAR * usual:
            return None
        return (
            f"the values of the tensor reach {largest:.4g}, and those of images as the model takes them ±{usual:.3g}:"
            " unless it scales them itself, divide by 255, subtract mean and divide by std, or give uint8 arrays"
        )


Read = tuple[int, Tensor | str]


class Prefetcher:
    """Images of a feed that worker processes make before they are needed.

    Args:
        feed: Makes them.
        indices: Which, in the order in which they will be needed.
        box: The part of each that is needed.
        workers: How many processes.
        keep: How many that were handed out may be needed again: a batch that did not fit is tried in parts.
    """

    def __init__(self, feed: Images, indices: Sequence[int], box: Box | None, *, workers: int, keep: int) -> None:
        self._feed, self._box, self._keep = feed, box, keep
        self._kept: OrderedDict[int, Tensor | str] = OrderedDict()
        # Where processes can be forked, nothing has to be pickled, a user's own transform least of all.
        fork = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        with warnings.catch_warnings():
            # More workers than cores: right for images on slow disks.
            warnings.simplefilter("ignore", UserWarning)
            loader = DataLoader(
                _Pictures(feed, indices, box),
                batch_size=None,
                num_workers=workers,
                worker_init_fn=_use_one_thread,
                multiprocessing_context=fork,
            )
            self._coming: Iterator[Read] | None = iter(loader)
        self._last = -1

    def __call__(self, index: int) -> Tensor:
        """One image, (1, C_in, *space).

        Raises:
            ErfscopeError: it cannot be read.
            MeasurementError: a worker has died.
        """
        if index not in self._kept and index <= self._last:
            return self._feed.batch([index], self._box)
        while index not in self._kept:
            self._next()
        found = self._kept[index]
        if isinstance(found, str):
            raise ErfscopeError(found)
        return found

    def _next(self) -> None:
        assert self._coming is not None
        try:
            index, found = next(self._coming)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0][:120]
            raise MeasurementError(f"a worker that reads images has died ({reason}); use fewer --workers") from error
        self._kept[index], self._last = found, index
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """End the workers."""
        # They end when their iterator goes.
        self._coming = None


class _Pictures(Dataset[Read]):
    """Images by their place in an order; the reason in place of one that cannot be read: an exception would end the
    worker."""

    def __init__(self, feed: Images, indices: Sequence[int], box: Box | None) -> None:
        self._feed, self._indices, self._box = feed, indices, box

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Read:
        index = self._indices[place]
        try:
            return index, self._feed.batch([index], self._box)
        except ErfscopeError as error:
            return index, str(error)


def _use_one_thread(_: int) -> None:
    """OpenCV's threads do not survive a fork, and a worker has one core."""
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
