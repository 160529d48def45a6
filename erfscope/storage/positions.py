"""The sizes of every unit's map: as JSON values with arrays beside them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.results.positions import MEASURED, Positions
from erfscope.storage.documents import StoredPositions

#: Prefix of the arrays' names in the map file.
PREFIX = "positions_"


def stored_positions(positions: Positions) -> StoredPositions:
    """The stored positions without their arrays, see :func:`position_arrays`."""
    return StoredPositions(
        shape=positions.r50.shape,
        without_gradient=positions.without_gradient,
        passes=positions.passes,
        alone=positions.alone,
        **{name: positions.border_effect(name) for name in MEASURED},
    )


def position_arrays(positions: Positions) -> dict[str, NDArray[Any]]:
    """Sizes by unit, NaN where there are none, and whether a unit's TRF lies inside the reference; the layer's
    shape."""
    return {f"{PREFIX}{name}": getattr(positions, name) for name in (*MEASURED, "inside")}


def positions_from(
    stored: StoredPositions | None, arrays: Mapping[str, NDArray[Any]], space: Sequence[int]
) -> Positions | None:
    """Stored positions; None if there are none, and if their arrays are missing.

    Args:
        stored: See :func:`stored_positions`.
        arrays: See :func:`position_arrays`.
        space: Spatial size of the layer's map.

    Raises:
        ValueError: the arrays do not go together, or hold what is no size.
    """
    names = [f"{PREFIX}{name}" for name in (*MEASURED, "inside")]
    if stored is None or any(name not in arrays for name in names):
        return None
    r50, context_r50, inside = (arrays[name] for name in names)
    if {r50.shape, context_r50.shape, inside.shape, stored.shape} != {tuple(space)}:
        raise ValueError(f"the sizes of units are not those of a layer of {tuple(space)}")
    if any(bool(np.isinf(values).any() or (values < 0).any()) for values in (r50, context_r50)):
        raise ValueError("a unit's size is negative or infinite")
    return Positions(r50=r50, context_r50=context_r50, inside=inside, passes=stored.passes, alone=stored.alone)
