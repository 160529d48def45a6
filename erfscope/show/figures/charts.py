"""The figure of a study: charts and maps on a grid, each row as high as its panels need."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from erfscope.core.values.errors import ErfscopeError
from erfscope.show.figures.canvas import (
    MARGIN,
    check_suffix,
    drawing,
    finish,
    inches,
    lay_out,
    sheet,
    write_figure,
    write_title,
)
from erfscope.show.figures.chart_data import Chart, ChartMap, Curve, Picture
from erfscope.show.figures.lettering import BOLD, GAP, LINE, TEXT, fitted, letter, name_lines
from erfscope.show.figures.lines import ROUND, legend, line_style, plain_ticks, tidy
from erfscope.show.figures.maps import MARKS, colour_map, common_peak, scaled
from erfscope.show.figures.style import TWO_COLUMNS

#: Inches: from a chart's axis to its keys, and the height of a chart.
BELOW, CHART = 0.4, 1.9
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
        write_figure(figure, Path(path))
    return figure


def _drawn(picture: Picture) -> Figure:
    figure, width = sheet(TWO_COLUMNS), TWO_COLUMNS - 2 * MARGIN
    if picture.title:
        write_title(figure, name_lines(figure, picture.title, width))
    grid = figure.add_gridspec(len(picture.rows), 1)
    firsts, heights, letters = [], [], map(letter, count())
    is_lone = sum(map(len, picture.rows)) == 1
    headings = picture.headings or [""] * len(picture.rows)
    for number, (row, heading) in enumerate(zip(picture.rows, headings, strict=True)):
        part, side = figure.add_subfigure(grid[number]), width / len(row)
        if heading:
            write_title(part, fitted(figure, heading, width, BOLD), size=TEXT)
        axes = part.subplots(1, len(row), squeeze=False)[0]
        for ax, panel in zip(axes, row, strict=True):
            words = f"{panel.title} (log)" if isinstance(panel, ChartMap) and panel.log else panel.title
            tag = words if is_lone else f"{next(letters)} {words}"
            ax.set_title(fitted(figure, tag, side - 2 * MARGIN), loc="left", pad=GAP, fontsize=TEXT)
            if isinstance(panel, Chart):
                _chart(ax, panel)
                _legend(ax, panel, side)
            else:
                _map(ax, panel)
        firsts.append(axes[0])
        heights.append(max(_height(panel, side) for panel in row))
    lay_out(figure)
    around = [ax.figure.bbox.height / figure.dpi - inches(ax)[1] for ax in firsts]
    grid.set_height_ratios([one + other for one, other in zip(around, heights, strict=True)])
    finish(figure, firsts, heights, words=[picture.note] if picture.note else [])
    return figure


def _height(panel: Chart | ChartMap, width: float) -> float:
    """Height of a panel's axes, inches."""
    if isinstance(panel, Chart):
        return (len(panel.names) + 0.5) * LINE / 72 if panel.sideways else CHART
    return float(min(width - 2 * MARGIN, MAP) * panel.values.shape[0] / max(panel.values.shape))


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
    for axis, scale, name in ((ax.xaxis, ax.set_xscale, "x"), (ax.yaxis, ax.set_yscale, "y")):
        if name in chart.log:
            scale("log")
            plain_ticks(axis)
    if chart.sideways:
        ax.set_yticks(range(len(chart.names)), chart.names)
        ax.set_ylim(len(chart.names) - 0.25, -0.75)
    elif chart.names:
        ax.set_xticks(range(len(chart.names)), chart.names)
        ax.set_xlim(-0.5, len(chart.names) - 0.5)
    elif "x" not in chart.log and all(float(at).is_integer() for curve in chart.curves for at in curve.x):
        # Between two epochs or layers there is nothing.
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, **ROUND))
    ax.set_xlabel(chart.x, labelpad=2)
    ax.set_ylabel(chart.y, labelpad=3)


def _legend(ax: Axes, chart: Chart, width: float) -> None:
    """Keys below a chart's axis, within its own width."""
    keys = [Line2D([], [], label=curve.label, **_key(number, curve)) for number, curve in enumerate(chart.curves)]
    keys += [Line2D([], [], label=label, **_mark(number)) for number, (label, _) in enumerate(chart.marks)]
    if keys:
        below = ax.transAxes + ScaledTranslation(0, -BELOW, ax.figure.dpi_scale_trans)
        # Beside long names the axes are narrow, and the keys stand below the names too.
        corner: dict[str, Any] = {"loc": "upper right", "bbox_to_anchor": (1, 0)}
        if not chart.sideways:
            corner = {"loc": "upper left", "bbox_to_anchor": (0, 0)}
        legend(ax, width - 2 * MARGIN, handles=keys, bbox_transform=below, **corner)


def _key(number: int, curve: Curve) -> dict[str, Any]:
    look = line_style(number)
    if not curve.points:
        return look
    # Hollow but for the first, and larger and larger, so that points at one place show all.
    hollow = {"markerfacecolor": "none", "markersize": look["markersize"] + 0.5 * number} if number else {}
    return {**look, "linestyle": "none", **hollow}


def _mark(number: int) -> dict[str, Any]:
    return {"color": "#777777", "linewidth": 0.8, "linestyle": ((0, (1, 1.2)), (0, (4, 1.5)), "-")[number % 3]}


def _map(ax: Axes, panel: ChartMap) -> None:
    values = np.asarray(panel.values, dtype=np.float64)
    if panel.log:
        values = scaled(values / (np.abs(values).sum() or 1.0) * values.size, "log")
    peak = common_peak([values])
    norm = Normalize(vmin=-peak if panel.signed else 0.0, vmax=peak)
    ax.imshow(values, cmap=colour_map(signed=panel.signed), norm=norm, interpolation="nearest")
    if panel.unit is not None:
        ax.plot([panel.unit[1]], [panel.unit[0]], **MARKS["unit"])
    ax.set(xticks=[], yticks=[], anchor="NW")
