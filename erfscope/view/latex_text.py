"""Text as LaTeX prints it."""

from __future__ import annotations

import re

from erfscope.printable import one_line

#: What LaTeX needs in place of a character.
ESCAPES = {character: f"\\{character}" for character in "{}$&%#_"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "|": "\\textbar{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "–": "--",
    "—": "---",
    "…": "\\ldots{}",
    "·": "\\textperiodcentered{}",
    "±": "$\\pm$",
    "≤": "$\\leq$",
    "×": "$\\times$",
    "→": "$\\to$",
    "−": "$-$",
    "µ": "$\\mu$",
    "σ": "$\\sigma$",
    "²": "$^2$",
    "°": "$^\\circ$",
}


def escaped(text: str) -> str:
    """Any text as LaTeX that prints it."""
    # Hyphens side by side would be drawn as one dash.
    apart = re.sub(r"-(?=[-–—])|–(?=-)", "\\g<0>\0", one_line(text))
    safe = "".join("{}" if character == "\0" else ESCAPES.get(character, character) for character in apart)
    # At the beginning of a row these two belong to the command before it.
    return f"{{}}{safe}" if safe[:1] in ("[", "*") else safe
