"""The panel of a paper: every map with its marks, on one range of colours or its own; and the same over the images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from erfscope.core.answer.depth import reach
from erfscope.core.answer.result import Result
from erfscope.core.values.names import input_name, is_input
from erfscope.core.values.printable import brief
from erfscope.show.figures.canvas import drawing
from erfscope.show.figures.kinds import FIGURES, Drawn
from erfscope.show.figures.lettering import TEXT
from erfscope.show.figures.maps import EDGE, condition_words, draw_ring, grey, pictures_of, shared, size_lines
from erfscope.show.figures.mosaic import NARROW, Tile, columns_for, mosaic
from erfscope.show.figures.spaces import arranged, close_tile
from erfscope.show.figures.style import FigureStyle
from erfscope.show.view.windows import ONE_SCALE, windows
from erfscope.show.view.words import cells, unit_text

#: Rings and the box of what was expected.
EXPECTED: dict[str, dict[str, Any]] = {
    "r50": {"color": "#66ff66", "linestyle": (0, (1, 1)), "linewidth": 1.4},
    "r90": {"color": "#c8ff66", "linestyle": (0, (1, 1)), "linewidth": 1.4},
    "TRF": {"color": "#66ff66", "linestyle": (0, (1, 1)), "linewidth": 1.4},
}


def unfit_panel(results: Sequence[Result]) -> str | None:
    """The need of a panel that these results do not meet; None where it can be drawn."""
    return None if any(result.map is not None for result in results) else FIGURES["panel"].needs


def panel(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """One panel per result that has a map, all on one colour scale or each on its own."""
    return _tiles(results, style, over_pictures=False)


def panel_with_expected(
    result: Result,
    expected: Mapping[str, float],
    *,
    heading: str,
    words: Sequence[str],
    field: Sequence[int] | None = None,
) -> Figure:
    """One result's panel with its own rings, and what was expected dotted, with the names of the rings.

    Args:
        result: The result; it has a map.
        expected: Radius by measure, "r50" or "r90", in cells of the reference.
        heading: Over the panel.
        words: Under it, before the conditions.
        field: Height and width of the expected theoretical receptive field (TRF); None draws none.

    Returns:
        The figure.
    """
    assert result.map is not None
    (shown,) = windows([result])
    assert shown is not None
    tile = Tile(result=result, title=result.label, above=(_place(result),), below=tuple(size_lines(result)))
    with drawing():
        notes = [*words, *shared([result])[0]]
        style = FigureStyle(conditions=True)
        figure = mosaic([close_tile(tile, shown)], 1, style=style, heading=heading, notes=notes).figure
        ax, plane = figure.axes[0], shown.part.erf
        row, col = plane.center_px
        for name, radius in expected.items():
            draw_ring(ax, plane, radius, gid=f"expected {name}", **EXPECTED[name])
            looks: dict[str, Any] = {"color": EXPECTED[name]["color"], "path_effects": EDGE, "fontsize": TEXT}
            ax.annotate(name, (col, row + radius), (0, -2), textcoords="offset points", ha="center", va="top", **looks)
        if field is not None:
            height, width = field
            corner = (col - width / 2, row - height / 2)
            look = {**EXPECTED["TRF"], "path_effects": EDGE}
            ax.add_patch(Rectangle(corner, width, height, fill=False, gid="expected TRF", **look))
    return figure


def unfit_overlay(results: Sequence[Result]) -> str | None:
    """The need of an overlay that these results do not meet; None where it can be drawn."""
    if unfit_panel(results):
        return unfit_panel(results)
    if not any(result.map is not None and is_input(result.wrt) for result in results):
        return FIGURES["overlay"].needs
    if all(result.map is None or result.map.values.ndim == 1 for result in results):
        return "an image, a clip or a volume; of sequences the panel shows curves"
    if not _over_pictures(results):
        return "the image that the model was shown; a ready tensor has none, and a report without its maps has none"
    return None


def overlay(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """The maps over the first image that each model was shown, transparent where they are weak; the image is grey."""
    return _tiles(_over_pictures(results), style, over_pictures=True, everyone=results)


def unfit_strip(results: Sequence[Result]) -> str | None:
    """The need of a strip that these results do not meet; None where it can be drawn."""
    shown = with_unit(results)
    places = {(result.layer, result.input.size) for result in shown}
    if len({result.label for result in shown}) > 1:
        return "layers or input sizes of one model"
    if len(places) < 2:
        return FIGURES["strip"].needs
    if len({result.wrt for result in shown}) > 1:
        return "maps with respect to one input or one inner map"
    return "one unit under one setting at each layer and input size" if len(places) < len(shown) else None


def strip(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """One model's maps by layer, in network order, and by input size, smallest first; a pixel is as large in all of
    them."""
    shown = with_unit(results)
    layers = list(dict.fromkeys(result.layer for result in sorted(shown, key=reach)))
    sizes = sorted({result.input.size for result in shown}, key=math.prod)
    common, differing = shared(shown)
    centres = {f"unit {_centre(result)}" for result in shown}
    tiles = {}
    for result, own in zip(shown, differing, strict=True):
        size = condition_words(result)["input"]
        title = [result.layer] * (len(layers) > 1) + [size] * (len(sizes) > 1)
        below = (*size_lines(result), *(text for text in own if text != size))
        above = (f"unit {_centre(result)}",) if len(centres) > 1 else ()
        tile = Tile(result=result, title=" · ".join(title), above=above, below=below, bar=False)
        tiles[result.layer, result.input.size] = tile
    heading = " · ".join([shown[0].label, *(layers if len(layers) == 1 else [])])
    row = len(sizes) if len(sizes) > 1 else len(layers)
    fitting = style.side_by_side(NARROW)
    rows = -(-row // min(style.columns or fitting, fitting))
    largest = next((layer, size) for layer, size in tiles if size == sizes[-1])
    tiles[largest] = replace(tiles[largest], bar=True)
    placed = [tiles.get((layer, size)) for layer in layers for size in sizes]
    notes = [*common, *(centres if len(centres) == 1 else ()), ONE_SCALE]
    return arranged(placed, -(-row // rows), style=style, heading=heading, notes=notes, zoom=style.whole_zoom)


def with_unit(results: Sequence[Result]) -> list[Result]:
    """The results that have a map of a unit."""
    return [result for result in results if result.map is not None and result.unit is not None]


def _centre(result: Result) -> str:
    """The unit's position, which is comparable between layers; its index is not."""
    assert result.unit is not None
    if not result.unit.center_px:
        return "without a place"
    place = ", ".join(map(brief, result.unit.center_px))
    return f"at {'' if result.unit.center_exact else 'about '}{place} {cells([result])}"


def _over_pictures(results: Sequence[Result]) -> list[Result]:
    pictures = pictures_of(results, results)
    return [
        r
        for r, picture in zip(results, pictures, strict=True)
        if r.map is not None and r.map.values.ndim > 1 and is_input(r.wrt) and picture is not None
    ]


def _tiles(
    results: Sequence[Result], style: FigureStyle, *, over_pictures: bool, everyone: Sequence[Result] = ()
) -> Drawn:
    shown = [result for result in results if result.map is not None]
    common, differing = shared(shown)
    pictures = pictures_of(shown, everyone) if over_pictures else [None] * len(shown)
    apart = len({result.unit.center_px for result in shown if result.unit and result.unit.center_px}) > 1
    tiles = []
    for result, own, picture in zip(shown, differing, pictures, strict=True):
        above = [_place(result), *([_centre(result)] if apart and result.unit and result.unit.center_px else [])]
        # Of one of several inputs the pictures of a folder lie side by side, and tell the inputs apart.
        alone = [f"wrt {result.wrt}"] if len(shown) == 1 and input_name(result.wrt) and not style.conditions else []
        below = [*size_lines(result), *own, *alone, *([] if result.ok else [result.status.upper()])]
        under = None if picture is None else grey(picture)
        tiles.append(Tile(result=result, title=result.label, above=tuple(above), below=tuple(below), picture=under))
    notes = [*common, *["over the first image, transparent where weak"] * over_pictures]
    return arranged(tiles, columns_for(len(tiles), style), style=style, notes=notes, zoom=style.zoom)


def _place(result: Result) -> str:
    """Layer and unit."""
    return " · ".join(part for part in (result.layer, unit_text(result)) if part)
