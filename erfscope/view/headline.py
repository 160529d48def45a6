"""The head of a page: its title, the smallest and the largest ERF, and whether these two can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator

from erfscope.geometry.names import IMAGE
from erfscope.results.comparability import differing
from erfscope.results.findings import CUT_OFF, OWN_CELL
from erfscope.results.result import Result
from erfscope.view.report_view import ReportView, Row
from erfscope.view.words import listed_up_to, steps_of_one


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
