"""A model to point at: ``explore``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray

from erfscope.api.analysis import asked_layers
from erfscope.api.models import Model, feed_of, live, load_model, refuse_weights
from erfscope.engine.model import LoadedModel
from erfscope.engine.plan import Hooks
from erfscope.errors import ErfscopeError
from erfscope.explorer.live import Asked, LiveExplorer, LiveModel
from erfscope.explorer.page import ExploredModel, Explorer, explored_model
from erfscope.explorer.stages import GRID, StagePlan, block_sizes, explore_stage, plan_stage
from erfscope.figures.maps import colour_map
from erfscope.options.keywords import Options, check, settings_of, sizes, words
from erfscope.options.option import Building
from erfscope.restore import restored, same_random_numbers
from erfscope.stimuli.feed import Feed

#: Options that an explorer takes, beside those that say how a model is built.
EXPLORED = ("weights", "images", "synthetic", "layer", "channels", "convention", "draws", "squash", "seed", "device")
TAKEN = {*EXPLORED, "dtype", "image", "tell", "progress", *Building.__annotations__} - {"insert", "alpha"}
#: Bytes of a page beside its maps, about: of everything but its units, and of each unit.
FIXED_BYTES, UNIT_BYTES = 150_000, 465
#: Blocks that each map has room for even if the page grows larger with them.
FEWEST_BLOCKS = 16
#: Seconds from which less is offered.
LONG = 60


def explore(
    model: Model | Sequence[Model] | Mapping[str, Model],
    image: Any = None,
    /,
    *,
    grid: int = GRID,
    page_bytes: int = 6_000_000,
    **options: Unpack[Options],
) -> Explorer:
    """Measure a grid of units of every stage on one image, for a page on which each can be pointed at.

    Args:
        model: As for :func:`erfscope.analyze`; or two that the page shows side by side, as a list or by their labels.
        image: The image: a file, an array or a ready tensor; also ``images=`` or ``synthetic=``, as for
            :func:`erfscope.analyze`.
        grid: Units along each axis of a layer, at most.
        page_bytes: How large the page may be, about; the smaller, the larger the blocks of pixels of its maps.
        **options: Those of :func:`erfscope.analyze` that say how a model is built, which layers (all stages by
            default), and how each unit is measured.

    Returns:
        The explorer, with ``save(path)`` and ``to_html()``.

    Raises:
        ErfscopeError: nothing could be started: a bad name, file, layer or option, or a model of other inputs than
            images.
        MeasurementError: a model fails.
    """
    named = _named(model)
    models = [each for _, each in named]
    options = _options(image, options)
    _check(models, grid, options)
    with restored(*live(*models)), torch.inference_mode(False):
        loaded = [_load(each, label, options) for label, each in named]
        plans = [_plans(each, options, grid) for each in loaded]
        blocks = iter(_block_sizes([plan for each in plans for plan in each], page_bytes))
        if (tell := options.get("tell")) is not None:
            for line in _costs(plans, grid):
                tell(line)
        explored = [_explored([(plan, next(blocks)) for plan in each], options) for each in plans]
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
        from erfscope.explorer.server import serve as serve_explorer
    except ImportError as error:
        raise ErfscopeError("--serve needs starlette and uvicorn; pip install 'erfscope[explore]'") from error
    named = _named(model)
    models = [each for _, each in named]
    options = _options(image, options)
    _check(models, 1, options)
    modules = live(*models)
    with restored(*modules), torch.inference_mode(False):
        loaded = [_live(_load(each, label, options), options) for label, each in named]
        explorer = LiveExplorer(loaded, modules, _colours())
        explorer.page(Asked())
    serve_explorer(explorer, host, port, ready)


def _named(model: Model | Sequence[Model] | Mapping[str, Model]) -> list[tuple[str | None, Model]]:
    """Models with their labels, where they are given."""
    if isinstance(model, Mapping):
        return [*model.items()]
    given: Any = model if isinstance(model, list | tuple) else [model]
    return [(None, each) for each in given]


def _options(image: Any, options: Options) -> Options:
    return options if image is None else cast("Options", {"images": image, **options})


def _colours() -> NDArray[np.uint8]:
    """The colours of maps, (256, 3)."""
    found: NDArray[np.uint8] = colour_map(signed=False)(np.arange(256), bytes=True)[:, :3]
    return found


def _check(models: Sequence[Model], grid: int, options: Options) -> None:
    """Refuse what needs no model to be refused."""
    if not 1 <= len(models) <= 2:
        raise ErfscopeError(f"an explorer shows one model or two, not {len(models)}")
    if not 1 <= grid <= 64:
        raise ErfscopeError(f"grid is the number of units along each axis, from 1 to 64, not {grid}")
    for name in options:
        if name not in TAKEN:
            raise ErfscopeError(f"explore takes no {name}; it measures every unit of a grid on one image")
    check(options)
    if len(sizes(options.get("input_size"))) > 1 or len(words(options.get("convention", "jacobian"))) > 1:
        raise ErfscopeError("an explorer shows one input size and one convention; give one of each")
    for model in models:
        refuse_weights(model, options)


def _load(model: Model, label: str | None, options: Options) -> LoadedModel:
    (size,) = sizes(options.get("input_size"))
    return load_model(model, options, size=size, weights=words(options.get("weights", "auto"))[0], label=label)


def _plans(model: LoadedModel, options: Options, grid: int) -> list[StagePlan]:
    """The layers that were asked for, each with its central unit measured."""
    feed, settings = _feed(model, options), settings_of(options)
    with same_random_numbers():
        return [plan_stage(model, feed, settings, layer, grid) for layer in _layers(model, options)]


def _feed(model: LoadedModel, options: Options) -> Feed:
    return feed_of(cast("Options", {**options, "samples": 1}), model.adapter.preprocess)


def _layers(model: LoadedModel, options: Options) -> list[str]:
    """The layers that were asked for, by default all stages."""
    if options.get("layer") is None and model.adapter.stages:
        options = cast("Options", {**options, "layer": "stages"})
    return [layer or model.default_layer for layer in asked_layers(model, options)]


def _live(model: LoadedModel, options: Options) -> LiveModel:
    """One model that is ready to be asked."""
    others = cast("Options", {name: value for name, value in options.items() if name != "synthetic"})
    return LiveModel(
        model=model,
        settings=settings_of(options),
        layers=_layers(model, options),
        feed=_feed(model, options),
        feed_of=lambda picture: _feed(model, cast("Options", {**others, "images": picture})),
    )


def _block_sizes(plans: Sequence[StagePlan], page_bytes: int) -> list[int]:
    """Side of the blocks of each layer's maps, with which the page stays small: 3 bytes are 4 letters of base64."""
    units = sum(len(plan.every.units) for plan in plans)
    room = (page_bytes - FIXED_BYTES - units * UNIT_BYTES) * 3 // 4
    return block_sizes(plans, max(room, units * FEWEST_BLOCKS))


def _costs(plans: Sequence[Sequence[StagePlan]], grid: int) -> list[str]:
    """What is going to be computed, a line for each model, and what would be less."""
    every = [plan for each in plans for plan in each]
    lines = [
        f"{each[0].plan.model.label}: {sum(len(plan.every.units) for plan in each)} units of {len(each)} layers in"
        f" {sum(plan.passes for plan in each)} backward passes, about {sum(plan.seconds for plan in each):.0f} s"
        for each in plans
    ]
    if sum(plan.seconds for plan in every) > LONG:
        draws = "" if every[0].plan.draws == 1 else " --draws 1 makes each unit cheaper,"
        half = max(1, grid // 2)
        share = f"--grid {half} takes about {(half / grid) ** 2:.0%} of it"
        lines.append(f"that is over a minute: {share},{draws} and --layer NAME takes fewer layers")
    return lines


def _explored(stages: Sequence[tuple[StagePlan, int]], options: Options) -> ExploredModel:
    """Measure all units of the layers of one model, on blocks of so many pixels each."""
    plan, progress = stages[0][0].plan, options.get("progress")

    def hooks(stage: StagePlan) -> Hooks:
        if progress is None:
            return Hooks()
        text = f"{stage.plan.model.label} · {stage.plan.layer}"
        return Hooks(progress=lambda done, total: progress(text, done, total))

    return replace(
        explored_model(plan), stages=tuple(explore_stage(stage, block, hooks(stage)) for stage, block in stages)
    )
