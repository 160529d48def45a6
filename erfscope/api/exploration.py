"""A model to point at: ``explore``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np
import torch

from erfscope.api.analysis import asked_layers
from erfscope.api.models import Model, feed_of, live, load_model, refuse_weights
from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import pending_result
from erfscope.engine.state import Hooks
from erfscope.errors import ErfscopeError
from erfscope.explorer.page import ExploredModel, Explorer
from erfscope.explorer.stages import GRID, StagePlan, block_sizes, explore_stage, plan_stage
from erfscope.figures.pixels import colour_map
from erfscope.options.building import Building
from erfscope.options.keywords import Options, check, settings_of, sizes, words
from erfscope.restore import restored, same_random_numbers

#: Options that an explorer takes, beside those that say how a model is built.
EXPLORED = ("weights", "images", "synthetic", "layer", "channels", "convention", "draws", "squash", "seed", "device")
TAKEN = {*EXPLORED, "dtype", "image", "tell", "progress", *Building.__annotations__} - {"insert", "alpha"}
#: Bytes of a page beside its maps, about: of everything but its units, and of each unit.
FIXED_BYTES, UNIT_BYTES = 150_000, 450
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
    labels = [*model] if isinstance(model, Mapping) else [None, None]
    given: Any = [*model.values()] if isinstance(model, Mapping) else model
    models: list[Model] = [*given] if isinstance(given, list | tuple) else [given]
    if image is not None:
        options = cast("Options", {"images": image, **options})
    _check(models, grid, options)
    with restored(*live(*models)), torch.inference_mode(False):
        loaded = [_load(each, options, label) for each, label in zip(models, labels, strict=False)]
        plans = [_plans(each, options, grid) for each in loaded]
        blocks = iter(_block_sizes([plan for each in plans for plan in each], page_bytes))
        if (tell := options.get("tell")) is not None:
            for line in _costs(plans, grid):
                tell(line)
        explored = [_explored([(plan, next(blocks)) for plan in each], options) for each in plans]
    return Explorer(models=tuple(explored), colours=colour_map(signed=False)(np.arange(256), bytes=True)[:, :3])


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


def _load(model: Model, options: Options, label: str | None) -> LoadedModel:
    (size,) = sizes(options.get("input_size"))
    return load_model(model, options, size=size, weights=words(options.get("weights", "auto"))[0], label=label)


def _plans(model: LoadedModel, options: Options, grid: int) -> list[StagePlan]:
    """The layers that were asked for, each with its central unit measured."""
    feed = feed_of(cast("Options", {**options, "samples": 1}), model.adapter.preprocess)
    if options.get("layer") is None and model.adapter.stages:
        options = cast("Options", {**options, "layer": "stages"})
    settings = settings_of(options)
    layers = asked_layers(model, options)
    with same_random_numbers():
        return [plan_stage(model, feed, settings, layer or model.default_layer, grid) for layer in layers]


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
        lines.append(
            f"that is over a minute: --grid {max(1, grid // 2)} takes about a quarter of it,{draws} and --layer NAME"
            " takes fewer layers"
        )
    return lines


def _explored(stages: Sequence[tuple[StagePlan, int]], options: Options) -> ExploredModel:
    """Measure all units of the layers of one model, on blocks of so many pixels each."""
    plan, progress = stages[0][0].plan, options.get("progress")
    picture = plan.feed.pixels(0)
    if picture is None:
        raise ErfscopeError("an explorer shows the image under the maps; give an image file or an array, not a tensor")

    def hooks(stage: StagePlan) -> Hooks:
        if progress is None:
            return Hooks()
        text = f"{stage.plan.model.label} · {stage.plan.layer}"
        return Hooks(progress=lambda done, total: progress(text, done, total))

    conditions = pending_result(plan, 0)
    return ExploredModel(
        conditions=replace(conditions, input=replace(conditions.input, text=plan.feed.text)),
        picture=picture,
        draws="all channels" if plan.draws == "all" else f"{plan.draws} random draw{'s' * (plan.draws != 1)} per unit",
        stages=tuple(explore_stage(stage, block, hooks(stage)) for stage, block in stages),
    )
