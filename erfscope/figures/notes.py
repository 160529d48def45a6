"""The short texts below maps and curves: conditions and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.geometry.names import IMAGE
from erfscope.results.result import Result
from erfscope.view.cells import measure_cell
from erfscope.view.words import conditions, field_lines, lengths_text, radii


def condition_words(result: Result) -> dict[str, str]:
    """The conditions under which a map holds, by name, each as it reads alone; its layer and unit stand elsewhere."""
    left_out = ("layer", "unit", "seed")
    found = {name: each.alone for name, each in conditions(result).items() if each.text and name not in left_out}
    return found | ({} if result.wrt == IMAGE else {"wrt": f"wrt {result.wrt}"})


def shared(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """The conditions that all results share, and for each result those in which they differ."""
    every = [condition_words(result) for result in results]
    common = {name: text for name, text in every[0].items() if all(each.get(name) == text for each in every)}
    return list(common.values()), [[text for name, text in each.items() if name not in common] for each in every]


def size_lines(result: Result) -> list[str]:
    """r50, r90 and the theoretical receptive field (TRF), a line each."""
    word = lengths_text(result)
    return [f"{name} {measure_cell(result, name)} {word}" for name in radii(result)] + field_lines(result)
