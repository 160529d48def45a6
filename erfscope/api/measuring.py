"""One model: ``analyze`` and ``sweep``."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Unpack

import torch

from erfscope.analysis import measure
from erfscope.api.opening import Model, are_paths, feed_of, subject_of
from erfscope.conclusion import failed
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.feed import Feed
from erfscope.options import Options, check, settings_of, sizes, words
from erfscope.report import Report
from erfscope.result import Result
from erfscope.serialise import fields, plain
from erfscope.settings import Settings
from erfscope.subject import Subject


def analyze(model: Model, **options: Unpack[Options]) -> Result:
    """Measure how far one unit of a model looks.

    Args:
        model: A spec (see :func:`erfscope.adapters.load`), an adapter, or a live ``nn.Module``, which is handed back unchanged.
        **options: See :class:`erfscope.Options`; each is the command line's option of the same name.

    Returns:
        One result. Its ``status`` is not "ok" where the model ran but gave nothing usable.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer, unit, size or option, or options that ask for several results.
    """
    report = sweep(model, **options)
    if len(report) != 1:
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all")
    return report[0]


@torch.inference_mode(False)
def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``unit``, ``input_size``, ``weights`` and ``convention`` take lists, and
    ``layer="stages"`` means every stage.

    Returns:
        One result per combination, in the order given.
    """
    check(options)
    if not isinstance(model, str) and options.get("weights", "auto") != "auto":
        raise ErfscopeError("weights is for models that erfscope builds; a live module or an adapter has its weights already")
    results: list[Result] = []
    for size, weights in product(sizes(options.get("input_size")), words(options.get("weights", "auto"))):
        subject = subject_of(model, options, size=size, weights=weights)
        feed = feed_of(options, subject.adapter.preprocess)
        for convention, layer in product(words(options.get("convention", "jacobian")), asked_layers(subject, options)):
            results += measured(subject, feed, settings_of(options, convention=convention, layer=layer), options)
    return Report(results=distinct(results), settings=asked_settings(model, options))


def measured(subject: Subject, feed: Feed, settings: Settings, options: Options) -> list[Result]:
    """Results of one layer; a model that runs but fails is a result too."""
    report = options.get("progress")
    progress = None if report is None else (lambda done, total: report(subject.label, done, total))
    chosen = options.get("layer") is None and not subject.adapter.stages
    try:
        results = measure(subject, feed, settings, layer=settings.layer or subject.default_layer, progress=progress)
        return [replace(result, layer_chosen=chosen) for result in results]
    except MeasurementError as error:
        return [failed(subject, settings, feed, error, layer=settings.layer or "")]


def asked_layers(subject: Subject, options: Options) -> list[str]:
    """The layers that the options name, or the default one; '' stands for a default that does not exist, which measuring then reports."""
    asked = words(options.get("layer"))
    if asked == ["stages"]:
        if not subject.adapter.stages:
            raise ErfscopeError(f"{subject.label} declares no stages; `erfscope layers` lists its layers")
        return list(subject.adapter.stages)
    try:
        return [layer or subject.default_layer for layer in asked]
    except MeasurementError:
        return [""]


def distinct(results: list[Result]) -> tuple[Result, ...]:
    """Results whose ids differ, since ids name files."""
    taken: set[str] = set()
    distinct = []
    for result in results:
        names = (result.id, *(f"{result.id}-{number}" for number in range(2, len(results) + 2)))
        # Some file systems do not tell capitals apart.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        distinct.append(result if name == result.id else replace(result, id=name))
    return tuple(distinct)


def asked_settings(model: Any, options: Options) -> dict[str, Any]:
    """What was asked for, as JSON values."""
    kept = {name: value for name, value in options.items() if name not in ("progress", "images")}
    images = options.get("images")
    kept["images"] = images if images is None or are_paths(images) else f"{type(images).__name__}"
    asked = model if isinstance(model, str | list) else getattr(model, "spec", type(model).__name__)
    return {"model": plain(asked), **plain({**fields(settings_of(options, convention="jacobian")), **kept})}
