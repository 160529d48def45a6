"""Results and reports in one line each, as ``repr`` and ``-q`` show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import shorten

from erfscope.printable import one_line
from erfscope.results.comparability import RANDOM
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.view.cells import measure_cell
from erfscope.view.words import lengths_text, radii, unit_text

#: Characters of an error, and labels of a report, that are shown.
LONGEST_ERROR, MOST_LABELS = 100, 4


def result_line(result: Result) -> str:
    """E.g. ``<Result resnet18 layer4 unit 3,3: ok, r50 62.0 ± 0.6 px>``."""
    error = [] if result.error is None else [shorten(result.error, LONGEST_ERROR, placeholder="...")]
    return one_line(f"<Result {_line(result, error)}>")


def quiet_line(result: Result) -> str:
    """E.g. ``resnet18 layer4 unit 3,3: ok, r50 62.0 ± 0.6 px, random weights (fallback: HF_HUB_OFFLINE is set)``;
    errors in full."""
    weights, words = result.weights, [] if result.error is None else [result.error]
    if weights.source in RANDOM:
        words.append(f"{weights.source} weights" + (f" (fallback: {weights.reason})" if weights.fallback else ""))
    return one_line(_line(result, words))


def _line(result: Result, words: Sequence[str]) -> str:
    """Name, status and first size of a result, and further ``words``."""
    sizes = [f"{name} {measure_cell(result, name)} {lengths_text(result)}" for name in radii(result)]
    named = filter(None, (result.label, result.layer, unit_text(result)))
    return f"{' '.join(named)}: {', '.join([result.status, *sizes[:1], *words])}"


def report_line(report: Report) -> str:
    """E.g. ``<Report of 2 results (1 ok, 1 error): resnet18; swin_base>``."""
    if len(report) == 1:
        return one_line(f"<Report of 1 result: {result_line(report[0])[1:-1]}>")
    statuses = Counter(result.status for result in report)
    counts = f" ({', '.join(f'{count} {status}' for status, count in statuses.items())})" if statuses else ""
    labels = list(dict.fromkeys(result.label for result in report))
    shown = "; ".join([*labels[:MOST_LABELS], *(["..."] if len(labels) > MOST_LABELS else [])])
    return one_line(f"<Report of {len(report)} results{counts}{': ' if shown else ''}{shown}>")
