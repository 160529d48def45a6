"""Sizes of inputs, parsed once: tuples of one to three whole numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import size_text

Size = int | str | Sequence[int]
#: The word for the model's own size, doubled until the border cuts little of the ERF.
AUTO = "auto"
_EXAMPLES = "give a whole number such as 224, or one for each axis: (192, 256), '192x256'"


class EverySide(tuple[int, ...]):
    """A size given as one number, (n,): this side on every axis of the model's input, whose number only the adapter
    knows."""

    __slots__ = ()


def input_sizes(value: Any) -> list[tuple[int, ...] | None]:
    """Return input sizes from ``224``, ``"224,384"``, ``"192x256"``, (192, 256), or a list of such; [None] for None.

    A pair of numbers is one size (height, width), as everywhere in Python; in text, commas separate sizes. One number
    stays one, (224,). Whole numbers may be numpy's or elements of a tensor.

    Raises:
        ErfscopeError: the value is not a size, or a side is below 1.
    """
    if value is None:
        return [None]
    if isinstance(value, EverySide):
        return [value]
    if isinstance(value, str):
        return [_parse_sides(part) for part in value.split(",")]
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return [EverySide(_positive([_side(value, value)], value))]
    entries = list(value)
    if not entries:
        raise ErfscopeError("input_size is empty; give 224 or 192x256, or leave it out")
    if not any(
        entry is None or isinstance(entry, str) or (isinstance(entry, Iterable) and getattr(entry, "ndim", 1))
        for entry in entries
    ):
        return [_positive([_side(entry, value) for entry in entries], value)]
    if None in [entry for entry in entries if entry is None or isinstance(entry, str)]:
        raise ErfscopeError(f"input_size {value!r} is no size; {_EXAMPLES}")
    return [size for entry in entries for size in input_sizes(entry)]


def input_size(value: Any) -> tuple[int, ...] | None:
    """Return the one input size that a model is built or wrapped for; None for None.

    Raises:
        ErfscopeError: the value is not a size, a side is below 1, or there are several sizes.
    """
    sizes = input_sizes(value)
    if len(sizes) > 1:
        raise ErfscopeError(f"input_size {value!r} are {len(sizes)} sizes, and a model is set up for one; give one")
    return sizes[0]


def is_size(asked: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Return whether a size that was asked for fits the full ``size`` of an input: one number fits any square, and the
    length of a clip may be left out."""
    return size[-len(asked) :] == tuple(asked) if len(asked) > 1 else set(size[-2:]) == set(asked)


def size_words(size: Sequence[int]) -> str:
    """Return a size as Python and the command line write it."""
    sides = f"({size[0]},)" if len(size) == 1 else f"({', '.join(map(str, size))})"
    return f"input_size={sides} (--input-size {size_text(size)})"


def _side(value: Any, whole: Any) -> int:
    """Return one side as a whole number; True and 224.0 are refused."""
    try:
        if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ErfscopeError(f"input_size {whole!r} is no size: {value!r} is not a whole number; {_EXAMPLES}") from None


def is_auto(value: object) -> bool:
    """Return whether a value is the word for sizes that are found by measuring."""
    return isinstance(value, str) and value.strip().lower() == AUTO


def _parse_sides(text: str) -> tuple[int, ...]:
    if is_auto(text):
        raise ErfscopeError(
            "input size auto is found by measuring one model, and stands alone there; give a size such as 224 here"
        )
    try:
        sides = tuple(int(side) for side in text.strip().lower().split("x"))
    except ValueError:
        raise ErfscopeError(f"cannot read the input size {text!r}; write 224 or 192x256") from None
    size = _positive(sides, text.strip())
    return EverySide(size) if len(size) == 1 else size


def _positive(sides: Sequence[int], given: Any) -> tuple[int, ...]:
    if not 1 <= len(sides) <= 3 or any(side < 1 for side in sides):
        raise ErfscopeError(
            f"input size {str(given)!r} is no size; give one to three sides of at least 1, as in 224 or 192x256"
        )
    return tuple(sides)
