"""Several maps on one sheet: one scale, one range of colours or one for each, one legend, and the conditions under which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from erfscope.figures.canvas import (
    DPI,
    LINE,
    ONE_COLUMN,
    TEXT,
    TITLE,
    TWO_COLUMNS,
    FigureStyle,
    place,
    sheet,
    text_width,
    wrapped,
    write,
)
from erfscope.figures.maps import Look, draw_map, keys
from erfscope.figures.pixels import COLOURS, SCALES, SIGNED_SCALES, colour_map, common_peak, display, peak_of
from erfscope.maps.density_region import BRIGHTNESS, SHARES
from erfscope.maps.erf_map import FloatArray
from erfscope.results.result import Result
from erfscope.tables.conditions import error_words

#: Inches: around the sheet, between panels, and for the colour bar at the right.
MARGIN, GAP, BAR = 0.08, 0.14, 0.62
#: Panels are drawn at most this much higher or flatter than wide.
TALLEST, FLATTEST = 1.5, 0.3
#: Beside a map with so much higher a peak, one is too weak to see anything.
DARK = 0.1
#: What words on the maps mean.
TRF = "TRF: theoretical receptive field"
SHORT = {"share": "share of the ERF", "linear": "density (uniform = 1)", "log": "log10(1 + density)", "power": "density^0.3"}
SIGNED_SHORT = {**SHORT, "log": "sign × log10(1 + |density|)", "power": "sign × |density|^0.3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One panel."""

    result: Result
    title: str = ""
    #: Lines over the map and under it.
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    #: Grey, under the map.
    picture: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Sizes in inches."""

    columns: int
    side: float
    above: float
    map: float
    below: float

    @property
    def step(self) -> float:
        return self.above + self.map + self.below + GAP


def mosaic(tiles: Sequence[Tile | None], columns: int, *, style: FigureStyle, heading: str = "", notes: Sequence[str] = ()) -> Figure:
    """Draw tiles row by row.

    Args:
        tiles: The panels; None leaves a place empty.
        columns: Panels per row.
        style: Its scale, its width, and the range of colours: one for all maps with a colour bar, or its own for each, which says it.
        heading: Over all panels.
        notes: What holds for all panels, in short.

    Returns:
        The figure; its first axes are the panels', in their order, and the last are the colour bar's, where there is one.
    """
    present = [tile for tile in tiles if tile is not None]
    planes = [tile.result.map.plane for tile in present if tile.result.map is not None]
    longest = round(DPI * _side(columns, BAR, style) * TALLEST)
    views = [display(plane, style.scale, longest=longest) for plane in planes]
    looks = _looks(present, views, style)
    bar = BAR if len(set(looks)) == 1 else 0.0
    if not bar:
        present = [replace(tile, below=(*tile.below, _range(look))) for tile, look in zip(present, looks, strict=True)]
    width, probe, side = style.inches(_needed(columns)), sheet(1, 1), _side(columns, bar, style)
    present = [replace(tile, above=_broken(probe, tile.above, side), below=_broken(probe, tile.below, side)) for tile in present]
    frame = _frame(present, views, columns, side)
    rows = -(-len(tiles) // columns)
    head = 1.5 * LINE if heading else 0.0
    said = [*notes, *_said(present, views, looks, style.scale), TRF, *([_outlines(style)] if style.outlined else [])]
    foot = wrapped(probe, said, width - 2 * MARGIN)
    legend = 0.26
    figure = sheet(width, MARGIN + head + rows * frame.step + legend + len(foot) * LINE + MARGIN)
    write(figure, MARGIN, MARGIN, heading, width=width - 2 * MARGIN, size=TITLE, weight="bold")
    drawn: set[str] = set()
    places = (divmod(number, columns) for number, tile in enumerate(tiles) if tile is not None)
    for (row, column), tile, view, look in zip(places, present, views, looks, strict=True):
        left, top = MARGIN + column * (frame.side + GAP), MARGIN + head + row * frame.step
        drawn |= _draw_tile(figure, tile, view, look, frame, left, top)
    bottom = MARGIN + head + rows * frame.step
    _legend(figure, keys(drawn), bottom)
    for number, line in enumerate(foot):
        write(figure, MARGIN, bottom + legend + number * LINE, line)
    if bar:
        _bar(figure, looks[0], left=width - bar + 0.08, top=MARGIN + head + frame.above, bottom=bottom - GAP - frame.below)
    return figure


def _outlines(style: FigureStyle) -> str:
    shares = ", ".join(f"{each:g}" for each in style.outlined)
    return f"contours: highest-density regions of {shares} %, smoothed by an eighth of their radius"


def _broken(figure: Figure, lines: Sequence[str], side: float) -> tuple[str, ...]:
    return tuple(chain(*(wrapped(figure, [line], side) for line in lines)))


def _looks(tiles: Sequence[Tile], views: Sequence[FloatArray], style: FigureStyle) -> list[Look]:
    """The colours of every map."""
    signed = any(tile.result.scale == "signed" for tile in tiles)
    each = [[view] for view in views] if style.colours == "own" else [views] * len(views)
    return [Look(peak=peak_of(found, style.scale), signed=signed, scale=style.scale, contours=style.outlined) for found in each]


def _range(look: Look) -> str:
    peak = f"{look.peak:.3g}"
    return f"colours −{peak} to {peak}" if look.signed else f"colours 0 to {peak}"


def _said(tiles: Sequence[Tile], views: Sequence[FloatArray], looks: Sequence[Look], scale: str) -> list[str]:
    """What the colours and the errors are."""
    kinds = " and ".join(dict.fromkeys(tile.result.scale for tile in tiles))
    shown = (SIGNED_SCALES if looks[0].signed else SCALES)[scale]
    if scale == "share":
        return [f"colour: {shown}", *error_words([tile.result for tile in tiles], "±")]
    said = [f"colour: {kinds} as {shown}", f"{scale} scale", "clipped at the 99.9th percentile"]
    if len(set(looks)) > 1:
        said.insert(1, COLOURS["own"])
    said += error_words([tile.result for tile in tiles], "±")
    weakest = min(common_peak([view]) for view in views)
    if scale == "linear" and len(set(looks)) == 1 and weakest < DARK * looks[0].peak:
        said.append("weak maps show more with --scale share")
    return said


def columns_for(count: int, style: FigureStyle) -> int:
    """Panels per row for so many panels; two at most where the figure is as wide as a column."""
    if style.width == "column":
        return min(count, 2)
    if count <= 4:
        return count
    return 3 if count in (5, 6, 9) else 4


def _frame(tiles: Sequence[Tile], views: Sequence[FloatArray], columns: int, side: float) -> _Frame:
    ratio = max(min(max(view.shape[0] / view.shape[1], FLATTEST), TALLEST) for view in views)
    over, under = (max(len(lines) for lines in found) for found in ([t.above for t in tiles], [t.below for t in tiles]))
    titled = any(tile.title for tile in tiles)
    return _Frame(
        columns=columns,
        side=side,
        above=1.15 * LINE * titled + over * LINE + 0.04,
        map=side * ratio,
        below=under * LINE + 0.04 * bool(under),
    )


def _needed(columns: int) -> float:
    """Width of a sheet with so many panels side by side."""
    return {1: ONE_COLUMN, 2: 5.6}.get(columns, TWO_COLUMNS)


def _side(columns: int, bar: float, style: FigureStyle) -> float:
    """Width of a panel, where the colour bar takes so much."""
    return (style.inches(_needed(columns)) - 2 * MARGIN - bar - (columns - 1) * GAP) / columns


def _draw_tile(figure: Figure, tile: Tile, view: FloatArray, look: Look, frame: _Frame, left: float, top: float) -> set[str]:
    level = top
    if tile.title:
        write(figure, left, level, tile.title, width=frame.side, size=TITLE, weight="bold")
        level += 1.15 * LINE
    for number, line in enumerate(tile.above):
        write(figure, left, level + number * LINE, line, width=frame.side)
    ax = place(figure, left, top + frame.above, frame.side, frame.map)
    ax.set_anchor("N")
    drawn = draw_map(ax, tile.result, view, look, picture=tile.picture)
    for number, line in enumerate(tile.below):
        write(figure, left, top + frame.above + frame.map + 0.04 + number * LINE, line, width=frame.side)
    return drawn


def _legend(figure: Figure, handles: Sequence[Line2D], top: float) -> None:
    """The marks, with the dark edge that they have on the maps."""
    width, height = figure.get_size_inches()
    legend = figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - top / height),
        bbox_transform=figure.transFigure,
        ncols=len(handles),
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.8,
        columnspacing=1.0,
    )
    legend.set_gid("marks")


def _bar(figure: Figure, look: Look, *, left: float, top: float, bottom: float) -> Axes:
    """The colour bar, at most 2.6 inches long, in the middle of what it belongs to."""
    length = min(bottom - top, 2.6)
    ax = place(figure, left, (top + bottom - length) / 2, 0.09, length)
    bar = figure.colorbar(ScalarMappable(norm=look.norm, cmap=colour_map(signed=look.signed)), cax=ax)
    bar.outline.set_linewidth(0.5)
    # Beside a flat map there is room for a word; the line under the maps says the rest.
    short = (SIGNED_SHORT if look.signed else SHORT)[look.scale]
    words = short if text_width(figure, short) < length + 0.2 else "density"
    bar.set_label(words, fontsize=TEXT, labelpad=2)
    if look.scale == "share":
        ticks = {bright: f"{share:.0%}" for share, bright in zip(SHARES[1:-1], BRIGHTNESS[1:-1], strict=True)}
        if look.signed:
            # Towards zero the two signs would stand on each other.
            ticks = {sign * bright: text for bright, text in ticks.items() if text in ("10%", "50%") for sign in (-1, 1)}
        bar.set_ticks(list(ticks), labels=[text.replace("%", " %") for text in ticks.values()])
    ax.tick_params(labelsize=TEXT, length=2, pad=2)
    return ax
