"""Records as plain JSON values, and back, by their annotations; no value is converted to another type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

Record = TypeVar("Record")


def fields(record: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass, by name."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def plain(value: Any) -> Any:
    """JSON values only: tuples become lists, numpy numbers plain ones, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str) else str(value)


def to_json(record: Any) -> dict[str, Any]:
    """A record, and the records inside it, as JSON values."""
    document: dict[str, Any] = plain(msgspec.to_builtins(record, enc_hook=plain))
    return document


def convert(values: Any, kind: type[Record], name: str) -> Record:
    """JSON values as a record, by the annotations of its type.

    Args:
        values: As :func:`to_json` gives them.
        kind: A dataclass, a structure of msgspec, or any other type that it knows.
        name: Its name in errors.

    Raises:
        TypeError: names the field that is missing, or not what its annotation says.
    """
    try:
        return msgspec.convert(values, kind, str_keys=True)
    except msgspec.ValidationError as error:
        what, _, place = str(error).replace("`", "").partition(" - at ")
        raise TypeError(f"{name}{place.removeprefix('key in ').removeprefix('$')}: {what}") from None


def parse(text: str, **hooks: Any) -> Any:
    """A text of strict JSON as values.

    Args:
        text: The text.
        **hooks: As for :func:`json.loads`.

    Raises:
        ValueError: it is none; NaN and the infinities are not.
        RecursionError: it is nested without end.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, **hooks)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a finite number")


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):  # as of 1e999
        _refuse_constant(text)
    return found
