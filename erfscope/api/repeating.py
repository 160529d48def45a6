"""A stored report measured again, from what it says of itself: ``repeat``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from erfscope.api.comparing import compare
from erfscope.api.measuring import CALLS, sweep
from erfscope.errors import ErfscopeError
from erfscope.measures import MEASURES
from erfscope.measures.values import MeasureValue
from erfscope.options import Options
from erfscope.report import Report, read
from erfscope.result import Result
from erfscope.shards.merging import PROTOCOL, short

#: How far the sizes of one model and the same pictures may lie apart on other machines, relative, by dtype.
SAME = {"float32": 2e-3, "float64": 1e-9}
#: Fits are iterated until they move by less than about the root of the rounding error; steps cannot be compared so finely.
FITTED, STEPS = ("gaussian", "best"), ("coverage", "luo_size", "erf_trf")
#: What stands in the settings of a report and is asked for otherwise, or not at all.
_FOUND: dict[str, Callable[[Result], object]] = {
    "device": lambda r: r.device,
    "status": lambda r: r.status,
    "number of pictures": lambda r: r.input.n_images,
}
_OTHER = ("model", "of", "images", "resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A report that was measured again."""

    report: Report
    #: What is not as it was, in sentences: versions and devices, then what was measured, then the numbers.
    differences: tuple[str, ...]
    #: Whether all numbers are as they were, to 0.2 % in float32 and 1e-9 in float64.
    is_same: bool


def repeat(stored: str | Path | Report, **options: Unpack[Options]) -> Repeated:
    """Measure a stored report again, from its own settings, and say what differs.

    Args:
        stored: A report, or where it lies.
        **options: Settings to be replaced, e.g. ``device="cuda"``.

    Raises:
        ErfscopeError: not a report, or one that does not say how its models or pictures can be had: live modules, arrays, tensors.
    """
    before = stored if isinstance(stored, Report) else read(stored)
    asked = _asked(before)
    models = before.settings.get("model")
    if isinstance(models, str):
        again = sweep(models, **{**asked, **options})
    else:
        again = compare({row.label: row.model for row in before}, **{**asked, **options})
    known = {result.id: result for result in before}
    numbers = [text for result in again if result.id in known for text in _numbers(known[result.id], result)]
    missing = [f"{name} is not measured any more" for name in known if name not in {result.id for result in again}]
    protocol = [text for result in again if result.id in known for text in _protocol(known[result.id], result)]
    said = (*_environment(before.environment, again.environment), *protocol, *missing, *numbers)
    return Repeated(report=again, differences=said, is_same=not numbers and not missing)


def _asked(report: Report) -> dict[str, Any]:
    """The options that a report was measured with."""
    settings = report.settings
    live = [row.label for row in report if row.weights.source == "given"]
    if live:
        raise ErfscopeError(f"{live[0]} was a live module, which only its own program can measure again")
    if "of" in settings:
        raise ErfscopeError(f"this report compares checkpoints; run again `erfscope compare FILES --of {settings['of']}`")
    if not settings.get("model"):
        raise ErfscopeError("this report does not say which model was asked for")
    images = settings.get("images")
    if isinstance(images, str) and not Path(images).exists() and not any(mark in images for mark in "*?[/\\."):
        raise ErfscopeError(f"its pictures were given as {images}, which only its own program has")
    known = {name: value for name, value in settings.items() if name in Options.__annotations__ and name not in (*_OTHER, *CALLS)}
    return {name: value for name, value in {**known, "images": images}.items() if value is not None}


def _environment(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = dict(now.get("versions", {})), dict(before.get("versions", {}))
    for name in ours:
        if ours[name] != theirs.get(name):
            yield f"{name} {theirs.get(name)} then, {ours[name]} now"
    for name in ("python", "system", "threads"):
        if before.get(name) != now.get(name):
            yield f"{name} {before.get(name)} then, {now.get(name)} now"


def _protocol(before: Result, now: Result) -> Iterator[str]:
    for words, value in {**PROTOCOL, **_FOUND}.items():
        if value(before) != value(now):
            yield f"{now.id}: {words} {short(value(before))} then, {short(value(now))} now"


def _numbers(before: Result, now: Result) -> Iterator[str]:
    """Measures that are not what they were."""
    for name in MEASURES:
        if name in before.measures and name in now.measures and not _alike(name, before[name], now[name], now.dtype):
            yield f"{now.id}: {name} {_text(before[name])} then, {_text(now[name])} now"


def _alike(name: str, before: MeasureValue, now: MeasureValue, dtype: str) -> bool:
    if not isinstance(before.value, int | float) or not isinstance(now.value, int | float):
        return before.value == now.value
    limit = SAME.get(dtype, SAME["float32"])
    if name.startswith(FITTED):
        limit = max(limit, 1e-6)
    # A share near zero, or an angle of a round map, is compared with what it could be rather than with itself.
    scale = {"share": 0.05, "score": 1.0, "angle": 90.0}.get(before.kind, 0.0)
    if name in STEPS and dtype != "float64":
        limit = max(limit, 0.02)
    return abs(before.value - now.value) <= limit * max(abs(before.value), abs(now.value), scale)


def _text(measure: MeasureValue) -> str:
    return f"{measure.value:.6g}" if isinstance(measure.value, float) else str(measure.value)
