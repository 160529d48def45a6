"""The share that each input of a model has in the gradient of one unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from erfscope.core.answer.comparability import Use, values
from erfscope.core.answer.maps.accumulator import MIN_GROUPS, error_bar
from erfscope.core.answer.measures import INPUT_SHARE, MeasureValue
from erfscope.core.answer.result import Result
from erfscope.core.values.finding import Finding


def with_input_shares(results: Sequence[Result]) -> list[Result]:
    """The results of one unit with respect to each input of a model, with the input's share of the contributions of all
    of them.

    Contributions are those of the convention before any root or division: squares for ``jacobian``. The shares of all
    inputs sum to 1. Nothing is added where an input failed, or where there are no contributions."""
    masses = [result.masses for result in results]
    total = sum(sum(each.values()) for each in masses)
    # What was measured before has its share; a map without magnitudes is one of those.
    is_known = all(result.map is None or result.masses for result in results)
    if len(results) < 2 or not total > 0 or not is_known or any(result.status == "error" for result in results):
        return list(results)
    counts = {result.wrt: result.input.n_images for result in results if result.map is not None}
    if len(set(counts.values())) > 1:
        # Each was stopped by itself, or has needed another number for an error that was asked for.
        text = ", ".join(f"{wrt} {count}" for wrt, count in counts.items())
        finding = Finding(code="no_share", text=f"inputs measured on different numbers of images have no share: {text}")
        return [replace(result, findings=(*result.findings, finding)) for result in results]
    groups = sorted({group for each in masses for group in each})
    found = []
    for result, own in zip(results, masses, strict=True):
        without = tuple(
            (sum(own.values()) - own.get(group, 0.0)) / (total - sum(each.get(group, 0.0) for each in masses))
            for group in groups
            if len(groups) >= MIN_GROUPS
        )
        value = sum(own.values()) / total
        share = MeasureValue(
            value=value,
            se=error_bar(value, without) if without else None,
            leave_one_out=without,
            kind="share",
        )
        found.append(replace(result, measures={INPUT_SHARE: share, **result.measures}))
    return found


def with_shares_again(results: Sequence[Result], earlier: Sequence[Result]) -> list[Result]:
    """Results in place of earlier ones that are parts of them, with shares where those had any."""
    found, groups = list(results), dict[object, list[int]]()
    for place, before in enumerate(earlier):
        if INPUT_SHARE in before.measures:
            conditions = [each for each in values(before, Use.SWEEP) if each[0] not in ("reference", "input")]
            groups.setdefault((before.label, before.alpha, *conditions), []).append(place)
    for places in groups.values():
        for place, result in zip(places, with_input_shares([found[place] for place in places]), strict=True):
            found[place] = result
    return found


def by_unit(results: Sequence[Sequence[Result]]) -> list[Result]:
    """Results with respect to each reference, as many units for each: those of several inputs with their shares, the
    inputs of each unit after each other. A reference has none where the run was stopped before it."""
    found = [rows for rows in results if rows]
    return [each for of_unit in zip(*found, strict=True) for each in with_input_shares(of_unit)]
