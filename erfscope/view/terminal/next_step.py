"""The hint below a first result: what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erfscope.results.report import Report


def next_step(report: Report, written: Sequence[str]) -> str | None:
    """What to try after a command has measured a report.

    Args:
        report: The results that are shown.
        written: The outputs that were written.

    Returns:
        One line; None where a hint does not help.
    """
    first = report[0]
    if not first.ok:
        return None
    explain = "--explain says what each number means"
    if first.weights.fallback:
        return f"next: erfscope doctor --fix-hint {first.model} says how to get pretrained weights; {explain}"
    if folder := next((path for path in written if Path(path).is_dir()), None):
        return (
            f"next: erfscope layers {first.model} lists what else can be measured; erfscope compare {folder} DIR2"
            " compares saved results"
        )
    if written:
        return None
    images = "" if first.input.source == "image" else "--image YOUR.png for your own images, "
    return f"next: add {images}-o DIR to keep maps and numbers; {explain}"
