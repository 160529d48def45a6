"""The sides of pixels and voxels that the metadata of microscopes' files state."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError

#: Relative difference up to which two spacings are one: headers keep 32-bit floats.
SAME_SPACING = 1e-3
#: mm of each unit, and other ways to write it.
MM = {"nm": 1e-6, "µm": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1e3}
_UNITS = {
    **{name: name for name in MM},
    **dict.fromkeys(("um", "\u03bcm", "\\u00B5m", "micron", "microns", "micrometer", "micrometre"), "µm"),
    "nanometer": "nm",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
}
#: A step, and its unit as a file writes it, by the letter of an axis.
Sides = Mapping[str, tuple[Any, Any]]


def spacing_of(letters: Sequence[str], sides: Sides) -> dict[str, Any]:
    """The ``spacing`` in mm and the ``unit`` of an array whose axes of space have these letters; nothing where the side
    of one of them is not stated, or in no unit of length."""
    stated = [sides[letter] for letter in letters if letter in sides]
    known = [(float(step), _UNITS[unit]) for step, unit in stated if unit in _UNITS]
    if not known or len(known) < len(letters) or not all(math.isfinite(step) and step > 0 for step, _ in known):
        return {}
    return {"spacing": tuple(step * MM[unit] for step, unit in known), "unit": known[-1][1]}


def in_unit(spacing: tuple[float, ...] | None, unit: str) -> tuple[float, ...] | None:
    """A spacing in mm in a unit, without the digits that come of changing it; one in no other unit as it is."""
    if spacing is None or MM.get(unit, 1.0) == 1.0:
        return spacing
    return tuple(float(f"{step / MM[unit]:.12g}") for step in spacing)


def ome_pixels(document: Any) -> Any:
    """The description of the pixels of the first image in OME metadata."""
    images = document["OME"]["Image"]
    return (images[0] if isinstance(images, list) else images)["Pixels"]


def sides_in_tiff(file: Any, module: Any) -> Sides:
    """Those of a TIFF file that states them as OME or as ImageJ do."""
    with contextlib.suppress(Exception):  # Metadata may hold anything, and the values do not depend on it.
        if file.is_ome:
            pixels = ome_pixels(module.xml2dict(file.ome_metadata))
            names = {letter: f"PhysicalSize{letter}" for letter in "XYZ"}
            return {
                letter: (pixels[name], pixels.get(f"{name}Unit", "µm"))
                for letter, name in names.items()
                if name in pixels
            }
        if file.is_imagej:
            stated, tags = file.imagej_metadata, file.pages.first.tags
            unit = stated.get("unit")
            rates = {letter: tags[f"{letter}Resolution"].value for letter in "XY"}
            plane = {letter: (down / up, unit) for letter, (up, down) in rates.items()}
            return plane | {"Z": (stated.get("spacing", math.nan), unit)}
    return {}


def sides_in_zarr(names: Sequence[str], image: Any) -> Sides:
    """Those of an OME-zarr image."""
    with contextlib.suppress(Exception):
        units = [each.get("unit") for each in image["axes"]]
        steps, _ = placement_in_zarr(names, image)
        return {name.upper(): side for name, side in zip(names, zip(steps, units, strict=True), strict=True)}
    return {}


def placement_in_zarr(names: Sequence[str], image: Any) -> tuple[list[float], list[float]]:
    """The step from one cell of an OME-zarr image to the next along each axis, and the place of the first: what its
    array states, and then what all its resolutions do."""
    steps, starts = [1.0] * len(names), [0.0] * len(names)
    for move in (*image["datasets"][0]["coordinateTransformations"], *image.get("coordinateTransformations", ())):
        scale, shift = move.get("scale", [1.0] * len(names)), move.get("translation", [0.0] * len(names))
        steps = [step * by for step, by in zip(steps, scale, strict=True)]
        starts = [start * by + to for start, by, to in zip(starts, scale, shift, strict=True)]
    return steps, starts


def refuse_stated_otherwise(axes: Axes, stated: tuple[float, ...] | None, unit: str, file: Path | None) -> None:
    """Refuse a spacing that the user gives in the unit of scans or sound, which state another; microscopes' files, in
    other units, may state what nobody measured."""
    if stated is None or unit not in ("mm", "ms") or set(axes.units) != {unit}:
        return
    if not np.allclose(axes.spacing, stated, rtol=SAME_SPACING):
        given, own = (_in_words(each) for each in (axes.spacing, stated))
        raise ErfscopeError(f"{str(file)!r} has {own}, and {given} were given; resample it, or leave them out")


def _in_words(spacing: Sequence[float]) -> str:
    if len(spacing) == 1:
        return f"{1000 / spacing[0]:.6g} samples per second"
    return f"{'voxels' if len(spacing) == 3 else 'pixels'} of {' x '.join(f'{step:.6g}' for step in spacing)} mm"


def refuse_other_spacing(
    first: tuple[Path, tuple[float, ...] | None], other: tuple[Path, tuple[float, ...] | None]
) -> None:
    """Refuse a file whose spacing is not that of the first one that has it."""
    (file, spacing), (path, found) = first, other
    if spacing is None or found is None or np.allclose(spacing, found, rtol=SAME_SPACING, atol=0):
        return
    raise ErfscopeError(
        f"{str(file)!r} has {_in_words(spacing)} and {str(path)!r} {_in_words(found)}; resample one of them"
    )
