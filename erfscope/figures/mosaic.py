"""Several maps on one sheet: one scale, one range of colours or one for each, one legend, and the conditions under
which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from erfscope.figures.canvas import (
    BOLD,
    DPI,
    LINE,
    ONE_COLUMN,
    TEXT,
    TITLE,
    TWO_COLUMNS,
    FigureStyle,
    name_lines,
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
from erfscope.view.words import error_words

#: Inches: around the sheet, between panels, and for the colour bar at the right.
MARGIN, GAP, BAR = 0.08, 0.14, 0.62
#: From one line of a panel's name to the next.
TITLE_LINE = 1.15 * LINE
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
    #: Lines over the map and under it.
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    #: Grey, under the map.
    picture: FloatArray | None = None
    #: Width of the map as a share of the panel's, where all maps have one scale of lengths; None fills the panel.
    part: float | None = None
    #: Whether the map has a scale bar of its own.
    bar: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """One row of panels, sizes in inches."""

    top: float
    side: float
    above: float
    map: float
    below: float

    @property
    def bottom(self) -> float:
        """Where the row ends, without the gap below it."""
        return self.top + self.above + self.map + self.below


def mosaic(
    tiles: Sequence[Tile | None], columns: int, *, style: FigureStyle, heading: str = "", notes: Sequence[str] = ()
) -> Figure:
    """Draw tiles row by row.

    Args:
        tiles: The panels; None leaves a place empty.
        columns: Panels per row.
        style: Its scale, its width, and the range of colours: one for all maps with a colour bar, or its own for each,
            which says it.
        heading: Over all panels.
        notes: What holds for all panels, in short.

    Returns:
        The figure; its first axes are the panels', in their order, and the last are the colour bar's, where there is
        one.
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
    present = [_broken(probe, tile, side) for tile in present]
    places = [divmod(number, columns) for number, tile in enumerate(tiles) if tile is not None]
    frames = _frames(list(zip(places, present, views, strict=True)), side, MARGIN + (1.5 * LINE if heading else 0.0))
    said = [*notes, *_said(present, views, looks, style.scale), TRF, *([_outlines(style)] if style.outlined else [])]
    foot = wrapped(probe, said, width - 2 * MARGIN)
    legend, bottom = 0.26, frames[-1].bottom + GAP
    figure = sheet(width, bottom + legend + len(foot) * LINE + MARGIN)
    write(figure, MARGIN, MARGIN, heading, width=width - 2 * MARGIN, size=TITLE, weight="bold")
    drawn: set[str] = set()
    for (row, column), tile, view, look in zip(places, present, views, looks, strict=True):
        drawn |= _draw_tile(figure, tile, view, look, frames[row], MARGIN + column * (side + GAP))
    _legend(figure, keys(drawn), bottom)
    for number, line in enumerate(foot):
        write(figure, MARGIN, bottom + legend + number * LINE, line)
    if bar:
        last = frames[-1]
        _bar(
            figure,
            looks[0],
            left=width - bar + 0.08,
            top=frames[0].top + frames[0].above,
            bottom=last.bottom - last.below,
        )
    return figure


def _outlines(style: FigureStyle) -> str:
    shares = ", ".join(f"{each:g}" for each in style.outlined)
    return f"contours: highest-density regions of {shares} %, smoothed by an eighth of their radius"


def _broken(figure: Figure, tile: Tile, side: float) -> Tile:
    """The tile with lines that are no wider than its panel."""
    above, below = (
        tuple(chain(*(wrapped(figure, [line], side) for line in lines))) for lines in (tile.above, tile.below)
    )
    return replace(tile, title="\n".join(name_lines(figure, tile.title, side, BOLD)), above=above, below=below)


def _looks(tiles: Sequence[Tile], views: Sequence[FloatArray], style: FigureStyle) -> list[Look]:
    """The colours of every map."""
    signed = any(tile.result.scale == "signed" for tile in tiles)
    each = [[view] for view in views] if style.colours == "own" else [views] * len(views)
    return [
        Look(peak=peak_of(found, style.scale), signed=signed, scale=style.scale, contours=style.outlined)
        for found in each
    ]


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


def _frames(placed: Sequence[tuple[tuple[int, int], Tile, FloatArray]], side: float, top: float) -> list[_Frame]:
    """The rows of panels that are so wide, each as high as it needs, from ``top`` on."""
    frames: list[_Frame] = []
    for row in range(placed[-1][0][0] + 1):
        tiles = [(tile, view) for (at, _), tile, view in placed if at == row]
        over, under = (
            max(len(lines) for lines in found) for found in zip(*((t.above, t.below) for t, _ in tiles), strict=True)
        )
        titled = max(len(tile.title.splitlines()) for tile, _ in tiles)
        frame = _Frame(
            top=frames[-1].bottom + GAP if frames else top,
            side=side,
            above=titled * TITLE_LINE + over * LINE + 0.04,
            map=side * max(min(max(_ratio(tile, view), FLATTEST), TALLEST) for tile, view in tiles),
            below=under * LINE + 0.04 * bool(under),
        )
        frames.append(frame)
    return frames


def _ratio(tile: Tile, view: FloatArray) -> float:
    """Height of a map, of the panel's width."""
    return float((tile.part or 1.0) * view.shape[0] / view.shape[1])


def _needed(columns: int) -> float:
    """Width of a sheet with so many panels side by side."""
    return {1: ONE_COLUMN, 2: 5.6}.get(columns, TWO_COLUMNS)


def _side(columns: int, bar: float, style: FigureStyle) -> float:
    """Width of a panel, where the colour bar takes so much."""
    return (style.inches(_needed(columns)) - 2 * MARGIN - bar - (columns - 1) * GAP) / columns


def _draw_tile(figure: Figure, tile: Tile, view: FloatArray, look: Look, frame: _Frame, left: float) -> set[str]:
    # A map that does not fill its panel stands in the middle of the row, and its words close to it.
    slack = 0.0 if tile.part is None else max(frame.map - frame.side * max(_ratio(tile, view), FLATTEST), 0.0) / 2
    # Words stand on their map, whatever space the longest name of the row needs.
    level = frame.top + frame.above - 0.04 + slack - len(tile.above) * LINE
    names = tile.title.splitlines()
    for number, line in enumerate(names):
        write(
            figure, left, level - (len(names) - number) * TITLE_LINE, line, width=frame.side, size=TITLE, weight="bold"
        )
    for number, line in enumerate(tile.above):
        write(figure, left, level + number * LINE, line, width=frame.side)
    ax = place(figure, left, frame.top + frame.above, frame.side * (tile.part or 1.0), frame.map)
    ax.set_anchor("N" if tile.part is None else "W")
    drawn = draw_map(ax, tile.result, view, look, picture=tile.picture, bar=tile.bar)
    for number, line in enumerate(tile.below):
        write(figure, left, frame.bottom - frame.below - slack + 0.04 + number * LINE, line, width=frame.side)
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
            ticks = {
                sign * bright: text for bright, text in ticks.items() if text in ("10%", "50%") for sign in (-1, 1)
            }
        bar.set_ticks(list(ticks), labels=[text.replace("%", " %") for text in ticks.values()])
    ax.tick_params(labelsize=TEXT, length=2, pad=2)
    return ax
