"""The hint below a first result: what to try next."""

from __future__ import annotations

from erfscope.results.report import Report


def next_step(report: Report, *, stored: bool) -> str | None:
    """The command to try after a first result.

    Args:
        report: The results that are shown.
        stored: Whether they were written to a file.

    Returns:
        One line; None where the first result cannot be used.
    """
    first = report[0]
    if not first.ok:
        return None
    explain = "--explain says what each number means"
    if first.weights.fallback:
        return f"next: erfscope doctor --fix-hint {first.model} says how to get pretrained weights; {explain}"
    if stored:
        return (
            f"next: erfscope layers {first.model} lists what else can be measured; compare saved results: erfscope"
            " compare DIR1 DIR2"
        )
    if len(report) > 1:
        return f"next: -o DIR keeps maps and numbers; erfscope analyze {first.model} shows one map; {explain}"
    if first.input.source != "image":
        return f"next: erfscope analyze {first.model} --image YOUR.png -o DIR; {explain}"
    return f"next: erfscope compare {first.model} resnet50; -o DIR keeps map and numbers; {explain}"
