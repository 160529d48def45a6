"""Several maps on one sheet: one scale, one range of colours or one for each, one legend, and the conditions under
which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.answer.result import Result
from erfscope.show.drawn import BRIGHTNESS, SHARES
from erfscope.show.figures import canvas
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.show.figures.insets import draw_inset
from erfscope.show.figures.kinds import Drawn
from erfscope.show.figures.lettering import letter, name_lines, text_width, wrapped, write_over, write_under
from erfscope.show.figures.maps import (
    Look,
    cell_ratio,
    colour_map,
    common_peak,
    display,
    draw_map,
    keys,
    marks,
    outline_note,
)
from erfscope.show.figures.style import COLOURS, ONE_COLUMN, ONE_TEXT, SCALES, SIGNED_SCALES, TWO_COLUMNS, FigureStyle
from erfscope.show.view.error_bars import error_words
from erfscope.show.view.windows import Windowed

#: Inches: width of the colour bar, and its length at most.
BAR, LONGEST = 0.09, 2.6
#: Inches: a panel with lines of words under it, and the narrowest one, where wider ones would leave places empty.
PANEL, NARROW = 1.6, 1.05
#: Inches: colour bars lie below panels that have less than this each.
ROOMY = 1.2
#: As large a part of a sheet may stay empty.
EMPTY = 0.25
#: Panels are drawn at most this much higher or flatter than wide.
TALLEST, FLATTEST = 1.5, 0.3
#: Beside a map with so much higher a peak, one is too weak to see anything.
DARK = 0.1
#: What words on the maps mean.
TRF = "TRF: theoretical receptive field"
SHORT = {
    "share": "share of the ERF",
    "linear": "density (uniform = 1)",
    "log": "log10(1 + density)",
    "power": "density^0.3",
}
SIGNED_SHORT = {**SHORT, "log": "sign × log10(1 + |density|)", "power": "sign × |density|^0.3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One panel."""

    result: Result
    title: str = ""
    #: Words over the map, joined by dots, and lines under it.
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    #: Grey, under the map, and of its axes.
    picture: FloatArray | None = None
    #: What of the map is drawn, and what in a corner of it, once it is known. The corner has a picture too.
    shown: Windowed | None = None
    close_picture: FloatArray | None = None
    #: Whether the map has a scale bar of its own.
    bar: bool = True


def mosaic(
    tiles: Sequence[Tile | None], columns: int, *, style: FigureStyle, heading: str = "", notes: Sequence[str] = ()
) -> Drawn:
    """Draw tiles row by row.

    Args:
        tiles: The panels, as :func:`erfscope.show.figures.spaces.close_tile` gives them; None leaves a place empty.
        columns: Panels per row.
        style: Its scale, its width, and the range of colours: one for all maps with a colour bar, or its own for each,
            named under the map.
        heading: Over all panels.
        notes: What holds for all panels, in short.

    Returns:
        The figure and the notes on it; its first axes are the panels', in their order, and the last are the colour
        bar's, where there is one.
    """
    placed = [(divmod(number, columns), tile) for number, tile in enumerate(tiles) if tile is not None]
    present, rows = [tile for _, tile in placed], placed[-1][0][0] + 1
    width, signed = style.inches(_needed(columns)), any(tile.result.scale == "signed" for tile in present)
    shown = [tile.shown for tile in present if tile.shown is not None]
    planes = [tile.result.map.plane for tile in present if tile.result.map is not None]
    views = [display(each, style.scale, longest=round(canvas.DPI * width / columns * TALLEST)) for each in planes]
    each_view = [[view] for view in views] if style.colours == "own" else [views] * len(views)
    peaks = [common_peak(found, style.scale) for found in each_view]
    same: dict[str, Any] = {"scale": style.scale, "contours": style.outlined, "cmap": style.cmap}
    looks = [Look(peak=peak, signed=signed, **same) for peak in peaks]
    has_bar = len(set(looks)) == 1
    ratios = [FLATTEST] * rows
    for ((row, _), _), plane, each in zip(placed, planes, shown, strict=True):
        high, wide = each.part.frame
        ratios[row] = min(max(ratios[row], high / wide * cell_ratio(plane)), TALLEST)
    figure = sheet(width)
    if heading:
        write_title(figure, heading)
    grid, beside = panel_grid(figure, ratios, columns, has_bar=has_bar)
    panels = [figure.add_subplot(grid[place]) for place, _ in placed]
    for ax in panels:
        ax.set_axis_off()
        ax.set_anchor("N")
    bar = None if beside is None else colour_bar(figure.add_subplot(beside), looks[0])
    lay_out(figure)
    side = inches(panels[0])[0]
    for number, (ax, tile, look) in enumerate(zip(panels, present, looks, strict=True)):
        title = f"{letter(number)}\u00a0{tile.title}" if len(present) > 1 else tile.title
        write_over(ax, name_lines(figure, title, side), wrapped(figure, tile.above, side))
        peak = f"{look.peak:.3g}"
        below = tile.below if has_bar else (*tile.below, f"colours {f'−{peak}' if signed else '0'} to {peak}")
        write_under(ax, [line for words in below for line in wrapped(figure, [words], side)])
    drawn = set().union(*(marks(tile.result, look) for tile, look in zip(present, looks, strict=True)))
    notes = [*notes, *_notes(present, views, looks, style.scale), TRF, *outline_note(style.outlined)]
    first = {place[0]: ax for (place, _), ax in zip(placed, panels, strict=True)}
    heights, firsts = [side * ratio for ratio in ratios], [*first.values()]
    if bar is not None and is_flat(bar.ax):
        heights, firsts = [*heights, BAR], [*firsts, bar.ax]
    finish(
        figure,
        firsts,
        heights,
        words=notes * style.conditions,
        handles=keys(drawn, style.outlined),
        handlelength=1.8,
    )
    for ax, tile, each, view, look in zip(panels, present, shown, views, looks, strict=True):
        draw_map(ax, tile.result, view, look, picture=tile.picture, bar=tile.bar, part=each.part)
        if each.close is not None:
            draw_inset(ax, tile.result, each, look, picture=tile.close_picture)
    if bar is not None:
        shorten(bar)
    return Drawn(figure=figure, words=notes)


def colour_notes(tiles: Sequence[Tile], style: FigureStyle) -> list[str]:
    """Notes on colours, errors, TRF and contours of panels without a colour bar."""
    results = [tile.result for tile in tiles]
    shown = (SIGNED_SCALES if any(result.scale == "signed" for result in results) else SCALES)[style.scale]
    own = [COLOURS["own"]] * (style.colours == "own" and len(tiles) > 1)
    return [f"colour: {shown}", *own, *error_words(results, "±"), TRF, *outline_note(style.outlined)]


def _notes(tiles: Sequence[Tile], views: Sequence[FloatArray], looks: Sequence[Look], scale: str) -> list[str]:
    """Notes on the meaning of the colours and errors of all maps."""
    kinds = " and ".join(dict.fromkeys(tile.result.scale for tile in tiles))
    shown = (SIGNED_SCALES if looks[0].signed else SCALES)[scale]
    if scale == "share":
        return [f"colour: {shown}", *error_words([tile.result for tile in tiles], "±")]
    found = [f"colour: {kinds} as {shown}", f"{scale} scale", "clipped at the 99.9th percentile"]
    if len(set(looks)) > 1:
        found.insert(1, COLOURS["own"])
    found += error_words([tile.result for tile in tiles], "±")
    weakest = min(common_peak([view]) for view in views)
    if scale == "linear" and len(set(looks)) == 1 and weakest < DARK * looks[0].peak:
        found.append("weak maps show more with --scale share")
    return found


def columns_for(count: int, style: FigureStyle) -> int:
    """Panels per row for so many panels: as wide ones as do not leave much of the sheet empty."""
    if style.columns is not None:
        return min(style.columns, count, style.side_by_side(NARROW))
    wide = min(style.side_by_side(PANEL), count if count <= 4 else 3 if count in (5, 6, 9) else 4)
    empty = (-count % wide) / (count + -count % wide)
    return wide + (empty >= EMPTY and wide < style.side_by_side(NARROW))


def _needed(columns: int) -> float:
    """Width of a sheet with so many panels side by side."""
    return {1: ONE_COLUMN, 2: ONE_TEXT}.get(columns, TWO_COLUMNS)


def panel_grid(
    figure: Figure, ratios: Sequence[float], columns: int, *, has_bar: bool
) -> tuple[GridSpec, SubplotSpec | None]:
    """Places for rows of panels, whose heights are such ratios of their widths, and for a colour bar: beside them, or
    below panels that are too narrow to leave it room."""
    relative = BAR * columns / figure.get_figwidth()
    is_below = has_bar and bool(figure.get_figwidth() < ROOMY * columns)
    bars = [relative] * (has_bar and not is_below)
    heights = [*ratios, *[relative] * is_below]
    grid = figure.add_gridspec(
        len(heights), columns + len(bars), height_ratios=heights, width_ratios=[*[1.0] * columns, *bars]
    )
    return grid, (grid[-1, :] if is_below else grid[:, -1]) if has_bar else None


def is_flat(ax: Axes) -> bool:
    """Whether a colour bar lies below the panels."""
    spec = ax.get_subplotspec()
    return spec is not None and len(spec.colspan) > 1


def colour_bar(ax: Axes, look: Look) -> Colorbar:
    """The colour bar of all maps."""
    colours = ScalarMappable(norm=look.norm, cmap=colour_map(look.cmap, signed=look.signed))
    bar = ax.figure.colorbar(colours, cax=ax, orientation="horizontal" if is_flat(ax) else "vertical")
    bar.outline.set_linewidth(0.5)
    bar.set_label((SIGNED_SHORT if look.signed else SHORT)[look.scale], labelpad=2)
    if look.scale == "share":
        ticks = {bright: f"{share:.0%}" for share, bright in zip(SHARES[1:-1], BRIGHTNESS[1:-1], strict=True)}
        if look.signed:
            # Towards zero the two signs would stand on each other.
            ticks = {
                sign * bright: text for bright, text in ticks.items() if text in ("10%", "50%") for sign in (-1, 1)
            }
        bar.set_ticks(list(ticks), labels=[text.replace("%", " %") for text in ticks.values()])
    ax.tick_params(length=2, pad=2)
    return bar


def shorten(bar: Colorbar) -> None:
    """Keep a bar beside high maps short, in the middle of what it belongs to, and its label within a flat one."""
    if is_flat(bar.ax):
        return
    width, length = inches(bar.ax)
    if length > LONGEST:
        bar.ax.set_box_aspect(LONGEST / width)
    # The line under the maps holds the full text.
    if text_width(bar.ax.figure, bar.ax.get_ylabel()) > length + 0.2:
        bar.set_label("density", labelpad=2)
