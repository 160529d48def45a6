"""The sizes of every unit of a layer, in words."""

from __future__ import annotations

from collections.abc import Iterator

from erfscope.geometry.box import size_text
from erfscope.results.positions import BorderEffect, Positions
from erfscope.results.result import Result
from erfscope.tables.columns import lengths_text, number


def positions_lines(result: Result) -> Iterator[str]:
    """The sizes over positions and the border effect, in lines; none where only one unit was measured."""
    found = result.positions
    if found is None:
        return
    r50, context = found.border_effect("r50"), found.border_effect("context_r50")
    word, shape = lengths_text(result), size_text(found.r50.shape)
    lost = f"; {found.without_gradient} without a gradient" if found.without_gradient else ""
    yield (
        f"r50 of all {shape} units of {result.layer}: min {number(r50.min)}, median {number(r50.median)}, max"
        f" {number(r50.max)} {word}; context_r50: {number(context.min)}, {number(context.median)},"
        f" {number(context.max)}{lost}"
    )
    yield f"border of {result.layer}: {_border(r50, found, word)}"
    if found.alone:
        yield f"one backward pass per unit, since {found.alone}"


def _border(r50: BorderEffect, found: Positions, word: str) -> str:
    """How r50 changes towards the border."""
    clipped = int((~found.inside).sum())
    whole = found.units - clipped
    words = []
    if r50.clipped_to_inside is not None:
        words.append(
            f"median r50 {number(r50.inside)} {word} where the theoretical receptive field (TRF) lies inside ({whole}"
            f" units), {number(r50.clipped)} where it is clipped ({clipped}): ratio {number(r50.clipped_to_inside)}"
        )
    else:
        words.append("the theoretical receptive field (TRF) is clipped at " + ("every unit" if clipped else "no unit"))
    if r50.edge_to_centre is not None:
        words.append(f"outermost units have {number(r50.edge_to_centre)} of the r50 of the middle half")
    return "; ".join(words)
