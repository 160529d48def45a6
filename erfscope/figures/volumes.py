"""The panel of volumes: three orthogonal slices through the unit of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from erfscope.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.figures.kinds import Drawn
from erfscope.figures.lettering import LINE, letter, name_lines, wrapped, write_over
from erfscope.figures.maps import (
    MARKS,
    Look,
    cell_ratio,
    colour_map,
    common_peak,
    cover_of,
    display,
    draw_ring,
    field_box,
    keys,
    marks,
    outline,
    region_shares,
)
from erfscope.figures.mosaic import Tile, colour_notes
from erfscope.figures.style import ONE_TEXT, TWO_COLUMNS, FigureStyle
from erfscope.maps.drawn import CloseUp, cell_at, close_up
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.results.result import Result
from erfscope.view.words import radii

#: Axes of a volume that a slice keeps: what it runs down and what across.
SLICES = ((1, 2), (0, 2), (0, 1))
#: Volumes that are so much less deep than high have their two flat slices under each other.
FLAT = 0.75
#: Lines of text from a slice to the one under it.
UNDER = 3.5
#: Inches: slices of the deepest volumes are no higher, and have a scale of their own.
HIGHEST = 6.0
#: A side that is so much shorter than the longest has one tick.
SHORT = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """A volume with its slices."""

    tile: Tile
    part: CloseUp
    planes: tuple[ErfMap, ...]
    #: Values as shown.
    views: tuple[FloatArray, ...]
    #: The same slices of the volume that the model was shown, grey, under the map; () for none.
    pictures: tuple[FloatArray, ...]

    @property
    def sides(self) -> FloatArray:
        """Those of what is shown, in the unit of the axes."""
        return np.multiply(self.part.erf.values.shape, self.part.erf.axes.spacing)


def volumes(
    tiles: Sequence[Tile], *, style: FigureStyle, heading: str = "", notes: Sequence[str] = (), close: bool = False
) -> Drawn:
    """Three slices of each volume, in a row; a millimetre is as long in all slices of a volume, and in all volumes that
    have one scale of lengths. The arguments are those of :func:`erfscope.figures.spaces.arranged`."""
    every = [_sliced(tile, style.scale, close=close) for tile in tiles]
    looks = _looks(every, style)
    longest = np.max([each.sides for each in every], axis=0)
    is_flat = bool(longest[0] < FLAT * longest[1])
    figure = sheet(style.inches(ONE_TEXT if is_flat else TWO_COLUMNS))
    if heading:
        write_title(figure, heading)
    rows = _places(figure, len(tiles), longest, is_flat=is_flat)
    lay_out(figure)
    side, wide = inches(rows[0][0])[0], sum(inches(ax)[0] for ax in rows[0][: 2 if is_flat else 3])
    for number, (axes, each, look) in enumerate(zip(rows, every, looks, strict=True)):
        title = f"{letter(number)}\u00a0{each.tile.title}" if len(tiles) > 1 else each.tile.title
        colours = [f"colours to {look.peak:.3g}"] * (len(set(looks)) > 1)
        words = [*each.tile.above, *each.part.words, *each.tile.below, *colours]
        write_over(axes[0], name_lines(figure, title, wide), wrapped(figure, words, wide))
        # The words reach over all three slices.
        axes[0].texts[-1].set_in_layout(False)
    deep, high, _ = longest * side / longest[2]
    heights = [min(max(high, 2 * deep + UNDER * LINE / 72 if is_flat else deep), HIGHEST)] * len(rows)
    said = [*notes, "slices through the unit", *colour_notes(tiles, style)]
    planes = [replace(each.tile.result, map=plane, sums=None) for each in every for plane in each.planes]
    drawn = keys(set().union(*(marks(plane, looks[0]) for plane in planes)) - {"unit", "samples"})
    firsts = [axes[0] for axes in rows]
    finish(figure, firsts, heights, words=said * style.conditions, handles=drawn, handlelength=1.8)
    for axes, each, look in zip(rows, every, looks, strict=True):
        sides = longest if each.tile.part is not None else each.sides
        _draw(axes, each, look, sides / each.part.erf.axes.spacing)
    return Drawn(figure=figure, words=said)


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
    cell = cell_at(centre[axis], values.shape[axis])
    return np.asarray(values.take(cell, axis=axis), dtype=np.float64)


def _sliced(tile: Tile, scale: str, *, close: bool) -> Sliced:
    erf = tile.result.map
    assert erf is not None
    part = close_up(erf) if close else CloseUp(zoom=1, erf=erf, window=((0.0, 1.0),) * 3)
    # The colours of a slice are those of the whole volume.
    shown = display(part.erf, scale)
    planes = tuple(slice_of(part.erf, kept) for kept in SLICES)
    views = tuple(_cut(part.erf, shown, kept) for kept in SLICES)
    under = () if tile.picture is None else tuple(_cut(part.erf, part.of(tile.picture), kept) for kept in SLICES)
    return Sliced(tile=tile, part=part, planes=planes, views=views, pictures=under)


def _looks(every: Sequence[Sliced], style: FigureStyle) -> list[Look]:
    """The colours of each volume, on one range or each on its own."""
    together = [view for each in every for view in each.views]
    ranges = [each.views if style.colours == "own" else together for each in every]
    signed = any(each.tile.result.scale == "signed" for each in every)
    same: dict[str, Any] = {"scale": style.scale, "contours": style.outlined, "cmap": style.cmap, "signed": signed}
    return [Look(peak=common_peak(views, style.scale), **same) for views in ranges]


def _places(figure: Figure, count: int, sides: FloatArray, *, is_flat: bool) -> list[list[Axes]]:
    """Axes of three slices for each volume: side by side, or the second and third under each other."""
    _, high, wide = sides
    widths = [wide, max(wide, high)] if is_flat else [wide, wide, high]
    grid = figure.add_gridspec(count * (1 + is_flat), len(widths), width_ratios=widths)
    rows = []
    for row in range(count):
        stacked = [grid[2 * row : 2 * row + 2, 0], grid[2 * row, 1], grid[2 * row + 1, 1]] if is_flat else []
        rows.append([figure.add_subplot(spot) for spot in stacked or [grid[row, column] for column in range(3)]])
        for ax in rows[-1]:
            ax.tick_params(length=2, pad=1.5)
            ax.set_anchor("NW")
            # Names take their room before slices are drawn.
            ax.set_xlabel("x", labelpad=1)
            # A name that is longer than its side reaches down, where there is room.
            ax.set_ylabel("y", labelpad=1, loc="top")
    return rows


def _draw(axes: Sequence[Axes], each: Sliced, look: Look, limits: FloatArray) -> None:
    """Draw the slices of one volume on axes that show so many cells of it."""
    erf, result = each.part.erf, each.tile.result
    assert result.map is not None
    regions = region_shares(np.abs(erf.values)) if look.contours else None
    begun = [round(first * side) for (first, _), side in zip(each.part.window, result.map.values.shape, strict=True)]
    pictures = each.pictures or (None,) * len(SLICES)
    for ax, kept, plane, view, picture in zip(axes, SLICES, each.planes, each.views, pictures, strict=True):
        _draw_slice(ax, plane, view, look, picture)
        _mark(ax, result, plane)
        if regions is not None:
            outline(ax, _cut(erf, regions, kept), look.contours)
        for axis, number in ((ax.yaxis, 0), (ax.xaxis, 1)):
            count, step = plane.values.shape[number], plane.axes.spacing[number]
            is_short = each.sides[kept[number]] < SHORT * each.sides.max()
            ends = [count - 1] if is_short else sorted({0, (count - 1) // 2, count - 1})
            axis.set_ticks(ends, [f"{(begun[kept[number]] + cell) * step:g}" for cell in ends])
            axis.set_label_text(f"{plane.axes.names[number]} ({plane.axes.units[number]})")
        high, wide = (float(limits[axis]) - 0.5 for axis in kept)
        ax.set(xlim=(-0.5, wide), ylim=(high, -0.5))


def _draw_slice(ax: Axes, plane: ErfMap, view: FloatArray, look: Look, picture: FloatArray | None) -> None:
    """One slice of the map, over that of what the model was shown where there is one."""
    height, width = plane.values.shape
    same: dict[str, Any] = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "aspect": cell_ratio(plane)}
    if picture is not None:
        ax.imshow(picture, cmap="gray", vmin=0, vmax=1, **same)
    cover = None if picture is None else cover_of(view, look)
    colours: dict[str, Any] = {"cmap": colour_map(look.cmap, signed=look.signed), "norm": look.norm}
    ax.imshow(view, alpha=cover, interpolation="nearest", **same, **colours)


def _mark(ax: Axes, result: Result, plane: ErfMap) -> None:
    """The lines of the unit, the rings and the TRF on a slice."""
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
