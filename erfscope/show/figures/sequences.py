"""The panel of sequences: curves over one axis of time, and under several of them their r50, r90 and TRF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.result import Result
from erfscope.show.drawn import CloseUp
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.show.figures.kinds import Drawn
from erfscope.show.figures.lettering import wrapped, write_over
from erfscope.show.figures.lines import line_style, scale_axis, tidy
from erfscope.show.figures.mosaic import TRF, Tile
from erfscope.show.figures.style import ONE_COLUMN, ONE_TEXT, FigureStyle
from erfscope.show.view.error_bars import error_words
from erfscope.show.view.words import lengths, radii

#: Inches: heights of the curve of one result, of those of several, and of a line under them.
CURVE, CURVES, LINE = 1.3, 1.7, 0.13
COLOURS: dict[str, str] = {"curve": "#35356b", "r50": "#e08a00", "r90": "#5fa8d8", "TRF": "#b04000", "step": "#30a060"}
#: A log axis reaches so far below the highest share.
DEPTH = 1e-4
#: Of what is shown, beside an ERF on either side.
AROUND = 0.05
#: Lines of the sizes under several curves, from the widest on.
SIZES: dict[str, dict[str, Any]] = {
    "TRF": {"linewidth": 6.0, "alpha": 0.2, "solid_capstyle": "butt"},
    "r90": {"linewidth": 1.2},
    "r50": {"linewidth": 3.5, "solid_capstyle": "butt"},
}

LINES = ("lines below the curves: r50 thick, r90 thin, TRF pale", "tick: unit, dot: its own step")


def sequences(
    tiles: Sequence[Tile],
    parts: Sequence[CloseUp],
    *,
    style: FigureStyle,
    heading: str = "",
    notes: Sequence[str] = (),
) -> Drawn:
    """Mass per sample over time, of as much of the axis as shows every ERF.

    Args:
        tiles: Results whose maps have one axis, in one unit.
        parts: What of each is shown.
        style: Its scale is that of the vertical axis.
        heading: Over the curves.
        notes: What holds for all results.
    """
    results = [tile.result for tile in tiles]
    maps = [result.map for result in results if result.map is not None]
    several, step = len(tiles) > 1, maps[0].axes.spacing[0]
    # Units at one place of inputs of several lengths stand elsewhere on each of them.
    is_relative = len({len(erf.values) for erf in maps}) > 1 and all(erf.center_px for erf in maps)
    zeros = [erf.center_px[0] if is_relative else 0.0 for erf in maps]
    figure = sheet(style.inches(ONE_TEXT if several else ONE_COLUMN))
    write_title(figure, heading or (f"{len(tiles)} sequences" if several else tiles[0].title))
    heights = [CURVES, LINE * (len(tiles) + 1)] if several else [CURVE]
    panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    ax = panels[0]
    tidy(ax)
    if several:
        _lines(ax, maps, zeros)
        _sizes(panels[1], results, zeros)
    else:
        _shade(ax, results[0])
        _filled(ax, maps[0])
    ends = [np.subtract(_ends(each, erf), zero) for each, erf, zero in zip(parts, maps, zeros, strict=True)]
    ax.set_xlim(min(first for first, _ in ends) * step, max(last for _, last in ends) * step)
    since = " from the unit" if is_relative else ""
    panels[-1].set_xlabel(f"{maps[0].axes.names[0]}{since} ({lengths(results)})", labelpad=2)
    _share_axis(ax, results, style.axis)
    lay_out(figure)
    if not several:
        write_over(ax, "", wrapped(figure, tiles[0].above, inches(ax)[0]))
    said = [*notes, f"curve: mass per {maps[0].axes.one_cell}", *error_words(results, "±"), TRF]
    handles = [*map(_key, range(len(tiles)), tiles)] if several else ax.get_legend_handles_labels()[0]
    under = [*(LINES if several else tiles[0].below), *(said if style.conditions else [])]
    finish(figure, panels, heights, words=under, handles=handles, handlelength=1.8)
    return Drawn(figure=figure, words=said)


def _share_axis(ax: Axes, results: Sequence[Result], scale: str) -> None:
    """The vertical axis: linear of signed maps."""
    cell, is_signed = results[0].axes.one_cell, any(result.scale == "signed" for result in results)
    named = f"share per {cell}"
    if not is_signed:
        top = max(float(result.map.values.max()) for result in results if result.map is not None)
        scale, top = (scale, top) if top > 0 else ("linear", 1.0)
        scale_axis(ax, scale, 1.5 * top if scale == "log" else 1.05 * top, bottom=DEPTH * top)
        named += f", {scale} axis" if scale != "linear" else ""
    ax.set_ylabel(named, labelpad=2)


def _ends(part: CloseUp, erf: ErfMap) -> tuple[float, float]:
    """Where what is shown of a map begins and ends, in cells."""
    count = len(erf.values)
    ((first, last),) = part.window
    # A window is as wide as its side says.
    aside = AROUND * (last - first) if part.side is None else 0
    return max(first - aside, 0) * count - 0.5, min(last + aside, 1) * count - 0.5


def _times(erf: ErfMap, zero: float = 0.0) -> FloatArray:
    return np.asarray((np.arange(len(erf.values)) - zero) * erf.axes.spacing[0], dtype=np.float64)


def _filled(ax: Axes, erf: ErfMap) -> None:
    times = _times(erf)
    ax.fill_between(times, erf.values, color=COLOURS["curve"], alpha=0.45, linewidth=0, zorder=3)
    ax.plot(times, erf.values, color=COLOURS["curve"], linewidth=1.0, gid="curve", zorder=4)


def _lines(ax: Axes, maps: Sequence[ErfMap], zeros: Sequence[float]) -> None:
    for number, (erf, zero) in enumerate(zip(maps, zeros, strict=True)):
        look = {**line_style(number), "marker": "none", "linewidth": 1.0}
        ax.plot(_times(erf, zero), erf.values, gid="curve", **look)


def _sizes(ax: Axes, results: Sequence[Result], zeros: Sequence[float]) -> None:
    """A line per result: how far its TRF, r90 and r50 reach around its unit."""
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=2.5, pad=2)
    ax.set_yticks([])
    ax.set_ylim(len(results) - 0.3, -0.7)
    for number, (result, zero) in enumerate(zip(results, zeros, strict=True)):
        erf, colour = result.map, line_style(number)["color"]
        if erf is None or not erf.center_px:
            continue
        step = erf.axes.spacing[0]
        centre = (erf.center_px[0] - zero) * step
        ends = {name: (centre - float(each), centre + float(each)) for name, each in radii(result).items()}
        if erf.trf is not None and not erf.trf.is_global:
            first, last = erf.trf.box_px[0]
            ends["TRF"] = ((first - 0.5 - zero) * step, (last + 0.5 - zero) * step)
        for name, look in SIZES.items():
            if name in ends:
                ax.plot(ends[name], [number, number], color=colour, gid=name, **look)
        ax.plot([centre], [number], color="black", marker="|", markersize=6, gid="unit")
        if result.timing is not None:
            own = (sum(result.timing.step) / 2 - zero) * step
            ax.plot([own], [number], color=COLOURS["step"], marker="o", markersize=3, gid="step")


def _key(number: int, tile: Tile) -> Line2D:
    """A curve with its name and sizes."""
    label = " · ".join([tile.title, *tile.above, *tile.below])
    return Line2D([], [], label=label, **{**line_style(number), "marker": "none"})


def _shade(ax: Axes, result: Result) -> None:
    """What a map of a sequence is marked with, in the units of its axis."""
    assert result.map is not None
    erf, step = result.map, result.axes.spacing[0]
    if not erf.center_px:
        return
    centre = erf.center_px[0] * step
    for name, radius in reversed(radii(result).items()):
        strong = 0.45 if name == "r50" else 0.25
        ends = (centre - float(radius), centre + float(radius))
        ax.axvspan(*ends, color=COLOURS[name], alpha=strong, linewidth=0, label=name, gid=name)
    timing = result.timing
    if timing is not None:
        first, last = ((timing.step[0] - 0.5) * step, (timing.step[1] + 0.5) * step)
        ax.axvspan(first, last, color=COLOURS["step"], alpha=0.6, linewidth=0, label="step", gid="step")
    if erf.trf is not None and not erf.trf.is_global:
        for number, (cell, side) in enumerate(zip(erf.trf.box_px[0], (-0.5, 0.5), strict=True)):
            look: dict[str, Any] = {"color": COLOURS["TRF"], "linestyle": (0, (1, 1.5)), "linewidth": 1.2, "gid": "TRF"}
            ax.axvline((cell + side) * step, label="_" if number else "TRF", **look)
    ax.axvline(centre, color="black", linewidth=0.8, label="unit", gid="unit")
