"""Text for people: rounded numbers, and text from outside made safe, since names of files, models and labels must not
steer a terminal."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

#: Control and format characters (escape sequences, direction marks), lone surrogates of undecodable file names, line
#: separators.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: Significant digits that people see at most.
DIGITS = 4


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


#: Stands for a space at which no line is broken: of no script, and for no library white space.
UNBROKEN = "\ue000"
#: The spaces between an option and its value, where that is no longer than a line has room for, and in what is pasted.
_WITHIN = re.compile(r"(?<=pip) (?=install )|(?<=pip install) (?=\S)|(?<![^\s`'(])(--?[a-z][\w-]*) (?=\S{1,24}(?!\S))")


def kept_together(text: str) -> str:
    """Text in which :data:`UNBROKEN` stands in the place of the spaces between options and their values."""
    return _WITHIN.sub(lambda found: f"{found[1] or ''}{UNBROKEN}", text)


def between_words(text: str, width: int) -> str:
    """Text on lines that are broken between words only, and never between an option and its value."""
    lines = textwrap.fill(kept_together(text), width, break_long_words=False, break_on_hyphens=False)
    return lines.replace(UNBROKEN, " ")


def number(value: float | str | None, *, digits: int = 3, places: int | None = None) -> str:
    """Return a number as text: ``digits`` significant digits, and of large numbers :data:`DIGITS`, without decimals; a
    dash for None.

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
        return fixed(value, places)
    if value == 0:
        return "0"
    places = decimals(value, None, digits=digits)
    return fixed(value, places) if places <= 6 else f"{value:.{digits - 1}e}"


def fixed(value: float, places: int) -> str:
    """Return a number with these decimals; less than none are tens, hundreds and so on. Zero has no sign."""
    return f"{round(value, places) + 0.0:.{max(0, places)}f}"


def plus(text: str) -> str:
    """The sign before a difference, which is ``text`` without it where it is above zero as printed."""
    return "+" if text[:1].isdigit() and text.strip("0.") else ""


def brief(value: float) -> str:
    """Return a number with at most :data:`DIGITS` significant digits, and no zeros at its end: ``95.5``, ``12350``."""
    return f"{float(f'{value:.{DIGITS}g}') + 0.0:g}"


def with_error(value: float | str | None, se: float | None) -> str:
    """Return a value with its error, as ``62 ± 1``: the error has one significant digit (two if it starts with 1), and
    the value the same decimals."""
    text, error = rounded(value, se)
    return text if error is None else f"{text} ± {error}"


def rounded(value: float | str | None, se: float | None) -> tuple[str, str | None]:
    """Return a number and its error as text, both with the decimals of the error's last digit; None for a number
    without an error, and for an error that is too small to be seen at four digits of the number."""
    if value is None or isinstance(value, str) or se is None or not math.isfinite(se):
        return number(value), None
    if se <= 0:
        return number(value), "0"
    places = decimals(value, se)
    return fixed(value, places), fixed(se, places) if round(se, places) > 0 else None


def decimals(value: float, se: float | None, *, digits: int = 3) -> int:
    """Return the number of decimals that a number is printed with: those of its error's last digit, at most 4; without
    an error, those of ``digits`` significant digits. Less than none where it has more than :data:`DIGITS` digits before
    the point."""
    largest = abs(value) if math.isfinite(value) else 0.0
    if se is not None and math.isfinite(se) and se > 0:
        leading = f"{se:.0e}"
        places = min(4, max(0, -math.floor(math.log10(float(leading))) + (leading[0] == "1")))
        largest = max(largest, se)
    else:
        places = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return places if largest == 0 else min(places, DIGITS - 1 - math.floor(math.log10(largest)))


def counted(count: int, noun: str) -> str:
    """So many things: "1 unit", "1,200 backward passes"."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def listed(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = list(words) or ["–"]
    return f"{', '.join(others)} and {last}" if others else last


def listed_up_to(most: int, words: Sequence[str]) -> str:
    """The first of some words, and how many more there are."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def name_pieces(name: str) -> list[str]:
    """The parts of a name that may stand on lines of their own: it is broken after its marks."""
    return re.findall(r"[^ _./:\-]*[ _./:\-]+|[^ _./:\-]+", name)
