"""Text from outside, made safe to print: names of files, models and labels must not steer a terminal."""

from __future__ import annotations

import unicodedata

#: Control and format characters (escape sequences, direction marks), lone surrogates of undecodable file names, line separators.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


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
