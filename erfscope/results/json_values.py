"""Records as plain values that JSON knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


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
