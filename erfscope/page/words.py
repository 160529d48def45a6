"""What a page says in words: its title, its answer, and what invalidates its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from erfscope.geometry.box import size_text
from erfscope.geometry.names import IMAGE
from erfscope.page.numbers import Reading, reading_at
from erfscope.results.comparability import differing
from erfscope.results.findings import CUT_OFF, OWN_CELL
from erfscope.results.pairing import swept
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.tables.columns import convention_text, images_text, index_text, lengths_text, steps_of_one, weights_text
from erfscope.tables.conditions import identity_words, option_words, unit_text

ARCHITECTURE = "this describes the architecture only, not a trained model."


def title(report: Report) -> str:
    """What the page is about."""
    if not any(result.ok for result in report):
        return "Nothing could be measured"
    models = list(dict.fromkeys(result.label for result in report))
    if len(models) == 1:
        return f"How far {models[0]} looks"
    if steps := steps_of_one(report.results):
        return f"How far {report[0].model} looks, at {steps} steps of its training"
    return f"How far {len(models)} models look"


def reasons(report: Report) -> list[tuple[str, str]]:
    """Why nothing could be measured: (label, reason) of every result, where none can be used."""
    if any(result.ok for result in report):
        return []
    return [(label, result.error or result.status) for label, result in zip(labels(report), report, strict=True)]


def labels(report: Report) -> list[str]:
    """What each result is called: its label, with what tells it from others of that label in a sweep."""
    names, varied = [result.label for result in report], swept(report.results)
    return [
        name if names.count(name) == 1 else ", ".join([name, *_telling(report[i], varied)])
        for i, name in enumerate(names)
    ]


def _telling(result: Result, varied: Sequence[str]) -> Iterator[str]:
    """A result's values of the settings that vary."""
    words = {
        "weights": "weights as provided" if weights_text(result) == "given" else f"{weights_text(result)} weights",
        "input": size_text(result.input.size),
        "reference": f"wrt {result.wrt}",
        "layer": result.layer,
        "unit": f"unit {index_text(result)}",
        "convention": result.convention,
    }
    return (words[name] for name in varied)


def shared(report: Report) -> list[str]:
    """The conditions that all results share."""
    texts = [
        [f"{weights_text(r)} weights" for r in report],
        [f"input {size_text(r.input.size)}" for r in report],
        [
            f"layer {r.layer}" if r.wrt == IMAGE else f"layer {r.layer} with respect to {r.wrt}"
            for r in report
            if r.layer
        ],
        [unit_text(r) for r in report if r.unit is not None],
        [convention_text(r) for r in report],
        [] if all(r.method == "gradient" for r in report) else [r.method for r in report],
        [", ".join(words) for r in report if (words := option_words(r).values())],
        [images_text(r) for r in report],
        [f"seed {r.seed}" for r in report],
    ]
    return [column[0] for column in texts if len(column) == len(report) and len(set(column)) == 1]


def identity(result: Result) -> list[str]:
    """What was measured, in a few words each."""
    added = (
        []
        if result.insert is None
        else [f"with {result.insert}" + ("" if result.alpha is None else f", alpha {result.alpha:g}")]
    )
    return [*identity_words(result, gap=", "), *added]


def warnings_first(report: Report) -> list[str]:
    """What invalidates numbers, and of which results."""
    found: dict[str, list[str]] = {}
    usable = [result for result in report if result.map is not None or result.measures]
    for result in usable:
        weights = result.weights
        if weights.fallback:
            found.setdefault(f"Random weights, {weights.reason}: {ARCHITECTURE}", []).append(result.label)
        elif weights.source in ("random", "random-raw"):
            found.setdefault(f"Random weights, as asked for: {ARCHITECTURE}", []).append(result.label)
    return [text if len(names) == len(usable) else _of_whom(text, names) for text, names in found.items()]


def _of_whom(text: str, names: Sequence[str]) -> str:
    models = list(dict.fromkeys(names))
    return f"{', '.join(models[:6])}{' and others' if len(models) > 6 else ''}: {text}"


def extremes(document: Mapping[str, Any], report: Report) -> list[tuple[str, Reading, str]]:
    """The result with the smallest r50 and that with the largest, one where there is only one: (label, r50, its unit).

    Of results on the image, or on one inner map where there are no others.
    """
    sizes = _radii(report)
    if not sizes:
        return []
    names, entries = labels(report), [(value, i) for i, value in sizes.items()]
    picked = dict.fromkeys((min(entries)[1], max(entries)[1]))
    return [(names[i], reading_at(document, "results", i, "measures", "r50"), lengths_text(report[i])) for i in picked]


def _radii(report: Report) -> dict[int, float]:
    """r50 of every result on one reference, by position."""
    usable = {i: r for i, r in enumerate(report) if r.ok and "r50" in r.measures}
    references = dict.fromkeys(r.wrt for r in usable.values())
    reference = "image" if "image" in references else next(iter(references), "")
    sizes = {i: r.measures["r50"].value for i, r in usable.items() if r.wrt == reference}
    return {i: value for i, value in sizes.items() if isinstance(value, float)}


def unranked(report: Report) -> list[str]:
    """Why the largest r50 is not the widest ERF nor the smallest the most concentrated, as half sentences; nothing
    where they are.

    These are the uses that r50 is said to be not for: maps that are mostly the unit's own cell, fields that the input
        cuts off; and what
    no size is compared across: other settings, and differences within their errors.
    """
    shown, names, sizes = report.results, labels(report), _radii(report)
    own = [names[i] for i in sizes if _is_above(shown[i], "center_share", OWN_CELL, "own_cell_dominated")]
    cut = [names[i] for i in sizes if _is_above(shown[i], "clipped", CUT_OFF, "clipped")]
    unlike = dict.fromkeys(text for i in sizes for text in differing(shown[next(iter(sizes))], shown[i]))
    found = []
    if own:
        found.append(f"the unit’s own cell holds over {OWN_CELL:.0%} of {_some(own)} and sets r50")
    if cut:
        found.append(f"the input cuts off the theoretical receptive field (TRF) of {_some(cut)}")
    if unlike:
        found.append(f"they differ in {_some(list(unlike))}")
    if not found and len(sizes) > 1:
        least, most = (shown[pick(sizes, key=lambda i: sizes[i])].measures["r50"] for pick in (min, max))
        if (
            least.se is not None
            and most.se is not None
            and float(most) - float(least) <= 2 * math.hypot(least.se, most.se)
        ):
            found.append("their difference is within twice its standard error")
    return found


def _is_above(result: Result, measure: str, limit: float, code: str) -> bool:
    """Whether a share is above its limit; where it was not measured, whether that was found."""
    share = result.measures.get(measure)
    above = share is not None and isinstance(share.value, float) and share.value > limit
    return above or any(finding.code == code for finding in result.warnings)


def _some(names: Sequence[str]) -> str:
    """Up to three names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def summary(report: Report) -> str:
    """The report in plain text, for the page's description."""
    if not any(result.ok for result in report):
        return f"{title(report)}: a report of erfscope without a usable result"
    return f"{title(report)}: effective receptive fields measured with erfscope, {' · '.join(shared(report))}"
