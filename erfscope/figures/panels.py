"""The panel of a paper: every map with its marks, on one range of colours or its own; and the same over the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from erfscope.adapter import IMAGE
from erfscope.figures.canvas import FigureStyle, drawing
from erfscope.figures.maps import draw_ring, grey, pictures_of
from erfscope.figures.mosaic import Tile, columns_for, mosaic
from erfscope.results.result import Result
from erfscope.tables.conditions import shared, size_lines, unit_text

#: Rings of what was expected, by measure.
EXPECTED: dict[str, dict[str, Any]] = {
    "r50": {"color": "#66ff66", "linestyle": (0, (1, 1)), "linewidth": 1.4},
    "r90": {"color": "#c8ff66", "linestyle": (0, (1, 1)), "linewidth": 1.4},
}


def unfit_panel(results: Sequence[Result]) -> str | None:
    """What a panel needs and these results lack; None where it can be drawn."""
    return None if any(result.map is not None for result in results) else "a result with a map"


def panel(results: Sequence[Result], style: FigureStyle) -> Figure:
    """One panel per result that has a map, all on one colour scale or each on its own."""
    return _tiles(results, style, over_pictures=False)


def panel_beside(result: Result, expected: Mapping[str, float], *, heading: str, words: Sequence[str]) -> Figure:
    """One result's panel with the rings that were expected beside its own, dotted.

    Args:
        result: The result; it has a map.
        expected: Radius by measure, "r50" or "r90", in cells of the reference.
        heading: Over the panel.
        words: Under it, before the conditions.

    Returns:
        The figure.
    """
    assert result.map is not None
    plane = result.map.plane
    tile = Tile(result=result, title=result.label, above=(_place(result),), below=tuple(size_lines(result)))
    with drawing():
        figure = mosaic([tile], 1, style=FigureStyle(), heading=heading, notes=[*words, *shared([result])[0]])
        for name, radius in expected.items():
            draw_ring(figure.axes[0], plane, radius, gid=f"expected {name}", **EXPECTED[name])
    return figure


def unfit_overlay(results: Sequence[Result]) -> str | None:
    """What an overlay needs and these results lack; None where it can be drawn."""
    if unfit_panel(results):
        return unfit_panel(results)
    if not any(result.map is not None and result.wrt == IMAGE for result in results):
        return "a map of the image (--wrt image); a map of a layer's cells does not lie on the image"
    if not _over_pictures(results):
        return "the image that the model was shown; a ready tensor has none, and older stored results kept none"
    return None


def overlay(results: Sequence[Result], style: FigureStyle) -> Figure:
    """The maps over the first image that each model was shown, transparent where they are weak; the image is grey."""
    return _tiles(_over_pictures(results), style, over_pictures=True, everyone=results)


def _over_pictures(results: Sequence[Result]) -> list[Result]:
    pictures = pictures_of(results, results)
    return [r for r, picture in zip(results, pictures, strict=True) if r.map is not None and r.wrt == IMAGE and picture is not None]


def _tiles(results: Sequence[Result], style: FigureStyle, *, over_pictures: bool, everyone: Sequence[Result] = ()) -> Figure:
    shown = [result for result in results if result.map is not None]
    common, differing = shared(shown)
    pictures = pictures_of(shown, everyone) if over_pictures else [None] * len(shown)
    tiles = [
        Tile(
            result=result,
            title=result.label,
            above=(_place(result),),
            below=(*size_lines(result), *own, *(() if result.ok else (result.status.upper(),))),
            picture=None if picture is None else grey(picture),
        )
        for result, own, picture in zip(shown, differing, pictures, strict=True)
    ]
    notes = [*common, "over the first image, transparent where weak"] if over_pictures else common
    return mosaic(tiles, columns_for(len(tiles), style), style=style, notes=notes)


def _place(result: Result) -> str:
    """Layer and unit."""
    return " · ".join(part for part in (result.layer, unit_text(result)) if part)
