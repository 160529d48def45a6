"""Many models, each measured in a process of its own: ``compare_isolated``."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from erfscope.adapters.sources.catalogue import declared_size
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.core.answer import comparability
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.core.request.option import Running
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Options, lists_options
from erfscope.core.run.comparison import compared
from erfscope.core.run.engine.measure import has_lost_arrays, refuse_others
from erfscope.core.run.engine.outcome import not_measured
from erfscope.core.run.entries import named_models, refuse_per_model
from erfscope.core.run.executor import report_of, store_measured_rows, with_earlier
from erfscope.core.run.models import check_images, load_model
from erfscope.core.run.opening import COMMON_SIZE, common_size
from erfscope.core.run.parallel import current
from erfscope.core.run.processes import Limits, Outcome, run_alone
from erfscope.core.run.rows import Row, by_setting, rows
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.input_size import is_size

#: The options of a setting.
SEVERAL = ("input_size", "weights", "convention", "wrt")
#: The condition of a result by the option that asks for it.
_FOUND = {condition.option: condition.of for condition in comparability.CONDITIONS if condition.option}


@lists_options
def compare_isolated(
    models: Sequence[str],
    *,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    **options: Unpack[Options],
) -> Report:
    """Compare models that may crash, hang or take all memory: each is measured in a process of its own.

    A script that calls it does so under ``if __name__ == "__main__":``, since its processes import the script.

    Args:
        models: Specs, ``LABEL=SPEC``, or patterns of timm's names.
        time_limit: Seconds for each model under each setting. One that needs longer is a row with that reason.
        memory_limit: Bytes for each process.
        **options: As for :func:`erfscope.compare`. With ``resume`` finished models are not measured again.

    Returns:
        One result per setting and model, in the order given.

    Raises:
        ErfscopeError: as for :func:`erfscope.compare`; a model is no spec, or an option cannot be pickled.
        MeasurementError: only some of the models could have their pretrained weights.
    """
    entries, named = named_models(models, options)
    request = Request.parse(named, of_each=True)
    if current().size > 1:
        raise ErfscopeError("models in processes of their own are not shared by ranks; start erfscope without torchrun")
    entries = [(label, _spec(model)) for label, model in entries]
    refuse_per_model(request, len(entries), None)
    given = _given(request)
    request = with_earlier(request)
    earlier = request.resume or ()
    refuse_others(earlier, [label for label, _ in entries])
    check_images(request)
    limits, stop = Limits(seconds=time_limit, bytes=memory_limit), request.stop
    # The imports of the server must not count as a model's seconds.
    run_alone(id, 0, limits=Limits())
    if request.sizes == (None,):
        size = _common_size([spec for _, spec in entries], given, limits, stop)
        request = replace(request, sizes=(size,))
    asked = [*by_setting(rows(dict(entries), request, by_reference=True))]
    settings = [_setting(same[0]) for same in asked]
    known = {label: _split_by_setting([row for row in earlier if row.label == label], settings) for label, _ in entries}
    results: list[Result] = []
    for number, same in enumerate(asked):
        group: list[Result] = []
        for place, row in enumerate(same):
            request.progress("models", number * len(same) + place, len(asked) * len(same))
            before = known[row.label][number]
            if _is_finished(before, request):
                group += before
            elif not stop():
                own: Any = {**given, **dict(zip(SEVERAL, _setting(row), strict=True))}
                own["resume"] = Report(results=tuple(before))
                outcome = run_alone(measure_alone, row.label, row.model, entries[0][1], own, limits=limits, stop=stop)
                measured = _results(row, outcome, own, stopped=stop())
                if request.keep_in is not None:
                    store_measured_rows(measured, request.keep_in, request)
                group += measured
        comparability.refuse_mixed_weights([(each.label, each.weights) for each in group if each.ok], same[0].weights)
        results += _comparable(group)
    return report_of(comparability.with_versions(results), request, model=[label for label, _ in entries])


def _setting(row: Row) -> tuple[Any, ...]:
    return row.size, row.weights, row.convention, row.references[0]


def _spec(model: object) -> str:
    if isinstance(model, Report):
        raise ErfscopeError(
            "stored results are compared without --isolate; name models only, and compare the folder with them"
            " afterwards"
        )
    if not isinstance(model, str):
        raise ErfscopeError(
            f"a model in a process of its own is named by a spec, not {type(model).__name__}; compare it without"
            " --isolate"
        )
    return model


def _given(request: Request) -> dict[str, Any]:
    """The options of every process.

    Raises:
        ErfscopeError: one of them cannot be handed to a process.
    """
    given = {name: value for name, value in request.given.items() if name not in Running.__annotations__}
    for name, value in given.items():
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            text = f"{name} cannot be handed to a process of its own ({error}); compare without --isolate"
            raise ErfscopeError(text) from error
    return given


def _common_size(
    specs: Sequence[str], given: Mapping[str, Any], limits: Limits, stop: Callable[[], bool]
) -> tuple[int, ...]:
    """The common size of models. One that timm does not know by name is built in a process of its own; one that fails
    there reports the reason when it is measured."""
    found: set[tuple[int, ...]] = set()
    for spec in dict.fromkeys(specs):
        size = None if given.get("model_kwargs") else declared_size(spec)
        if size is None and not stop():
            size = run_alone(own_size, spec, given, limits=limits, stop=stop).value
        found |= set() if size is None else {size}
    return common_size(found)


def own_size(spec: str, options: Options) -> tuple[int, ...]:
    """The input size that a model has of itself, in the process that was made for it."""
    return load_model(spec, Request.parse(options, of_each=True), size=None, weights=NO_NUMBERS).adapter.preprocess.size


def measure_alone(label: str, spec: str, pixels_of: str, options: Options) -> tuple[Result, ...]:
    """Measure one model under one setting, in the process that was made for it."""
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    request = Request.parse({**options, "stop": lambda: bool(asked_to_stop)}, of_each=True)
    size, pixels = request.sizes[0], {}
    if request.images is not None and spec != pixels_of:
        pixels[size] = load_model(pixels_of, request, size=size, weights=NO_NUMBERS).adapter.preprocess
    return compared([(label, spec)], request, pixels=pixels).results


def _results(asked: Row, outcome: Outcome, options: Options, *, stopped: bool) -> list[Result]:
    """The results of a process, or a row with the reason why there are none; no row if it was asked to stop."""
    if outcome.error is None:
        return [*outcome.value]
    if stopped:
        return []
    request = Request.parse(options, of_each=True)
    size = request.sizes[0] or COMMON_SIZE
    row = not_measured(asked.label, asked.model, request.settings, error=outcome.error)
    return [replace(row, input=replace(row.input, size=size * 2 if len(size) == 1 else size))]


def _is_finished(rows: Sequence[Result], request: Request) -> bool:
    """Whether a model need not be measured again under a setting; of several layers or inserted blocks its process
    decides."""
    if not rows or "layer" in request.several() or request.insert or request.settings.trust:
        return False
    return not any(row.part or has_lost_arrays(row) or row.status == "error" for row in rows)


def _split_by_setting(rows: Sequence[Result], settings: Sequence[tuple[Any, ...]]) -> list[list[Result]]:
    """Rows of one model by the setting that each was measured under: their order is that of the settings."""
    found: list[list[Result]] = [[] for _ in settings]
    at = 0
    for row in rows:
        at = next((n for n in range(at, len(settings)) if _fits(row, settings[n], settings)), at)
        found[at].append(row)
    return found


def _fits(row: Result, setting: tuple[Any, ...], settings: Sequence[tuple[Any, ...]]) -> bool:
    """Whether a row may be of a setting.

    Values that no setting asks for fit all of them: weights that fell back, and a host without the block that is the
    reference, have other names."""
    for name, value, values in zip(SEVERAL, setting, zip(*settings, strict=True), strict=True):
        found = _FOUND[name](row)
        if isinstance(value, tuple) and isinstance(found, tuple):
            if not is_size(value, found):
                return False
        elif value is not None and found in values and found != value:
            return False
    return True


def _comparable(rows: Sequence[Result]) -> list[Result]:
    """Rows of one setting; those whose input differs from that of the first one become errors."""
    usable = [row for row in rows if row.ok and not comparability.is_stopped(row)]
    found = []
    for row in rows:
        first = next((each for each in usable if each.wrt == row.wrt), None) or next(iter(usable), row)
        unlike = comparability.differing(first, row) if any(row is each for each in usable) else []
        if unlike:
            text = f"cannot be compared with {first.label}: they differ in {', '.join(unlike[:3])}"
            row = replace(row, status="error", error=f"{text}; analyze it alone")
        found.append(row)
    return found
