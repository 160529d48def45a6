"""A stored report measured again, from what it says of itself: ``repeat``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Unpack, cast, get_type_hints

from msgspec import Meta

from erfscope.adapters import split_label
from erfscope.adapters.insertion.insertion import parse as parse_block
from erfscope.api.analysis import sweep
from erfscope.api.comparison import compare
from erfscope.errors import ErfscopeError
from erfscope.measures import MEASURES
from erfscope.measures.values import MeasureValue
from erfscope.options.keywords import ALIASES, Options, rename
from erfscope.options.settings import CALLBACKS, GOING_ON
from erfscope.results.comparability import Use, short, unlike
from erfscope.results.json_values import convert
from erfscope.results.merge import is_shard
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.storage.reports import read

#: How far the sizes of one model and the same images may lie apart on other machines, relative, by dtype.
SAME = {"float32": 2e-3, "float64": 1e-9}
#: The same for fits, which are iterated until they move by less than about the root of the rounding error.
SAME_FIT = 1e-6
#: The same for measures that move in steps, unless the sums are of float64.
SAME_STEPS = 0.02
#: What stands in the settings of a report and is asked for otherwise, or not at all: that code may run is never taken
#: from a report.
_OTHER = ("model", "of", "unsafe_load", *ALIASES, *GOING_ON, *CALLBACKS)
#: What options are in JSON, where their annotations say more or less than that.
_TEXTS = str | Sequence[str]
_AS_JSON: dict[str, Any] = {
    **dict.fromkeys(("images", "insert", "convention", "model"), _TEXTS),
    **dict.fromkeys(("mean", "std"), float | Sequence[float]),
    **dict.fromkeys(("checkpoint", "method", "transform"), str),
    "alpha": float | str | Sequence[float | None],
    "input_size": int | str | Sequence[int | str | Annotated[Sequence[int], Meta(min_length=1)]],
}
#: Beginnings of specs whose models are made by known libraries of what is read. Any other beginning names code.
_READ = ("torchvision", "transformers", "hf-hub", "hf_hub", "local-dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A report that was measured again."""

    report: Report
    #: What is not as it was, in sentences: versions and devices, then what was measured, then the numbers.
    differences: tuple[str, ...]
    #: Whether all numbers are as they were, to 0.2 % in float32, and in float64 to 1e-9, or 1e-6 where they are fits.
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What measuring a report again comes to."""

    before: Report
    #: A spec, or several by label.
    models: str | Mapping[str, str]
    #: Those of the report, and what replaces them.
    options: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Which models will be built, and of which files."""
        specs = [self.models] if isinstance(self.models, str) else list(dict.fromkeys(self.models.values()))
        named = ", ".join(specs[:8]) + (f" and {len(specs) - 8} more" if len(specs) > 8 else "")
        blocks, checkpoint = _listed(self.options.get("insert")), self.options.get("checkpoint")
        return f"builds {named}{''.join(f' + {block}' for block in blocks)}" + (
            f", weights of {checkpoint}" if checkpoint else ""
        )


def repeat(stored: str | Path | Report, *, models: str | Sequence[str] = (), **options: Unpack[Options]) -> Repeated:
    """Measure a stored report again, from its own settings, and say what differs.

    A report is data, often of somebody else's, and runs no code of its own accord: what it names of code has to be
    named here too.

    Args:
        stored: A report, or where it lies.
        models: Specs that the report names and that may be built although they are code: ``module:factory`` or
            ``file.py:factory``.
        **options: Settings to be replaced, e.g. ``device="cuda"``. ``insert`` has to be among them where the report
            inserts a block by ``module:Class``, and ``model_kwargs`` where it passes more than numbers; ``unsafe_load``
            is never the report's.

    Raises:
        ErfscopeError: not a report; one whose settings are damaged, that names code, or that holds only a part of a
            run; or one that does not say how its models or images can be had: live modules, arrays, tensors.
    """
    return measured_again(plan_of(stored, [models] if isinstance(models, str) else models, options))


def plan_of(stored: str | Path | Report, models: Sequence[str], options: Mapping[str, Any]) -> Plan:
    """What :func:`repeat` will do, of which nothing is done yet; arguments and errors are its own."""
    before = stored if isinstance(stored, Report) else read(stored)
    name = "this report" if isinstance(stored, Report) else str(stored)
    _refuse_damaged(before.settings, name)
    _refuse_parts(before, name)
    options = {**options}
    rename(cast("Options", options))
    _refuse_live(before, options)
    asked = before.settings["model"]
    found = asked if isinstance(asked, str) else _hosts(before)
    taken = {
        key: value for key, value in before.settings.items() if key in Options.__annotations__ and key not in _OTHER
    }
    kept = {key: value for key, value in taken.items() if value is not None and key not in options}
    _refuse_code(
        name,
        [found] if isinstance(found, str) else list(found.values()),
        models,
        kept,
        unsafe=bool(options.get("unsafe_load")),
    )
    return Plan(before=before, models=found, options={**kept, **options})


def measured_again(plan: Plan, **calls: Any) -> Repeated:
    """Do what was planned.

    Args:
        plan: See :func:`plan_of`.
        **calls: Options that are called while measuring, such as ``progress``.
    """
    before, options = plan.before, {**plan.options, **calls}
    again = sweep(plan.models, **options) if isinstance(plan.models, str) else compare(plan.models, **options)
    known = {result.id: result for result in before}
    numbers = [text for result in again if result.id in known for text in _numbers(known[result.id], result)]
    missing = [f"{name} is not measured any more" for name in known if name not in {result.id for result in again}]
    protocol = [text for result in again if result.id in known for text in _protocol(known[result.id], result)]
    differences = (*_environment(before.environment, again.environment), *protocol, *missing, *numbers)
    return Repeated(report=again, differences=differences, is_same=not numbers and not missing)


def _hosts(report: Report) -> dict[str, str]:
    """The models of a comparison by label, without the blocks that were inserted into them."""
    hosts = {row.label: row.model for row in report if row.insert is None}
    # Where only models with blocks were measured, their labels are those of their hosts and more.
    return hosts or {row.label.partition(" + ")[0]: row.model for row in report}


# --- what is refused ------------------------------------------------------------------------------


def _refuse_parts(report: Report, name: str) -> None:
    """Refuse a report that a whole run cannot be compared with."""
    if is_shard(report) or report.settings.get("shard"):
        raise ErfscopeError(f"{name} is one shard of a run; put its shards together first, with `erfscope merge`")
    for row in report:
        if row.part is not None and row.part.stopped:
            far = f"stopped after {row.part.seen} of {row.part.wanted} images"
            raise ErfscopeError(f"{row.label} in {name} was {far}; complete it first, by its own command with --resume")


def _refuse_damaged(settings: Mapping[str, Any], name: str) -> None:
    """Refuse settings of types that no report has."""
    hints = {**get_type_hints(Options), **_AS_JSON}
    for key, value in settings.items():
        if key not in hints or value is None or (key, value) == ("insert", []):
            continue
        try:
            convert(value, hints[key], key)
            if value == [] or value in (math.inf, -math.inf):
                raise TypeError("only blocks may be a list of none, and numbers are finite")
        except TypeError as error:
            raise ErfscopeError(
                f"the settings of {name} are damaged: {key} is {short(value)} ({type(value).__name__})"
            ) from error


def _refuse_live(report: Report, options: Mapping[str, Any]) -> None:
    """Refuse what only the program that measured it has, unless it is given now."""
    settings = report.settings
    live = [row.label for row in report if row.weights.source == "given"]
    if live:
        raise ErfscopeError(f"{live[0]} was a live module, which only its own program can measure again")
    if "of" in settings:
        raise ErfscopeError(
            f"this report compares checkpoints; run again `erfscope compare FILES --of {settings['of']}`"
        )
    if not settings.get("model"):
        raise ErfscopeError("this report does not say which model was asked for")
    images = settings.get("images") if options.get("images") is None else None
    if isinstance(images, str) and not Path(images).exists() and not any(mark in images for mark in "*?[/\\."):
        raise ErfscopeError(f"its images were given as {images}, which only its own program has")
    if settings.get("transform") is not None and options.get("transform") is None:
        raise ErfscopeError("its images went through a transform of its own program's; give it from Python, transform=")


def _refuse_code(
    name: str, specs: Sequence[str], named: Sequence[str], settings: Mapping[str, Any], *, unsafe: bool
) -> None:
    """Refuse to run code that a report names and its reader has not.

    Args:
        name: Of the report.
        specs: Models of the report.
        named: Models that the reader names.
        settings: Those of the report that the reader has not replaced.
        unsafe: Whether code in the files of models may run.
    """
    asked, trusted = [split_label(spec)[1] for spec in specs], [split_label(spec)[1] for spec in named]
    for spec in trusted:
        if spec not in asked:
            raise ErfscopeError(
                f"{name} is not of {spec!r} but of {', '.join(asked[:3])}; leave {spec!r} out, or measure it without"
                " --from"
            )
    code = [spec for spec in dict.fromkeys(asked) if _is_code(spec, unsafe)]
    trust = "which may run code; if you trust it, name it as well"
    if unknown := [spec for spec in code if spec not in trusted]:
        fix = shlex.join(["erfscope", "analyze" if len(code) == 1 else "compare", *code, "--from", name])
        raise ErfscopeError(f"{name} builds {unknown[0]!r}, {trust}: {fix}, or models= from Python")
    for block in _listed(settings.get("insert")):
        if ":" in str(parse_block(block).block):
            raise ErfscopeError(f"{name} inserts {block!r}, {trust}: --insert {shlex.quote(block)}")
    for key, value in settings.get("model_kwargs", {}).items():
        if not _is_number(value):
            pair = shlex.quote(f"{key}={value}")
            raise ErfscopeError(f"{name} builds its model with {key} = {short(value)}, {trust}: --model-kwargs {pair}")
    if unsafe and "checkpoint" in settings:
        file = settings["checkpoint"]
        raise ErfscopeError(
            f"{name} reads the checkpoint {file!r}, {trust} beside --unsafe-load: --checkpoint {shlex.quote(file)}"
        )


def _is_code(spec: str, unsafe: bool) -> bool:
    """Whether to build a model is to run code that its spec, without a label, names; or that may be in its files, where
    that may run."""
    scheme, colon, _ = spec.partition(":")
    is_file = Path(spec).suffix.lower() == ".pt2"
    if unsafe:
        return bool(colon) or is_file
    return bool(colon) and scheme.lower() not in _READ and not is_file


def _is_number(value: object) -> bool:
    """Whether it is a number, a truth value or nothing, or a list of such."""
    return all(map(_is_number, value)) if isinstance(value, list) else value is None or isinstance(value, int | float)


def _listed(given: str | Sequence[str] | None) -> list[str]:
    """One text, several or none as a list."""
    return [given] if isinstance(given, str) else list(given or ())


# --- what differs ---------------------------------------------------------------------------------


def _environment(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = dict(now.get("versions", {})), dict(before.get("versions", {}))
    for name in ours:
        if ours[name] != theirs.get(name):
            yield f"{name} {theirs.get(name)} then, {ours[name]} now"
    for name in ("python", "system", "threads"):
        if before.get(name) != now.get(name):
            yield f"{name} {before.get(name)} then, {now.get(name)} now"


def _protocol(before: Result, now: Result) -> Iterator[str]:
    for name, then, today in unlike(Use.RESUME | Use.REPEAT, before, now):
        yield f"{now.id}: {name} {short(then)} then, {short(today)} now"


def _numbers(before: Result, now: Result) -> Iterator[str]:
    """Measures that are not what they were."""
    for name in MEASURES:
        if name in before.measures and name in now.measures and not _alike(name, before[name], now[name], now.dtype):
            yield f"{now.id}: {name} {_text(before[name])} then, {_text(now[name])} now"


def _alike(name: str, before: MeasureValue, now: MeasureValue, dtype: str) -> bool:
    if not isinstance(before.value, int | float) or not isinstance(now.value, int | float):
        return before.value == now.value
    limit = SAME.get(dtype, SAME["float32"])
    if MEASURES[name].is_fit:
        limit = max(limit, SAME_FIT)
    # A share near zero, or an angle of a round map, is compared with what it could be rather than with itself.
    scale = {"share": 0.05, "score": 1.0, "angle": 90.0}.get(before.kind, 0.0)
    if MEASURES[name].has_steps and dtype != "float64":
        limit = max(limit, SAME_STEPS)
    return abs(before.value - now.value) <= limit * max(abs(before.value), abs(now.value), scale)


def _text(measure: MeasureValue) -> str:
    return f"{measure.value:.6g}" if isinstance(measure.value, float) else str(measure.value)
