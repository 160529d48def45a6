"""Several units of one layer on a grid, each map at its unit's place."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from erfscope.figures.mosaic import Tile, mosaic
from erfscope.results.result import Result
from erfscope.tables.conditions import shared, size_lines, unit_text

#: More units than this in a row would be smaller than their letters.
WIDEST = 6


def unfit_units(results: Sequence[Result]) -> str | None:
    """What a grid of units needs and these results lack; None where it can be drawn."""
    shown = _with_unit(results)
    if len({_index(result) for result in shown}) < 2:
        return "two or more units of one layer, such as --unit grid:3"
    if len({(r.label, r.layer, tuple(shared([r])[0])) for r in shown}) > 1:
        return "units of one layer of one model under one setting"
    if len({_index(result)[-1] for result in shown}) > WIDEST:
        return f"at most {WIDEST} units side by side"
    return None


def units(results: Sequence[Result], *, scale: str, colours: str) -> Figure:
    """The maps of several units, from the top left unit of the layer's map to the bottom right one."""
    shown = _with_unit(results)
    at = {_index(result): result for result in shown}
    rows, columns = sorted({index[:-1] for index in at}), sorted({index[-1] for index in at})
    tiles = [
        Tile(result=found, above=(unit_text(found),), below=tuple(size_lines(found)[:2])) if found is not None else None
        for found in (at.get((*row, column)) for row in rows for column in columns)
    ]
    heading = f"{shown[0].label} · {shown[0].layer}"
    return mosaic(tiles, len(columns), scale=scale, colours=colours, heading=heading, notes=shared(shown)[0])


def _with_unit(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.map is not None and result.unit is not None]


def _index(result: Result) -> tuple[int, ...]:
    assert result.unit is not None
    return result.unit.index
