"""The keywords of a figure's style, for type checkers; what they mean and accept is declared above, in the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Style(TypedDict, total=False):
    """The options of a figure's style, which ``erfscope analyze --help`` describes.

    The fields of :class:`erfscope.figures.style.FigureStyle`, written by
    ``pytest tests/options --update-golden``, so that type checkers see
    them.
    """

    scale: str
    colours: str
    cmap: str | None
    contours: Sequence[float]
    zoom: str | float
    columns: int | None
    width: str | None
    font: str | None
    conditions: bool
