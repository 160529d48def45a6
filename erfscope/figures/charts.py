"""What a study shows: charts and maps on a grid, each row as high as its panels ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from erfscope.errors import ErfscopeError
from erfscope.figures.canvas import (
    LINE,
    TITLE,
    TWO_COLUMNS,
    check_suffix,
    drawing,
    fitted,
    place,
    save,
    sheet,
    text_width,
    wrapped,
    write,
)
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.figures.lines import MARGIN, legend_below, legend_height, line_style, tidy, write_foot
from erfscope.figures.maps import MARKS
from erfscope.figures.pixels import colour_map, common_peak

#: Inches: above a panel for its title, left of and below a chart for its axes, and the height of a chart.
HEAD, LEFT, BELOW, CHART = 0.2, 0.48, 0.4, 1.9
#: Inches that the heading of a row takes.
HEADING = LINE + 0.05
#: How far two curves over the same names stand apart, of the distance of two names.
ASIDE = 0.12
#: Inches: a map is no wider than this, so that a lone one does not fill the page.
MAP = 2.1


def draw(picture: Picture, *, path: str | Path | None = None) -> Figure:
    """Draw a study's chart.

    Args:
        picture: Panels in rows.
        path: Where to save, .png, .svg or .pdf; nowhere if None.

    Returns:
        The figure; it belongs to no pyplot state.

    Raises:
        ErfscopeError: another suffix, a chart or a row without panels, or headings for other rows than there are.
    """
    if path is not None:
        check_suffix(Path(path))
    if not picture.rows or not all(picture.rows):
        raise ErfscopeError("there is nothing to draw: the chart has a row without panels")
    if picture.headings and len(picture.headings) != len(picture.rows):
        raise ErfscopeError(
            f"the chart has {len(picture.headings)} headings for {len(picture.rows)} rows; give one for each, or none"
        )
    with drawing():
        figure = _drawn(picture)
    if path is not None:
        save(figure, Path(path))
    return figure


def _drawn(picture: Picture) -> Figure:
    probe, width = sheet(TWO_COLUMNS, 1), TWO_COLUMNS - 2 * MARGIN
    title = wrapped(probe, [picture.title], width) if picture.title else []
    foot = wrapped(probe, [picture.note], width) if picture.note else []
    heights = [_height(probe, row, width / len(row)) for row in picture.rows]
    headings = picture.headings or ("",) * len(picture.rows)
    words = (len(title) + len(foot)) * LINE + len(picture.headings) * HEADING
    figure = sheet(TWO_COLUMNS, MARGIN + words + sum(heights) + 2 * MARGIN)
    top = MARGIN
    for line in title:
        write(figure, MARGIN, top, line, size=TITLE, weight="bold")
        top += LINE
    for heading, row, height in zip(headings, picture.rows, heights, strict=True):
        if heading:
            write(figure, MARGIN, top + HEADING - LINE, heading, width=width, weight="bold")
            top += HEADING
        for number, panel in enumerate(row):
            _panel(figure, panel, MARGIN + number * width / len(row), top, width / len(row))
        top += height
    write_foot(figure, foot, top + MARGIN)
    return figure


def _height(probe: Figure, row: tuple[Chart | Shown, ...], width: float) -> float:
    return max(
        _chart_height(probe, panel, width) if isinstance(panel, Chart) else _map_height(panel, width) for panel in row
    )


def _chart_height(probe: Figure, chart: Chart, width: float) -> float:
    return HEAD + _axes_height(chart) + BELOW + legend_height(probe, _labels(chart), width - 2 * MARGIN)


def _axes_height(chart: Chart) -> float:
    return (len(chart.names) + 0.5) * LINE if chart.sideways else CHART


def _map_side(width: float) -> float:
    return min(width - 2 * MARGIN, MAP)


def _map_height(panel: Shown, width: float) -> float:
    rows, columns = panel.values.shape
    return float(HEAD + _map_side(width) * rows / max(rows, columns) + 2 * MARGIN)


def _panel(figure: Figure, panel: Chart | Shown, left: float, top: float, width: float) -> None:
    words = panel.title if isinstance(panel, Chart) or not panel.log else f"{panel.title} (log)"
    write(figure, left + MARGIN, top + 0.04, fitted(figure, words, width - 2 * MARGIN))
    if isinstance(panel, Chart):
        height, before = _axes_height(panel), LEFT
        if panel.sideways:
            before = min(max(text_width(figure, name) for name in panel.names) + 2 * MARGIN, width / 2)
        ax = place(figure, left + before, top + HEAD, width - before - MARGIN, height)
        _chart(ax, panel)
        _legend(figure, panel, left, top + HEAD + height + BELOW, width)
    else:
        rows, columns = panel.values.shape
        side = _map_side(width)
        _map(
            place(
                figure, left + MARGIN, top + HEAD, side * columns / max(rows, columns), side * rows / max(rows, columns)
            ),
            panel,
        )


def _chart(ax: Axes, chart: Chart) -> None:
    tidy(ax)
    for number, curve in enumerate(chart.curves):
        # Over names curves stand side by side: points of the same height would hide each other.
        aside = (number - (len(chart.curves) - 1) / 2) * ASIDE if chart.names and not chart.sideways else 0.0
        ax.errorbar(
            [at + aside for at in curve.x],
            curve.y,
            yerr=curve.error,
            elinewidth=0.7,
            capsize=1.5,
            **_key(number, curve),
        )
    for number, (_, level) in enumerate(chart.marks):
        (ax.axvline if chart.sideways else ax.axhline)(level, **_mark(number))
    for axis, scale, letter in ((ax.xaxis, ax.set_xscale, "x"), (ax.yaxis, ax.set_yscale, "y")):
        if letter in chart.log:
            scale("log")
            _plain_ticks(axis)
    if chart.sideways:
        ax.set_yticks(range(len(chart.names)), chart.names)
        ax.set_ylim(len(chart.names) - 0.25, -0.75)
    elif chart.names:
        ax.set_xticks(range(len(chart.names)), chart.names)
        ax.set_xlim(-0.5, len(chart.names) - 0.5)
    elif "x" not in chart.log and all(float(at).is_integer() for curve in chart.curves for at in curve.x):
        # Between two epochs or layers there is nothing.
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(chart.x, labelpad=2)
    ax.set_ylabel(chart.y, labelpad=3)


def _plain_ticks(axis: Axis) -> None:
    """At least three ticks, as round as they can be, written as they are: powers of ten, then 1, 2, 5, 10, ..., then
    every digit."""
    low, high = axis.get_view_interval()
    for digits in ((1,), (1, 2, 5), range(1, 10)):
        locator: Locator = LogLocator(subs=tuple(map(float, digits)))
        # A locator also gives the ticks just outside of what is shown.
        if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= 3:
            break
    else:
        locator = MaxNLocator(4)
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, chart: Chart, left: float, top: float, width: float) -> None:
    """Keys below a chart, within its own width."""
    keys = [Line2D([], [], label=curve.label, **_key(number, curve)) for number, curve in enumerate(chart.curves)]
    keys += [Line2D([], [], label=label, **_mark(number)) for number, (label, _) in enumerate(chart.marks)]
    if keys:
        legend_below(figure, keys, top, width - 2 * MARGIN, left=left + MARGIN)


def _key(number: int, curve: Curve) -> dict[str, Any]:
    look = line_style(number)
    if not curve.points:
        return look
    # Hollow but for the first, and larger and larger, so that points at one place show all.
    hollow = {"markerfacecolor": "none", "markersize": look["markersize"] + 0.5 * number} if number else {}
    return {**look, "linestyle": "none", **hollow}


def _mark(number: int) -> dict[str, Any]:
    return {"color": "#777777", "linewidth": 0.8, "linestyle": ((0, (1, 1.2)), (0, (4, 1.5)), "-")[number % 3]}


def _labels(chart: Chart) -> list[str]:
    return [curve.label for curve in chart.curves] + [label for label, _ in chart.marks] or [""]


def _map(ax: Axes, panel: Shown) -> None:
    values = np.asarray(panel.values, dtype=np.float64)
    if panel.log:
        total = np.abs(values).sum() or 1.0
        values = np.sign(values) * np.log10(1 + np.abs(values) / total * values.size)
    peak = common_peak([values])
    norm = Normalize(vmin=-peak if panel.signed else 0.0, vmax=peak)
    ax.imshow(values, cmap=colour_map(signed=panel.signed), norm=norm, interpolation="nearest")
    if panel.unit is not None:
        ax.plot([panel.unit[1]], [panel.unit[0]], **MARKS["unit"])
    ax.set_xticks([])
    ax.set_yticks([])
