"""The models of some rows, opened at one input size and shown the same pixels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.weights.checkpoint_files import Saved
from erfscope.core.answer import comparability
from erfscope.core.answer.result import Result
from erfscope.core.images.feed import Images, PictureImages
from erfscope.core.images.several import SeveralImages
from erfscope.core.images.values import ValuesImages
from erfscope.core.request.request import Request
from erfscope.core.run.blocks import with_blocks
from erfscope.core.run.engine.measure import refuse_others
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.outcome import failed
from erfscope.core.run.entries import refuse_unknown_layers
from erfscope.core.run.models import feed_of, load_model, reopened
from erfscope.core.run.rows import Row
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.model_facts import Preprocess, Weights
from erfscope.core.values.unit import size_text

#: Size of a comparison whose models share none of their own.
COMMON_SIZE = (224, 224)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model that is ready to be measured."""

    model: OpenModel
    #: The same with inserted blocks, one for each alpha.
    variants: Sequence[OpenModel] = ()
    feed: Images
    #: Why it cannot be shown the pixels that all models are shown; None where it can.
    unlike: str | None = None


def open_models(
    asked: Sequence[Row],
    request: Request,
    *,
    pixels: Preprocess | None = None,
    images: Images | None = None,
    beside: Sequence[Result] = (),
) -> dict[str, Opened | Result]:
    """The models of rows of one size and weights, by their labels. One of several that cannot be built is a result.

    Args:
        asked: The rows.
        request: The options.
        pixels: Whose resize and crop makes the pixels; the first model's if None.
        images: What is shown to all; what the request names if None.
        beside: Stored results that stand in the same table.

    Raises:
        ErfscopeError: a single model cannot be built, or none of its checkpoints, or a layer by name is not there.
        MeasurementError: only some models have trained weights.
    """
    models, weights = {row.label: row.model for row in asked}, asked[0].weights
    loaded = _load_at_one_size(models, request, asked[0].size, weights)
    ready = [each for each in loaded.values() if isinstance(each, OpenModel)]
    refuse_others(request.resume or (), [*(each.label for each in loaded.values()), *(row.label for row in beside)])
    used = [(each.label, each.adapter.weights) for each in ready] + [(r.label, r.weights) for r in beside if r.ok]
    comparability.refuse_mixed_weights(used, weights)
    refuse_unknown_layers(ready, request)
    shown = pixels or (ready[0].adapter.preprocess if ready else None)
    feed = images or (feed_of(request, shown) if shown is not None else None)
    if images is not None and shown is not None and not shown.parts:
        found, wanted = tuple(images.batch([0]).shape[1:]), (shown.channels, *shown.size)
        if found != wanted:
            raise ErfscopeError(
                f"the images are inputs of {found}, and {ready[0].label} takes {wanted}; open them for this model"
            )

    def opened(label: str, model: OpenModel) -> Opened:
        assert feed is not None
        assert shown is not None
        prepared = model.adapter.preprocess
        unlike = _unlike(prepared, shown, feed)
        own = feed if unlike else _by_own_numbers(feed, prepared, shown)
        # An open model has its blocks.
        variants = () if isinstance(models[label], OpenModel) else with_blocks(model, request)
        return Opened(model=model, variants=variants, feed=own, unlike=unlike)

    return {label: opened(label, each) if isinstance(each, OpenModel) else each for label, each in loaded.items()}


def _by_own_numbers(feed: Images, prepared: Preprocess, shared: Preprocess) -> Images:
    """Images whose pixels were made for one model, normalised as another one says."""
    if isinstance(feed, SeveralImages):
        parts = {
            name: _by_own_numbers(each, prepared.parts[name], shared.parts[name]) for name, each in feed.feeds.items()
        }
        return SeveralImages(parts, prepared)
    if isinstance(feed, ValuesImages):
        return feed.scaled_as(prepared)
    if not isinstance(feed, PictureImages):
        return feed
    return replace(feed, normalise=prepared.normalise, cropped_as=shared.resize_text)


def _unlike(prepared: Preprocess, shared: Preprocess, feed: Images) -> str | None:
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
    if isinstance(feed, PictureImages) and prepared.pixelwise != shared.pixelwise:
        which = "comes without" if prepared.pixelwise else "comes with"
        return (
            f"{which} a transform that does everything, unlike the first model, so that they cannot be shown the same"
            " pixels"
        )
    return None


def _load_at_one_size(
    models: Mapping[str, Any], request: Request, size: tuple[int, ...] | None, weights: str
) -> dict[str, OpenModel | Result]:
    """All models at one input size. A model that refuses it is a result.

    That size is the one asked for, else the one that adapters were made for, since they cannot take another, else the
    one that all models share, else 224 x 224."""

    def built(label: str, model: Any, at: tuple[int, ...] | None) -> OpenModel | Result:
        if isinstance(model, OpenModel):
            found = reopened(model, replace(request, sizes=(at,), weights=(weights,)))
            return found if label in ("", found.label) else replace(found, label=label)
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

    loaded_models = {label: built(label, model, size) for label, model in models.items()}
    unloaded = [
        s.error or "" for s in loaded_models.values() if isinstance(s, Result) and s.weights.source == "checkpoint"
    ]
    if unloaded and len(unloaded) == len(models):
        raise ErfscopeError(unloaded[0])
    if size is not None:
        return loaded_models
    own = {s.adapter.preprocess.size for s in loaded_models.values() if isinstance(s, OpenModel)}
    made = {model.preprocess.size for model in models.values() if isinstance(model, ModuleAdapter)}
    common = common_size(made if len(made) == 1 else own)
    for label, model in models.items():
        loaded = loaded_models[label]
        if isinstance(loaded, OpenModel) and loaded.adapter.preprocess.size != common:
            loaded_models[label] = built(label, model, common)
    return loaded_models


def common_size(own: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """The size that all models share by default, else 224 x 224."""
    return next(iter(own)) if len(own) == 1 else COMMON_SIZE
