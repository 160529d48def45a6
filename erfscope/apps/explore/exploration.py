"""A model to point at: ``explore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from erfscope.apps.explore.live import LiveExplorer, LiveModel, PageRequest
from erfscope.apps.explore.page import Explorer, explored_model
from erfscope.apps.explore.stages import block_sizes, costs, explore_stage, grid_of, pointed_at
from erfscope.core import (
    ErfscopeError,
    Model,
    OpenModel,
    Options,
    Request,
    UnitMaps,
    named_models,
    open_images,
    open_model,
    unit_maps,
)

#: Options that an explorer takes: how a model is built, which layers, and how each unit is measured.
TAKEN = {
    *("weights", "checkpoint", "unsafe_load", "model_kwargs", "input_size", "in_chans", "label", "transform"),
    *("mean", "std", "axes", "spacing", "unit_name", "fps", "sample_rate", "layout", "prefix_tokens"),
    *("image", "images", "synthetic", "squash", "layer", "wrt", "channels", "convention", "draws", "seed"),
    *("device", "dtype", "tell", "progress"),
}
#: Parts of a network without stages that are shown, evenly spread over its depth.
MOST_PARTS = 12
#: Units along each axis of a layer, at most.
MOST_ALONG = 256


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
    models, request = _asked(model, image, grid, options)
    with ExitStack() as stack:
        opened = [stack.enter_context(_opened(each, label, request)) for label, each in models]
        plans = [layers for each in opened for layers in _plans(each, request, grid)]
        if len(plans) > 2:
            raise ErfscopeError(
                f"an explorer shows two models, or one with respect to two inputs, and these are {len(plans)}; name"
                " fewer models, or an input with wrt= (--wrt)"
            )
        bare = [explored_model(layers[0]) for layers in plans]
        pictures = sum(len(model.picture.url) for model in bare)
        blocks = iter(block_sizes([maps for layers in plans for maps in layers], page_bytes - pictures))
        for line in costs(plans):
            request.tell(line)
        explored = [
            replace(model, stages=tuple(explore_stage(maps, next(blocks)) for maps in layers))
            for model, layers in zip(bare, plans, strict=True)
        ]
    return Explorer(models=tuple(explored))


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
    models, request = _asked(model, image, 1, options)
    with ExitStack() as stack:
        opened = [stack.enter_context(_opened(each, label, request)) for label, each in models]
        explorer = LiveExplorer([_live(each, request) for each in opened])
        explorer.page(PageRequest())
    serve_explorer(explorer, host, port, ready)


def _asked(
    model: Model | Sequence[Model] | Mapping[str, Model], image: Any, grid: int | None, options: Mapping[str, Any]
) -> tuple[Sequence[tuple[str, Model]], Request]:
    """The models with their labels, and the options of all of them, of the one image."""
    models, options = named_models(model, options)
    if not 1 <= len(models) <= 2:
        raise ErfscopeError(f"an explorer shows one model or two, not {len(models)}")
    if grid is not None and not 1 <= grid <= MOST_ALONG:
        raise ErfscopeError(f"grid is the number of units along each axis, from 1 to {MOST_ALONG}, not {grid}")
    for name in options:
        if name not in TAKEN:
            raise ErfscopeError(f"explore takes no {name}; it measures every unit of a grid on one image")
    given = {} if image is None else {"images": image}
    request = Request.parse({**given, **options, "samples": 1}, of_each=True)
    if {"input_size", "convention"} & {*request.several()}:
        raise ErfscopeError("an explorer shows one input size and one convention; give one of each")
    return models, request


def _opened(model: Model, label: str, request: Request) -> OpenModel:
    return open_model(model, replace(request.of_model(label), weights=request.weights[:1], label=label))


def _plans(model: OpenModel, request: Request, grid: int | None) -> Iterator[list[UnitMaps]]:
    """The layers that were asked for, with respect to each of several inputs."""
    images, layers, asked = open_images(request, model), _layers(model, request), request.settings.wrt
    references = {layer: model.references(layer, asked) for layer in layers}
    for wrt in dict.fromkeys(wrt for each in references.values() for wrt in each):
        sites = [pointed_at(model.site(layer, wrt), model) for layer in layers if wrt in references[layer]]
        yield [unit_maps(model, site, images, request, grid_of(model, site, grid)) for site in sites]


def _layers(model: OpenModel, request: Request) -> list[str]:
    """The layers that were asked for, by default all stages, or as many parts of a network that declares none."""
    request = request.of_model(model.label)
    # What is called several times has no layer of its name; models are run whole here.
    if request.layers == (None,) and (found := [name for name in model.parts if len(model.calls_of(name)) == 1]):
        most = len(found) if model.adapter.stages else min(len(found), MOST_PARTS)
        return [found[round(number)] for number in np.linspace(0, len(found) - 1, most)]
    return [layer or model.default_layer for layer in model.asked_layers(request)]


def _live(model: OpenModel, request: Request) -> LiveModel:
    """One model that is ready to be asked."""
    if model.adapter.preprocess.parts:
        raise ErfscopeError(f"{model.label} takes several inputs, of which -o FILE writes a page; --serve shows one")
    return LiveModel(model=model, request=request, layers=_layers(model, request), images=open_images(request, model))
