"""Whether records that come from a file are what their annotations say: whatever shows or compares them may then rely on it."""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from erfscope.measures import MEASURES

if TYPE_CHECKING:
    from erfscope.geometry.receptive_field import Trf
    from erfscope.results.partial import PartialSums
    from erfscope.results.result import Result

#: Larger numbers are no sizes, counts or seeds, and arithmetic with them ends in OverflowError.
LARGEST = 2.0**63
STATUSES = ("ok", "degenerate", "error")
#: Ids name files, in the folder of a report and nowhere else.
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def check_types(record: Any, name: str) -> None:
    """Refuse a record with a field that is not what its annotation says, in it or in a record inside it.

    Args:
        record: A dataclass.
        name: What to call it in the error.

    Raises:
        TypeError: names the field; numbers that are not finite are none.
    """
    for field, hint in _annotations(record.__class__).items():
        _refuse(getattr(record, field), hint, f"{name}.{field}")


def check_consistency(result: Result) -> None:
    """Refuse a stored result whose parts do not go together, on top of :func:`check_types`.

    Raises:
        TypeError, ValueError: says which part.
    """
    check_types(result, "result")
    if not _ID.fullmatch(result.id) or len(result.id) > 200:
        raise ValueError(f"the id {result.id[:80]!r} names no file")
    if result.status not in STATUSES:
        raise ValueError(f"the status {result.status[:40]!r} is none of {', '.join(STATUSES)}")
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
        if {len(unit.center_px), len(unit.stride_px)} != {axes} or (unit.map_shape and len(unit.map_shape) != len(unit.index) + 1):
            raise ValueError("the unit has lists of several lengths")
    if result.map is not None:
        _refuse_map(result, axes)


def refuse_unsound_part(part: PartialSums, space: Sequence[int]) -> None:
    """Refuse what a shard has stored of its sums where the numbers do not go together.

    Args:
        part: As read.
        space: Spatial size of the reference.

    Raises:
        ValueError: says which numbers.
    """
    # Late: sums and averages bring torch.
    from erfscope.results.partial import refuse_disagreement

    average, shard = part.average, part.shard
    if not (0 <= average.n_images <= part.seen <= part.n_all < LARGEST) or (shard is not None and not 1 <= shard.number <= shard.of):
        raise ValueError(f"{average.n_images} of {part.seen} of {part.n_all} pictures in shard {shard} cannot be")
    if any(not 0 <= index < part.n_all or index not in part.names for index in part.lost):
        raise ValueError("pictures without use are named that there are not, or not named")
    if any(not 0 < count < LARGEST for _, (_, count) in average.sums.items()) or not all(isinstance(name, str) for name in part.measures):
        raise ValueError("a group has no pictures, or a measure no name")
    refuse_disagreement(part)
    if part.ratio is not None and not 0 <= part.ratio < LARGEST:
        raise ValueError(f"the gradient is {part.ratio} times that of a random draw")
    if part.hops is not None and part.hops.shape != tuple(space):
        raise ValueError(f"hops of shape {part.hops.shape} are not those of {tuple(space)}")


def _refuse_field(trf: Trf) -> None:
    lists = {name: getattr(trf, name) for name in trf.__dataclass_fields__ if name.endswith("_px")}
    if not 1 <= len(trf.reference_px) <= 3 or min(trf.reference_px) < 1:
        raise ValueError(f"the reference's size is {trf.reference_px}")
    for name, values in lists.items():
        if len(values) != len(trf.reference_px) and not (name == "offset_px" and not values):
            raise ValueError(f"trf.{name} has {len(values)} axes, and the reference {len(trf.reference_px)}")


def _refuse_map(result: Result, axes: int | None) -> None:
    """A map is drawn on the axes of its field and next to its picture."""
    assert result.map is not None
    erf, trf, picture = result.map, result.trf, result.picture
    if erf.values.ndim != axes or len(erf.cell_px) != axes or (trf is not None and erf.values.shape != trf.reference_px):
        raise ValueError(
            f"the map is {erf.values.shape} of {len(erf.cell_px)} axes, and the reference {None if trf is None else trf.reference_px}"
        )
    if not np.isfinite(erf.values).all() or (erf.scale != "signed" and (erf.values < 0).any()):
        raise ValueError("the map has values that are negative or not finite")
    if picture is not None and (picture.dtype != np.uint8 or picture.ndim < 2):
        raise ValueError(f"the picture is {picture.dtype} {picture.shape}")


@functools.cache
def _annotations(kind: object) -> dict[str, Any]:
    """Annotation by field; those that only type checkers know say nothing here."""
    assert isinstance(kind, type)
    known = get_type_hints(kind, localns={"PartialSums": Any})
    return {field.name: known[field.name] for field in fields(kind)}


def _refuse(value: Any, hint: Any, where: str) -> None:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object or hint is np.ndarray or origin is np.ndarray:
        return
    if origin in (Union, types.UnionType):
        _refuse_union(value, inner, where)
    elif origin is Literal:
        _demand(value in inner, value, where)
    elif origin is tuple:
        _demand(isinstance(value, tuple) and (inner[-1] is Ellipsis or len(value) == len(inner)), value, where)
        for item, kind in zip(value, (inner[0],) * len(value) if inner[-1] is Ellipsis else inner, strict=True):
            _refuse(item, kind, where)
    elif origin is Mapping or origin is dict:
        _demand(isinstance(value, Mapping), value, where)
        for key, item in value.items():
            _refuse(key, inner[0], where)
            _refuse(item, inner[1], where)
    elif is_dataclass(hint):
        _demand(isinstance(value, hint), value, where)  # type: ignore[arg-type]
        check_types(value, where)
    else:
        _demand(_is_plain(value, hint), value, where)


def _refuse_union(value: Any, kinds: Sequence[Any], where: str) -> None:
    if value is None and type(None) in kinds:
        return
    errors = []
    for kind in kinds:
        if kind is not type(None):
            try:
                _refuse(value, kind, where)
                return
            except TypeError as error:
                errors.append(error)
    raise errors[0]


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether a value is a number, a truth value or text, as the annotation has it."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < LARGEST
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return isinstance(value, kind)


def _demand(holds: bool, value: Any, where: str) -> None:
    """Refuse a value that is not what it should be.

    Raises:
        TypeError: it is not.
    """
    if not holds:
        raise TypeError(f"{where} is {str(value)[:40]!r} ({type(value).__name__})")
