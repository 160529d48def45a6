"""The unit to differentiate: words, indices and grids are parsed into :class:`Unit`."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.errors import ErfscopeError

CENTRE = "centre"
#: Every unit of a layer, in one result.
ALL = "all"
#: Units along each axis that a grid may have: each has a map of its own.
GRID_LIMIT = 256
_WORDS = {"center": CENTRE, "centre": CENTRE, "corner": "corner", "edge": "edge"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One position of a layer's map: its index, one number per spatial axis."""

    index: tuple[int, ...]
    #: The channels to measure; None for all.
    channels: tuple[int, ...] | None = None

    @property
    def slug(self) -> str:
        """A text for file names, e.g. ``u3x3``."""
        return "u" + "x".join(str(i) for i in self.index)


UnitWord = str | int | Sequence[Any] | Unit


def is_every_unit(word: object) -> bool:
    """Return whether a word asks for every unit of a layer."""
    if isinstance(word, list | tuple) and len(word) == 1:
        return is_every_unit(word[0])
    return isinstance(word, str) and word.strip().lower() == ALL


def resolve_units(
    word: UnitWord, space: Sequence[int], centre: tuple[int, ...], *, layer: str = "the layer"
) -> list[Unit]:
    """Return the units that a word means in a map of the given size.

    Args:
        word: ``"centre"``, ``"corner"`` (the first unit), ``"edge"`` (middle of the first row), ``"grid:N"`` (N by N
            units spread evenly), ``"r,c"`` or ``"RxC"``, several of these separated by commas; a sequence of indices,
            one index for a line; a :class:`Unit`; or a list of any of these.
        space: Spatial size of the map.
        centre: The unit whose true centre is nearest to the reference's.
        layer: Name of the layer, for the error.

    Returns:
        The units, in the order given, without repetition.

    Raises:
        ErfscopeError: the word is not a unit, or a unit is outside the map.
    """
    if isinstance(word, list | tuple) and any(isinstance(each, str | list | tuple | Unit) for each in word):
        every = [unit for each in word for unit in resolve_units(each, space, centre, layer=layer)]
        return list(dict.fromkeys(every))
    if isinstance(word, str):
        found = [unit for part in split_units(word, len(space)) for unit in _units(part, space, centre)]
    else:
        try:
            given = (
                word.index if isinstance(word, Unit) else (word,) if isinstance(word, int) and len(space) == 1 else word
            )
            found = [tuple(operator.index(i) for i in given)]  # type: ignore[union-attr, arg-type]
        except TypeError:
            raise _unreadable(word, len(space)) from None
    for index in found:
        if len(index) != len(space) or any(not 0 <= i < side for i, side in zip(index, space, strict=True)):
            size = "x".join(str(side) for side in space)
            last = ",".join(str(side - 1) for side in space)
            asked = ",".join(str(i) for i in index)
            raise ErfscopeError(f"unit {asked} lies outside {layer}, whose map is {size}; the last unit is {last}")
    chosen = word.channels if isinstance(word, Unit) else None
    return [Unit(index=index, channels=chosen) for index in dict.fromkeys(found)]


def split_units(text: str, rank: int) -> list[str]:
    """Split a comma list of units. Each ``rank`` bare numbers are one unit, so that ``"3,3"`` is one unit of a plane.

    Raises:
        ErfscopeError: a part is not a unit, or the last unit lacks numbers.
    """
    parts: list[str] = []
    numbers: list[str] = []
    for part in (p.strip().lower() for p in text.split(",")):
        if re.fullmatch(r"-?\d+", part):
            numbers.append(part)
            if len(numbers) == rank:
                parts.append("x".join(numbers))
                numbers = []
            continue
        if numbers or not (part in _WORDS or re.fullmatch(r"grid:\d+|-?\d+(x-?\d+)+", part)):
            break
        parts.append(part)
    else:
        if parts and not numbers:
            return parts
    raise _unreadable(text, rank)


def _unreadable(asked: object, rank: int) -> ErfscopeError:
    if isinstance(asked, str) and ALL in re.split(r"[\s,]+", asked.strip().lower()):
        text = (
            f"the unit {asked!r} asks for every unit, which analyze, sweep and compare measure where `all` stands alone"
        )
        return ErfscopeError(f"{text}; name units here")
    indices = f"{rank} indices such as {','.join('3' * rank)}" if rank > 1 else "an index such as 3"
    return ErfscopeError(f"cannot read the unit {asked!r}; write centre, corner, edge, grid:N or {indices}, or several")


def _units(part: str, space: Sequence[int], centre: tuple[int, ...]) -> list[tuple[int, ...]]:
    word = _WORDS.get(part)
    if word == CENTRE:
        return [centre]
    if word == "corner":
        return [(0,) * len(space)]
    if word == "edge":
        return [(0, *centre[1:])]
    if part.startswith("grid:"):
        count = int(part.removeprefix("grid:"))
        if count < 1:
            raise ErfscopeError("grid:N needs N of at least 1")
        if count > GRID_LIMIT:
            raise ErfscopeError(
                f"grid:{count} asks for {count} units along every axis; at most grid:{GRID_LIMIT} can be measured at"
                " once"
            )
        axes = [[min(side - 1, int((k + 0.5) * side / count)) for k in range(count)] for side in space]
        cells: list[tuple[int, ...]] = [()]
        for axis in axes:
            cells = [(*cell, i) for cell in cells for i in axis]
        return cells
    return [tuple(int(i) for i in part.split("x"))]
