"""Which result of a report another is compared with: its host, the same result of an earlier report, or else the first
model under the same settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erfscope.results.comparability import Use, conditions_for
from erfscope.results.result import Result

#: Measures minus those of another result, with the standard error of the difference; a measure is absent where there is
#: none.
Differences = Mapping[str, tuple[float | None, float | None]]

#: Conditions that a sweep may vary, by the names of its columns, and their values.
SWEPT = {condition.name: condition.of for condition in conditions_for(Use.SWEEP)}


def swept(results: Sequence[Result]) -> tuple[str, ...]:
    """The settings that vary within one model, by the names of :data:`SWEPT`; the layers of different models differ
    without a sweep."""
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


def partners(results: Sequence[Result]) -> list[Result | None]:
    """The result that each one is compared with.

    That is the model without the inserted blocks, where there are any; where several reports hold a model under the
    same settings, the first one's result; in a sweep of one model its first result; and of several models the first
    one's result under the same settings: at the layer of the same stride, the last one if there are several, and at the
    same place in the list of units. None for what the others are compared with, and where the first model has no such
    result.

    Args:
        results: All results, in the order of the report.
    """
    hosts = {each.id: each for each in reversed(results)}
    by_label: dict[str, list[Result]] = {}
    for each in results:
        by_label.setdefault(each.label, []).append(each)
    varied = swept(results)
    return [
        hosts.get(each.host or "") or _same(by_label[each.label], each) or _partner(by_label, varied, each)
        for each in results
    ]


def _same(group: Sequence[Result], result: Result) -> Result | None:
    """The first of a model's results where this is another one of the same settings: it is of another report."""

    def is_same(other: Result) -> bool:
        return bool(other.unit and result.unit) and all(read(other) == read(result) for read in SWEPT.values())

    first = next(each for each in group if each is result or is_same(each))
    return None if first is result else first


def _partner(by_label: Mapping[str, Sequence[Result]], varied: Sequence[str], result: Result) -> Result | None:
    label, first = next(iter(by_label.items()))
    if len(by_label) == 1:
        return None if result is first[0] else first[0]
    if result.label == label:
        return None
    settings = [name for name in varied if name not in ("layer", "unit")]
    ours = [each for each in first if all(SWEPT[name](each) == SWEPT[name](result) for name in settings)]
    ours = [each for each in ours if _place(first, each) == _place(by_label[result.label], result)]
    if "layer" in varied:
        ours = [each for each in ours if each.unit and result.unit and each.unit.stride_px == result.unit.stride_px]
    return ours[-1] if ours else None


def _varies_within_a_layer(group: Sequence[Result]) -> bool:
    """Whether several units of one layer were measured, at one input size: the central unit's index changes with
    both."""
    indices: dict[object, set[object]] = {}
    for row in group:
        indices.setdefault((row.layer, row.input.size, row.wrt), set()).add(SWEPT["unit"](row))
    return any(len(found) > 1 for found in indices.values())


def _place(group: Sequence[Result], result: Result) -> int:
    """Which unit of its map this is, counted in the order of the report among the model's results that differ in
    nothing else."""
    others = [name for name in SWEPT if name != "unit"]
    same = [each for each in group if all(SWEPT[name](each) == SWEPT[name](result) for name in others)]
    return next(number for number, each in enumerate(same) if each is result)
