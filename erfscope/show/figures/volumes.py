"""The panel of volumes: three orthogonal slices through the unit of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.result import Result
from erfscope.show.drawn import CloseUp, cell_at
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.show.figures.kinds import Drawn
from erfscope.show.figures.lettering import LINE, letter, name_lines, wrapped, write_over
from erfscope.show.figures.lines import ROUND
from erfscope.show.figures.maps import (
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
from erfscope.show.figures.mosaic import BAR, Tile, colour_bar, colour_notes, shorten
from erfscope.show.figures.style import ONE_TEXT, TWO_COLUMNS, FigureStyle
from erfscope.show.view.windows import Windowed
from erfscope.show.view.words import radii

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
        """Those of the panels, in the unit of the axes."""
        return np.multiply(self.part.frame, self.part.erf.axes.spacing)


def _all_sliced(tiles: Sequence[Tile], parts: Sequence[Windowed], scale: str) -> list[Sliced]:
    every = []
    for tile, shown in zip(tiles, parts, strict=True):
        every.append(_sliced(tile, shown.part, scale))
        if shown.close is not None:
            every.append(_sliced(replace(tile, above=("close-up",), below=()), shown.close, scale))
    return every


def volumes(
    tiles: Sequence[Tile],
    parts: Sequence[Windowed],
    *,
    style: FigureStyle,
    heading: str = "",
    notes: Sequence[str] = (),
) -> Drawn:
    """Three slices of each volume, in a row; a millimetre is as long in all slices of all volumes.

    ``parts`` are what of each is shown, close-ups in a row of their own; the other arguments are those of
    :func:`erfscope.show.figures.spaces.arranged`."""
    every = _all_sliced(tiles, parts, style.scale)
    looks = _looks(every, style)
    longest = np.max([each.sides for each in every], axis=0)
    is_flat = bool(longest[0] < FLAT * longest[1])
    figure = sheet(style.inches(ONE_TEXT if is_flat else TWO_COLUMNS))
    if heading:
        write_title(figure, heading)
    has_bar = len(set(looks)) == 1
    rows, beside = _places(figure, len(every), longest, is_flat=is_flat, has_bar=has_bar)
    bar = None if beside is None else colour_bar(beside, looks[0])
    lay_out(figure)
    side, wide = inches(rows[0][0])[0], sum(inches(ax)[0] for ax in rows[0][: 2 if is_flat else 3])
    for number, (axes, each, look) in enumerate(zip(rows, every, looks, strict=True)):
        title = f"{letter(number)}\u00a0{each.tile.title}" if len(every) > 1 else each.tile.title
        colours = [f"colours to {look.peak:.3g}"] * (len(set(looks)) > 1)
        words = [*each.tile.above, *each.part.words, *each.tile.below, *colours]
        write_over(axes[0], name_lines(figure, title, wide), wrapped(figure, words, wide))
        # The words reach over all three slices.
        axes[0].texts[-1].set_in_layout(False)
    deep, high, _ = longest * side / longest[2]
    heights = [min(max(high, 2 * deep + UNDER * LINE / 72 if is_flat else deep), HIGHEST)] * len(rows)
    said = [*notes, "slices through the unit", *colour_notes(tiles, style)]
    planes = [replace(each.tile.result, map=plane, sums=None) for each in every for plane in each.planes]
    drawn = keys(set().union(*(marks(plane, looks[0]) for plane in planes)) - {"unit", "samples"}, style.outlined)
    firsts = [axes[0] for axes in rows]
    finish(figure, firsts, heights, words=said * style.conditions, handles=drawn, handlelength=1.8)
    for axes, each, look in zip(rows, every, looks, strict=True):
        _draw(axes, each, look)
    if bar is not None:
        shorten(bar)
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


def _sliced(tile: Tile, part: CloseUp, scale: str) -> Sliced:
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


def _places(
    figure: Figure, count: int, sides: FloatArray, *, is_flat: bool, has_bar: bool
) -> tuple[list[list[Axes]], Axes | None]:
    """Axes of three slices for each volume: side by side, or the second and third under each other; and those of a
    colour bar beside them."""
    _, high, wide = sides
    widths = [wide, max(wide, high)] if is_flat else [wide, wide, high]
    bars = [BAR * sum(widths) / figure.get_figwidth()] * has_bar
    grid = figure.add_gridspec(count * (1 + is_flat), len(widths) + has_bar, width_ratios=[*widths, *bars])
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
    return rows, figure.add_subplot(grid[:, -1]) if has_bar else None


def _draw(axes: Sequence[Axes], each: Sliced, look: Look) -> None:
    """Draw the slices of one volume."""
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
            count, step, first = plane.values.shape[number], plane.axes.spacing[number], begun[kept[number]]
            ticks = _round_ticks(first * step, (first + count - 1) * step)
            is_short = each.sides[kept[number]] < SHORT * each.sides.max()
            shown = ticks[-1:] if is_short else ticks
            axis.set_ticks([tick / step - first for tick in shown], [f"{tick:g}" for tick in shown])
            axis.set_label_text(f"{plane.axes.names[number]} ({plane.axes.units[number]})")
        down, across = map(each.part.limits, kept)
        ax.set(xlim=across, ylim=down[::-1])


def _round_ticks(first: float, last: float) -> list[float]:
    """A few round places from the first to the last."""
    return [float(tick) for tick in MaxNLocator(3, **ROUND).tick_values(first, last) if first <= tick <= last]


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
