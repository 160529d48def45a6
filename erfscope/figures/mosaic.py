"""Several maps on one sheet: one scale, one legend, and the conditions under which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from erfscope.erfmap import FloatArray
from erfscope.figures.canvas import LINE, ONE_COLUMN, TEXT, TITLE, TWO_COLUMNS, place, sheet, text_width, wrapped, write
from erfscope.figures.maps import Look, draw_map, keys
from erfscope.figures.pixels import SCALES, colour_map, common_peak, display
from erfscope.figures.words import error_words
from erfscope.result import Result

#: Inches: around the sheet, between panels, and for the colour bar at the right.
MARGIN, GAP, BAR = 0.08, 0.14, 0.62
#: Panels are drawn at most this much higher or flatter than wide.
TALLEST, FLATTEST = 1.5, 0.3
#: Beside a map with so much higher a peak, one is too weak to see anything.
DARK = 0.1
SHORT = {"linear": "density (uniform = 1)", "log": "log10(1 + density)", "power": "density^0.3"}


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


def mosaic(tiles: Sequence[Tile | None], columns: int, *, scale: str, heading: str = "", notes: Sequence[str] = ()) -> Figure:
    """Draw tiles row by row.

    Args:
        tiles: The panels; None leaves a place empty.
        columns: Panels per row.
        scale: As for :func:`erfscope.figures.pixels.display`.
        heading: Over all panels.
        notes: What holds for all panels, in short.

    Returns:
        The figure; its first axes are the panels', in their order, and the last are the colour bar's.
    """
    present = [tile for tile in tiles if tile is not None]
    views = [display(tile.result.map.plane, scale) for tile in present if tile.result.map is not None]
    look = Look(peak=common_peak(views), signed=any(tile.result.scale == "signed" for tile in present))
    frame = _frame(present, views, columns)
    rows = -(-len(tiles) // columns)
    width = 2 * MARGIN + columns * frame.side + (columns - 1) * GAP + BAR
    head = 1.5 * LINE if heading else 0.0
    probe = sheet(width, 1)
    foot = wrapped(probe, [*notes, *_said(present, views, look, scale)], width - 2 * MARGIN)
    legend = 0.26
    figure = sheet(width, MARGIN + head + rows * frame.step + legend + len(foot) * LINE + MARGIN)
    if heading:
        write(figure, MARGIN, MARGIN, heading, width=width - 2 * MARGIN, size=TITLE, weight="bold")
    drawn: set[str] = set()
    shown = iter(views)
    for number, tile in enumerate(tiles):
        if tile is not None:
            left = MARGIN + number % columns * (frame.side + GAP)
            top = MARGIN + head + number // columns * frame.step
            drawn |= _draw_tile(figure, tile, next(shown), look, frame, left, top)
    bottom = MARGIN + head + rows * frame.step
    _legend(figure, drawn, look, bottom)
    for number, line in enumerate(foot):
        write(figure, MARGIN, bottom + legend + number * LINE, line)
    _bar(figure, look, scale, left=width - BAR + 0.08, top=MARGIN + head + frame.above, bottom=bottom - GAP - frame.below)
    return figure


def _said(tiles: Sequence[Tile], views: Sequence[FloatArray], look: Look, scale: str) -> list[str]:
    """What the colours and the errors are."""
    kinds = " and ".join(dict.fromkeys(tile.result.scale for tile in tiles))
    said = [f"colour: {kinds} as {SCALES[scale]}", f"{scale} scale", "strongest 0.1 % cut"]
    said += error_words([tile.result for tile in tiles], "±")
    if scale == "linear" and min(common_peak([view]) for view in views) < DARK * look.peak:
        said.append("the log scale shows more of the weak maps")
    return said


def columns_for(count: int) -> int:
    """Panels per row for so many panels."""
    if count <= 4:
        return count
    return 3 if count in (5, 6, 9) else 4


def _frame(tiles: Sequence[Tile], views: Sequence[FloatArray], columns: int) -> _Frame:
    whole = {1: ONE_COLUMN, 2: 5.6}.get(columns, TWO_COLUMNS)
    side = (whole - 2 * MARGIN - BAR - (columns - 1) * GAP) / columns
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


def _legend(figure: Figure, drawn: set[str], look: Look, top: float) -> None:
    """The marks on a strip as dark as the maps, where they look as they do there."""
    width, height = figure.get_size_inches()
    legend = figure.legend(
        handles=keys(drawn),
        loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - top / height),
        bbox_transform=figure.transFigure,
        ncols=len(drawn),
        frameon=True,
        fancybox=False,
        framealpha=1,
        edgecolor="none",
        facecolor=colour_map(signed=look.signed)(0.3 if look.signed else 0.12),
        labelcolor="white",
        borderaxespad=0,
        borderpad=0.35,
        handlelength=2.2,
        columnspacing=1.4,
    )
    legend.set_gid("marks")


def _bar(figure: Figure, look: Look, scale: str, *, left: float, top: float, bottom: float) -> Axes:
    """The colour bar, at most 2.6 inches long, in the middle of what it belongs to."""
    length = min(bottom - top, 2.6)
    ax = place(figure, left, (top + bottom - length) / 2, 0.09, length)
    bar = figure.colorbar(ScalarMappable(norm=look.norm, cmap=colour_map(signed=look.signed)), cax=ax)
    bar.outline.set_linewidth(0.5)
    # Beside a flat map there is room for a word; the line under the maps says the rest.
    words = SHORT[scale] if text_width(figure, SHORT[scale]) < length + 0.2 else "density"
    bar.set_label(words, fontsize=TEXT, labelpad=2)
    ax.tick_params(labelsize=TEXT, length=2, pad=2)
    return ax
