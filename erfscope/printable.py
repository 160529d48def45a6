"""What is printed: text from outside made safe, since names of files, models and labels must not steer a terminal, and
rounded numbers."""

from __future__ import annotations

import math
import unicodedata

#: Control and format characters (escape sequences, direction marks), lone surrogates of undecodable file names, line
#: separators.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: Units of measures as people write them, where that is not how JSON does.
UNIT_SIGNS = {"px2": "px²", "cells2": "cells²", "deg": "°"}


def printable(text: str, *, keep: str = "") -> str:
    """``text`` with every character that steers a terminal, or cannot be written at all, replaced by a question mark.

    Args:
        text: Any text.
        keep: Characters that stay, e.g. ``"\\n"``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(c) in _STEERING and c not in keep else c for c in text)


def one_line(text: str) -> str:
    """``text`` as one printable line: white space, line breaks included, becomes single spaces."""
    return printable(" ".join(text.split()))


def number(value: float | str | None, *, digits: int = 3, places: int | None = None) -> str:
    """A number for people: ``digits`` significant digits, whole numbers above them; a dash for nothing.

    Args:
        value: The number.
        digits: Significant digits.
        places: Decimals, where these are given instead.
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
    """``62 ± 1``: the error with one significant digit (two if it starts with 1), the value to the same place."""
    text, error = rounded(value, se)
    return text if error is None else f"{text} ± {error}"


def rounded(value: float | str | None, se: float | None, *, places: int | None = None) -> tuple[str, str | None]:
    """A number and its error as text, both to the error's last digit, or to as many decimals as are given; None for an
    error that there is not."""
    if value is None or isinstance(value, str) or se is None or not math.isfinite(se):
        return number(value, places=places), None
    if se <= 0:
        return number(value, places=places), "0"
    places = decimals(value, se) if places is None else places
    return f"{value:.{places}f}", f"{se:.{places}f}" if round(se, places) > 0 else f"<{10**-places:.{places}f}"


def decimals(value: float, se: float | None, *, digits: int = 3) -> int:
    """The decimals that a number is printed with: to its error's last digit, at most 4, or ``digits`` significant ones
    of a number without an error."""
    if se is not None and math.isfinite(se) and se > 0:
        leading = f"{se:.0e}"
        return min(4, max(0, -math.floor(math.log10(float(leading))) + (leading[0] == "1")))
    return 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
