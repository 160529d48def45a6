"""Results as rows, and rows as CSV, Markdown and LaTeX text. One row per result, models never without their
conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from erfscope.geometry.box import size_text
from erfscope.geometry.names import IMAGE
from erfscope.measures.ratios import sides_of
from erfscope.printable import UNIT_SIGNS as UNIT_SIGNS
from erfscope.printable import number as number
from erfscope.printable import rounded as rounded
from erfscope.printable import with_error as with_error
from erfscope.results.result import Result
from erfscope.stimuli import KINDS

#: Columns that say under which conditions a row's numbers hold.
CONDITIONS = ("label", "weights", "input", "layer", "unit", "convention", "status")
#: Columns of a CSV that say what the layer and the model are.
STRUCTURE = ("stride_px", "trf_px", "trf_local_px", "global_by", "trf_exact", "parameters", "gmacs")
#: Of references with three axes, clips and volumes, sizes say this of themselves.
IN_PLANE = "in-plane"
IN_PLANE_MEANS = "distances over the last two axes, on the map summed over the first"
FORMATS = ("csv", "markdown", "latex", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of a table."""

    value: float | str | None
    se: float | None = None


def weights_text(result: Result) -> str:
    """Where the weights come from, with the fallback said aloud."""
    return f"{result.weights.source} (fallback)" if result.weights.fallback else result.weights.source


def convention_text(result: Result) -> str:
    """The convention with what its map is, said once where both are one word: ``jacobian (amplitude)``, ``signed``."""
    return result.convention if result.scale == result.convention else f"{result.convention} ({result.scale})"


def field_text(result: Result) -> str:
    """The theoretical receptive field (TRF), as half a sentence."""
    trf, word = result.trf, cells_text(result)
    if trf is None:
        return "the theoretical receptive field (TRF) is unknown"
    if trf.is_global:
        local = f"; {size_text(trf.local_size_px)} {word} without it" if trf.local_size_px != trf.size_px else ""
        return (
            f"the theoretical receptive field (TRF) covers {whole_text(result.wrt)} (global operation:"
            f" {trf.global_by}{local})"
        )
    return (
        f"the theoretical receptive field (TRF) is {'' if trf.exact else 'at most '}{square_text(trf.size_px)} {word}"
    )


def whole_text(wrt: str) -> str:
    """All of what a result is measured in: of the image, or of the map that ``wrt`` names."""
    return "the whole input" if wrt == IMAGE else f"the whole of {wrt}"


def square_text(sides: Sequence[float]) -> str:
    """One number for a square, e.g. ``32``, and both sides of any other rectangle, e.g. ``32x16``."""
    texts = [f"{side:.4g}" if isinstance(side, float) else str(side) for side in sides]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)


def sides_text(result: Result) -> tuple[str, str]:
    """The two sides that sizes are compared with, as printed beside their ratios: of the reference, and of the TRF or
    "".

    One number each, in cells of the reference: of a rectangle H x W that of the square as large, sqrt(H W).
    """
    if result.trf is None:
        return "", ""
    sides = sides_of(result.trf.reference_px, result.trf)
    return f"{sides.reference:.4g}", "" if sides.field is None else f"{sides.field:.4g}"


def cells_text(result: Result) -> str:
    """What places are given in: ``px`` of the image or ``cells`` of the reference."""
    return "px" if result.wrt == IMAGE else "cells"


def lengths_text(result: Result) -> str:
    """What lengths are given in: the same, ``in-plane`` where one axis of the reference is left out."""
    return cells_text(result) + (f" {IN_PLANE}" if result.is_in_plane else "")


def index_text(result: Result) -> str:
    """The unit's index, e.g. ``3,3``; "" where there is none."""
    return "" if result.unit is None else ",".join(map(str, result.unit.index))


def plane_note(results: Sequence[Result]) -> str:
    """Which sizes are in-plane, and what that means, in one sentence; "" where none are."""
    flat = [result for result in results if result.is_in_plane and result.measures]
    if not flat:
        return ""
    every = len(flat) == sum(bool(result.measures) for result in results)
    whose = "" if every else f" of {', '.join(dict.fromkeys(result.label for result in flat))}"
    return f"Sizes{whose} are {IN_PLANE}: {IN_PLANE_MEANS}."


def conditions(result: Result) -> dict[str, str]:
    """The conditions of one row, as text."""
    return {
        "label": result.label,
        "weights": "as provided" if result.weights.source == "given" else weights_text(result),
        "input": size_text(result.input.size),
        "layer": result.layer if result.wrt == IMAGE else f"{result.layer} wrt {result.wrt}",
        "unit": index_text(result),
        "convention": convention_text(result),
        "status": result.status,
    }


def cell(result: Result, name: str) -> Cell:
    """One measure of a result; empty where the result has none."""
    measure = result.measures.get(name)
    return Cell(value=None) if measure is None else Cell(value=measure.value, se=measure.se)


def images_text(result: Result) -> str:
    """How many images, of which kind, and how many of them were of no use."""
    n, lost = result.input.n_images, result.input.n_dead
    kind = KINDS.get(result.input.source)
    text = f"{n}{'' if kind is None else ' synthetic'} image{'' if n == 1 else 's'}" + (
        "" if kind is None else f" ({kind.words})"
    )
    return text + (f", {lost} unusable" if lost else "")


def steps_of_one(results: Sequence[Result]) -> int | None:
    """At how many steps of its training one model was measured; None if these are not several steps of one model."""
    steps = {result.step for result in results}
    return (
        len(steps) if len(steps) > 1 and None not in steps and len({result.model for result in results}) == 1 else None
    )


def structure_columns(results: Sequence[Result]) -> dict[str, Callable[[Result], str]]:
    """What stands beside the measures of several results, by header: stride and TRF, and the cost where it was
    counted."""
    columns: dict[str, Callable[[Result], str]] = {}
    if len(results) > 1 or any(result.cost is not None for result in results):
        columns |= {"stride": _stride, "TRF": _field}
    if any(result.cost is not None for result in results):
        columns |= {"params M": _parameters, "GMACs": _gmacs}
    return columns


def _stride(result: Result) -> str:
    if result.unit is None:
        return "–"
    return square_text(result.unit.stride_px)


def _field(result: Result) -> str:
    """The TRF: ``435``, ``≤435`` for a bound, ``all (435)`` where it covers the whole reference by global operations
    only."""
    trf = result.trf
    if trf is None:
        return "–"
    bound = "" if trf.exact else "≤"
    size, local = (bound + square_text(sides) for sides in (trf.size_px, trf.local_size_px))
    if not trf.is_global:
        return size
    return "all" if local == size else f"all ({local})"


def _parameters(result: Result) -> str:
    return "–" if result.cost is None else number(result.cost.parameters / 1e6)


def _gmacs(result: Result) -> str:
    return "–" if result.cost is None else number(result.cost.gmacs)
