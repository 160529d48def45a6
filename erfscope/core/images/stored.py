"""Volumes, clips and sound as they lie in files of several formats, read where they are sliced."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from erfscope.core.images.files import SOUNDS, VOLUMES, frames_of
from erfscope.core.images.stated import sides_in_tiff, sides_in_zarr, spacing_of
from erfscope.core.system.silence import silenced
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import size_text

TIFF = (".tif", ".tiff")
#: Codecs of zarr arrays that turn bytes into numbers and do nothing else: pickles among them would run code.
_CODECS = {
    *("astype", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip", "lz4"),
    *("lzma", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd"),
}
#: TIFF tags: samples per pixel, and whether these lie beside each other or one band after another.
_SAMPLES, _PLANAR = 277, 284
_MM = {"mm": 1.0, "micron": 1e-3, "meter": 1e3}


class MissingPackage(ErfscopeError):
    """A file needs a package that is not installed."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """An array whose axes are taken in another order, read where it is sliced."""

    values: Any
    #: The stored axis of each axis, None for one of length 1 that is not stored; others are read at their first place.
    axes: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""
        return tuple(1 if axis is None else int(self.values.shape[axis]) for axis in self.axes)

    @property
    def dtype(self) -> Any:
        """The type of its values."""
        return np.dtype(self.values.dtype)

    def __getitem__(self, part: tuple[slice, ...]) -> NDArray[Any]:
        index: list[Any] = [0] * len(self.values.shape)
        for axis, cut in zip(self.axes, part, strict=True):
            if axis is not None:
                index[axis] = cut
        stored = [axis for axis in self.axes if axis is not None]
        read = np.asarray(self.values[tuple(index)]).transpose([sorted(stored).index(axis) for axis in stored])
        return read[tuple(None if axis is None else slice(None) for axis in self.axes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array in a file, which is read where it is sliced."""

    #: Has ``shape``, ``dtype`` and ``[slices]``.
    values: Any
    #: Axes that may be the channels', by the format.
    channel_axes: tuple[int, ...] = (0, -1)
    #: Whether the spatial axes stand in the order x, y, z.
    is_reversed: bool = False
    #: Of ((depth,) row, col) in mm, or of samples in ms.
    spacing: tuple[float, ...] | None = None
    #: What the file states sides of pixels and voxels in.
    unit: str = "mm"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""
        return tuple(int(side) for side in self.values.shape)


def is_values(path: Path) -> bool:
    """Whether a file holds numbers that are no picture, by its name; a TIFF file if its first two pages are of one
    size, or its pixels none that Pillow takes for a picture's, such as several bands or floats."""
    name = path.name.lower()
    if not name.endswith(TIFF):
        return name.endswith((*VOLUMES, *SOUNDS)) or (path.is_dir() and not frames_of(path))
    from PIL import Image, UnidentifiedImageError

    try:
        with silenced("PIL"), Image.open(path, formats=["TIFF"]) as image:
            first = image.size, image.mode
            tags: Any = getattr(image, "tag_v2", {})
            # Of bands that lie one after another Pillow takes the first for the whole, or fails.
            is_cut = tags.get(_PLANAR) == 2 and tags.get(_SAMPLES, 1) != len(image.getbands())
            if is_cut or image.mode in ("I", "F"):
                return True
            image.seek(1)
            return first == (image.size, image.mode)
    except UnidentifiedImageError:
        return _is_tiff(path)
    except Exception:  # One page, or damaged: what reads it as a picture says so.
        return False


def _is_tiff(path: Path) -> bool:
    """Whether a file begins as TIFF and BigTIFF files do, and has a page."""
    with contextlib.suppress(Exception):
        import tifffile

        with silenced("tifffile"), tifffile.TiffFile(path) as file:
            return len(file.pages) > 0
    return False


@contextmanager
def open_array(path: Path) -> Iterator[StoredArray]:
    """One file, open to be sliced inside the block; whatever a reader raises on damaged files is one line.

    Raises:
        MissingPackage: the format needs a package that is not installed.
        ErfscopeError: damaged, too large for memory, or not what its suffix says.
    """
    what = f"cannot read {str(path)!r}:"
    reader = next((each for suffix, each in _READERS.items() if path.name.lower().endswith(suffix)), _zarr)
    try:
        # Readers warn of odd headers, which do not touch the values.
        with silenced("nibabel", "tifffile"), reader(path) as array:
            yield array
    except ErfscopeError:
        raise
    except MemoryError as error:
        raise ErfscopeError(f"{what} it does not fit into memory; save it uncompressed or as zarr") from error
    except Exception as error:  # On damaged files readers raise whatever happens to go wrong.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise ErfscopeError(f"{what} damaged or of another kind ({reason}); save it again or leave it out") from error


def _missing(path: Path, package: str, extra: str) -> MissingPackage:
    return MissingPackage(f"reading {path.name} needs {package}: pip install 'erfscope[{extra}]'")


@contextmanager
def _npy(path: Path) -> Iterator[StoredArray]:
    # Reads .npy files only, none with pickles in them, and no header that is longer than numpy takes for safe.
    yield StoredArray(values=np.lib.format.open_memmap(path, mode="r"))


@contextmanager
def _nifti(path: Path) -> Iterator[StoredArray]:
    try:
        import nibabel
    except ImportError as error:
        raise _missing(path, "nibabel", "volumes") from error
    reader: Any = nibabel
    image = reader.load(path)
    if not isinstance(image, reader.Nifti1Image):
        raise ErfscopeError(f"cannot read {str(path)!r}: it is no NIfTI file but {type(image).__name__}; convert it")
    shape, header = image.shape, image.header
    # Axes of one behind the first three are those of time and the like.
    values = image.dataobj.reshape((*shape[:3], *(side for side in shape[3:] if side != 1)))
    scale = _MM.get(header.get_xyzt_units()[0], 1.0)
    spacing = tuple(float(zoom) * scale for zoom in header.get_zooms()[:3])[::-1]
    is_stated = len(spacing) == 3 and all(math.isfinite(step) and step > 0 for step in spacing)
    yield StoredArray(
        values=values, channel_axes=(len(values.shape) - 1,), is_reversed=True, spacing=spacing if is_stated else None
    )


@dataclass(frozen=True, slots=True)
class Pages:
    """Compressed pages, all of which are read where they are sliced."""

    series: Any
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""
        return tuple(self.series.shape)

    @property
    def dtype(self) -> Any:
        """The type of its values."""
        return np.dtype(self.series.dtype)

    def __getitem__(self, part: tuple[slice, ...]) -> NDArray[Any]:
        free = psutil.virtual_memory().available
        if self.series.nbytes > free:
            raise ErfscopeError(
                f"cannot read {self.name!r}: {self.series.nbytes >> 20} MiB do not fit into the {free >> 20} MiB of"
                " memory that are free; save it uncompressed or as zarr"
            )
        return np.asarray(self.series.asarray()[part])


@contextmanager
def _tiff(path: Path) -> Iterator[StoredArray]:
    try:
        import tifffile
    except ImportError as error:
        raise _missing(path, "tifffile", "volumes") from error
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        try:
            tifffile.TIFF.DECOMPRESSORS[series.keyframe.compression]
            tifffile.TIFF.UNPREDICTORS[series.keyframe.predictor]
        except KeyError as error:
            name = tifffile.COMPRESSION(series.keyframe.compression).name
            raise MissingPackage(f"reading {path.name} ({name}) needs imagecodecs: pip install imagecodecs") from error
        channels = tuple(axis for axis, letter in enumerate(series.axes) if letter in "CS") or (0, -1)
        is_plain = series.dataoffset is not None
        values = tifffile.memmap(path, mode="r") if is_plain else Pages(series, str(path))
        space = [letter for letter in series.axes if letter not in "CS"]
        yield StoredArray(values=values, channel_axes=channels, **spacing_of(space, sides_in_tiff(file, tifffile)))


@contextmanager
def _zarr(path: Path) -> Iterator[StoredArray]:
    try:
        import zarr
    except ImportError as error:
        raise _missing(path, "zarr", "volumes") from error
    inside = ome_image(path)
    folder, axes, attributes = (path, (), {}) if inside is None else inside
    header = _note(folder, ".zarray", "zarr.json")
    if header is None or header.get("node_type", "array") != "array":
        raise ErfscopeError(f"cannot read {str(path)!r}: it is no zarr array; name an array inside it, as {path}/0")
    if strange := sorted(_codecs(header) - _CODECS):
        raise ErfscopeError(
            f"cannot read {str(path)!r}: its codec {strange[0]!r} is not among those that are safe to read; save it"
            " with blosc, gzip or zstd"
        )
    values: Any = zarr.open_array(str(folder), mode="r")
    if not axes:
        yield StoredArray(values=values)
        return
    # Of time, channels and depth those with one entry are left out.
    kept = [axis for axis, name in enumerate(axes) if name in ("y", "x") or values.shape[axis] > 1]
    channels = tuple(place for place, axis in enumerate(kept) if axes[axis] == "c")
    (image, *_) = attributes.get("ome", attributes)["multiscales"]
    stated = spacing_of([axes[axis].upper() for axis in kept if axes[axis] != "c"], sides_in_zarr(axes, image))
    yield StoredArray(values=Ordered(values, tuple(kept)), channel_axes=channels or (0, -1), **stated)


def _note(folder: Path, *names: str) -> Any:
    """The first of these metadata files of zarr that a folder has; None for none."""
    note = next((folder / name for name in names if (folder / name).is_file()), None)
    return None if note is None else json.loads(note.read_text(encoding="utf-8"))


def ome_image(path: Path) -> tuple[Path, tuple[str, ...], dict[str, Any]] | None:
    """The array of the highest resolution of an OME-zarr group, the names of its axes, and the group's attributes; None
    of anything else.

    Source: the OME-NGFF specification, 0.1 to 0.5."""
    attributes = (_note(path, "zarr.json") or {}).get("attributes") or _note(path, ".zattrs") or {}
    images = attributes.get("ome", attributes).get("multiscales")
    if not images:
        return None
    arrays = images[0].get("datasets") or [{}]
    if (inside := arrays[0].get("path")) is None:
        raise ErfscopeError(
            f"cannot read {str(path)!r}: its OME metadata name no array; name one inside it, as {path}/0"
        )
    folder = path / inside
    if not folder.resolve().is_relative_to(path.resolve()):
        raise ErfscopeError(f"cannot read {str(path)!r}: its image lies outside of it")
    # Before version 0.4 an axis was a letter, and before 0.3 there were these five.
    axes = tuple(each if isinstance(each, str) else each["name"] for each in images[0].get("axes") or "tczyx")
    shape = (_note(folder, ".zarray", "zarr.json") or {}).get("shape", axes)
    if len(axes) != len(shape):
        named = f"the axes {' '.join(axes)}" if images[0].get("axes") else "no axes"
        raise ErfscopeError(
            f"cannot read {str(path)!r}: its OME metadata name {named} (multiscales, axes) of an array of"
            f" {size_text(shape)}; correct them, or name the array alone, {folder}"
        )
    return folder, axes, attributes


def _codecs(note: Any) -> set[str]:
    """Names of all codecs in the metadata of a zarr array, those inside shards too."""
    if isinstance(note, list):
        return set().union(*map(_codecs, note))
    if not isinstance(note, dict):
        return set()
    lists = [note.get(key) for key in ("compressor", "filters", "codecs", "index_codecs")]
    named = [each for entry in lists for each in (entry if isinstance(entry, list) else [entry]) if each]
    names = {str(each.get("id") or each.get("name")).removeprefix("numcodecs.") for each in named}
    return names.union(*(_codecs(each.get("configuration")) for each in named))


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples (T, C) of a sound file in [-1, 1], read where they are sliced."""

    file: Any
    dtype: np.dtype[np.float64] = np.dtype(np.float64)  # noqa: RUF009 (a constant)

    @property
    def shape(self) -> tuple[int, int]:
        return self.file.frames, self.file.channels

    def __getitem__(self, part: tuple[slice, slice]) -> NDArray[np.float64]:
        first, stop = part[0].start, part[0].stop
        self.file.seek(first)
        samples: NDArray[np.float64] = self.file.read(stop - first, dtype="float64", always_2d=True)
        if len(samples) < stop - first:
            raise ValueError(f"it ends after {first + len(samples)} of {self.file.frames} samples")
        return samples


@contextmanager
def _sound(path: Path) -> Iterator[StoredArray]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: without libsndfile.
        raise _missing(path, "soundfile", "audio") from error
    with soundfile.SoundFile(str(path)) as file:
        yield StoredArray(values=_Samples(file), channel_axes=(1,), spacing=(1000 / file.samplerate,))


#: What reads a file, by its suffix.
_READERS: dict[str, Callable[[Path], AbstractContextManager[StoredArray]]] = {
    ".npy": _npy,
    ".nii": _nifti,
    ".nii.gz": _nifti,
    ".tif": _tiff,
    ".tiff": _tiff,
    ".zarr": _zarr,
    ".wav": _sound,
    ".flac": _sound,
    ".ogg": _sound,
}
