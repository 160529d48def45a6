"""One model: ``analyze`` and ``sweep``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Unpack

import torch

from erfscope.api.blocks import host_reference, parse_blocks, with_blocks
from erfscope.api.models import Model, are_paths, feed_of, live, load_model, refuse_weights
from erfscope.api.result_halo import with_halos
from erfscope.engine.measure import measure, refuse_others
from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import failed
from erfscope.engine.plan import Hooks
from erfscope.errors import ErfscopeError, ErfWarning, MeasurementError
from erfscope.geometry.input_size import is_auto
from erfscope.model_errors import ModelExitError, contain_exits
from erfscope.options.keywords import Options, check, settings_of, values_of, words
from erfscope.options.option import Running
from erfscope.options.settings import FREE, Settings
from erfscope.parallel import RankGone, current
from erfscope.restore import restored
from erfscope.results.auto_input_size import Growth
from erfscope.results.comparability import short
from erfscope.results.findings import of_choice
from erfscope.results.json_values import fields, plain
from erfscope.results.report import Report, unique_ids
from erfscope.results.result import Result
from erfscope.stimuli.feed import Feed
from erfscope.storage.files import begin_rows, store_rows
from erfscope.storage.reports import read_begun


def analyze(model: Model, **options: Unpack[Options]) -> Result:
    """Measure how far one unit of a model looks.

    Args:
        model: A spec (see :func:`erfscope.adapters.load`), an adapter, or a live ``nn.Module``, handed back as found;
            docs/contract.md says what is asked of it.
        **options: See :class:`erfscope.Options`; each is the command line's option of the same name.

    Returns:
        One result. Its ``status`` is not "ok" where the model ran but gave nothing usable.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer, unit, size or option, or options that ask for
            several results.
    """
    report = _sweep(model, options, with_host=False)
    # Of several sizes that were tried the last one counts.
    wanted = (
        [row for row in report if row.input.size == report[-1].input.size]
        if is_auto(options.get("input_size"))
        else report
    )
    if len(wanted) != 1:
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all")
    return wanted[0]


def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``wrt``, ``unit``, ``input_size``, ``weights``,
    ``convention`` and ``alpha`` take lists, and ``layer="stages"`` means every stage. ``input_size="auto"`` means the
    model's own size and its doubles, until less than a tenth of the ERF lies outside of the size before;
    :func:`analyze` gives the result of the last one.

    Returns:
        One result per combination, in the order given. Before those of a model with inserted blocks comes that of the
        model without them.
    """
    return _sweep(model, options, with_host=True)


def _sweep(model: Model, options: Options, *, with_host: bool) -> Report:
    with restored(*live(model)), torch.inference_mode(False):
        _check(options)
        options = with_earlier(options)
        refuse_weights(model, options)
        growth = Growth() if is_auto(options.get("input_size")) else None
        results: list[Result] = []
        for size in values_of(options, "input_size") if growth is None else growth.sizes():
            with contextlib.nullcontext(results) if growth is None else growth.measuring() as rows:
                for weights in values_of(options, "weights"):
                    loaded = load_model(model, options, size=size, weights=weights)
                    if options.get("resume") is not None:
                        refuse_others(options["resume"].results, [loaded.label])
                    feed = feed_of(options, loaded.adapter.preprocess)
                    variants = with_blocks(loaded, options)
                    for settings in _combinations(loaded, options):
                        rows += measure_with_host(loaded, variants, feed, settings, options, with_host=with_host)
        results = with_halos(results if growth is None else growth.results(), model, options)
        return Report(results=unique_ids(results), settings=asked_settings(model, options))


def _check(options: Options) -> None:
    """Refuse what needs no model to be refused."""
    if not is_auto(options.get("input_size")):
        return check(options)
    if options.get("shard") is not None:
        raise ErfscopeError(
            "shards have to be of one input size, and input size auto finds its own for each; give a size"
        )
    if isinstance(options.get("images"), torch.Tensor):
        raise ErfscopeError(
            "a ready tensor is used as it is, and input size auto makes others; give images, or leave the size out"
        )
    return check({**options, "input_size": None})


def _combinations(loaded: LoadedModel, options: Options) -> Iterator[Settings]:
    conventions, references = values_of(options, "convention"), values_of(options, "wrt")
    for convention, layer, wrt in product(conventions, asked_layers(loaded, options), references):
        yield settings_of(options, convention=convention, layer=layer, wrt=wrt)


def measure_with_host(
    loaded: LoadedModel,
    variants: Sequence[LoadedModel],
    feed: Feed,
    settings: Settings,
    options: Options,
    *,
    with_host: bool = True,
) -> list[Result]:
    """Measure one layer of a model, and of its variants with inserted blocks beside it.

    Args:
        loaded: The model.
        variants: The same with blocks, one for each alpha.
        feed: The images.
        settings: What is measured.
        options: The callbacks, and the earlier results.
        with_host: Whether the model's own rows are wanted where there are variants.

    Returns:
        The model's rows, left out where the layer or the reference is a part of a block, and those of the variants; a
        model that runs but fails is a row too. None where the run was stopped before that.
    """
    rows: list[Result] = []
    hosts: list[Result] = []
    for model, own in _models(loaded, variants, settings, with_host=with_host):
        finished: list[Result] = []
        if not _is_stopped(options):
            earlier, is_new = _resumed(options), True
            with _failing_as_a_row(model, feed, own, finished):
                layer = own.layer or model.default_layer
                finished += measure(model, feed, own, layer=layer, hooks=_hooks(model, options), earlier=earlier)
                is_new = not any(row is before for row in finished for before in earlier)
                finished[:] = _with_choice(model, options, finished)
            if is_new:
                keep(finished, options)
        if variants:
            finished = [replace(row, cost=model.cost) for row in finished]
            if model is loaded:
                hosts = finished
            elif len(finished) == len(hosts):
                finished = [replace(row, host=host.id) for row, host in zip(finished, hosts, strict=True)]
        rows += finished
    return rows


def _models(
    loaded: LoadedModel, variants: Sequence[LoadedModel], settings: Settings, *, with_host: bool
) -> Iterator[tuple[LoadedModel, Settings]]:
    """The models to measure, with their reference: the model itself, if it has the layer and the reference, then its
    variants."""
    wrt = host_reference(loaded, variants, settings.layer or "", settings.wrt) if variants else settings.wrt
    if not variants or (with_host and wrt is not None):
        yield loaded, replace(settings, wrt=wrt or settings.wrt)
    for variant in variants:
        yield variant, settings


def _is_stopped(options: Options) -> bool:
    """Whether the run is to stop, on any rank: a signal reaches the ranks at different times."""
    stop = options.get("stop")
    return stop is not None and any(current().all_gather(stop))


def _hooks(model: LoadedModel, options: Options) -> Hooks:
    """The callbacks among the options, for one model."""
    progress = options.get("progress")
    called: dict[str, Any] = {name: options[name] for name in ("stop", "tell") if options.get(name) is not None}
    if progress is not None:
        called["progress"] = lambda done, total: progress(model.label, done, total)
    return Hooks(**called)


def _resumed(options: Options) -> list[Result]:
    """The earlier results that a run continues: what failed is measured again."""
    before = options["resume"].results if options.get("resume") is not None else ()
    return [row for row in before if row.status != "error"]


def keep(rows: Sequence[Result], options: Options) -> None:
    """Store rows that have just been measured in the folder that the options name; warn where they cannot be stored,
    such as on a full disk."""
    folder = options.get("keep_in")
    if rows and folder is not None:
        report = Report(results=unique_ids([*rows]), settings=asked_settings(rows[0].label, options))
        try:
            store_rows(Path(folder), report, earlier=options.get("resume"))
        except ErfscopeError as error:
            warnings.warn(str(error), ErfWarning, stacklevel=2)


@contextlib.contextmanager
def _failing_as_a_row(model: LoadedModel, feed: Feed, settings: Settings, rows: list[Result]) -> Iterator[None]:
    """A model that runs but fails inside leaves one row that says so."""
    try:
        with contain_exits():
            yield
    except RankGone:
        raise
    except ModelExitError as error:
        # Outside its forward pass, as in a hook of the backward pass.
        failure = MeasurementError(f"ended while it was measured: {error}")
        rows[:] = [failed(model, settings, feed, failure, layer=settings.layer or "")]
    except MeasurementError as error:
        rows[:] = [failed(model, settings, feed, error, layer=settings.layer or "")]


def _with_choice(model: LoadedModel, options: Options, rows: Sequence[Result]) -> list[Result]:
    """The rows with the findings on the layer, if erfscope chose it."""
    chosen = options.get("layer") is None and not model.adapter.stages
    findings = tuple(of_choice(model.recording, model.default_layer)) if chosen and rows else ()
    return [
        replace(row, layer_chosen=chosen, findings=(*row.findings, *(f for f in findings if f not in row.findings)))
        for row in rows
    ]


def with_earlier(options: Options) -> Options:
    """The options with the earlier report read, which must have the same settings; without one the folder of rows is
    emptied.

    Raises:
        ErfscopeError: no such report, or one of other settings.
    """
    resume, folder = options.get("resume"), options.get("keep_in")
    if resume is None:
        if folder is not None:
            begin_rows(Path(folder))
        return options
    report = resume if isinstance(resume, Report) else read_begun(resume)
    asked = asked_settings("", options)
    unlike = [
        name
        for name in asked
        if name not in ("model", *FREE) and name in report.settings and report.settings[name] != asked[name]
    ]
    if unlike:
        values = [f"{name} ({short(report.settings[name])} then, {short(asked[name])} now)" for name in unlike[:3]]
        text = f"the earlier report was measured with other settings: {', '.join(values)}"
        raise ErfscopeError(f"{text}; use the same settings, or another folder")
    return {**options, "resume": report}


def asked_layers(loaded: LoadedModel, options: Options) -> list[str]:
    """The layers that the options name, or the default one; '' if the model has none, which measuring then
    reports."""
    asked = words(options.get("layer"))
    if asked == ["stages"]:
        if not loaded.adapter.stages:
            raise ErfscopeError(f"{loaded.label} declares no stages; `erfscope layers` lists its layers")
        return list(loaded.adapter.stages)
    try:
        return [layer or loaded.default_layer for layer in asked]
    except MeasurementError:
        return [""]


def asked_settings(model: Any, options: Options) -> dict[str, Any]:
    """The options as JSON values, with the model."""
    kept = {name: value for name, value in options.items() if name not in (*Running.__annotations__, "images")}
    if options.get("insert"):
        kept["insert"] = [block.text for block in parse_blocks(options["insert"])]
    images = options.get("images")
    kept["images"] = images if images is None or are_paths(images) else f"{type(images).__name__}"
    asked = model if isinstance(model, str | list) else getattr(model, "spec", type(model).__name__)
    return {"model": plain(asked), **plain({**fields(settings_of(options, convention="jacobian")), **kept})}
