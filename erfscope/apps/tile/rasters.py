"""Images on disk that are run tile by tile, and outputs of the same kind: .npy, (Geo- or OME-)TIFF, (OME-)zarr."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core.answer.storage.files import DAMAGED
from erfscope.core.images.files import suffixes_like
from erfscope.core.images.stated import ome_pixels, placement_in_zarr
from erfscope.core.images.stored import TIFF, Ordered, Pages, ome_image, open_array
from erfscope.core.system.model_errors import first_line
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link
from erfscope.core.values.unit import size_text

#: GeoTIFF tags: pixel scale, tie points, transformation, and the three of keys.
_SCALE, _TIES, _MATRIX, *_KEYS = 33550, 33922, 34264, 34735, 34736, 34737


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """An image on disk, as it is run."""

    path: Path
    #: (C, *space) or (B, C, *space), read where it is sliced.
    x: Any
    #: Whether the file holds the bands of a pixel beside each other.
    is_interleaved: bool = False


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
    except DAMAGED as error:
        if path.is_file() and zipfile.is_zipfile(path):
            raise ErfscopeError(f"{path} is an archive of arrays; np.save the one that is the image as .npy") from error
        what = "name a .npy file of (C, H, W), a TIFF file or zarr"
        raise ErfscopeError(f"cannot read {path} ({first_line(error)}); {what}") from error


def new_output(raster: Raster, filled: Path, shape: tuple[int, ...], dtype: Any, plan: TilePlan) -> Any:
    """A new output (C, *space) or (B, C, *space) of the same kind as the image, with what its file says of places."""
    kind = suffixes_like(raster.path)
    if kind == TIFF:
        return _bands_first(raster, _new_tiff(raster, filled, shape, dtype, plan))
    if kind == (".zarr",):
        return _new_zarr(raster, filled, shape, dtype, plan)
    return np.lib.format.open_memmap(filled, mode="w+", dtype=dtype, shape=shape)


def open_output(raster: Raster, filled: Path) -> Any:
    """The output of a run that was stopped.

    Raises:
        ErfscopeError: it is damaged.
    """
    kind = suffixes_like(raster.path)
    try:
        if kind == TIFF:
            import tifffile

            return _bands_first(raster, tifffile.memmap(filled, mode="r+"))
        if kind == (".zarr",):
            import zarr

            inside = ome_image(filled)
            return zarr.open_array(str(filled if inside is None else inside[0]), mode="r+")
        # As it is: opened for writing, a file that is cut off would grow to its old length.
        np.lib.format.open_memmap(filled, mode="r")
        return np.lib.format.open_memmap(filled, mode="r+")
    except DAMAGED as error:
        raise ErfscopeError(f"cannot go on with {filled} ({first_line(error)}); start again with --force") from error


def _bands_first(raster: Raster, values: NDArray[Any]) -> NDArray[Any]:
    """A view of a TIFF file's values as (C, *space)."""
    rank = len(raster.x.shape) - 1
    if values.ndim == rank:
        return values[None]
    return np.moveaxis(values, -1, 0) if raster.is_interleaved else values


def _new_tiff(raster: Raster, filled: Path, shape: tuple[int, ...], dtype: Any, plan: TilePlan) -> NDArray[Any]:
    import tifffile

    bands, *space = shape
    with tifffile.TiffFile(raster.path) as file:
        tags, ome = file.pages.first.tags, file.ome_metadata if file.is_ome else None
        places = _places({code: tags[code] for code in (_SCALE, _TIES, _MATRIX, *_KEYS) if code in tags}, plan)
        is_one_page = len(file.pages) == 1
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
        options |= {"ome": True, "metadata": {"axes": axes, **_physical_sizes(tifffile.xml2dict(ome), plan)}}
    return tifffile.memmap(filled, shape=stored, dtype=dtype, **options)


def _places(tags: dict[int, Any], plan: TilePlan) -> list[tuple[Any, ...]]:
    """The georeferencing of an image as tags of its output, whose first pixel lies at another place; none where its
    pixels have another size."""
    if any(axis.stride != 1 for axis in plan.axes):
        return []
    down, across = (axis.offset for axis in plan.axes[-2:])
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


def _physical_sizes(document: Any, plan: TilePlan) -> dict[str, Any]:
    """The sizes of a pixel that OME metadata state, of the output's."""
    pixels, found = ome_pixels(document), {}
    for letter, axis in zip("XYZ", reversed(plan.axes), strict=False):
        if (size := pixels.get(f"PhysicalSize{letter}")) is not None:
            found[f"PhysicalSize{letter}"] = float(size) * float(axis.stride)
            found[f"PhysicalSize{letter}Unit"] = pixels.get(f"PhysicalSize{letter}Unit", "µm")
    return found


def _new_zarr(raster: Raster, filled: Path, shape: tuple[int, ...], dtype: Any, plan: TilePlan) -> Any:
    import zarr

    inside = ome_image(raster.path)
    source = zarr.open_array(str(raster.path if inside is None else inside[0]), mode="r")
    chunks = (1, *(min(side, chunk) for side, chunk in zip(shape[1:], source.chunks[-len(shape) + 1 :], strict=True)))
    made: Any = {"shape": shape, "dtype": dtype, "chunks": chunks, "fill_value": 0}
    version = source.metadata.zarr_format
    if separator := getattr(source.metadata, "dimension_separator", None):
        made["chunk_key_encoding"] = {"name": "v2", "separator": separator}
    if inside is None:
        return zarr.create_array(str(filled), overwrite=True, zarr_format=version, **made)
    _, names, attributes = inside
    group = zarr.open_group(str(filled), mode="w", zarr_format=version)
    group.attrs.update(_ome_attributes(names, attributes, plan))
    return group.create_array("0", **made)


def _ome_attributes(names: tuple[str, ...], attributes: dict[str, Any], plan: TilePlan) -> dict[str, Any]:
    """The attributes of an OME-zarr group of one array (C, *space), with the scale of its cells, their units, and the
    place of the first, which is that of its middle."""
    head = attributes.get("ome", attributes)
    image = head["multiscales"][0]
    kept = ["c", *("zyx"[-len(plan.axes) :])]
    described = {each["name"]: each for each in image.get("axes", ()) if isinstance(each, dict)}
    axes = [described.get(name, {"name": name, "type": "channel" if name == "c" else "space"}) for name in kept]
    stated: dict[str, tuple[float, float]] = {}
    with contextlib.suppress(Exception):  # Metadata may hold anything, and the values do not depend on it.
        stated = dict(zip(names, zip(*placement_in_zarr(names, image), strict=True), strict=True))
    scale, first = [], []
    for name, axis in zip(kept, (None, *plan.axes), strict=True):
        step, start = stated.get(name, (1.0, 0.0))
        stride, place = (1.0, 0.0) if axis is None else (float(axis.stride), axis.offset + float(axis.stride - 1) / 2)
        scale.append(step * stride)
        first.append(start + step * place)
    moves: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    moves += [{"type": "translation", "translation": first}] if any(first) else []
    made = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": moves}]}
    made |= {name: image[name] for name in ("name", "version") if name in image}
    document = {"multiscales": [made]} | ({"version": head["version"]} if "version" in head else {})
    return {"ome": document} if "ome" in attributes else document
