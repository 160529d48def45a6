"""The head of a page: its title, the smallest and the largest ERF, and whether these two can be compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import shorten

from erfscope.geometry.names import IMAGE
from erfscope.printable import one_line
from erfscope.results.comparability import RANDOM, differing
from erfscope.results.findings import CUT_OFF, OWN_CELL
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.view.cells import measure_cell
from erfscope.view.report_view import ReportView, Row
from erfscope.view.words import (
    IN_PLANE,
    IN_PLANE_MEANS,
    JACKKNIFE,
    lengths_text,
    listed_up_to,
    radii,
    steps_of_one,
    unit_text,
)


def title(view: ReportView) -> str:
    """The title of the page."""
    results = view.results
    if not view.is_usable:
        return "Nothing could be measured"
    models = list(dict.fromkeys(result.label for result in results))
    if len(models) == 1:
        return f"How far {models[0]} looks"
    if steps := steps_of_one(results):
        return f"How far {results[0].model} looks, at {steps} steps of its training"
    return f"How far {len(models)} models look"


def summary(view: ReportView) -> str:
    """The report in plain text, for the page's description."""
    if not view.is_usable:
        return f"{title(view)}: a report of erfscope without a usable result"
    return f"{title(view)}: effective receptive fields measured with erfscope, {' · '.join(view.texts())}"


def extremes(view: ReportView) -> list[Row]:
    """The result with the smallest r50 and that with the largest, one where there is only one."""
    ranked = _ranked(view)
    return list(dict.fromkeys((ranked[0], ranked[-1]))) if ranked else []


def _ranked(view: ReportView) -> list[Row]:
    """Results on the image, or on one inner map where there are no others, by r50."""
    rows = [row for row in view.rows if row.result.ok and "r50" in row.result.measures]
    references = list(dict.fromkeys(row.result.wrt for row in rows))
    reference = IMAGE if IMAGE in references else next(iter(references), "")
    rows = [row for row in rows if row.result.wrt == reference and isinstance(row.result["r50"].value, float)]
    return sorted(rows, key=lambda row: float(row.result["r50"]))


def unranked(view: ReportView) -> Iterator[str]:
    """Reasons why r50 does not rank the results, as half sentences; none where it does.

    These are the cases in which r50 must not be compared: maps that are mostly the unit's own cell, fields that the
    input cuts off, different settings, and differences within their errors.
    """
    rows = _ranked(view)
    own = [row.name for row in rows if _is_above(row.result, "center_share", OWN_CELL, "own_cell_dominated")]
    cut = [row.name for row in rows if _is_above(row.result, "clipped", CUT_OFF, "clipped")]
    unlike = list(dict.fromkeys(text for row in rows for text in differing(rows[0].result, row.result)))
    if own:
        yield f"the unit’s own cell holds over {OWN_CELL:.0%} of {listed_up_to(3, own)} and sets r50"
    if cut:
        yield f"the input cuts off the theoretical receptive field (TRF) of {listed_up_to(3, cut)}"
    if unlike:
        yield f"they differ in {listed_up_to(3, unlike)}"
    if len(rows) > 1 and not (own or cut or unlike):
        least, most = (rows[place].result["r50"] for place in (0, -1))
        noise = 2 * math.hypot(least.se or math.nan, most.se or math.nan)
        if float(most) - float(least) <= noise:
            yield "their difference is within twice its standard error"


def _is_above(result: Result, measure: str, limit: float, code: str) -> bool:
    """Check that a share is above its limit, or that the result has the finding ``code``."""
    share = result.measures.get(measure)
    above = share is not None and isinstance(share.value, float) and share.value > limit
    return above or any(finding.code == code for finding in result.findings)


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


WHAT = (
    "An effective receptive field (ERF) says how strongly each pixel moves one unit of a feature map: the gradient of a"
    " readout of that unit with respect to the input, averaged over images. It is not a quality score: a larger one is"
    " not better, and a smaller one not worse. It shows influence, not what the model looks for, and unlike a class"
    " activation map it belongs to a location, not to a class."
)
SYMBOLS = (
    "p is the map divided by its sum (of absolute values where it is signed), never its logarithm. d is the distance to"
    " the unit's own centre; H and W are the sides of the reference. y_c is channel c of the unit, e_c a random sign,"
    " and g_s the gradient of the readout with respect to channel s of the reference. Sizes are in px of the image, or"
    " in cells of the map that --wrt names."
)
THREE_AXES = (
    f"Where the reference has three axes (a clip, a volume), sizes and shares are {IN_PLANE}: {IN_PLANE_MEANS}."
)
RATIOS = (
    "A percentage beside a size is the size divided by the side of the reference (of_input) or of the whole theoretical"
    " receptive field (TRF; of_trf), the part outside the input included; both sides are printed. The side of H x W"
    " cells is sqrt(H W), and an area is divided by H W. A radius is half a width: a radius of 50 % of the side reaches"
    " from the middle to the borders."
)
ERRORS = (
    f"Errors are {JACKKNIFE}s over at most ten groups of images, or of draws for a single image; fewer than four groups"
    " give no errors. Differences are paired: they are taken over the same images, group by group. The square of an"
    " error is right on average. An error from ten groups is itself uncertain by about a quarter. It is typically too"
    " small where few images dominate a size: by 5 to 20 % for context_r50 and context_r90 of attention from 10 or 20"
    " images."
)
GUIDE = (
    ("to compare models", "--convention jacobian; context_r50 and far_mass, which leave the unit's own cell out"),
    ("to compare with RepLKNet's tables", "--convention replknet; the `published` block of the JSON"),
    ("to compare with OpenERF", "--convention kim; the `published` block of the JSON"),
    ("for Luo's closed forms", "--convention energy; sigma_row and sigma_col"),
    ("for theorems on signed influence", "--convention signed, 16 images or more"),
    ("in continuous integration", "erfscope check, which compares with a stored baseline"),
)
