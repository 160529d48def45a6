"""Volumes, clips and sound from files: values that need not be 8-bit pixels, cropped to the input and scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erfscope.core.images.decode import PASSED_OVER
from erfscope.core.images.feed import Images, TextKind
from erfscope.core.images.files import SOUNDS, VOLUMES, chosen_files, sha256_of, suffixes_of
from erfscope.core.images.stated import in_unit, refuse_other_spacing, refuse_stated_otherwise
from erfscope.core.images.stored import TIFF, MissingPackage, StoredArray, is_values, open_array
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.input_size import size_words
from erfscope.core.values.unit import Box, inside, size_text

if TYPE_CHECKING:
    from erfscope.core.values.model_facts import Preprocess

FloatArray = NDArray[np.float64]
#: So many headers are compared before the first file is read.
HEADERS_FIRST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The middle of one file."""

    #: (C, *space) at the input's size, as they are in the file.
    values: FloatArray
    #: Of (depth, row, col) in mm, or of samples in ms; None where the file states none.
    spacing: tuple[float, ...] | None
    #: uint8 frames (T, H, W, 3), which are pictures.
    is_clip: bool
    #: Whether the file holds integers.
    is_whole: bool
    #: The largest value that an image's unsigned integers can have; None of other values.
    full_scale: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesImages:
    """Volumes, clips or sound, each read when it is needed, cropped to its middle and scaled."""

    files: tuple[Path, ...]
    #: The preprocessing of the model that they are for.
    model: Preprocess
    source: str
    digest: Callable[[], str]
    is_one_file: bool
    #: uint8 frames (T, H, W, 3), which are scaled as pictures are.
    is_clip: bool
    #: Of ((depth,) row, col) in mm, or of samples in ms, of the first file that states it; that file, and its unit.
    spacing: tuple[float, ...] | None
    spacing_file: Path
    unit: str

    @property
    def n(self) -> int:
        """Number of files."""
        return len(self.files)

    @property
    def kind(self) -> str:
        """ "sound", "image" or "volume"."""
        return ("sound", "image", "volume")[len(self.model.size) - 1]

    @property
    def spacing_unit(self) -> str:
        """The unit that distances are shown in."""
        return "ms" if self.kind == "sound" else self.unit

    @property
    def sha256(self) -> str:
        """Hash of the files' bytes."""
        return self.digest()

    @property
    def text(self) -> str:
        """One line for the report."""
        return self.source

    @property
    def text_kind(self) -> TextKind:
        """A count, or the name of the only file."""
        return "file" if self.is_one_file else "count"

    @property
    def value_bytes(self) -> int:
        """Numbers of the file, the same as float64, and one more of them while their spread is computed."""
        return 24

    def of(self, _reference: str) -> Images:
        """These are for the only input."""
        return self

    def scaled_as(self, model: Preprocess) -> ValuesImages:
        """The same files, scaled for another model."""
        return replace(self, model=model)

    def preprocess(self, own: Preprocess) -> Preprocess:
        """The crop, and what scales the values."""
        axes = own.axes.stated(in_unit(self.spacing, self.spacing_unit), self.spacing_unit)
        cropped = replace(own, resize_text=f"middle {size_text(self.model.size)} of each file", axes=axes)
        if self.is_clip:
            return cropped
        mean, std = _numbers(own)
        if mean is not None or std is not None:
            stated = {"mean": mean, "std": std}
            shown = (f"{name} {' '.join(f'{x:.4g}' for x in of)}" for name, of in stated.items() if of is not None)
            scale = ", ".join(shown)
        else:
            scale = "as in the file" if self.kind == "sound" else "each standardised (mean 0, std 1)"
        scale = f"unsigned integers / their largest, {scale}" if self.kind == "image" else scale
        assumed = tuple(name for name in own.assumed if name == "size")
        return replace(cropped, scale_text=scale, assumed=assumed)

    def name(self, index: int) -> str:
        """The file."""
        return str(self.files[index])

    def batch(self, indices: Sequence[int], box: Box | None = None) -> Tensor:
        """Inputs (B, C, *space), float64, or a part of them.

        Raises:
            ErfscopeError: a file cannot be used.
        """
        inputs = [self._scaled(index) for index in indices]
        return torch.stack([each[inside(box)] if box else each for each in map(torch.from_numpy, inputs)])

    def pixels(self, index: int) -> NDArray[np.uint8] | None:
        """Frames (D, H, W, C): those of a clip, of a volume its middle slice for each; of an image its first three
        bands, or its first one, (H, W, C); None for sound."""
        if self.kind == "sound":
            return None
        values = self._read(index).values
        if self.is_clip:
            return np.moveaxis(values, 0, -1).astype(np.uint8)
        bands = values[: 3 if len(values) >= 3 else 1]
        middle = np.moveaxis(bands if self.kind == "image" else values[:, values.shape[1] // 2], 0, -1)
        low, high = np.percentile(middle, (1, 99))
        shown: NDArray[np.uint8] = np.rint(255 * np.clip((middle - low) / ((high - low) or 1), 0, 1)).astype(np.uint8)
        if self.kind == "image":
            return shown
        return np.broadcast_to(shown, (*self.model.size, shown.shape[-1])).copy()

    def _read(self, index: int) -> Values:
        file = self.files[index]
        try:
            found = read_values(file, channels=self.model.channels, size=self.model.size)
        except MissingPackage:
            raise
        except ErfscopeError as error:
            raise ErfscopeError(f"{error}; {PASSED_OVER}") from error
        refuse_other_spacing((self.spacing_file, self.spacing), (file, found.spacing))
        if found.is_clip != self.is_clip:
            raise ErfscopeError(
                f"{str(file)!r} has {'8-bit frames' if found.is_clip else 'other values'}, unlike the files before it;"
                " save all in one type"
            )
        return found

    def remark(self, own: Preprocess) -> str | None:
        """Whether scaled values are far from 1, as those of 16-bit sound that are stored as floats are."""
        largest = float(np.abs(self._scaled(0)).max())
        if largest <= 100:
            return None
        return f"the values of {self.name(0)} reach {largest:.4g} after scaling: give mean= and std= (--mean, --std)"

    def _scaled(self, index: int) -> FloatArray:
        found, (mean, std) = self._read(index), _numbers(self.model)
        values = found.values
        if self.is_clip:
            values /= 255
            mean, std = self.model.mean, self.model.std
        values /= found.full_scale or 1
        if not self.is_clip and mean is None and std is None and self.kind != "sound":
            values -= values.mean()
            spread = values.std()
            if not spread > 0:
                raise ErfscopeError(
                    f"{str(self.files[index])!r} holds one value only in its middle {size_text(self.model.size)}, which"
                    f" cannot be standardised; give mean= and std= (--mean, --std), or another file; {PASSED_OVER}"
                )
            values /= spread
        elif mean is None and std is None and found.is_whole:
            raise ErfscopeError(
                f"{str(self.files[index])!r} holds integers, which do not say what full scale is; save floats in"
                " [-1, 1], or give mean= and std= (--mean 0 --std 32768, say)"
            )
        shape = (-1, *[1] * len(self.model.size))
        if mean is not None:
            values -= np.reshape(mean, shape)
        if std is not None:
            values /= np.reshape(std, shape)
        return values


def open_values(
    paths: Sequence[str | Path], *, samples: int | None, seed: int, preprocess: Preprocess
) -> ValuesImages | None:
    """Volumes, clips or sound that paths name, for an input of one or three spatial axes.

    Args:
        paths: As for :func:`erfscope.core.images.open_pictures`.
        samples: How many files.
        seed: Chooses the sample.
        preprocess: That of the model.

    Returns:
        The files; None where all of them are pictures.

    Raises:
        ErfscopeError: no file, files for another kind of input, of several kinds or of different spacing, or a package
            that is missing. A damaged file raises in :meth:`ValuesImages.batch`, not here.
    """
    rank = len(preprocess.size)
    noun = "sounds" if rank == 1 else f"{preprocess.axes.noun}s"
    files, source, is_one = chosen_files(
        paths, samples=samples, seed=seed, suffixes=suffixes_of(preprocess.axes), noun=noun
    )
    for file in files:
        _refuse_kind(file, preprocess)
    # A TIFF file may hold as many bands as the model takes; other pictures are grey or RGB.
    is_banded = rank == 2 and preprocess.channels not in (1, 3)
    pictures = [file for file in files if not (is_values(file) or (is_banded and file.suffix.lower() in TIFF))]
    if len(pictures) == len(files):
        return None
    if pictures:
        other = next(file for file in files if file not in pictures)
        raise ErfscopeError(
            f"{str(other)!r} is no image, and {str(pictures[0])!r} is one; name one kind, as in '*{other.suffix}'"
        )
    if not preprocess.pixelwise:
        raise ErfscopeError(
            f"transform= takes images, and {str(files[0])!r} is none; leave it out, or give a ready tensor"
        )
    is_clip = False
    first: tuple[Path, tuple[float, ...] | None] = (files[0], None)
    unit = "mm"
    for number, (file, array, clip) in enumerate(_headers(files, preprocess)):
        is_clip = clip if number == 0 else is_clip
        refuse_other_spacing(first, (file, array.spacing))
        if not first[1]:
            first, unit = (file, array.spacing), array.unit
    feed = ValuesImages(
        files=files,
        model=preprocess,
        source=source,
        digest=cache(partial(sha256_of, files)),
        is_one_file=is_one,
        is_clip=is_clip,
        spacing=first[1],
        spacing_file=first[0],
        unit=unit,
    )
    refuse_stated_otherwise(feed.model.axes, feed.spacing, feed.spacing_unit, feed.spacing_file)
    return feed


def read_values(path: Path, *, channels: int, size: Sequence[int]) -> Values:
    """Read the middle of one file.

    NIfTI arrays (X, Y, Z) become (Z, Y, X); they are not turned to another orientation. Nothing is resampled.

    Args:
        path: NIfTI, TIFF, zarr or .npy for three axes; TIFF, zarr or .npy for two; .wav, .flac, .ogg or .npy for one.
        channels: The model's input channels, which tell the axis of the channels from the others.
        size: Spatial size of the input.

    Returns:
        Values (C, *size), and the spacing that the file states.

    Raises:
        MissingPackage: the format needs a package that is not installed.
        ErfscopeError: damaged, of another kind, shape or number of channels, smaller than the input, or not finite.
    """
    with open_array(path) as array:
        channel, spatial = _layout(path, array, channels, size)
        cut = [slice(None)] * len(array.shape)
        for axis, side in zip(spatial, size, strict=True):
            first = (array.shape[axis] - side) // 2
            cut[axis] = slice(first, first + side)
        part = np.asarray(array.values[tuple(cut)])
        ordered = np.transpose(part, (*([] if channel is None else [channel]), *spatial))
        values = np.array(ordered.reshape(channels, *size), dtype=np.float64, order="C")
    if wrong := int(values.size - np.isfinite(values).sum()):
        raise ErfscopeError(
            f"cannot use {str(path)!r}: {wrong} of the {values.size} values that are read are not finite; replace them,"
            " as by numpy.nan_to_num"
        )
    dtype = np.dtype(array.values.dtype)
    return Values(
        values=values,
        spacing=array.spacing,
        is_clip=_is_clip(array, channel, size),
        is_whole=dtype.kind in "biu",
        full_scale=int(np.iinfo(dtype).max) if dtype.kind == "u" and len(size) == 2 else None,
    )


def _numbers(preprocess: Preprocess) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and standard deviation that the user or the model states; None for those that are only assumed."""
    mean, std = preprocess.mean, preprocess.std
    return None if "mean" in preprocess.assumed else mean, None if "std" in preprocess.assumed else std


def _headers(files: Sequence[Path], preprocess: Preprocess) -> Iterator[tuple[Path, StoredArray, bool]]:
    """What the first files say of themselves, without those that cannot be read: that is said where they are read."""
    for file in islice(files, HEADERS_FIRST):
        try:
            with open_array(file) as array:
                channel, _ = _layout(file, array, preprocess.channels, preprocess.size)
        except MissingPackage:
            raise
        except ErfscopeError:
            continue
        yield file, array, _is_clip(array, channel, preprocess.size)


def _is_clip(array: StoredArray, channel: int | None, size: Sequence[int]) -> bool:
    """uint8 frames (T, H, W, 3), which go the way of pictures."""
    shape = array.shape
    return array.values.dtype == np.uint8 and len(size) == 3 and channel == len(shape) - 1 and shape[-1] == 3


def _refuse_kind(file: Path, preprocess: Preprocess) -> None:
    """Refuse a file for another kind of input."""
    name, rank = file.name.lower(), len(preprocess.size)
    if not is_values(file):
        if rank == 3 and preprocess.channels != 3:
            raise ErfscopeError(
                f"{str(file)!r} is an image, and the model takes volumes of {_counted(preprocess.channels)},"
                f" {size_text(preprocess.size)}; give .nii, .nii.gz, .npy, zarr or a TIFF file of several pages"
            )
        return
    is_sound = name.endswith(SOUNDS) and not name.endswith(".npy")
    if rank == 2 and (is_sound or name.endswith((".nii", ".nii.gz"))):
        what = "sound" if is_sound else "a volume"
        hint = "; if it takes samples, say so by axes='t' (--axes t)" if is_sound else ""
        raise ErfscopeError(
            f"{str(file)!r} is {what}, and the model takes images of two axes, {size_text(preprocess.size)}; give image"
            f" files, or a model whose input has one axis (sound) or three (volumes, clips){hint}"
        )
    if (rank == 1 and not name.endswith(SOUNDS)) or (rank == 3 and is_sound):
        has, takes = ("a volume", "sound of one axis") if rank == 1 else ("sound", "volumes or clips of three axes")
        raise ErfscopeError(
            f"{str(file)!r} is {has}, and the model takes {takes}, {size_text(preprocess.size)}; give files with one of"
            f" {' '.join(SOUNDS if rank == 1 else (*VOLUMES, *TIFF))}"
        )


def _counted(channels: int) -> str:
    return f"{channels} channel{'s' * (channels != 1)}"


def _layout(path: Path, array: StoredArray, channels: int, size: Sequence[int]) -> tuple[int | None, tuple[int, ...]]:
    """The axis of the channels, if there is one, and those of space in the order of the input's."""
    shape, rank = array.shape, len(size)
    name, found = f"cannot use {str(path)!r}:", size_text(shape) or "one number"
    if array.values.dtype.kind not in "biuf":
        raise ErfscopeError(f"{name} its values are {array.values.dtype}; save real numbers, such as float32")
    axes: list[int | None] = [None] if len(shape) == rank and channels == 1 else []
    if len(shape) == rank + 1:
        axes = [axis for axis in {each % len(shape) for each in array.channel_axes} if shape[axis] == channels]
    spaces = [(axis, _spatial(array, axis)) for axis in axes]
    if not spaces:
        dims = ("T", "H, W", "D, H, W")[rank - 1]
        asked = f"({channels}, {dims}) or ({dims}, {channels})" + (f", or ({dims})" * (channels == 1))
        raise ErfscopeError(
            f"{name} it holds {found}, and the model takes {_counted(channels)} of {size_text(size)}, as in {asked};"
            " convert it, or name another number of channels by in_chans= (--in-chans)"
        )
    fitting = [
        (axis, space) for axis, space in spaces if all(shape[a] >= side for a, side in zip(space, size, strict=True))
    ]
    if len(fitting) > 1:
        raise ErfscopeError(
            f"{name} either its first or its last axis of {found} may be that of {_counted(channels)}; cut it so that"
            " one of them has another length"
        )
    if not fitting:
        least = tuple(shape[axis] for axis in spaces[0][1])
        raise ErfscopeError(
            f"{name} it holds {size_text(least)} and the input is {size_text(size)}; give a larger file, or an input"
            f" size that is no larger, as {size_words(least)}"
        )
    return fitting[0]


def _spatial(array: StoredArray, channel: int | None) -> tuple[int, ...]:
    """The axes that are not the channels', the last one along columns."""
    spatial = tuple(axis for axis in range(len(array.shape)) if axis != channel)
    return spatial[::-1] if array.is_reversed else spatial
