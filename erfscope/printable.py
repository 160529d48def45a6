"""Text for people: rounded numbers, and text from outside made safe, since names of files, models and labels must not
steer a terminal."""

from __future__ import annotations

import math
import unicodedata

#: Control and format characters (escape sequences, direction marks), lone surrogates of undecodable file names, line
#: separators.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: Unit of a measure in JSON -> the sign that people write, if it is another.
UNIT_SIGNS = {"px2": "px²", "cells2": "cells²", "deg": "°"}


def printable(text: str, *, keep: str = "") -> str:
    """Replace every character that steers a terminal, or cannot be written at all, by a question mark.

    Args:
        text: Any text.
        keep: Characters that stay, e.g. ``"\\n"``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(c) in _STEERING and c not in keep else c for c in text)


def one_line(text: str) -> str:
    """Return ``text`` as one printable line: white space and line breaks become single spaces."""
    return printable(" ".join(text.split()))


def number(value: float | str | None, *, digits: int = 3, places: int | None = None) -> str:
    """Return a number as text: ``digits`` significant digits, and no decimals of large numbers; a dash for None.

    Args:
        value: The number.
        digits: Significant digits.
        places: Number of decimals, instead of ``digits``.
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return f"{value:g}"
    if places is not None:
        return f"{value:.{places}f}"
    if value == 0:
        return "0"
    places = decimals(value, None, digits=digits)
    return f"{value:.{places}f}" if places <= 6 else f"{value:.{digits - 1}e}"


def with_error(value: float | str | None, se: float | None) -> str:
    """Return a value with its error, as ``62 ± 1``: the error has one significant digit (two if it starts with 1), and
    the value the same decimals."""
    text, error = rounded(value, se)
    return text if error is None else f"{text} ± {error}"


def rounded(value: float | str | None, se: float | None, *, places: int | None = None) -> tuple[str, str | None]:
    """Return a number and its error as text, both with the decimals of the error's last digit, or with ``places``
    decimals; None for a number without an error."""
    if value is None or isinstance(value, str) or se is None or not math.isfinite(se):
        return number(value, places=places), None
    if se <= 0:
        return number(value, places=places), "0"
    places = decimals(value, se) if places is None else places
    return f"{value:.{places}f}", f"{se:.{places}f}" if round(se, places) > 0 else f"<{10**-places:.{places}f}"


def decimals(value: float, se: float | None, *, digits: int = 3) -> int:
    """Return the number of decimals that a number is printed with: those of its error's last digit, at most 4; without
    an error, those of ``digits`` significant digits."""
    if se is not None and math.isfinite(se) and se > 0:
        leading = f"{se:.0e}"
        return min(4, max(0, -math.floor(math.log10(float(leading))) + (leading[0] == "1")))
    return 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
