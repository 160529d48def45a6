"""Curves on a sheet: styles that colour-blind people and grey prints tell apart, axes, and a legend under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from erfscope.figures.canvas import LINE, fitted, text_width, write

#: Okabe and Ito's colours, the dark ones first, without yellow: it cannot be seen on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
EXPONENT = 0.3
#: Inches that a legend's key and the space around it take, and around the sheet.
KEY, MARGIN = 0.55, 0.08


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th line; the first 28 differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linewidth": 1.2,
        "markersize": 3.5,
    }


def scale_axis(ax: Axes, scale: str, top: float, *, bottom: float) -> None:
    """Give the vertical axis its scale, from 0 (on a log axis ``bottom``) to ``top``."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if scale == "log":
        ax.set_yscale("log")
        ax.set_ylim(bottom, top)
        # A short axis has no power of ten to number.
        few = top / bottom < 30
        ax.yaxis.set_minor_formatter(FuncFormatter(_two_and_five) if few else NullFormatter())
    elif scale == "power":
        ax.set_yscale("function", functions=(_power, _unpower))
        ax.set_ylim(0, top)
        ax.set_yticks([float(f"{tick:.1g}") for tick in np.linspace(0, top**EXPONENT, 7)[:-1] ** (1 / EXPONENT)])
    else:
        ax.set_ylim(0, top)
    ax.yaxis.set_major_formatter(plain)


def legend_height(figure: Figure, labels: Sequence[str], width: float) -> float:
    """Height of the legend of these labels, inches."""
    return -(-len(labels) // _columns(figure, labels, width)) * LINE + 0.1


def legend_below(figure: Figure, handles: Sequence[Line2D], top: float, width: float, *, left: float = MARGIN) -> None:
    """A legend whose upper left corner is so many inches from the figure's; labels that are too long are cut."""
    labels = [fitted(figure, str(handle.get_label()), width - KEY) for handle in handles]
    whole_width, whole_height = figure.get_size_inches()
    figure.legend(
        handles=list(handles),
        labels=labels,
        loc="upper left",
        bbox_to_anchor=(left / whole_width, 1 - top / whole_height),
        bbox_transform=figure.transFigure,
        ncols=_columns(figure, labels, width),
        borderaxespad=0,
        borderpad=0,
        handlelength=3,
        columnspacing=1.2,
        labelspacing=0.3,
    )


def write_foot(figure: Figure, lines: Sequence[str], top: float) -> None:
    """Write the words under a figure."""
    for number, line in enumerate(lines):
        write(figure, MARGIN, top + number * LINE, line)


def tidy(ax: Axes) -> None:
    """A frame of two sides and a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color="#dddddd", linewidth=0.4)
    ax.set_axisbelow(True)
    ax.tick_params(length=2.5, pad=2)


def _columns(figure: Figure, labels: Sequence[str], width: float) -> int:
    widest = max(text_width(figure, label) for label in labels) + KEY
    return max(1, min(len(labels), int(width / widest)))


def _two_and_five(value: float, _: int | None) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _power(values: Any) -> Any:
    return np.clip(values, 0, None) ** EXPONENT


def _unpower(values: Any) -> Any:
    return np.clip(values, 0, None) ** (1 / EXPONENT)
