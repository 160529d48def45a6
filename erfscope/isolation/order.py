"""Rows of models that were measured one by one, put together as if it had been at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from erfscope.model_errors import MODEL
from erfscope.options.keywords import SEVERAL, combinations, is_size
from erfscope.results.comparability import CONDITIONS, differing, is_stopped
from erfscope.results.result import Result

#: What a row was measured under, by the option that asked for it.
_FOUND = {condition.option: condition.of for condition in CONDITIONS if condition.option}


def settings_in_order(asked: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The values of :data:`SEVERAL` for every group of rows that are compared with each other, in the order of a
    report.

    Args:
        asked: The options of all models.
    """
    return combinations(asked, *SEVERAL)


def groups_of(rows: Sequence[Result], settings: Sequence[tuple[Any, ...]]) -> list[int]:
    """Which of the settings each of one model's rows was measured under: their order is that of the settings.

    Args:
        rows: In the order in which the model gave them.
        settings: As :func:`settings_in_order` gives them.
    """
    found: list[int] = []
    for row in rows:
        before = found[-1] if found else 0
        found.append(next((n for n in range(before, len(settings)) if _fits(row, settings[n], settings)), before))
    return found


def _fits(row: Result, setting: tuple[Any, ...], settings: Sequence[tuple[Any, ...]]) -> bool:
    """Whether a row may be of a setting."""
    asked = zip(SEVERAL, setting, zip(*settings, strict=True), strict=True)
    return all(_is_value(_FOUND[name](row), value, values) for name, value, values in asked)


def _is_value(found: object, value: object, values: Sequence[object]) -> bool:
    """Whether what a row has may be one of the values that were asked for.

    What nobody asked for may be any of them: weights that fell back, and a host without the block that is the
    reference, have other names."""
    if isinstance(value, tuple) and isinstance(found, tuple):
        return is_size(value, found)
    return value is None or found not in values or found == value


def comparable(rows: Sequence[Result], groups: Sequence[int]) -> list[Result]:
    """Rows, of which those that were shown something else than the first one of their group cannot be used."""
    first: dict[int, Result] = {}
    found = []
    for row, group in zip(rows, groups, strict=True):
        other = first.setdefault(group, row) if row.ok and not is_stopped(row) else row
        unlike = differing(other, row)
        text = f"cannot be compared with {other.label}: they differ in {', '.join(unlike[:3])}; analyze it alone"
        found.append(replace(row, status="error", error=text, error_cause=MODEL) if unlike else row)
    return found
