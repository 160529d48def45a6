"""Several maps on one sheet: one scale, one range of colours or one for each, one legend, and the conditions under which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from erfscope.figures.canvas import LINE, ONE_COLUMN, TEXT, TITLE, TWO_COLUMNS, place, sheet, text_width, wrapped, write
from erfscope.figures.maps import Look, draw_map, keys
from erfscope.figures.pixels import COLOURS, SCALES, SIGNED_SCALES, colour_map, common_peak, display
from erfscope.maps.erf_map import FloatArray
from erfscope.results.result import Result
from erfscope.tables.conditions import error_words

#: Inches: around the sheet, between panels, and for the colour bar at the right.
MARGIN, GAP, BAR = 0.08, 0.14, 0.62
#: Panels are drawn at most this much higher or flatter than wide.
TALLEST, FLATTEST = 1.5, 0.3
#: Beside a map with so much higher a peak, one is too weak to see anything.
DARK = 0.1
SHORT = {"linear": "density (uniform = 1)", "log": "log10(1 + density)", "power": "density^0.3"}
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


def mosaic(
    tiles: Sequence[Tile | None], columns: int, *, scale: str, colours: str = "shared", heading: str = "", notes: Sequence[str] = ()
) -> Figure:
    """Draw tiles row by row.

    Args:
        tiles: The panels; None leaves a place empty.
        columns: Panels per row.
        scale: As for :func:`erfscope.figures.pixels.display`.
        colours: ``"shared"``, one range for all maps with a colour bar, or ``"own"``, where each of several maps says its own.
        heading: Over all panels.
        notes: What holds for all panels, in short.

    Returns:
        The figure; its first axes are the panels', in their order, and the last are the colour bar's, where there is one.
    """
    present = [tile for tile in tiles if tile is not None]
    views = [display(tile.result.map.plane, scale) for tile in present if tile.result.map is not None]
    looks = _looks(present, views, colours)
    bar = BAR if len(set(looks)) == 1 else 0.0
    if not bar:
        present = [replace(tile, below=(*tile.below, _range(look))) for tile, look in zip(present, looks, strict=True)]
    frame = _frame(present, views, columns, bar)
    rows = -(-len(tiles) // columns)
    width = 2 * MARGIN + columns * frame.side + (columns - 1) * GAP + bar
    head = 1.5 * LINE if heading else 0.0
    probe = sheet(width, 1)
    foot = wrapped(probe, [*notes, *_said(present, views, looks, scale)], width - 2 * MARGIN)
    legend = 0.26
    figure = sheet(width, MARGIN + head + rows * frame.step + legend + len(foot) * LINE + MARGIN)
    write(figure, MARGIN, MARGIN, heading, width=width - 2 * MARGIN, size=TITLE, weight="bold")
    drawn: set[str] = set()
    places = (divmod(number, columns) for number, tile in enumerate(tiles) if tile is not None)
    for (row, column), tile, view, look in zip(places, present, views, looks, strict=True):
        left, top = MARGIN + column * (frame.side + GAP), MARGIN + head + row * frame.step
        drawn |= _draw_tile(figure, tile, view, look, frame, left, top)
    bottom = MARGIN + head + rows * frame.step
    _legend(figure, drawn, looks[0], bottom)
    for number, line in enumerate(foot):
        write(figure, MARGIN, bottom + legend + number * LINE, line)
    if bar:
        _bar(figure, looks[0], scale, left=width - bar + 0.08, top=MARGIN + head + frame.above, bottom=bottom - GAP - frame.below)
    return figure


def _looks(tiles: Sequence[Tile], views: Sequence[FloatArray], colours: str) -> list[Look]:
    """The colours of every map."""
    signed = any(tile.result.scale == "signed" for tile in tiles)
    peaks = [common_peak([view]) for view in views] if colours == "own" else [common_peak(views)] * len(views)
    return [Look(peak=peak, signed=signed) for peak in peaks]


def _range(look: Look) -> str:
    peak = f"{look.peak:.3g}"
    return f"colours −{peak} to {peak}" if look.signed else f"colours 0 to {peak}"


def _said(tiles: Sequence[Tile], views: Sequence[FloatArray], looks: Sequence[Look], scale: str) -> list[str]:
    """What the colours and the errors are."""
    kinds = " and ".join(dict.fromkeys(tile.result.scale for tile in tiles))
    shown = (SIGNED_SCALES if looks[0].signed else SCALES)[scale]
    said = [f"colour: {kinds} as {shown}", f"{scale} scale", "strongest 0.1 % cut"]
    if len(set(looks)) > 1:
        said.insert(1, COLOURS["own"])
    said += error_words([tile.result for tile in tiles], "±")
    weakest = min(common_peak([view]) for view in views)
    if scale == "linear" and len(set(looks)) == 1 and weakest < DARK * looks[0].peak:
        said.append("weak maps show more with --colours own or --scale log")
    return said


def columns_for(count: int) -> int:
    """Panels per row for so many panels."""
    if count <= 4:
        return count
    return 3 if count in (5, 6, 9) else 4


def _frame(tiles: Sequence[Tile], views: Sequence[FloatArray], columns: int, bar: float) -> _Frame:
    whole = {1: ONE_COLUMN, 2: 5.6}.get(columns, TWO_COLUMNS)
    side = (whole - 2 * MARGIN - bar - (columns - 1) * GAP) / columns
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
    short = (SIGNED_SHORT if look.signed else SHORT)[scale]
    words = short if text_width(figure, short) < length + 0.2 else "density"
    bar.set_label(words, fontsize=TEXT, labelpad=2)
    ax.tick_params(labelsize=TEXT, length=2, pad=2)
    return ax
