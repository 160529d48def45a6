"""Consistency of a stored result beyond its annotations, which every output and comparison may then rely on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from erfscope.measures import MEASURES

if TYPE_CHECKING:
    from erfscope.geometry.receptive_field import Trf
    from erfscope.results.result import Result

#: Ids name files, in the folder of a report and nowhere else.
ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def check_consistency(result: Result) -> None:
    """Refuse a stored result whose parts do not go together.

    Raises:
        ValueError: says which part.
    """
    if not ID.fullmatch(result.id) or len(result.id) > 200:
        raise ValueError(f"the id {result.id[:80]!r} names no file")
    for name, measure in result.measures.items():
        is_word = measure.kind == "shape"
        if (name in MEASURES and measure.kind != MEASURES[name].kind) or (
            measure.value is not None and is_word != isinstance(measure.value, str)
        ):
            raise ValueError(f"{name[:40]!r} is no measure of that kind")
    if not result.input.size or min(result.input.size) < 1:
        raise ValueError(f"the input's size is {result.input.size}")
    axes = None
    if result.trf is not None:
        _refuse_field(result.trf)
        axes = len(result.trf.reference_px)
    if result.unit is not None:
        unit = result.unit
        axes = axes or len(unit.center_px)
        if {len(unit.center_px), len(unit.stride_px)} != {axes} or (
            unit.map_shape and len(unit.map_shape) != len(unit.index) + 1
        ):
            raise ValueError("the unit has lists of several lengths")
    if result.map is not None:
        _refuse_map(result, axes)


def _refuse_field(trf: Trf) -> None:
    lists = {name: getattr(trf, name) for name in trf.__dataclass_fields__ if name.endswith("_px")}
    if not 1 <= len(trf.reference_px) <= 3 or min(trf.reference_px) < 1:
        raise ValueError(f"the reference's size is {trf.reference_px}")
    for name, values in lists.items():
        if len(values) != len(trf.reference_px) and not (name == "offset_px" and not values):
            raise ValueError(f"trf.{name} has {len(values)} axes, and the reference {len(trf.reference_px)}")


def _refuse_map(result: Result, axes: int | None) -> None:
    """A map is drawn on the axes of its TRF and next to its image."""
    assert result.map is not None
    erf, trf, picture = result.map, result.trf, result.picture
    if (
        erf.values.ndim != axes
        or len(erf.cell_px) != axes
        or (trf is not None and erf.values.shape != trf.reference_px)
    ):
        raise ValueError(
            f"the map is {erf.values.shape} of {len(erf.cell_px)} axes, and the reference"
            f" {None if trf is None else trf.reference_px}"
        )
    if not np.isfinite(erf.values).all() or (erf.scale != "signed" and (erf.values < 0).any()):
        raise ValueError("the map has values that are negative or not finite")
    if picture is not None and (picture.dtype != np.uint8 or picture.ndim < 2):
        raise ValueError(f"the image is {picture.dtype} {picture.shape}")
