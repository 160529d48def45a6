"""Panels by what their references are: volumes as slices, sequences as curves, one clip as frames around its unit's
own, and everything else as planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from erfscope.core.values.axes import DEPTH, MS, TIME
from erfscope.show.drawn import frames_around
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.show.figures.kinds import Drawn
from erfscope.show.figures.lettering import TEXT
from erfscope.show.figures.maps import Look, cell_ratio, colour_map, common_peak, display, draw_map, keys, marks
from erfscope.show.figures.mosaic import BAR, Tile, colour_bar, colour_notes, mosaic
from erfscope.show.figures.sequences import sequences
from erfscope.show.figures.style import ONE_COLUMN, FigureStyle
from erfscope.show.figures.volumes import volumes
from erfscope.show.view.windows import Windowed, window_notes, windows

#: The line around the unit's own frame.
OWN = "#30a060"
SUMMED = "clips: summed over time"


def arranged(
    tiles: Sequence[Tile | None],
    columns: int,
    *,
    style: FigureStyle,
    heading: str = "",
    notes: Sequence[str] = (),
    zoom: str | float,
) -> Drawn:
    """Draw results by what their references are; the arguments are those of
    :func:`erfscope.show.figures.mosaic.mosaic`.

    Args:
        tiles: Their results have maps of any axes.
        columns: Planes per row.
        style: That of the figure.
        heading: Over all panels.
        notes: What holds for all.
        zoom: How much of each map is drawn, see :func:`erfscope.show.view.windows.windows`.
    """
    present = [tile for tile in tiles if tile is not None]
    axes = [tile.result.map.axes for tile in present if tile.result.map is not None]
    same: dict[str, Any] = {"style": style, "heading": heading, "notes": notes}
    is_solid = all(DEPTH in each.names for each in axes)
    is_line = all(each.names == (TIME,) and each.units == axes[0].units for each in axes)
    found = windows([tile.result for tile in present], zoom, solid=is_solid or is_line)
    # A volume's close-up is a row of its own.
    parts = [each if is_solid else each.in_corner for each in found if each is not None]
    same["notes"] = [*dict.fromkeys([*notes, *window_notes(parts)])]
    if is_line:
        return sequences(present, [each.part for each in parts], **same)
    if is_solid:
        return volumes(present, parts, **same)
    if len(present) == 1 and len(axes[0].names) == 3 and present[0].picture is None:
        return _clip(present[0], parts[0], style, same["notes"])
    same["notes"] += [SUMMED] * any(each.is_in_plane for each in axes)
    ready = iter(parts)
    return mosaic([None if tile is None else close_tile(tile, next(ready)) for tile in tiles], columns, **same)


def close_tile(tile: Tile, shown: Windowed) -> Tile:
    """The panel of a part of a map's plane."""
    part = shown.part
    flat = tile.picture if tile.picture is None or tile.picture.ndim == 2 else tile.picture.mean(axis=0)
    picture, close = (None if flat is None or each is None else each.of(flat) for each in (part, shown.close))
    result = replace(tile.result, map=part.erf, sums=None)
    words = (*tile.above, *part.words)
    return replace(tile, result=result, above=words, picture=picture, shown=shown, close_picture=close)


def _clip(tile: Tile, shown: Windowed, style: FigureStyle, notes: Sequence[str]) -> Drawn:
    """Frames around the unit's own, each as its share of the map, and below them the plane summed over time."""
    result, erf = tile.result, tile.result.map
    assert erf is not None
    flat = close_tile(tile, shown)
    assert flat.result.map is not None
    plane, seen = flat.result.map.plane, shown.part.of
    shares = erf.magnitude.sum(axis=(1, 2))
    own = erf.center_px[0] if erf.center_px else float(np.argmax(shares))
    frames = frames_around(own, len(shares))
    sums, signed = display(plane, style.scale), result.scale == "signed"
    peak = common_peak([sums], style.scale)
    whole = Look(peak=peak, signed=signed, scale=style.scale, contours=style.outlined, cmap=style.cmap)
    figure = sheet(style.inches(ONE_COLUMN))
    write_title(figure, tile.title)
    ratio = float(np.divide(*plane.values.shape)) * cell_ratio(plane)
    heights = [ratio / len(frames), ratio, BAR / figure.get_figwidth()]
    grid = figure.add_gridspec(3, len(frames), height_ratios=heights)
    strip = [figure.add_subplot(grid[0, number]) for number in range(len(frames))]
    below = figure.add_subplot(grid[1, :])
    for ax in (*strip, below):
        ax.set_axis_off()
        ax.set_anchor("N")
    peak = max(float(np.abs(erf.values[frames.start : frames.stop]).max()), np.finfo(float).tiny)
    for ax, frame in zip(strip, frames, strict=True):
        lines = [f"{100 * shares[frame]:.0f} %", f"{frame}"]
        if erf.axes.units[0] == MS:
            lines.append(f"{frame * erf.axes.spacing[0]:g} ms")
        # Over, and not as a title: constrained layout leaves titles the room they need.
        ax.set_title("\n".join(lines), fontsize=TEXT, fontweight="bold" if frame == round(own) else "normal", pad=2)
    bar = colour_bar(figure.add_subplot(grid[2, :]), whole)
    lay_out(figure)
    what = "frames around the unit's own, then their sum; frames share one linear scale"
    said = [*notes, what, *colour_notes([tile], style)]
    wide, side = inches(strip[0])[0], inches(below)[0]
    words = [*flat.above, *tile.below, *(said if style.conditions else [])]
    drawn = marks(flat.result, whole)
    finish(
        figure,
        [strip[0], below, bar.ax],
        [wide * ratio, side * ratio, BAR],
        words=words,
        handles=keys(drawn, style.outlined),
        handlelength=1.8,
    )
    low = -peak if signed else 0.0
    for ax, frame in zip(strip, frames, strict=True):
        colours: dict[str, Any] = {"cmap": colour_map(style.cmap, signed=signed), "vmin": low, "vmax": peak}
        ax.imshow(seen(erf.values[frame]), aspect=cell_ratio(plane), gid=f"frame {frame}", **colours)
        if frame == round(own):
            edge: dict[str, Any] = {"transform": ax.transAxes, "color": OWN, "clip_on": False}
            ax.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], linewidth=1.6, gid="unit frame", **edge)
    draw_map(below, flat.result, sums, whole)
    return Drawn(figure=figure, words=said)
