"""The keywords of a figure's style, for type checkers; what they mean and accept is declared above, in the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

#: The names in ``erfscope.show.figures.kinds.FIGURES``.
FigureKind = Literal[
    "panel", "overlay", "strip", "profile", "depth", "alpha", "sizes", "training", "units", "positions"
]
#: The formats of tables as text.
TableFormat = Literal["csv", "markdown", "latex", "plain"]


class Style(TypedDict, total=False):
    """The options of a figure's style, which ``erfscope analyze --help`` describes.

    The fields of :class:`erfscope.show.figures.style.FigureStyle`, written by
    ``pytest tests/options --update-golden``, so that type checkers see
    them.
    """

    scale: Literal["share", "linear", "log", "power"]
    colours: Literal["shared", "own"]
    cmap: str | None
    contours: Sequence[float]
    zoom: str | float
    columns: int | None
    width: str | None
    font: str | None
    conditions: bool
