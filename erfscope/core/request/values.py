"""How values of options are read: text of the command line, and lists."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from erfscope.core.values.errors import ErfscopeError


def percent(text: str) -> float:
    """``2%`` or ``0.02`` as a share."""
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is no percentage; write 2% or 0.02") from None


def draws(text: str) -> int | str:
    """A number, or ``all``."""
    try:
        return text if text == "all" else int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a number nor 'all'") from None


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers; write 50,90 or 2.5,1,1, for example") from None


def channels(given: object) -> tuple[int, ...] | None:
    """Channels by their numbers: one, several, or words with commas between them; None where none are named.

    Raises:
        ErfscopeError: no numbers of 0 or more, or none at all.
    """
    if given is None:
        return None
    listed: Any = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else (given,)
    try:
        found = {int(each) if isinstance(each, str) else operator.index(each) for each in listed}
    except (TypeError, ValueError):
        found = set()
    if not found or min(found) < 0 or any(isinstance(each, bool) for each in listed):
        raise ErfscopeError(
            f"cannot read the channels {given!r}; write numbers from 0 on, such as 3 or 0,3,7, or leave it out for all"
        )
    return tuple(sorted(found))


def alphas(value: Any) -> list[float | None]:
    """Shares of what inserted blocks add: ``0.5``, ``"0,0.5,1"`` or a list; [None] where none is given.

    Raises:
        ErfscopeError: not a number, or not a finite one.
    """
    found: list[float | None] = []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and not value:
        raise ErfscopeError("alpha is empty; give a number, or several, or leave it out")
    for part in words(value, "alpha"):
        for item in part if isinstance(part, list | tuple) else (part,):
            try:
                number = None if item is None else float(item)
            except (TypeError, ValueError):
                raise ErfscopeError(f"cannot read the alpha {item!r}; write numbers such as 0,0.25,0.5,1") from None
            if number is not None and not math.isfinite(number):
                raise ErfscopeError(f"alpha must be finite, not {number}")
            found.append(number)
    return found


def words(value: object, name: str = "option") -> list[Any]:
    """A comma list, or a sequence, as a list; [None] for None, and anything else alone.

    Raises:
        ErfscopeError: text without a word in it.
    """
    if value is None:
        return [None]
    if isinstance(value, str):
        found = [part.strip() for part in value.split(",") if part.strip()]
        if not found:
            raise ErfscopeError(f"{name} is empty; give one, or several separated by commas, or leave it out")
        return found
    is_list = isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value)
    return list(value) if is_list else [value]  # type: ignore[call-overload]


#: ``--zoom``: as much of the input as the largest ERF needs, or all of it.
AUTO, WHOLE = "auto", "none"


def zoom_side(zoom: str | float) -> float | None:
    """The side of the window that ``--zoom`` names, in the unit of the axes; None for its words.

    Raises:
        ErfscopeError: neither a word nor a positive number.
    """
    if zoom in (AUTO, WHOLE):
        return None
    try:
        side = float(str(zoom))
    except (TypeError, ValueError):
        side = math.nan
    if not 0 < side < math.inf:
        raise ErfscopeError(
            f"zoom is {AUTO}, {WHOLE} or the side of the window, a number such as 64 in the unit of the axes (px of"
            f" images without a spacing); not {zoom!r}"
        )
    return side
