"""Tiled inference from an image file to another of its kind, which can be stopped and go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

from erfscope.apps.tile.run import check_image, run_tiled
from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core import (
    ErfscopeError,
    MeasurementError,
    Model,
    ModuleAdapter,
    Options,
    RasterOutput,
    Request,
    open_model,
)
from erfscope.show import random_weights, weights_condition


def tile_file(
    model: Model,
    plan: TilePlan,
    file: RasterOutput,
    *,
    goes_on: bool = False,
    called: Callable[[int, int], None] | None = None,
    **options: Unpack[Options],
) -> None:
    """Run a model tile by tile on an image in a file, and write its output to another of its kind.

    The output stands in its place from the first tile on, with the count of tiles beside it until it is whole. One that
    was there before stays until then: the new one is called ``TARGET.part`` meanwhile.

    Args:
        model: As for :func:`erfscope.analyze`.
        plan: Its plan.
        file: The output; one of its name is replaced. Its image is (C, *space) or (B, C, *space) as the model takes it,
            in .npy; or one image in TIFF or zarr.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.
        **options: Those of :func:`erfscope.analyze` that build the model, its weights and device.

    Raises:
        ErfscopeError: a file that cannot be read, an output that is the image or a folder of something else, or as
            :func:`erfscope.run_tiled`.
        MeasurementError: the model fails.
    """
    request = Request.parse(options)
    with file.image(len(plan.axes)) as x:
        check_image(x, len(plan.axes))
        output = file.begun() if goes_on else None
        # The model is opened once it is known that the files can be used.
        with open_model(model, request) as opened:
            adapter = cast(ModuleAdapter, opened.adapter)
            if output is None:
                shape, dtype = _output_of(adapter, x, plan, file.source)
                output = file.new(shape, dtype, [(axis.stride, axis.offset) for axis in plan.axes])
            run_tiled(adapter, x, plan, out=output, resume=file.mark, progress=called)
    request.tell(f"{opened.label}: {random_weights(opened) or weights_condition(opened).alone}")


def _output_of(model: ModuleAdapter, x: Any, plan: TilePlan, source: str | Path) -> tuple[tuple[int, ...], Any]:
    """The shape and the type of an image's output, found by its first crop."""
    rank = len(plan.axes)
    lead, space = x.shape[:-rank], x.shape[-rank:]
    try:
        size = plan.output_size(space)
        first = run_tiled(model, x[(*(slice(None),) * len(lead), *map(slice, map(min, plan.crop, space)))], plan)
    except ErfscopeError as error:
        found, takes = lead[-1], model.preprocess.channels
        if found == takes:
            raise
        held = f"{str(source)!r} is read as {found} channel{'s' * (found != 1)} of {'x'.join(map(str, space))}"
        text = f"{held}, and {plan.model} takes {takes}; give an image with {takes}, the channels first"
        raise MeasurementError(text) from error
    return (*first.shape[:-rank], *size), first.dtype
