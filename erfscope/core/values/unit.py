"""Units of a layer's map, boxes of cells, and the theoretical receptive field (TRF) of a unit."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.printable import brief

CENTRE = "centre"
#: Every unit of a layer, in one result.
ALL = "all"
#: Begins a unit that is named by a pixel; and one of the pixel's numbers.
PX, NUMBER = "px:", r"\d+(?:\.\d+)?"
#: Units along each axis that a grid may have: each has a map of its own.
GRID_LIMIT = 256
_WORDS = {"center": CENTRE, "centre": CENTRE, "corner": "corner", "edge": "edge"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One position of a layer's map: its index, one number per spatial axis."""

    index: tuple[int, ...]
    #: The channels to measure; None for all.
    channels: tuple[int, ...] | None = None


UnitWord = str | int | Sequence[Any] | Unit


def is_every_unit(word: object) -> bool:
    """Return whether a word asks for every unit of a layer."""
    if isinstance(word, list | tuple) and len(word) == 1:
        return is_every_unit(word[0])
    return isinstance(word, str) and word.strip().lower() == ALL


def unit_word(word: object) -> str:
    """Return a unit as it was asked for in one spelling: ``"centre"``, ``"0,0"``."""
    text = word if isinstance(word, str) else ",".join(map(str, word)) if isinstance(word, list | tuple) else str(word)
    # An index may be written 3,3 or 3x3.
    text = re.sub(r"(?<=\d)x(?=-?\d)", ",", re.sub(r"\s", "", text.lower()))
    return text.replace("center", "centre")


#: A place in the reference -> the unit nearest to it.
Nearest = Callable[[Sequence[float]], tuple[int, ...]]


def resolve_units(
    word: UnitWord,
    space: Sequence[int],
    centre: tuple[int, ...],
    *,
    layer: str = "the layer",
    nearest: Nearest | None = None,
) -> list[Unit]:
    """Return the units that a word means in a map of the given size.

    Args:
        word: ``"centre"``, ``"corner"`` (the first unit), ``"edge"`` (middle of the first row), ``"grid:N"`` (N by N
            units spread evenly), ``"r,c"`` or ``"RxC"``, ``"px:r,c"`` (the unit nearest to a pixel), several of these
            separated by commas; a sequence of indices, one index for a line; a :class:`Unit`; or a list of any of
            these.
        space: Spatial size of the map.
        centre: The unit whose true centre is nearest to the reference's.
        layer: Name of the layer, for the error.
        nearest: Finds the unit nearest to a pixel; None where places are not known.

    Returns:
        The units, in the order given, without repetition.

    Raises:
        ErfscopeError: the word is not a unit, or a unit is outside the map.
    """
    if isinstance(word, list | tuple) and any(isinstance(each, str | list | tuple | Unit) for each in word):
        every = [unit for each in word for unit in resolve_units(each, space, centre, layer=layer, nearest=nearest)]
        return list(dict.fromkeys(every))
    if isinstance(word, str):
        parts = split_units(word, len(space))
        indices = [
            unit
            for part in parts
            for unit in (_at_pixel(part, nearest) if part.startswith(PX) else _units(part, space, centre))
        ]
    else:
        try:
            given = (
                word.index if isinstance(word, Unit) else (word,) if isinstance(word, int) and len(space) == 1 else word
            )
            indices = [tuple(operator.index(i) for i in given)]  # type: ignore[union-attr, arg-type]
        except TypeError:
            raise _unreadable(word, len(space)) from None
    for index in indices:
        if len(index) != len(space) or any(not 0 <= i < side for i, side in zip(index, space, strict=True)):
            size = "x".join(str(side) for side in space)
            last = ",".join(str(side - 1) for side in space)
            asked = ",".join(str(i) for i in index)
            raise ErfscopeError(f"unit {asked} lies outside {layer}, whose map is {size}; the last unit is {last}")
    chosen = word.channels if isinstance(word, Unit) else None
    return [Unit(index=index, channels=chosen) for index in dict.fromkeys(indices)]


def split_units(text: str, rank: int) -> list[str]:
    """Split a comma list of units. Each ``rank`` bare numbers are one unit, so that ``"3,3"`` is one unit of a plane.

    Raises:
        ErfscopeError: a part is not a unit, or the last unit lacks numbers.
    """
    parts: list[str] = []
    numbers: list[str] = []
    # A pixel has commas of its own.
    pixel = rf"{PX}{NUMBER}(?:\s*,\s*{NUMBER}){{{rank - 1}}}"
    words = re.sub(pixel, lambda found: re.sub(r"\s*,\s*", "x", found[0]), text.lower())
    for part in (p.strip() for p in words.split(",")):
        if re.fullmatch(r"-?\d+", part):
            numbers.append(part)
            if len(numbers) == rank:
                parts.append("x".join(numbers))
                numbers = []
            continue
        if numbers or not (part in _WORDS or re.fullmatch(rf"grid:\d+|-?\d+(x-?\d+)+|{PX}{NUMBER}(x{NUMBER})*", part)):
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
    place = "r,c" if rank == 2 else ",".join("8" * rank)
    return ErfscopeError(
        f"cannot read the unit {asked!r}; write centre, corner, edge, grid:N, {PX}{place} or {indices}, or several; or"
        " token:N, query:N, row:N, class:N or vector, which have no place"
    )


def _at_pixel(part: str, nearest: Nearest | None) -> list[tuple[int, ...]]:
    if nearest is None:
        raise ErfscopeError(f"where units stand is not known here, so that {part.replace('x', ',')!r} names none")
    return [nearest([float(number) for number in part.removeprefix(PX).split("x")])]


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


#: First cell and last + 1 along each axis.
Box = tuple[tuple[int, int], ...]


def sides(box: Box) -> tuple[int, ...]:
    """Return the number of cells along each axis."""
    return tuple([stop - first for first, stop in box])


def inside(box: Box, start: Sequence[int] | None = None) -> Any:
    """Return the index of a box's cells in an array whose last axes are the box's and begin at ``start`` (0 if
    None)."""
    begun = start or (0,) * len(box)
    return (..., *(slice(first - low, stop - low) for (first, stop), low in zip(box, begun, strict=True)))


def box_at(origin: Sequence[int], shape: Sequence[int]) -> Box:
    """Return the box of this shape that begins at ``origin``."""
    return tuple((first, first + side) for first, side in zip(origin, shape, strict=True))


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that contains all boxes."""
    ends = zip(*boxes, strict=True)
    return tuple([(min([side[0] for side in axis]), max([side[1] for side in axis])) for axis in ends])


def size_text(size: Sequence[int | str]) -> str:
    """Return a size as the command line writes it, e.g. ``192x256``."""
    return "x".join(str(side) for side in size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trf:
    """All cells that can move a unit. One entry per spatial axis of the reference, in cells of the reference: pixels if
    the reference is the image."""

    #: Side of the box; the reference's size if a global operation makes the TRF the whole reference.
    size_px: tuple[int, ...]
    #: First and last cell, inclusive; not clipped to the reference (0 .. size-1 where global).
    box_px: tuple[tuple[int, int], ...]
    #: Step of the TRF from one unit to the next; () as the centre where units have no place.
    stride_px: tuple[float, ...]
    #: The unit's true centre: the affine coordinate that the operations carry from the image to the unit.
    center_px: tuple[float, ...]
    #: Centre of unit 0: centre = offset + unit * stride. Along an axis that the layer's map lacks, the centre itself.
    offset_px: tuple[float, ...] = ()
    #: Whether every path from the image gives the unit this centre. If False, it is the centre of the first branch of
    #: the operation where branches meet; or, if that is further than a stride from (u + 1/2) S / s - 1/2, of the branch
    #: nearest to this point; or this point, if no branch has a centre.
    center_exact: bool
    #: Why the centre is not exact: the branches that disagree, with their centres, or the operation without one.
    center_inexact_reason: str = field(default="", compare=False)
    #: The first operation after the image that mixes all positions; None if there is none.
    global_by: str | None = None
    #: The same with global operations left out.
    local_size_px: tuple[int, ...]
    local_box_px: tuple[tuple[int, int], ...]
    #: False if erfscope has no rule for an operation: the box is then a superset. Values are not used: weights and
    #: constants, masks of attention among them, count as non-zero everywhere.
    exact: bool
    #: Names of the operations without a rule.
    inexact_by: tuple[str, ...] = ()
    #: Spatial size of the reference.
    reference_px: tuple[int, ...]
    #: False if some path from the image to the unit avoids the reference.
    all_paths: bool = True
    #: First and last cell inside the reference that the unit reads; an empty side is (0, -1). It may be smaller than
    #: the box clipped to the reference, if strides do not divide a size or borders wrap around. Default: the clipped
    #: box.
    clipped_box_px: tuple[tuple[int, int], ...] = ()
    #: Of the paths to the unit, the share that leaves the reference along each axis where the fall-off of the others
    #: does not show it, as of branches of which all taps lie outside; () where that was not asked for.
    unseen_share: tuple[float, ...] = field(default=(), compare=False)

    @property
    def is_global(self) -> bool:
        """Whether the TRF covers the whole reference by a global operation."""
        return self.global_by is not None

    @property
    def is_clipped(self) -> bool:
        """Whether a part of it lies outside the reference, or a border or a stride keeps the unit from reading it."""
        return self.clipped_box_px != self.box_px

    def __str__(self) -> str:
        bound = "" if self.exact else "at most "
        lines = [f"TRF {bound}{size_text(self.size_px)} of {size_text(self.reference_px)}"]
        if self.is_global:
            lines[0] += f", all of it by {self.global_by}; {size_text(self.local_size_px)} without such operations"
        sides = (f"{first} to {last}" if first <= last else "none" for first, last in self.clipped_box_px)
        about = "" if self.center_exact else "about "
        lines.append(f"cells inside {' x '.join(sides)}")
        if self.center_px:
            lines.append(f"centre {about}{_listed(self.center_px)}; stride {_listed(self.stride_px)}")
        lines += [f"not understood: {', '.join(self.inexact_by)}"] if self.inexact_by else []
        lines += [f"the centre is not exact: {self.center_inexact_reason}"] if self.center_inexact_reason else []
        return "\n".join(lines)

    def __post_init__(self) -> None:
        if not self.clipped_box_px:
            inside = [
                _within(first, last, size) for (first, last), size in zip(self.box_px, self.reference_px, strict=True)
            ]
            object.__setattr__(self, "clipped_box_px", tuple(inside))


def _listed(numbers: Sequence[float]) -> str:
    return ",".join(map(brief, numbers))


def _within(first: int, last: int, size: int) -> tuple[int, int]:
    low, high = max(first, 0), min(last, size - 1)
    return (low, high) if low <= high else (0, -1)
