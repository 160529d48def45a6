"""Values and records as JSON values, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np


def fields(record: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass, by name."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def to_json(value: Any, *, records: bool = True) -> Any:
    """A value as JSON values.

    Dataclasses become mappings of their fields, tuples lists, numpy numbers plain ones, non-finite numbers null, and
    what JSON lacks its text.

    Args:
        value: Any value.
        records: Whether dataclasses become mappings; else their text stands for them too.
    """
    if records and (hasattr(type(value), "__dataclass_fields__") or isinstance(value, msgspec.Struct)):
        value = msgspec.to_builtins(value, enc_hook=to_json)
    if isinstance(value, Mapping):
        return {str(key): to_json(item, records=records) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, records=records) for item in value]
    if isinstance(value, np.ndarray):
        return to_json(value.tolist(), records=records)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str) else str(value)


def from_json(document: Any, kind: Any = Any, name: str = "") -> Any:
    """JSON values as a record, by the annotations of its type; no value is converted to another type.

    Args:
        document: As :func:`to_json` gives them, or the bytes of a file of strict JSON.
        kind: A dataclass, a structure of msgspec, or any other type that it knows; as they are by default.
        name: What it is called in errors.

    Raises:
        TypeError: names the field that is missing, or not what its annotation says.
        ValueError: the bytes are no JSON: NaN and the infinities are not, and an object has each key once.
        RecursionError: it is nested without end.
    """
    if isinstance(document, bytes):
        hooks: Any = {"parse_constant": _refuse_constant, "parse_float": _finite, "object_pairs_hook": _once}
        document = json.loads(document.decode(), **hooks)
    try:
        return msgspec.convert(document, kind, str_keys=True)
    except msgspec.ValidationError as error:
        what, _, place = str(error).replace("`", "").partition(" - at ")
        raise TypeError(f"{name}{place.removeprefix('key in ').removeprefix('$')}: {what}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are unique: a key that is there twice comes from a merge that kept both sides."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a finite number")


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):  # as of 1e999
        _refuse_constant(text)
    return found
