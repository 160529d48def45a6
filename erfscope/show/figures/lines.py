"""Curves on a sheet: styles that colour-blind people and grey prints tell apart, axes, and legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullFormatter

from erfscope.show.figures.lettering import TEXT, fitted, text_width

#: Okabe and Ito's colours, the dark ones first, without yellow: it cannot be seen on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
EXPONENT = 0.3
#: Steps between ticks, of a power of ten.
ROUND: dict[str, Any] = {"steps": [1, 2, 5, 10]}


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
    if scale == "log":
        ax.set_yscale("log")
        ax.set_ylim(bottom, top)
        plain_ticks(ax.yaxis)
    elif scale == "power":
        ax.set_yscale("function", functions=(_power, _unpower))
        ax.set_ylim(0, top)
        ax.set_yticks([float(f"{tick:.1g}") for tick in np.linspace(0, top**EXPONENT, 7)[:-1] ** (1 / EXPONENT)])
    else:
        ax.set_ylim(0, top)
    ax.yaxis.set_major_formatter(_plain)


def plain_ticks(axis: Axis) -> None:
    """At least three ticks on a logarithmic axis, as round as they can be, written as they are: powers of ten, then 1,
    2, 5, 10, ..., then every digit."""
    low, high = axis.get_view_interval()
    for digits in ((1,), (1, 2, 5), range(1, 10)):
        locator: Locator = LogLocator(subs=tuple(map(float, digits)))
        # A locator also gives the ticks just outside of what is shown.
        if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= 3:
            break
    else:
        locator = MaxNLocator(4, **ROUND)
    axis.set_major_locator(locator)
    axis.set_major_formatter(_plain)
    axis.set_minor_formatter(NullFormatter())


def legend(
    home: Figure | Axes, width: float, *, handles: Sequence[Line2D], handlelength: float = 3.0, **place: Any
) -> Legend:
    """A legend in as many columns as its width, inches, has room for, labels that are too long are cut."""
    figure = home.figure
    key = (handlelength + 2) * TEXT / 72
    labels = [fitted(figure, str(handle.get_label()), width - key) for handle in handles]
    widest = max(text_width(figure, label) for label in labels) + key
    return home.legend(
        handles=list(handles),
        labels=labels,
        ncols=max(1, min(len(labels), int(width / widest))),
        borderaxespad=0,
        borderpad=0,
        handlelength=handlelength,
        columnspacing=1.2,
        labelspacing=0.3,
        **place,
    )


def tidy(ax: Axes) -> None:
    """A frame of two sides and a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color="#dddddd", linewidth=0.4)
    ax.set_axisbelow(True)
    ax.tick_params(length=2.5, pad=2)


def _plain(value: float, _: float) -> str:
    return f"{value:g}"


def _power(values: Any) -> Any:
    return np.clip(values, 0, None) ** EXPONENT


def _unpower(values: Any) -> Any:
    return np.clip(values, 0, None) ** (1 / EXPONENT)
