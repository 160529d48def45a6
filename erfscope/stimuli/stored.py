"""Volumes, clips and sound as they lie in files of several formats, read where they are sliced."""

from __future__ import annotations

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

from erfscope.errors import ErfscopeError
from erfscope.silence import silenced
from erfscope.stimuli.files import SOUNDS, VOLUMES, frames_of

TIFF = (".tif", ".tiff")
#: Codecs of zarr arrays that turn bytes into numbers and do nothing else: pickles among them would run code.
_CODECS = {
    *("astype", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip", "lz4"),
    *("lzma", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd"),
}
_MM = {"mm": 1.0, "micron": 1e-3, "meter": 1e3}


class MissingPackage(ErfscopeError):
    """A file needs a package that is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array in a file, which is read where it is sliced."""

    #: Has ``shape``, ``dtype`` and ``[slices]``.
    values: Any
    #: Axes that may be the channels', by the format.
    channel_axes: tuple[int, ...] = (0, -1)
    #: Whether the spatial axes stand in the order x, y, z.
    is_reversed: bool = False
    #: Of (depth, row, col) in mm, or of samples in ms.
    spacing: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""
        return tuple(int(side) for side in self.values.shape)


def is_values(path: Path) -> bool:
    """Whether a file holds a volume, a clip or sound, by its name; a TIFF file if its first two pages are of one
    size."""
    name = path.name.lower()
    if not name.endswith(TIFF):
        return name.endswith((*VOLUMES, *SOUNDS)) or (path.is_dir() and not frames_of(path))
    from PIL import Image

    try:
        with silenced("PIL"), Image.open(path, formats=["TIFF"]) as image:
            first = image.size, image.mode
            image.seek(1)
            return first == (image.size, image.mode)
    except Exception:  # One page, or damaged: what reads it as a picture says so.
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
class _Pages:
    """Compressed pages, all of which are read where they are sliced."""

    series: Any
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.series.shape)

    @property
    def dtype(self) -> Any:
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
        channels = tuple(axis for axis, letter in enumerate(series.axes) if letter in "CS") or (0, -1)
        is_plain = series.dataoffset is not None
        values = tifffile.memmap(path, mode="r") if is_plain else _Pages(series, str(path))
        yield StoredArray(values=values, channel_axes=channels)


@contextmanager
def _zarr(path: Path) -> Iterator[StoredArray]:
    try:
        import zarr
    except ImportError as error:
        raise _missing(path, "zarr", "volumes") from error
    notes = [path / name for name in (".zarray", "zarr.json") if (path / name).is_file()]
    header = json.loads(notes[0].read_text(encoding="utf-8")) if notes else {}
    if not notes or header.get("node_type", "array") != "array":
        raise ErfscopeError(f"cannot read {str(path)!r}: it is no zarr array; name an array inside it, as {path}/0")
    if strange := sorted(_codecs(header) - _CODECS):
        raise ErfscopeError(
            f"cannot read {str(path)!r}: its codec {strange[0]!r} is not among those that are safe to read; save it"
            " with blosc, gzip or zstd"
        )
    yield StoredArray(values=zarr.open_array(str(path), mode="r"))


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
