"""Panels by what their references are: volumes as slices through the unit, a clip as frames around its unit's own,
sequences as curves, and everything else as planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from erfscope.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.figures.kinds import Drawn
from erfscope.figures.lettering import LINE, TEXT, letter, name_lines, wrapped, write_over
from erfscope.figures.maps import (
    MARKS,
    Look,
    cell_ratio,
    colour_map,
    common_peak,
    display,
    draw_map,
    draw_ring,
    field_box,
    keys,
    marks,
    outline,
    outline_note,
    region_shares,
)
from erfscope.figures.mosaic import TRF, Tile, mosaic
from erfscope.figures.sequences import sequences
from erfscope.figures.style import COLOURS, ONE_COLUMN, ONE_TEXT, SCALES, SIGNED_SCALES, TWO_COLUMNS, FigureStyle
from erfscope.geometry.axes import DEPTH, MS, TIME
from erfscope.maps.drawn import CloseUp, close_up
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.results.result import Result
from erfscope.view.words import error_words, radii

#: Frames of a clip that are shown one by one, at most, and the line around the unit's own.
FRAMES, OWN = 7, "#30a060"
#: Axes of a volume that a slice keeps: what it runs down and what across.
SLICES = ((1, 2), (0, 2), (0, 1))
#: Volumes that are so much less deep than high have their two flat slices under each other.
FLAT = 0.75
#: Lines of text from a slice to the one under it.
UNDER = 3.5
SUMMED = "clips: summed over time"


def arranged(
    tiles: Sequence[Tile | None],
    columns: int,
    *,
    style: FigureStyle,
    heading: str = "",
    notes: Sequence[str] = (),
    close: bool = False,
) -> Drawn:
    """Draw results by what their references are; the arguments are those of :func:`erfscope.figures.mosaic.mosaic`.

    Args:
        tiles: Their results have maps of any axes.
        columns: Planes per row.
        style: That of the figure.
        heading: Over all panels.
        notes: What holds for all.
        close: Whether to show the surroundings of an ERF that would be a dot.
    """
    present = [tile for tile in tiles if tile is not None]
    axes = [tile.result.map.axes for tile in present if tile.result.map is not None]
    same: dict[str, Any] = {"style": style, "heading": heading, "notes": notes}
    if all(each.names == (TIME,) and each.units == axes[0].units for each in axes):
        return sequences(present, **same)
    if all(DEPTH in each.names for each in axes):
        return _volumes(present, **same, close=close)
    if len(present) == 1 and len(axes[0].names) == 3:
        return _clip(present[0], style, notes, close=close)
    summed = [SUMMED] * any(each.is_in_plane for each in axes)
    shown = [close_tile(tile) if close and tile is not None else tile for tile in tiles]
    return mosaic(shown, columns, style=style, heading=heading, notes=[*notes, *summed])


def close_tile(tile: Tile) -> Tile:
    """The panel of the part of a map's plane that is worth showing."""
    assert tile.result.map is not None
    shown = close_up(tile.result.map.plane)
    picture = None if tile.picture is None else shown.of(tile.picture)
    result = replace(tile.result, map=shown.erf, sums=None)
    return replace(tile, result=result, above=(*tile.above, *shown.words), picture=picture)


def slice_of(erf: ErfMap, kept: tuple[int, int]) -> ErfMap:
    """The plane (H, W) of a volume (D, H, W) through the unit's centre cell along two axes, or through its strongest
    cell where it has no place. Its density is relative to the uniform volume."""
    return erf.onto(kept, _cut(erf, erf.values, kept) * erf.values.shape[_left_out(kept)])


def _left_out(kept: tuple[int, int]) -> int:
    return ({0, 1, 2} - {*kept}).pop()


def _cut(erf: ErfMap, values: FloatArray, kept: tuple[int, int]) -> FloatArray:
    """The plane of values on the cells of a volume that :func:`slice_of` gives of its own."""
    strongest = np.unravel_index(int(np.argmax(np.abs(erf.values))), erf.values.shape)
    centre, axis = erf.center_px or tuple(map(float, strongest)), _left_out(kept)
    return values.take(min(max(round(centre[axis]), 0), erf.values.shape[axis] - 1), axis=axis)


def _notes(tiles: Sequence[Tile], style: FigureStyle, what: str) -> list[str]:
    results = [tile.result for tile in tiles]
    shown = (SIGNED_SCALES if any(r.scale == "signed" for r in results) else SCALES)[style.scale]
    own = [COLOURS["own"]] * (style.colours == "own" and len(tiles) > 1)
    return [what, f"colour: {shown}", *own, *error_words(results, "±"), TRF, *outline_note(style.outlined)]


def _volumes(tiles: Sequence[Tile], *, style: FigureStyle, heading: str, notes: Sequence[str], close: bool) -> Drawn:
    """Three orthogonal slices of each, in a row; a millimetre is as long in all slices of a volume, and in all volumes
    that have one scale of lengths."""
    maps = [tile.result.map for tile in tiles if tile.result.map is not None]
    parts = [close_up(erf) if close else CloseUp(zoom=1, erf=erf, window=((0.0, 1.0),) * 3) for erf in maps]
    views = [display(part.erf, style.scale) for part in parts]
    cuts = [[_cut(part.erf, view, kept) for kept in SLICES] for part, view in zip(parts, views, strict=True)]
    together = [view for row in cuts for view in row]
    signed = any(tile.result.scale == "signed" for tile in tiles)
    looks = [
        Look(
            peak=common_peak(row if style.colours == "own" else together, style.scale),
            signed=signed,
            scale=style.scale,
            contours=style.outlined,
            cmap=style.cmap,
        )
        for row in cuts
    ]
    lengths = [np.multiply(part.erf.values.shape, part.erf.axes.spacing) for part in parts]
    longest = np.max(lengths, axis=0)
    flat = longest[0] < FLAT * longest[1]
    figure = sheet(style.inches(ONE_TEXT if flat else TWO_COLUMNS))
    if heading:
        write_title(figure, heading)
    rows = _slice_axes(figure, len(tiles), longest, flat=flat)
    lay_out(figure)
    side = inches(rows[0][0])[0]
    scale, heights = side / longest[2], []
    for number, (axes, tile, part, look) in enumerate(zip(rows, tiles, parts, looks, strict=True)):
        title = f"{letter(number)}\u00a0{tile.title}" if len(tiles) > 1 else tile.title
        colours = [f"colours to {look.peak:.3g}"] * (len(set(looks)) > 1)
        sizes = [*tile.above, *part.words, *tile.below, *colours]
        write_over(axes[0], name_lines(figure, title, side), wrapped(figure, sizes, side))
        depth = longest[0] * scale
        heights.append(max(longest[1] * scale, 2 * depth + UNDER * LINE / 72 if flat else depth))
    said = [*notes, *_notes(tiles, style, "slices through the unit")]
    drawn = set[str]()
    for tile, part in zip(tiles, parts, strict=True):
        slices = (slice_of(part.erf, kept) for kept in SLICES)
        drawn.update(*(marks(replace(tile.result, map=each, sums=None), looks[0]) for each in slices))
    firsts = [axes[0] for axes in rows]
    finish(
        figure,
        firsts,
        heights,
        words=said * style.conditions,
        handles=keys(drawn - {"unit", "samples"}),
        handlelength=1.8,
    )
    for axes, tile, part, cut, look in zip(rows, tiles, parts, cuts, looks, strict=True):
        limits = longest / part.erf.axes.spacing if tile.part is not None else np.array(part.erf.values.shape)
        _slices(axes, tile.result, part, cut, look, limits)
    return Drawn(figure=figure, words=said)


def _slice_axes(figure: Any, count: int, sides: FloatArray, *, flat: bool) -> list[list[Axes]]:
    """Axes of three slices for each volume: side by side, or the second and third under each other."""
    _, high, wide = sides
    widths = [wide, max(wide, high)] if flat else [wide, wide, high]
    grid = figure.add_gridspec(count * (1 + flat), len(widths), width_ratios=widths)
    rows = []
    for row in range(count):
        if flat:
            spots = [grid[2 * row : 2 * row + 2, 0], grid[2 * row, 1], grid[2 * row + 1, 1]]
        else:
            spots = [grid[row, column] for column in range(3)]
        rows.append([figure.add_subplot(spot) for spot in spots])
        for ax in rows[-1]:
            ax.tick_params(length=2, pad=1.5)
            ax.set_anchor("NW")
            # Names of axes take their room before slices are drawn.
            ax.set(xlabel="x", ylabel="y")
    return rows


def _slices(
    axes: Sequence[Axes], result: Result, part: CloseUp, cut: Sequence[FloatArray], look: Look, limits: FloatArray
) -> None:
    """Draw the slices of one volume, so many cells of it."""
    assert result.map is not None
    erf = part.erf
    regions = region_shares(np.abs(erf.values)) if look.contours else None
    begun = [round(first * side) for (first, _), side in zip(part.window, result.map.values.shape, strict=True)]
    for ax, kept, view in zip(axes, SLICES, cut, strict=True):
        plane = slice_of(erf, kept)
        draw_slice(ax, result, plane, view, look)
        if regions is not None:
            outline(ax, _cut(erf, regions, kept), look.contours)
        for axis, name, number in zip((ax.yaxis, ax.xaxis), ("ylim", "xlim"), (0, 1), strict=True):
            along = kept[number]
            count, step = plane.values.shape[number], plane.axes.spacing[number]
            ends = sorted({0, (count - 1) // 2, count - 1})
            axis.set_ticks(ends, [f"{(begun[along] + each) * step:g}" for each in ends])
            axis.set_label_text(f"{plane.axes.names[number]} ({plane.axes.units[number]})")
            axis.labelpad = 1
            span = (-0.5, float(limits[along]) - 0.5)
            ax.set(**{name: span if name == "xlim" else span[::-1]})


def draw_slice(ax: Axes, result: Result, plane: ErfMap, view: Any, look: Look) -> None:
    """One slice with the lines of the unit and the rings."""
    height, width = plane.values.shape
    colours: dict[str, Any] = {"cmap": colour_map(look.cmap, signed=look.signed), "norm": look.norm}
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    ax.imshow(view, extent=extent, aspect=cell_ratio(plane), interpolation="nearest", **colours)
    if plane.center_px:
        row, col = plane.center_px
        line: dict[str, Any] = {"color": "white", "linewidth": 0.5, "alpha": 0.6}
        ax.axhline(row, gid="unit row", **line)
        ax.axvline(col, gid="unit col", **line)
        for name, radius in radii(result).items():
            draw_ring(ax, plane, float(radius), gid=name, **MARKS[name])
    box = field_box(plane)
    if box is not None:
        ax.add_patch(Rectangle(box[:2], *box[2:], fill=False, gid="TRF", **MARKS["TRF"]))


def frames_around(own: float, count: int) -> range:
    """Up to :data:`FRAMES` frames around one of ``count``."""
    first = min(max(round(own) - FRAMES // 2, 0), max(count - FRAMES, 0))
    return range(first, min(first + FRAMES, count))


def _clip(tile: Tile, style: FigureStyle, notes: Sequence[str], *, close: bool) -> Drawn:
    """Frames around the unit's own, each as its share of the map, and below them the plane summed over time."""
    result, erf = tile.result, tile.result.map
    assert erf is not None
    flat = close_tile(tile) if close else tile
    assert flat.result.map is not None
    plane, seen = flat.result.map.plane, close_up(erf.plane).of if close else np.asarray
    shares = erf.magnitude.sum(axis=(1, 2))
    own = erf.center_px[0] if erf.center_px else float(np.argmax(shares))
    frames = frames_around(own, len(shares))
    sums, signed = display(plane, style.scale), result.scale == "signed"
    peak = common_peak([sums], style.scale)
    whole = Look(peak=peak, signed=signed, scale=style.scale, contours=style.outlined, cmap=style.cmap)
    figure = sheet(style.inches(ONE_COLUMN))
    write_title(figure, tile.title)
    ratio = float(np.divide(*plane.values.shape)) * cell_ratio(plane)
    grid = figure.add_gridspec(2, len(frames), height_ratios=[ratio / len(frames), ratio])
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
    lay_out(figure)
    what = "frames around the unit's own, then their sum; frames share one linear scale"
    said = [*notes, *_notes([tile], style, what)]
    wide, side = inches(strip[0])[0], inches(below)[0]
    words = [*flat.above, *tile.below, *(said if style.conditions else [])]
    drawn = marks(flat.result, whole)
    finish(figure, [strip[0], below], [wide * ratio, side * ratio], words=words, handles=keys(drawn), handlelength=1.8)
    low = -peak if signed else 0.0
    for ax, frame in zip(strip, frames, strict=True):
        colours: dict[str, Any] = {"cmap": colour_map(style.cmap, signed=signed), "vmin": low, "vmax": peak}
        ax.imshow(seen(erf.values[frame]), aspect=cell_ratio(plane), gid=f"frame {frame}", **colours)
        if frame == round(own):
            edge: dict[str, Any] = {"transform": ax.transAxes, "color": OWN, "clip_on": False}
            ax.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], linewidth=1.6, gid="unit frame", **edge)
    draw_map(below, flat.result, sums, whole)
    return Drawn(figure=figure, words=said)
