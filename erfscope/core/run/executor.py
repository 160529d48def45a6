"""The one executor: rows in, results out."""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from erfscope.adapters.requested import name_of
from erfscope.core.answer.comparability import short
from erfscope.core.answer.findings import layer_choice_findings
from erfscope.core.answer.input_shares import by_unit
from erfscope.core.answer.json_values import fields, to_json
from erfscope.core.answer.report import Report, unique_ids
from erfscope.core.answer.result import Result
from erfscope.core.answer.storage.files import begin_rows, read_begun, store_rows
from erfscope.core.images.feed import Images
from erfscope.core.images.files import by_input
from erfscope.core.request.option import Running
from erfscope.core.request.request import Request
from erfscope.core.request.settings import FREE, Settings
from erfscope.core.run.additions import additions
from erfscope.core.run.blocks import host_reference, parse_blocks
from erfscope.core.run.engine.blind_units import blind_units, with_blind, without
from erfscope.core.run.engine.measure import Questions, measure_units
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.outcome import failed
from erfscope.core.run.engine.plan import Callbacks
from erfscope.core.run.models import are_paths, caller_modules
from erfscope.core.run.opening import Opened, open_models
from erfscope.core.run.parallel import SINGLE, RankGone, current, single_process
from erfscope.core.run.rows import Row, by_setting
from erfscope.core.system.model_errors import ModelExitError, contain_exits
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError, ErfWarning, MeasurementError
from erfscope.core.values.model_facts import Preprocess
from erfscope.core.values.unit_kind import TOKEN, kind_of


def measure(asked: Sequence[Row], request: Request, images: Images | None = None) -> list[Result]:
    """Measure rows. The caller's own modules are handed back as found.

    Args:
        asked: What is measured, from :func:`erfscope.core.rows`: models, sizes, weights, conventions and references.
        request: Layers, units, images and how they are measured. Its ``progress``, ``stop`` and ``tell`` are called,
            ``keep_in`` keeps what is measured and ``resume`` goes on with that; a model that fails raises where
            ``raises`` is set, and is a result with its reason else.
        images: What is shown to the models, from :func:`erfscope.core.open_images`; what the request names if None.

    Returns:
        For each row the results of its layers, units and references, in that order; those of variants with inserted
        blocks behind those of the model.

    Raises:
        ErfscopeError: a single model cannot be built, a layer, unit or reference by name is not there, two models of
            one label, an open model that another request opened, images for another model, or an option of
            :func:`erfscope.analyze` alone.
        MeasurementError: a model fails, where the request raises, or only some models have trained weights.
    """
    asked = [*asked]
    models = dict[str, Any]()
    for row in asked:
        if models.setdefault(row.label, row.model) is not row.model:
            raise ErfscopeError(f"two models are called {row.label!r}; give each a label of its own")
    if request.settings.halo or request.is_growing:
        option = "halo" if request.settings.halo else "input_size='auto'"
        raise ErfscopeError(f"{option} is for erfscope.analyze, sweep and compare; leave it out here")
    if request.resume is not None:
        request = with_earlier(request)
    with restored(*caller_modules(*models.values())), torch.inference_mode(False):
        found = measure_rows(asked, request, images=images)
        return [result for same in found for results in same.values() for result in results]


def measure_rows(
    asked: Sequence[Row],
    request: Request,
    *,
    images: Images | None = None,
    with_host: bool = True,
    with_cost: bool = False,
    pixels: Mapping[Any, Preprocess] | None = None,
    beside: Sequence[Result] = (),
) -> Iterator[dict[str, list[Result]]]:
    """The results of rows by their labels, setting by setting. Models are opened once for all rows of one size and
    weights. Where ranks share the run, each takes its turn's models if there are enough of them, else its images.

    Args:
        asked: The rows, setting by setting.
        request: The options: callbacks, earlier results, where rows are kept, and how a failure is told.
        images: What is shown to the models; the images that the request names if None.
        with_host: Whether a model's own results are wanted where it has variants.
        with_cost: Whether all results have the cost of their model, and not those of blocks alone.
        pixels: By input size as asked for, whose resize and crop makes the pixels; the first model's where there is
            none.
        beside: Stored results that stand in the same table.

    Raises:
        ErfscopeError: as :func:`erfscope.core.run.opening.open_models`.
        MeasurementError: a model fails, where the request raises.
    """
    for (size, _), grouped in groupby(by_setting(asked), key=lambda same: same[0].opening):
        settings = [*grouped]
        every = [*{row.label: row for same in settings for row in same}.values()]
        opened = open_models(every, request, pixels=(pixels or {}).get(size), images=images, beside=beside)
        for same in settings:
            ranks = current() if len(same) >= current().size else SINGLE
            with ranks.agreeing() as shared, single_process() if ranks.size > 1 else contextlib.nullcontext():
                shared.own = dict[str, list[Result]]()
                for row in ranks.share(same):
                    ready, own = opened[row.label], request.of_model(row.label)
                    found = shared.own[row.label] = list[Result]()
                    if isinstance(ready, Result):
                        if request.raises:
                            raise MeasurementError(ready.error or "", model=ready.label)
                        found.append(ready)
                        continue
                    questions = [*_questions(row, ready, own)]
                    by_model = _all_questions(ready, questions, with_host=with_host)
                    for question in questions:
                        found += measure_layer(ready, question, own, by_model, with_host=with_host, with_cost=with_cost)
            yield {label: found for of_rank in shared.all for label, found in of_rank.items()}


def _questions(row: Row, ready: Opened, request: Request) -> Iterator[Settings]:
    """What is measured of a row, layer by layer."""
    layers = [""] if ready.unlike else ready.model.asked_layers(request)
    return replace(request, conventions=(row.convention,), references=row.references).questions(layers)


def _all_questions(ready: Opened, questions: Sequence[Settings], *, with_host: bool) -> dict[int, Questions]:
    """All that is asked of each model, by its ``id``: several layers and references may go through together."""
    found = defaultdict[int, list[Settings]](list)
    is_one = len(questions) == 1 and not ready.model.adapter.preprocess.parts
    for settings in questions if ready.unlike is None and not is_one else ():
        for model, own in _models(ready, settings, with_host=with_host):
            with contextlib.suppress(ErfscopeError):  # It is refused when its turn comes.
                layer = own.layer or model.default_layer_of(kind_of(own.unit)[0])
                found[id(model)] += [replace(own, layer=layer, wrt=wrt) for wrt in model.references(layer, own.wrt)]
    return {name: Questions(each) for name, each in found.items()}


def measure_layer(
    ready: Opened,
    settings: Settings,
    request: Request,
    by_model: Mapping[int, Questions],
    *,
    with_host: bool = True,
    with_cost: bool = False,
) -> list[Result]:
    """Measure one layer of a model, and of its variants with inserted blocks beside it.

    Args:
        ready: The model, its variants, and the images.
        settings: What is measured.
        request: The callbacks, and the earlier results: of those, what failed is measured again.
        by_model: All that is asked of each model, by its ``id``.
        with_host: Whether the model's own rows are wanted where there are variants.
        with_cost: Whether rows have the cost of their model where there are none.

    Returns:
        The model's rows, left out where the layer or the reference is a part of a block, and those of the variants; a
        model that runs but fails is a row too. None where the run was stopped before that.
    """
    loaded, variants, feed = ready.model, ready.variants, ready.feed
    rows: list[Result] = []
    hosts: list[Result] = []
    earlier = [row for row in request.resume or () if row.status != "error"]
    if ready.unlike is not None:
        unlike = MeasurementError(f"{ready.unlike}; analyze it alone", model=ready.model.label)
        if request.raises:
            raise unlike
        return [failed(ready.model, settings, feed, unlike)]
    for model, own in _models(ready, settings, with_host=with_host):
        questions = by_model.get(id(model))
        # A signal reaches the ranks at different times.
        if any(current().all_gather(request.stop)) and not (questions and questions.summed_of(own.layer)):
            break
        is_new = True
        callbacks = Callbacks(progress=partial(request.progress, model.label), stop=request.stop, tell=request.tell)
        try:
            with contain_exits():
                layer = own.layer or model.default_layer_of(kind_of(own.unit)[0])
                known: dict[str, Any] = {"callbacks": callbacks, "earlier": earlier, "questions": questions}
                by_reference = list[list[Result]]()
                for wrt in model.references(layer, own.wrt):
                    each = own if (layer, wrt) == (own.layer, own.wrt) else replace(own, layer=layer, wrt=wrt)
                    blind = [] if wrt == own.wrt else blind_units(model, each, layer)
                    others = without(each, blind, model, layer)
                    found = (
                        [] if others is None else measure_units(model, feed, others, additions=additions(each), **known)
                    )
                    by_reference.append([*with_blind(found, blind, model, each, feed)])
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
        if variants or with_cost:
            found = [replace(row, cost=model.cost) for row in found]
        if variants and model is loaded:
            hosts = found
        elif len(found) == len(hosts):
            found = [replace(row, host=host.id) for row, host in zip(found, hosts, strict=True)]
        rows += found
    return rows


def _models(ready: Opened, settings: Settings, *, with_host: bool) -> Iterator[tuple[OpenModel, Settings]]:
    """The models to measure, with their reference: the model itself, if it has the layer and the reference, then its
    variants."""
    loaded, variants = ready.model, ready.variants
    wrt = host_reference(loaded, variants, settings) if variants else settings.wrt
    if not variants or (with_host and wrt is not None):
        yield loaded, settings if wrt in (None, settings.wrt) else replace(settings, wrt=wrt)
    for variant in variants:
        yield variant, settings


def _failure(error: MeasurementError | ModelExitError) -> MeasurementError:
    """Why a model gave nothing; outside its forward pass, as in a hook of the backward pass, it may have ended."""
    return error if isinstance(error, MeasurementError) else MeasurementError(f"ended while it was measured: {error}")


def report_of(
    results: Sequence[Result], request: Request, *, model: Any, environment: Any = None, **settings: Any
) -> Report:
    """A report of results, with ids that differ and the options as they were asked for.

    Args:
        results: From :func:`measure`.
        request: What was asked for.
        model: What was measured, or the labels of several models.
        environment: Versions and machine; this process's if None.
        **settings: What else was asked for, as JSON values.
    """
    asked = asked_settings(model, request) | settings
    known = {} if environment is None else {"environment": environment}
    return Report(results=unique_ids([*results]), settings=asked, **known)


def store_measured_rows(rows: Sequence[Result], folder: str | Path, request: Request) -> None:
    """Store rows that have just been measured in a folder; warn where they cannot be stored, such as on a full disk."""
    if not rows:
        return
    report = report_of(rows, request, model=rows[0].label)
    try:
        store_rows(Path(folder), report, earlier=request.resume)
    except ErfscopeError as error:
        warnings.warn(str(error), ErfWarning, stacklevel=2)


def _with_choice(model: OpenModel, request: Request, rows: Sequence[Result]) -> list[Result]:
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
    settings: dict[str, Any] = to_json({"model": asked, **fields(request.settings), **kept}, records=False)
    return settings
