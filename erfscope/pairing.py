"""Which result of a report another is compared with: its host, else the first model under the same settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erfscope.result import Result
from erfscope.tables import size_text

#: What a sweep may vary, in the words of its columns, and how to read it. Layers and units have names of their own in every model.
SWEPT: dict[str, Callable[[Result], object]] = {
    "weights": lambda r: r.weights.source,
    "input": lambda r: size_text(r.input.size),
    "reference": lambda r: r.wrt,
    "layer": lambda r: r.layer,
    "unit": lambda r: None if r.unit is None else r.unit.index,
    "convention": lambda r: r.convention,
}


def swept(results: Sequence[Result]) -> tuple[str, ...]:
    """The settings that vary within one model, by the names of :data:`SWEPT`; the layers of different models differ without a sweep."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        # A failed row may know neither its layer nor its unit.
        if result.unit is not None:
            by_label.setdefault(result.label, []).append(result)
    rows = by_label.values()
    found = [name for name, read in SWEPT.items() if any(len({read(row) for row in group}) > 1 for group in rows)]
    if "unit" in found and not any(_varies_within_a_layer(group) for group in rows):
        found.remove("unit")
    return tuple(found)


def partner(results: Sequence[Result], result: Result) -> Result | None:
    """The result that another is compared with.

    That is the model without the inserted blocks, where there are any; in a sweep of one model its first result; and of several models
    the first one's result under the same settings: at the layer of the same stride, the last one if there are several, and at the same
    place in the list of units. None for what the others are compared with, and where the first model has no such result.

    Args:
        results: All results, in the order of the report.
        result: One of them.
    """
    host = next((each for each in results if result.host is not None and each.id == result.host), None)
    if host is not None:
        return host
    first = results[0].label
    if len({each.label for each in results}) == 1:
        return None if result is results[0] else results[0]
    if result.label == first:
        return None
    settings = [name for name in swept(results) if name not in ("layer", "unit")]
    ours = [each for each in results if each.label == first and all(SWEPT[name](each) == SWEPT[name](result) for name in settings)]
    ours = [each for each in ours if _place(results, each) == _place(results, result)]
    if "layer" in swept(results):
        ours = [each for each in ours if each.unit and result.unit and each.unit.stride_px == result.unit.stride_px]
    return ours[-1] if ours else None


def _varies_within_a_layer(group: Sequence[Result]) -> bool:
    """Whether several units of one layer were measured, at one input size: the central unit's index changes with both."""
    indices: dict[object, set[object]] = {}
    for row in group:
        indices.setdefault((row.layer, row.input.size, row.wrt), set()).add(SWEPT["unit"](row))
    return any(len(found) > 1 for found in indices.values())


def _place(results: Sequence[Result], result: Result) -> int:
    """Which unit of its map this is, counted in the order of the report among results that differ in nothing else."""
    others = [name for name in SWEPT if name != "unit"]
    same = [r for r in results if r.label == result.label and all(SWEPT[name](r) == SWEPT[name](result) for name in others)]
    return next(number for number, each in enumerate(same) if each is result)
