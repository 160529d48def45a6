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


def number(value: float | str | None, *, digits: int = 3, decimals: int = 0) -> str:
    """A number for people: ``digits`` significant digits, whole numbers above them, and at least so many decimals; a
    dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(decimals, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}" if places <= 6 else f"{value:.{digits - 1}e}"


def with_error(value: float | str | None, se: float | None, *, decimals: int = 0) -> str:
    """``62 ± 1``: the error with one significant digit (two if it starts with 1), the value to the same place; both
    with at least so many decimals."""
    text, error = rounded(value, se, decimals=decimals)
    return text if error is None else f"{text} ± {error}"


def rounded(value: float | str | None, se: float | None, *, decimals: int = 0) -> tuple[str, str | None]:
    """A number and its error as text, both to the error's last digit, or to at least so many decimals; None for an
    error that there is not."""
    if value is None or isinstance(value, str) or se is None or not math.isfinite(se):
        return number(value, decimals=decimals), None
    if se <= 0:
        return number(value, decimals=decimals), "0"
    leading = f"{se:.0e}"
    places = min(4, max(decimals, -math.floor(math.log10(float(leading))) + (leading[0] == "1")))
    return f"{value:.{places}f}", f"{se:.{places}f}" if round(se, places) > 0 else f"<{10**-places:.{places}f}"
