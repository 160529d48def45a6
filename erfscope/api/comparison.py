"""Several models in one table: ``compare``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Unpack

import torch

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.weights.checkpoint_files import Saved, checkpoints
from erfscope.api.analysis import asked_layers, asked_settings, measure_with_host, with_earlier
from erfscope.api.blocks import with_blocks
from erfscope.api.entries import entries_of, refuse_per_model, refuse_unknown_layers, refuse_unlike_stored, with_own
from erfscope.api.models import Model, caller_modules, check_images, feed_of, load_model
from erfscope.api.tile import with_halos
from erfscope.engine.measure import refuse_others
from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import failed
from erfscope.environment import environment
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.unit import size_text
from erfscope.model_facts import Preprocess, Weights
from erfscope.options.request import Request
from erfscope.options.settings import Options, Settings, lists_options
from erfscope.parallel import current, single_process
from erfscope.restore import restored
from erfscope.results import comparability
from erfscope.results.report import Report, unique_ids
from erfscope.results.result import Result
from erfscope.stimuli.feed import Feed, PictureFeed
from erfscope.stimuli.several import SeveralFeed
from erfscope.stimuli.values import ValuesFeed

#: Size of a comparison whose models share none of their own.
COMMON_SIZE = (224, 224)


@lists_options
def compare(
    models: Mapping[str, Model] | Sequence[Model | Report | Result],
    *,
    of: str | None = None,
    **options: Unpack[Options],
) -> Report:
    """Measure several models at one input size, on the same pixels.

    Args:
        models: Specs, adapters, live modules or stored results (a path, a report or a result); a mapping gives them
            labels. Shards of one run are put together.
        of: The spec of one model. ``models`` are then its checkpoint files, or patterns of such; the files of a pattern
            stand in the order of the numbers in their names.
        **options: As for :func:`erfscope.analyze`. A ``layer`` by name is that of every model; one model's own stands
            behind its spec, ``"net.py:make@dec1"``, or in a mapping by labels, as in ``layer={"ours": "dec1"}``. So
            does its ``checkpoint``, ``{"ours": "best.pt"}``. ``model_kwargs`` is refused with several models.

    Returns:
        One result per model and setting, in the order given. A model that fails is a row with its reason.

    Raises:
        ErfscopeError: as for :func:`erfscope.analyze`.
        MeasurementError: settings differ, or only some of the models could have their pretrained weights.
    """
    entries, named = with_own(entries_of(models) if of is None else [*checkpoints(models, of)], options)
    with restored(*caller_modules(*(model for _, model in entries))):
        return compared(entries, Request.parse(named, of_each=True), of=of)


@torch.inference_mode(False)
def compared(
    entries: list[tuple[str, Any]],
    request: Request,
    *,
    of: str | None = None,
    pixels: Mapping[Any, Preprocess] | None = None,
) -> Report:
    """:func:`compare`, of entries that have labels.

    Args:
        entries: (label, model or stored report).
        request: The options.
        of: The model that the entries are checkpoints of.
        pixels: By input size as asked for, whose resize and crop makes the pixels; the first model's where there is
            none.
    """
    request = with_earlier(request)
    stored = [row for _, model in entries if isinstance(model, Report) for row in model]
    refuse_others(request.resume or (), [*(label for label, _ in entries), *(row.label for row in stored)])
    live = [(label, model) for label, model in entries if not isinstance(model, Report)]
    refuse_per_model(request, len(entries), of)
    refuse_unlike_stored(entries, request, asked_settings([label for label, _ in entries], request))
    unit = comparability.one_unit_word(
        [(label, m.settings.get("unit") if isinstance(m, Report) else request.settings.unit) for label, m in entries]
    )
    steps = {label: model.step for label, model in live if isinstance(model, Saved)}
    if live:
        check_images(request)
    rows: list[Result] = []
    rows_of: dict[str, list[Result]] = {label: [] for label, _ in entries}
    for size, weights in product(request.sizes, request.weights):
        loaded_models = _load_at_one_size(live, request, size, weights)
        ready = [s for s in loaded_models.values() if isinstance(s, LoadedModel)]
        used = [(s.label, s.adapter.weights) for s in ready] + [(row.label, row.weights) for row in stored if row.ok]
        comparability.refuse_mixed_weights(used, weights)
        refuse_unknown_layers(ready, request)
        shown = (pixels or {}).get(size) or (ready[0].adapter.preprocess if ready else None)
        feed = feed_of(request, shown) if shown is not None else None
        variants = {s.label: with_blocks(s, request) for s in ready}
        for convention, wrt in product(request.conventions, request.references):
            settings = replace(request.settings, convention=convention, wrt=wrt)
            groups = _split_over_ranks(
                entries,
                lambda label, model: _rows(loaded_models.get(label, model), shown, variants, feed, settings, request),  # noqa: B023
            )
            groups |= {label: [replace(row, step=step) for row in groups[label]] for label, step in steps.items()}
            if request.settings.halo:
                groups |= {label: with_halos(groups[label], model, request.of_model(label)) for label, model in live}
            group = [row for found in groups.values() for row in found]
            comparability.refuse_mismatch(group)
            for label, found in groups.items():
                rows_of[label] += found
            # A stored result stands once, however many settings the others are measured under.
            rows += [row for row in group if not any(row is other for other in rows)]
    comparability.refuse_mixed_random(list(rows_of.items()))
    asked = asked_settings([label for label, _ in entries], request) | ({} if of is None else {"of": of})
    if not live and unit is not None:
        # Nothing is measured now, so the unit of the stored results holds.
        asked["unit"] = unit
    return Report(
        results=unique_ids(comparability.with_versions(rows)), settings=asked, environment=_environment(entries)
    )


def _split_over_ranks(
    entries: Sequence[tuple[str, Any]], rows: Callable[[str, Any], list[Result]]
) -> dict[str, list[Result]]:
    """The rows of every entry. Where ranks share the run, each takes its turn's models if there are enough of them,
    else its images."""
    process_group = current()
    if len(entries) < process_group.size or process_group.size == 1:
        return {label: rows(label, model) for label, model in entries}

    def own() -> dict[str, list[Result]]:
        with single_process():
            return {label: rows(label, model) for label, model in process_group.share(entries)}

    found = {label: group for each in process_group.all_gather(own) for label, group in each.items()}
    return {label: found[label] for label, _ in entries}


def _environment(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """That of the stored reports, where nothing is measured now and they share one; else today's."""
    stored = [dict(model.environment) if isinstance(model, Report) else None for _, model in entries]
    first = stored[0]
    return environment() if first is None or any(other != first for other in stored) else first


def _rows(
    entry: Report | LoadedModel | Result,
    shared: Preprocess | None,
    variants: Mapping[str, Sequence[LoadedModel]],
    feed: Feed | None,
    settings: Settings,
    request: Request,
) -> list[Result]:
    """Rows of a stored report, of a model that could not be built, or of one to be measured: on shared pixels, by its
    own mean and std."""
    if not isinstance(entry, LoadedModel):
        return list(entry.results) if isinstance(entry, Report) else [entry]
    assert feed is not None
    assert shared is not None
    prepared = entry.adapter.preprocess
    unlike = _unlike(prepared, shared, feed)
    if unlike is not None:
        return [failed(entry, settings, feed, MeasurementError(f"{unlike}; analyze it alone"))]
    own = _by_own_numbers(feed, prepared, shared)
    rows: list[Result] = []
    request = request.of_model(entry.label)
    for layer in asked_layers(entry, request):
        rows += measure_with_host(entry, variants[entry.label], own, replace(settings, layer=layer), request)
    return [row if row.cost else replace(row, cost=entry.cost) for row in rows]


def _by_own_numbers(feed: Feed, prepared: Preprocess, shared: Preprocess) -> Feed:
    """Images whose pixels were made for one model, normalised as another one says."""
    if isinstance(feed, SeveralFeed):
        parts = {
            name: _by_own_numbers(each, prepared.parts[name], shared.parts[name]) for name, each in feed.feeds.items()
        }
        return SeveralFeed(parts, prepared)
    if isinstance(feed, ValuesFeed):
        return feed.scaled_as(prepared)
    if not isinstance(feed, PictureFeed):
        return feed
    return replace(feed, normalise=prepared.normalise, cropped_as=shared.resize_text)


def _unlike(prepared: Preprocess, shared: Preprocess, feed: Feed) -> str | None:
    """Why a model cannot take the shared input; None if it can."""
    if [*prepared.parts] != [*shared.parts]:
        theirs, ours = (", ".join(each.parts) or "one image" for each in (shared, prepared))
        return f"takes {ours}, but the images compared on are for {theirs}"
    for name, part in prepared.parts.items():
        if unlike := _unlike(part, shared.parts[name], feed.of(name)):
            return f"{unlike} ({name})"
    if prepared.channels != shared.channels:
        return f"takes {prepared.channels} channels, but the images compared on have {shared.channels}"
    if prepared.size != shared.size:
        return f"takes inputs of {size_text(prepared.size)}, but the images compared on have {size_text(shared.size)}"
    if isinstance(feed, PictureFeed) and prepared.pixelwise != shared.pixelwise:
        which = "comes without" if prepared.pixelwise else "comes with"
        return (
            f"{which} a transform that does everything, unlike the first model, so that they cannot be shown the same"
            " pixels"
        )
    return None


def _load_at_one_size(
    models: Sequence[tuple[str, Model]], request: Request, size: tuple[int, ...] | None, weights: str
) -> dict[str, LoadedModel | Result]:
    """All models at one input size. A model that refuses it is a result.

    That size is the one asked for, else the one that adapters were made for, since they cannot take another, else the
    one that all models share, else 224 x 224."""

    def built(label: str, model: Model | Saved, at: tuple[int, ...] | None) -> LoadedModel | Result:
        try:
            return load_model(model, request, size=at, weights=weights, label=label)
        except ErfscopeError as error:
            if len(models) == 1 or (at is None and not isinstance(model, Saved)):
                raise
            # Loading raises again if neither the file nor the size is the cause.
            if isinstance(model, Saved):
                without = "random-raw" if weights == "auto" else weights
                loaded = load_model(model.spec, request, size=at, weights=without, label=label)
                row = failed(loaded, request.settings, None, error)
                return replace(row, weights=Weights(source="checkpoint", origin=str(model.file)))
            loaded = load_model(model, request, size=None, weights=weights, label=label)
            row = failed(loaded, request.settings, None, error)
            # One number stands for a square.
            return row if at is None else replace(row, input=replace(row.input, size=at * 2 if len(at) == 1 else at))

    loaded_models: dict[str, LoadedModel | Result] = {label: built(label, model, size) for label, model in models}
    unloaded = [
        s.error or "" for s in loaded_models.values() if isinstance(s, Result) and s.weights.source == "checkpoint"
    ]
    if unloaded and len(unloaded) == len(models):
        raise ErfscopeError(unloaded[0])
    if size is not None:
        return loaded_models
    own = {s.adapter.preprocess.size for s in loaded_models.values() if isinstance(s, LoadedModel)}
    made = {model.preprocess.size for _, model in models if isinstance(model, ModuleAdapter)}
    common = common_size(made if len(made) == 1 else own)
    for label, model in models:
        loaded = loaded_models[label]
        if isinstance(loaded, LoadedModel) and loaded.adapter.preprocess.size != common:
            loaded_models[label] = built(label, model, common)
    return loaded_models


def common_size(own: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """The size that all models share by default, else 224 x 224."""
    return next(iter(own)) if len(own) == 1 else COMMON_SIZE
