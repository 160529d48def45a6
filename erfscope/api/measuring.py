"""One model: ``analyze`` and ``sweep``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, product
from typing import Any, Unpack

import torch

from erfscope.adapter import IMAGE
from erfscope.analysis import measure
from erfscope.api.inserting import in_host, wishes, with_blocks
from erfscope.api.opening import Model, are_paths, feed_of, live, subject_of
from erfscope.conclusion import failed
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.failures import ModelExitError, contained
from erfscope.feed import Feed
from erfscope.findings import of_choice
from erfscope.lending import lent
from erfscope.options import Options, check, settings_of, sizes, words
from erfscope.process_state import keeps_process
from erfscope.ranks import GONE, RankGone, current
from erfscope.report import Report, read
from erfscope.result import Result
from erfscope.resuming import failed_before, is_worth_another_try, refuse_others
from erfscope.serialise import fields, plain
from erfscope.settings import Settings
from erfscope.shards.merging import short
from erfscope.subject import Subject

#: Settings that change nothing about what is measured, so that a run may go on with others.
FREE = ("model", "batch_size", "workers", "device", "cone", "verify_cone")

#: Options that are called while measuring, and are no settings.
CALLS = ("progress", "stop", "tell")
#: Options of how a run goes on, which are no settings either.
GOING_ON = ("resume", "retry_failed")


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
    with lent(*live(model)):
        report = _sweep(model, options, with_host=False)
    if len(report) != 1:
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all")
    return report[0]


def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``wrt``, ``unit``, ``input_size``, ``weights``, ``convention`` and
    ``alpha`` take lists, and ``layer="stages"`` means every stage.

    Returns:
        One result per combination, in the order given. Before those of a model with inserted blocks comes that of the model without them.
    """
    with lent(*live(model)):
        return _sweep(model, options, with_host=True)


@keeps_process
@torch.inference_mode(False)
def _sweep(model: Model, options: Options, *, with_host: bool) -> Report:
    check(options)
    options = with_earlier(options)
    if not isinstance(model, str) and options.get("weights", "auto") != "auto":
        raise ErfscopeError("weights is for models that erfscope builds; a live module or an adapter has its weights already")
    results: list[Result] = []
    for size, weights in product(sizes(options.get("input_size")), words(options.get("weights", "auto"))):
        subject = subject_of(model, options, size=size, weights=weights)
        if options.get("resume") is not None:
            refuse_others(options["resume"].results, [subject.label])
        feed = feed_of(options, subject.adapter.preprocess)
        variants = with_blocks(subject, options)
        for settings in _combinations(subject, options):
            results += side_by_side(subject, variants, feed, settings, options, with_host=with_host)
    return Report(results=distinct(results), settings=asked_settings(model, options))


def _combinations(subject: Subject, options: Options) -> Iterator[Settings]:
    conventions, references = words(options.get("convention", "jacobian")), words(options.get("wrt", IMAGE))
    for convention, layer, wrt in product(conventions, asked_layers(subject, options), references):
        yield settings_of(options, convention=convention, layer=layer, wrt=wrt)


def side_by_side(
    subject: Subject, variants: Sequence[Subject], feed: Feed, settings: Settings, options: Options, *, with_host: bool = True
) -> list[Result]:
    """Results of one layer of a model, and of its variants with inserted blocks beside it.

    The host is left out where the layer or the reference is a part of a block, and so are its results where only the variants are wanted.
    """
    if not variants:
        return measured(subject, feed, settings, options)
    wrt = in_host(subject, variants, settings.layer or "", settings.wrt)
    hosts = [] if wrt is None or not with_host else _costed(subject, measured(subject, feed, replace(settings, wrt=wrt), options))
    found = list(hosts)
    for variant in variants:
        rows = _costed(variant, measured(variant, feed, settings, options))
        found += [replace(row, host=host.id) for row, host in zip(rows, hosts, strict=True)] if len(rows) == len(hosts) else rows
    return found


def _costed(subject: Subject, rows: Sequence[Result]) -> list[Result]:
    return [replace(row, cost=subject.cost) for row in rows]


def measured(subject: Subject, feed: Feed, settings: Settings, options: Options) -> list[Result]:
    """Results of one layer; a model that runs but fails is a result too. None where the run was stopped before that."""
    stop, team = options.get("stop"), current()
    if team.size > 1:
        gone = partial(failed, subject, settings, feed, RankGone(GONE), layer=settings.layer or "")
        team.obituary = lambda: Report(results=(gone(),), settings=asked_settings(subject.adapter.spec, options))
    # Ranks hear of a signal at different times.
    if stop is not None and any(team.agree(stop)):
        return []
    report = options.get("progress")
    progress = None if report is None else (lambda done, total: report(subject.label, done, total))
    chosen = options.get("layer") is None and not subject.adapter.stages
    retry = bool(options.get("retry_failed"))
    before = options["resume"].results if options.get("resume") is not None else ()
    wanted = failed(subject, settings, feed, MeasurementError("not measured"), layer=settings.layer or "")
    if (known := failed_before(wanted, before, retry_failed=retry)) is not None:
        return [known]
    try:
        with contained():
            results = measure(
                subject,
                feed,
                settings,
                layer=settings.layer or subject.default_layer,
                progress=progress,
                stop=stop,
                tell=options.get("tell"),
                earlier=[row for row in before if not is_worth_another_try(row, retry_failed=retry)],
            )
            said = tuple(of_choice(subject.recording, subject.default_layer)) if chosen and results else ()
        return [replace(result, layer_chosen=chosen, warnings=(*result.warnings, *said)) for result in results]
    except RankGone:
        raise
    except ModelExitError as error:
        # Outside its forward pass, as in a hook of the backward pass.
        failure = MeasurementError(f"{subject.label} ended while it was measured: {error}")
        return [failed(subject, settings, feed, failure, layer=settings.layer or "")]
    except MeasurementError as error:
        return [failed(subject, settings, feed, error, layer=settings.layer or "")]


def with_earlier(options: Options) -> Options:
    """The options, with what was measured before read, and seen to have been asked for with the same words.

    Raises:
        ErfscopeError: no such report, or one of other settings.
    """
    resume = options.get("resume")
    if resume is None:
        return options
    report = resume if isinstance(resume, Report) else read(resume)
    asked = asked_settings("", options)
    unlike = [name for name in asked if name not in FREE and name in report.settings and report.settings[name] != asked[name]]
    if unlike:
        values = [f"{name} ({short(report.settings[name])} then, {short(asked[name])} now)" for name in unlike[:3]]
        text = f"what was measured before was asked for with other settings: {', '.join(values)}"
        raise ErfscopeError(f"{text}; ask as before, or measure anew into another folder")
    return {**options, "resume": report}


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
    #: Of the results that were called so, the last one's name now: a host comes right before its variants.
    now: dict[str, str] = {}
    for result in results:
        names = chain([result.id], (f"{result.id}-{number}" for number in count(2)))
        # Some file systems do not tell capitals apart.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        now[result.id] = name
        distinct.append(replace(result, id=name, host=now.get(result.host or "", result.host)))
    return tuple(distinct)


def asked_settings(model: Any, options: Options) -> dict[str, Any]:
    """What was asked for, as JSON values."""
    kept = {name: value for name, value in options.items() if name not in (*CALLS, *GOING_ON, "images")}
    if options.get("insert"):
        kept["insert"] = [wish.text for wish in wishes(options["insert"])]
    images = options.get("images")
    kept["images"] = images if images is None or are_paths(images) else f"{type(images).__name__}"
    asked = model if isinstance(model, str | list) else getattr(model, "spec", type(model).__name__)
    return {"model": plain(asked), **plain({**fields(settings_of(options, convention="jacobian")), **kept})}
