"""A model to point at: ``explore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from erfscope.adapters.requested import Model
from erfscope.apps.explore.live import LiveExplorer, LiveModel, PageRequest
from erfscope.apps.explore.page import Explorer, explored_model
from erfscope.apps.explore.stages import Stage, StagePlan, block_sizes, costs, explore_stage, plan_stage
from erfscope.core.request.option import Building
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Options
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.plan import Callbacks
from erfscope.core.run.entries import entries_of, with_own
from erfscope.core.run.executor import asked_layers
from erfscope.core.run.models import caller_modules, check_images, feed_of, load_model
from erfscope.core.system.restore import restored, same_random_numbers
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import GRID_LIMIT
from erfscope.show.plot import colour_map

#: Options that an explorer takes, beside those that say how a model is built.
EXPLORED = (
    "weights",
    "images",
    "synthetic",
    "layer",
    "wrt",
    "channels",
    "convention",
    "draws",
    "squash",
    "seed",
    "device",
)
#: Parts of a network without stages that are shown, evenly spread over its depth.
MOST_PARTS = 12
TAKEN = {*EXPLORED, "dtype", "image", "tell", "progress", *Building.__annotations__} - {"insert", "alpha"}


def explore(
    model: Model | Sequence[Model] | Mapping[str, Model],
    image: Any = None,
    /,
    *,
    grid: int | None = None,
    page_bytes: int = 6_000_000,
    **options: Unpack[Options],
) -> Explorer:
    """Measure a grid of units of every stage on one image, volume, clip or sequence, for a page on which each can be
    pointed at.

    Args:
        model: As for :func:`erfscope.analyze`; or two that the page shows side by side, as a list or by their labels.
        image: The image or other input: a file, an array or a ready tensor; also ``images=`` or ``synthetic=``, as for
            :func:`erfscope.analyze`.
        grid: Units along each axis of a layer, at most; by default 14 of images, 6 of volumes and clips, and 196 of
            sequences.
        page_bytes: How large the page may be, about; the smaller, the larger the blocks of pixels of its maps.
        **options: Those of :func:`erfscope.analyze` that say how a model is built, which layers (all stages by
            default), and how each unit is measured.

    Returns:
        The explorer, with ``save(path)`` and ``to_html()``.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer or option.
        MeasurementError: a model fails.
    """
    models, named = _models(model, grid, options)
    request = _request(models, image, named)
    with restored(*caller_modules(*(each for _, each in models))), torch.inference_mode(False):
        loaded = [_load(each, label, request) for label, each in models]
        plans = [plans for each in loaded for plans in _plans(each, request, grid)]
        if len(plans) > 2:
            raise ErfscopeError(
                f"an explorer shows two models, or one with respect to two inputs, and these are {len(plans)}; name"
                " fewer models, or an input with wrt= (--wrt)"
            )
        bare = [explored_model(stages[0].plan) for stages in plans]
        pictures = sum(len(model.picture.url) for model in bare)
        blocks = iter(block_sizes([plan for each in plans for plan in each], page_bytes - pictures))
        for line in costs(plans):
            request.tell(line)
        explored = [
            replace(model, stages=tuple(_explored(plan, next(blocks), request) for plan in stages))
            for model, stages in zip(bare, plans, strict=True)
        ]
    return Explorer(models=tuple(explored), colours=_colours())


def serve(
    model: Model | Sequence[Model] | Mapping[str, Model],
    image: Any = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[str], None] = print,
    **options: Unpack[Options],
) -> None:
    """Serve the same page for any unit, layer, convention, reference and picture, until Ctrl-C.

    Args:
        model: As for :func:`explore`.
        image: As for :func:`explore`: the image that is shown first.
        host: The name or address to listen at; by default this machine alone reaches it.
        port: Its port; 0 for a free one.
        ready: Called with the page's address, which holds a random token: it answers nobody else.
        **options: As for :func:`explore`.

    Raises:
        ErfscopeError: as for :func:`explore`, or the address cannot be listened at.
        MeasurementError: a model fails.
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        from erfscope.apps.explore.server import serve as serve_explorer
    except ImportError as error:
        text = "--serve needs starlette and uvicorn; pip install '.[explore]' in a checkout of erfscope"
        raise ErfscopeError(text) from error
    models, named = _models(model, 1, options)
    request = _request(models, image, named)
    modules = caller_modules(*(each for _, each in models))
    with restored(*modules), torch.inference_mode(False):
        loaded = [_live(_load(each, label, request), request) for label, each in models]
        explorer = LiveExplorer(loaded, modules, _colours())
        explorer.page(PageRequest())
    serve_explorer(explorer, host, port, ready)


def _models(
    model: Model | Sequence[Model] | Mapping[str, Model], grid: int | None, options: Mapping[str, Any]
) -> tuple[Sequence[tuple[str, Any]], Mapping[str, Any]]:
    """The models with their labels, and the options with what each has of its own."""
    given = model if isinstance(model, Mapping | list | tuple) else [model]
    models, options = with_own(entries_of(given), options)
    if not 1 <= len(models) <= 2:
        raise ErfscopeError(f"an explorer shows one model or two, not {len(models)}")
    if grid is not None and not 1 <= grid <= GRID_LIMIT:
        raise ErfscopeError(f"grid is the number of units along each axis, from 1 to {GRID_LIMIT}, not {grid}")
    return models, options


def _request(models: Sequence[tuple[str, Model]], image: Any, options: Mapping[str, Any]) -> Request:
    """The options, of the one image."""
    for name in options:
        if name not in TAKEN:
            raise ErfscopeError(f"explore takes no {name}; it measures every unit of a grid on one image")
    given = {} if image is None else {"images": image}
    request = Request.parse({**given, **options, "samples": 1}, of_each=True)
    if {"input_size", "convention"} & {*request.several()}:
        raise ErfscopeError("an explorer shows one input size and one convention; give one of each")
    for _, model in models:
        request.refuse_weights(model)
    check_images(request)
    return request


def _load(model: Model, label: str, request: Request) -> OpenModel:
    return load_model(model, request, size=request.sizes[0], weights=request.weights[0], label=label)


def _plans(model: OpenModel, request: Request, grid: int | None) -> Iterator[list[StagePlan]]:
    """The layers that were asked for, each with its central unit measured; of several inputs with respect to each."""
    feed, layers = feed_of(request, model.adapter.preprocess), _layers(model, request)
    references = {wrt: None for layer in layers for wrt in model.references(layer, request.settings.wrt)}
    for wrt in references:
        settings = replace(request.settings, wrt=wrt)
        seen = [layer for layer in layers if wrt in model.references(layer, request.settings.wrt)]
        with same_random_numbers():
            yield [plan_stage(model, feed, settings, layer, grid) for layer in seen]


def _layers(model: OpenModel, request: Request) -> list[str]:
    """The layers that were asked for, by default all stages, or as many parts of a network that declares none."""
    request = request.of_model(model.label)
    # What is called several times has no layer of its name; models are run whole here.
    if request.layers == (None,) and (found := [name for name in model.parts if len(model.calls_of(name)) == 1]):
        most = len(found) if model.adapter.stages else min(len(found), MOST_PARTS)
        return [found[round(number)] for number in np.linspace(0, len(found) - 1, most)]
    return [layer or model.default_layer for layer in asked_layers(model, request)]


def _live(model: OpenModel, request: Request) -> LiveModel:
    """One model that is ready to be asked."""
    preprocess = model.adapter.preprocess
    if preprocess.parts:
        raise ErfscopeError(f"{model.label} takes several inputs, of which -o FILE writes a page; --serve shows one")
    return LiveModel(
        model=model,
        settings=request.settings,
        layers=_layers(model, request),
        feed=feed_of(request, preprocess),
        feed_of=lambda picture: feed_of(replace(request, images=picture, synthetic=None), preprocess),
    )


def _colours() -> NDArray[np.uint8]:
    """The colours of maps, (256, 3)."""
    found: NDArray[np.uint8] = colour_map(signed=False)(np.arange(256), bytes=True)[:, :3]
    return found


def _explored(stage: StagePlan, block: int, request: Request) -> Stage:
    """Measure all units of one layer, on blocks of so many cells."""
    text = f"{stage.plan.model.label} · {stage.plan.site.layer}"
    return explore_stage(stage, block, Callbacks(progress=partial(request.progress, text)))
