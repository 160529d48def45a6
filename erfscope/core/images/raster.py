"""Images on disk that are read part by part, and new files of the same kind: .npy, (Geo- or OME-)TIFF, (OME-)zarr."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.core.images.files import suffixes_like
from erfscope.core.images.stated import ome_pixels, placement_in_zarr
from erfscope.core.images.stored import TIFF, Ordered, Pages, ome_image, open_array
from erfscope.core.system.model_errors import first_line
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link
from erfscope.core.values.unit import size_text

#: Where a new file's cells lie in the image, along each axis: how many cells of the image from one to the next, and the
#: cell at which the first begins.
Placement = Sequence[tuple[Fraction, int]]
#: GeoTIFF tags: pixel scale, tie points, transformation, and the three of keys.
_SCALE, _TIES, _MATRIX, *_KEYS = 33550, 33922, 34264, 34735, 34736, 34737


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """An image on disk, open to be sliced."""

    path: Path
    #: (C, *space) or (B, C, *space), read where it is sliced.
    x: Any
    #: Whether the file holds the bands of a pixel beside each other.
    is_interleaved: bool = False

    def new(self, file: Path, shape: tuple[int, ...], dtype: Any, placement: Placement) -> Any:
        """A new file of the same kind, filled where it is sliced, with what the image's says of places.

        Args:
            file: Its name.
            shape: (C, *space) or, of .npy alone, (B, C, *space).
            dtype: Of its values.
            placement: Where its cells lie in the image.
        """
        kind = suffixes_like(self.path)
        if kind == TIFF:
            return self._bands_first(_new_tiff(self, file, shape, dtype, placement))
        if kind == (".zarr",):
            return _new_zarr(self, file, shape, dtype, placement)
        return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)

    def reopened(self, file: Path) -> Any:
        """A file that :meth:`new` made.

        Raises:
            ErfscopeError: it is damaged.
        """
        kind = suffixes_like(self.path)
        try:
            if kind == TIFF:
                import tifffile

                return self._bands_first(tifffile.memmap(file, mode="r+"))
            if kind == (".zarr",):
                import zarr

                inside = ome_image(file)
                return zarr.open_array(str(file if inside is None else inside[0]), mode="r+")
            # As it is: opened for writing, a file that is cut off would grow to its old length.
            np.lib.format.open_memmap(file, mode="r")
            return np.lib.format.open_memmap(file, mode="r+")
        except ErfscopeError:
            raise
        except Exception as error:  # On damaged files readers raise whatever happens to go wrong.
            raise ErfscopeError(f"cannot go on with {file} ({first_line(error)}); start again with --force") from error

    def _bands_first(self, values: NDArray[Any]) -> NDArray[Any]:
        """A view of a TIFF file's values as (C, *space)."""
        rank = len(self.x.shape) - 1
        if values.ndim == rank:
            return values[None]
        return np.moveaxis(values, -1, 0) if self.is_interleaved else values


@contextlib.contextmanager
def open_raster(source: str | Path, rank: int) -> Iterator[Raster]:
    """An image (C, *space), or one of a single channel without its axis; in a TIFF file or in zarr the channels may
    stand elsewhere.

    Raises:
        ErfscopeError: it is not there, cannot be read, or has another number of axes.
    """
    path = Path(source)
    refuse_broken_link(path)
    if not path.exists():
        raise ErfscopeError(f"{path} does not exist; name another file")
    if suffixes_like(source) == (".npy",):
        array = _npy(path)
        yield Raster(path=path, x=array[None] if array.ndim == rank else array)
        return
    with open_array(path) as stored:
        count = len(stored.shape)
        if count not in (rank, rank + 1):
            raise ErfscopeError(
                f"cannot run {str(path)!r}: it holds {size_text(stored.shape)}, and the plan is for {rank} axes and one"
                " of channels; save one image alone"
            )
        channel = None if count == rank else stored.channel_axes[0] % count
        axes = (channel, *(axis for axis in range(count) if axis != channel))
        values = stored.values
        if isinstance(values, Pages):
            # All are read for any part, and so once and not for each tile.
            values = values[(slice(None),) * count]
        if not isinstance(values, np.ndarray):
            x: Any = Ordered(values, axes)
        else:
            x = values[None] if channel is None else np.moveaxis(values, channel, 0)
        yield Raster(path=path, x=x, is_interleaved=channel is not None and channel == count - 1)


def _npy(path: Path) -> NDArray[Any]:
    """An array on disk."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # On damaged files readers raise whatever happens to go wrong.
        if path.is_file() and zipfile.is_zipfile(path):
            raise ErfscopeError(f"{path} is an archive of arrays; np.save the one that is the image as .npy") from error
        what = "name a .npy file of (C, H, W), a TIFF file or zarr"
        raise ErfscopeError(f"cannot read {path} ({first_line(error)}); {what}") from error


def _new_tiff(raster: Raster, file: Path, shape: tuple[int, ...], dtype: Any, placement: Placement) -> NDArray[Any]:
    import tifffile

    bands, *space = shape
    with tifffile.TiffFile(raster.path) as source:
        tags, ome = source.pages.first.tags, source.ome_metadata if source.is_ome else None
        places = _places({code: tags[code] for code in (_SCALE, _TIES, _MATRIX, *_KEYS) if code in tags}, placement)
        is_one_page = len(source.pages) == 1
    stored = (*space, bands) if raster.is_interleaved else (bands, *space)
    stored = tuple(space) if bands == 1 else stored
    options: dict[str, Any] = {"photometric": "minisblack", "extratags": places, "metadata": None}
    if raster.is_interleaved and bands > 1:
        options["planarconfig"] = "contig"
    elif bands > 1 and len(space) == 2 and is_one_page:
        options["planarconfig"] = "separate"
    elif bands > 1 or len(space) > 2:
        # Without a description pages are images of their own.
        options["metadata"] = {}
    if ome is not None:
        letters = "ZYX"[-len(space) :]
        axes = letters if bands == 1 else f"{letters}S" if raster.is_interleaved else f"C{letters}"
        options |= {"ome": True, "metadata": {"axes": axes, **_physical_sizes(tifffile.xml2dict(ome), placement)}}
    return tifffile.memmap(file, shape=stored, dtype=dtype, **options)


def _places(tags: dict[int, Any], placement: Placement) -> list[tuple[Any, ...]]:
    """The georeferencing of an image as tags of its output, whose first pixel lies at another place; none where its
    pixels have another size."""
    if any(stride != 1 for stride, _ in placement):
        return []
    (_, down), (_, across) = placement[-2:]
    found = []
    for code, tag in tags.items():
        values = tag.value
        if code == _TIES:
            # Each is a pixel (column, row, plane) and its place.
            moved = (across, down, 0, 0, 0, 0)
            values = tuple(value - moved[place % 6] for place, value in enumerate(values))
        if code == _MATRIX:
            matrix = np.reshape(values, (4, 4)).astype(float)
            matrix[:, 3] += matrix[:, 0] * across + matrix[:, 1] * down
            values = tuple(matrix.ravel().tolist())
        found.append((code, tag.dtype, tag.count, values, True))
    return found


def _physical_sizes(document: Any, placement: Placement) -> dict[str, Any]:
    """The sizes of a pixel that OME metadata state, of the output's."""
    pixels, found = ome_pixels(document), {}
    for letter, (stride, _) in zip("XYZ", reversed(placement), strict=False):
        if (size := pixels.get(f"PhysicalSize{letter}")) is not None:
            found[f"PhysicalSize{letter}"] = float(size) * float(stride)
            found[f"PhysicalSize{letter}Unit"] = pixels.get(f"PhysicalSize{letter}Unit", "µm")
    return found


def _new_zarr(raster: Raster, file: Path, shape: tuple[int, ...], dtype: Any, placement: Placement) -> Any:
    import zarr

    inside = ome_image(raster.path)
    source = zarr.open_array(str(raster.path if inside is None else inside[0]), mode="r")
    chunks = (1, *(min(side, chunk) for side, chunk in zip(shape[1:], source.chunks[-len(shape) + 1 :], strict=True)))
    made: Any = {"shape": shape, "dtype": dtype, "chunks": chunks, "fill_value": 0}
    version = source.metadata.zarr_format
    if separator := getattr(source.metadata, "dimension_separator", None):
        made["chunk_key_encoding"] = {"name": "v2", "separator": separator}
    if inside is None:
        return zarr.create_array(str(file), overwrite=True, zarr_format=version, **made)
    _, names, attributes = inside
    group = zarr.open_group(str(file), mode="w", zarr_format=version)
    group.attrs.update(_ome_attributes(names, attributes, placement))
    return group.create_array("0", **made)


def _ome_attributes(names: tuple[str, ...], attributes: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """The attributes of an OME-zarr group of one array (C, *space), with the scale of its cells, their units, and the
    place of the first, which is that of its middle."""
    head = attributes.get("ome", attributes)
    image = head["multiscales"][0]
    kept = ["c", *("zyx"[-len(placement) :])]
    described = {each["name"]: each for each in image.get("axes", ()) if isinstance(each, dict)}
    axes = [described.get(name, {"name": name, "type": "channel" if name == "c" else "space"}) for name in kept]
    stated: dict[str, tuple[float, float]] = {}
    with contextlib.suppress(Exception):  # Metadata may hold anything, and the values do not depend on it.
        stated = dict(zip(names, zip(*placement_in_zarr(names, image), strict=True), strict=True))
    scale, first = [], []
    for name, (stride, offset) in zip(kept, ((Fraction(1), 0), *placement), strict=True):
        step, start = stated.get(name, (1.0, 0.0))
        scale.append(step * float(stride))
        first.append(start + step * (offset + float(stride - 1) / 2))
    moves: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    moves += [{"type": "translation", "translation": first}] if any(first) else []
    made = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": moves}]}
    made |= {name: image[name] for name in ("name", "version") if name in image}
    document = {"multiscales": [made]} | ({"version": head["version"]} if "version" in head else {})
    return {"ome": document} if "ome" in attributes else document
