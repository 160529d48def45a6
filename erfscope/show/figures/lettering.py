"""Text on a sheet: as wide as there is room for, and over and under axes."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties

#: Points.
TEXT, TITLE = 7.0, 8.0
#: Points from one line of text to the next, and between axes and the words over or under them.
LINE, GAP = 9.72, 3.0
#: Size and weight of letters; their font is the one that is chosen while a figure is drawn.
PLAIN: dict[str, Any] = {"size": TEXT, "weight": "normal"}
BOLD: dict[str, Any] = {"size": TITLE, "weight": "bold"}
#: Lines are broken at spaces, and not between a value and its error.
BREAKS = re.compile(r"(?<!±) (?!±)")
#: Lines that a name may take over its panel.
NAME_LINES = 4


def letter(number: int) -> str:
    """The letter of the n-th panel: (a) to (z), then (aa), (bb), ..."""
    return f"({string.ascii_lowercase[number % 26] * (number // 26 + 1)})"


def write_over(ax: Axes, title: str, lines: Sequence[str] = ()) -> None:
    """A bold title and lines over axes, from their left edge on."""
    ax.set_title(title, loc="left", pad=GAP + len(lines) * LINE, **BOLD)
    if lines:
        text = "\n".join(lines)
        ax.annotate(text, (0, 1), (0, GAP), xycoords="axes fraction", textcoords="offset points", va="bottom")


def write_under(ax: Axes, lines: Sequence[str]) -> None:
    """Lines under axes, from their left edge on."""
    text = "\n".join(lines)
    ax.annotate(text, (0, 0), (0, -GAP), xycoords="axes fraction", textcoords="offset points", va="top")


def text_width(figure: Figure | SubFigure, text: str, font: Mapping[str, Any] = PLAIN) -> float:
    """Width of a line of text, inches."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # FigureCanvasAgg has one
    return float(renderer.get_text_width_height_descent(text, FontProperties(**font), False)[0] / figure.dpi)


def fitted(figure: Figure | SubFigure, text: str, width: float, font: Mapping[str, Any] = PLAIN) -> str:
    """The text, its middle cut where it is wider than ``width`` inches: names of models differ at their ends."""
    if text_width(figure, text, font) <= width:
        return text
    low, high = 0, len(text) - 1
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if text_width(figure, _without_middle(text, kept), font) <= width else (low, kept - 1)
    return _without_middle(text, low)


def name_lines(figure: Figure, name: str, width: float) -> str:
    """A name in bold letters on lines of at most ``width`` inches, broken after its marks, or between its words; on one
    line with its middle cut where it needs more than :data:`NAME_LINES`."""
    lines = [""]
    for piece in re.findall(r"[^ _./:\-]*[ _./:\-]*", name):
        if text_width(figure, (lines[-1] + piece).rstrip(), BOLD) <= width or not lines[-1]:
            lines[-1] += piece
        else:
            lines.append(piece)
    lines = [line.strip() for line in lines]
    is_broken = len(lines) <= NAME_LINES and all(text_width(figure, line, BOLD) <= width for line in lines)
    return "\n".join(lines) if is_broken else fitted(figure, name, width, BOLD)


def _without_middle(text: str, kept: int) -> str:
    end = kept // 2
    return f"{text[: kept - end]}…{text[len(text) - end :]}"


def wrapped(figure: Figure, words: Sequence[str], width: float) -> list[str]:
    """Words joined by dots on as many lines as they need; one that is wider than a line is broken at its spaces."""
    lines: list[str] = []
    for word in words:
        pieces = BREAKS.split(word) if text_width(figure, word) > width else [word]
        for number, piece in enumerate(pieces):
            longer = f"{lines[-1]}{' ' if number else ' · '}{piece}" if lines else piece
            if lines and text_width(figure, longer) <= width:
                lines[-1] = longer
            else:
                lines.append(fitted(figure, piece, width))
    return lines
