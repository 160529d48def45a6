"""One model: ``analyze`` and ``sweep``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from erfscope.adapters.requested import name_of, refuse_weights
from erfscope.adapters.sources.sources import take_layer
from erfscope.additions import additions
from erfscope.api.blocks import host_reference, parse_blocks, with_blocks
from erfscope.api.models import Model, are_paths, caller_modules, check_images, feed_of, load_model
from erfscope.api.tile import with_halos
from erfscope.engine.blind_units import blind_units, with_blind, without
from erfscope.engine.measure import measure, refuse_others
from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import failed
from erfscope.engine.plan import Callbacks
from erfscope.errors import ErfscopeError, ErfWarning, MeasurementError, unknown
from erfscope.geometry.names import ONE_INPUT
from erfscope.geometry.unit_kind import TOKEN, kind_of
from erfscope.model_errors import ModelExitError, contain_exits
from erfscope.options.option import Running
from erfscope.options.request import STAGES, Request, is_several
from erfscope.options.settings import FREE, Options, Settings, lists_options
from erfscope.parallel import RankGone, current
from erfscope.restore import restored
from erfscope.results.auto_input_size import Growth
from erfscope.results.comparability import short
from erfscope.results.findings import layer_choice_findings
from erfscope.results.input_shares import by_unit
from erfscope.results.json_values import fields, plain
from erfscope.results.report import Report, unique_ids
from erfscope.results.result import Result
from erfscope.stimuli.feed import Feed
from erfscope.stimuli.files import by_input
from erfscope.storage.files import begin_rows, read_begun, store_rows


@lists_options
def analyze(model: Model, *, errors: Literal["raise", "row"] = "raise", **options: Unpack[Options]) -> Result:
    """Measure how far one unit of a model looks.

    Args:
        model: A spec (see :func:`erfscope.adapters.load`), an adapter, or a live ``nn.Module``, handed back as found.
        errors: What a model that fails gives: an exception ("raise"), or a result whose ``status`` is "error" ("row"),
            as in the table of :func:`erfscope.compare`.
        **options: See :class:`erfscope.Options`; each is the command line's option of the same name.

    Returns:
        One result. Its ``status`` is "degenerate" where the gradient is zero or rounding noise.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer, unit, size or option, or options that ask for
            several results.
        MeasurementError: the model fails, or gives nothing that is finite, and ``errors`` is "raise".
    """
    if errors not in ("raise", "row"):
        raise unknown("errors", str(errors), ("raise", "row"))
    model, named = with_layer(model, options)
    request = replace(Request.parse(named, may_grow=True), raises=errors == "raise")
    report = _sweep(model, request, with_host=False)
    # Of several sizes that were tried the last one counts.
    wanted = [row for row in report if row.input.size == report[-1].input.size] if request.is_growing else report
    if len(wanted) != 1:
        references = [row.wrt for row in wanted if row.wrt.startswith(ONE_INPUT)]
        one = f", wrt={references[0]!r} one of them" if len({*references}) > 1 else ""
        raise ErfscopeError(f"these options ask for {len(report)} results; erfscope.sweep gives them all{one}")
    if request.raises and wanted[0].status == "error":
        raise MeasurementError(wanted[0].error or "", model=wanted[0].label)
    return wanted[0]


@lists_options
def sweep(model: Model, **options: Unpack[Options]) -> Report:
    """Measure one model under every combination of the layers, units, input sizes, weights and conventions given.

    Arguments and errors are those of :func:`analyze`; ``layer``, ``wrt``, ``unit``, ``input_size``, ``weights``,
    ``convention`` and ``alpha`` take lists, and ``layer="stages"`` means every stage. Several input sizes are
    ``"96,128"`` or ``[(96, 96), (128, 128)]``; a pair of numbers, ``(96, 128)`` or ``[96, 128]``, is one, height and
    width. ``input_size="auto"`` means the model's own size and its doubles, until less than a tenth of the ERF
    lies outside of the size before; :func:`analyze` gives the result of the last one.

    Returns:
        One result per combination, in the order given. Before those of a model with inserted blocks comes that of the
        model without them.
    """
    model, named = with_layer(model, options)
    return _sweep(model, Request.parse(named, may_grow=True), with_host=True)


def with_layer(model: Model, options: Mapping[str, Any]) -> tuple[Model, Mapping[str, Any]]:
    """A model without the layer that its spec names, and the options with it in the place of theirs."""
    plain, layer = take_layer(model)
    return plain, options if layer is None else {**options, "layer": layer}


def _sweep(model: Model, request: Request, *, with_host: bool) -> Report:
    if request.is_growing:
        _refuse_growth(request)
    with restored(*caller_modules(model)), torch.inference_mode(False):
        request = with_earlier(request)
        refuse_weights(model, request)
        check_images(request)
        growth = Growth() if request.is_growing else None
        results: list[Result] = []
        for size in request.sizes if growth is None else growth.sizes():
            with contextlib.nullcontext(results) if growth is None else growth.measuring() as rows:
                for weights in request.weights:
                    loaded = load_model(model, request, size=size, weights=weights)
                    refuse_others(request.resume or (), [loaded.label])
                    feed = feed_of(request, loaded.adapter.preprocess)
                    variants = with_blocks(loaded, request)
                    for settings in request.questions(asked_layers(loaded, request)):
                        rows += measure_with_host(loaded, variants, feed, settings, request, with_host=with_host)
        results = results if growth is None else growth.results()
        if request.settings.halo:
            results = with_halos(results, model, request)
        return Report(results=unique_ids(results), settings=asked_settings(model, request))


def _refuse_growth(request: Request) -> None:
    """Refuse what cannot be measured at sizes that are found by measuring."""
    if request.settings.shard is not None:
        raise ErfscopeError(
            "shards have to be of one input size, and input size auto finds its own for each; give a size"
        )
    if kind := kind_of(request.settings.unit)[0]:
        raise ErfscopeError(f"input size auto grows around a unit's place, which a unit {kind!r} has not; give a size")
    if isinstance(request.images, torch.Tensor):
        raise ErfscopeError(
            "a ready tensor is used as it is, and input size auto makes others; give images, or leave the size out"
        )


def measure_with_host(
    loaded: LoadedModel,
    variants: Sequence[LoadedModel],
    feed: Feed,
    settings: Settings,
    request: Request,
    *,
    with_host: bool = True,
) -> list[Result]:
    """Measure one layer of a model, and of its variants with inserted blocks beside it.

    Args:
        loaded: The model.
        variants: The same with blocks, one for each alpha.
        feed: The images.
        settings: What is measured.
        request: The callbacks, and the earlier results: of those, what failed is measured again.
        with_host: Whether the model's own rows are wanted where there are variants.

    Returns:
        The model's rows, left out where the layer or the reference is a part of a block, and those of the variants; a
        model that runs but fails is a row too. None where the run was stopped before that.
    """
    rows: list[Result] = []
    hosts: list[Result] = []
    earlier = [row for row in request.resume or () if row.status != "error"]
    for model, own in _models(loaded, variants, settings, with_host=with_host):
        # A signal reaches the ranks at different times.
        if any(current().all_gather(request.stop)):
            break
        is_new = True
        callbacks = Callbacks(progress=partial(request.progress, model.label), stop=request.stop, tell=request.tell)
        try:
            with contain_exits():
                layer = own.layer or model.default_layer_of(kind_of(own.unit)[0])
                known: dict[str, Any] = {"layer": layer, "callbacks": callbacks, "earlier": earlier}
                by_reference = list[list[Result]]()
                for wrt in model.references(layer, own.wrt):
                    each = own if wrt == own.wrt else replace(own, wrt=wrt)
                    blind = [] if wrt == own.wrt else blind_units(model, each, layer)
                    others = without(each, blind, model, layer)
                    found = [] if others is None else measure(model, feed, others, additions=additions(each), **known)
                    by_reference.append([*with_blind(found, blind, model, replace(each, layer=layer), feed)])
                found = by_unit(by_reference)
                is_new = not any(row is before for row in found for before in earlier)
                found = _with_choice(model, request, found)
        except RankGone:
            raise
        except (MeasurementError, ModelExitError) as error:
            if request.raises:
                raise _failure(error) from error.__cause__
            found = [failed(model, own, feed, _failure(error), layer=own.layer or "")]
        if is_new and request.keep_in is not None:
            store_measured_rows(found, request.keep_in, request)
        if variants:
            found = [replace(row, cost=model.cost) for row in found]
            if model is loaded:
                hosts = found
            elif len(found) == len(hosts):
                found = [replace(row, host=host.id) for row, host in zip(found, hosts, strict=True)]
        rows += found
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


def _failure(error: MeasurementError | ModelExitError) -> MeasurementError:
    """Why a model gave nothing; outside its forward pass, as in a hook of the backward pass, it may have ended."""
    return error if isinstance(error, MeasurementError) else MeasurementError(f"ended while it was measured: {error}")


def store_measured_rows(rows: Sequence[Result], folder: str | Path, request: Request) -> None:
    """Store rows that have just been measured in a folder; warn where they cannot be stored, such as on a full disk."""
    if not rows:
        return
    report = Report(results=unique_ids([*rows]), settings=asked_settings(rows[0].label, request))
    try:
        store_rows(Path(folder), report, earlier=request.resume)
    except ErfscopeError as error:
        warnings.warn(str(error), ErfWarning, stacklevel=2)


def _with_choice(model: LoadedModel, request: Request, rows: Sequence[Result]) -> list[Result]:
    """The rows with the findings on the layer, if erfscope chose it."""
    chosen = request.layers == (None,) and not model.adapter.stages
    is_default = chosen and any(row.unit is not None and row.unit.kind in ("", TOKEN) for row in rows)
    findings = tuple(layer_choice_findings(model.recording, model.default_layer)) if is_default else ()
    return [replace(row, layer_chosen=chosen, findings=(*dict.fromkeys((*row.findings, *findings)),)) for row in rows]


def with_earlier(request: Request) -> Request:
    """The request with the earlier report read, which must have the same settings; without one the folder of rows is
    emptied.

    Raises:
        ErfscopeError: no such report, or one of other settings.
    """
    if request.resume is None:
        if request.keep_in is not None:
            begin_rows(Path(request.keep_in))
        return request
    report = request.resume if isinstance(request.resume, Report) else read_begun(request.resume)
    asked = asked_settings("", request)
    unlike = [
        name
        for name in asked
        if name not in ("model", *FREE) and name in report.settings and report.settings[name] != asked[name]
    ]
    if unlike:
        values = [f"{name} ({short(report.settings[name])} then, {short(asked[name])} now)" for name in unlike[:3]]
        text = f"the earlier report was measured with other settings: {', '.join(values)}"
        raise ErfscopeError(f"{text}; use the same settings, or another folder")
    return replace(request, resume=report)


def asked_layers(loaded: LoadedModel, request: Request) -> list[str]:
    """The layers that the request names, or the default one; '' if the model has none, which measuring then
    reports."""
    kind, _ = kind_of(request.settings.unit)
    found: list[str] = []
    try:
        for layer in request.layers:
            if layer is None:
                found.append(loaded.default_layer_of(kind))
            elif is_several(layer):
                names = stages_of(loaded) if layer == STAGES else loaded.layers_like(layer)
                found += [each for name in names for each in loaded.calls_of(name)]
            else:
                found.append(layer)
    except MeasurementError:
        return [""]
    return list(dict.fromkeys(found))


def stages_of(loaded: LoadedModel) -> tuple[str, ...]:
    """The stages or parts of a model; see :attr:`LoadedModel.parts`.

    Raises:
        ErfscopeError: it has none.
    """
    if not loaded.parts:
        raise ErfscopeError(
            f"{loaded.label} has no stages: no module of it gives a map; `erfscope layers` lists its layers"
        )
    return loaded.parts


def _named(images: Any) -> Any:
    """Images as settings name them: paths as they are given, others by their type."""
    return images if images is None or are_paths(images) else type(images).__name__


def asked_settings(model: Any, request: Request) -> dict[str, Any]:
    """The options as JSON values, with the model."""
    kept = {name: value for name, value in request.given.items() if name not in Running.__annotations__}
    if request.insert:
        kept["insert"] = [block.text for block in parse_blocks(request.insert)]
    images = by_input(request.images)
    kept["images"] = {n: _named(i) for n, i in images.items()} if isinstance(images, Mapping) else _named(images)
    asked = model if isinstance(model, list) else name_of(model)
    return {"model": plain(asked), **plain({**fields(request.settings), **kept})}
