"""Tiles of models, from Python and for files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Unpack, cast

import torch

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.requested import Model
from erfscope.apps.tile.files import run_file
from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core.answer.result import Result
from erfscope.core.request.option import Building
from erfscope.core.request.request import Request
from erfscope.core.request.settings import Options, lists_options
from erfscope.core.run.blocks import variant_of
from erfscope.core.run.engine.outcome import failed
from erfscope.core.run.halos import tilings_of
from erfscope.core.run.models import caller_modules, load_model
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.input_size import Size
from erfscope.core.values.names import IMAGE
from erfscope.show import random_weights, weights_condition


@torch.inference_mode(False)
@lists_options
def tile(
    model: Model,
    tile: Size = 256,
    *,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
    **options: Unpack[Building],
) -> TilePlan:
    """How a model is run on tiles of a large image: the exact overlap (halo) that they need, or why there is none.

    The model is taken in evaluation mode, as :func:`erfscope.analyze` measures it, and handed back as found. The halo
    is that of every unit's theoretical receptive field, from forward passes without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`.
        tile: Side of the part of the output that each tile gives, in input cells: a number, or one for each axis. It is
            rounded up to what the model's strides allow.
        layer: The layer whose map is put together; what the model returns if None.
        image_size: Size of the images, or of one that leaves the same when divided by the total stride; the model's
            own size if None.
        wrt: Of several inputs the one that is cut, ``"input:NAME"``: sizes are in its pixels, and the others grow with
            it.
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The plan, for :func:`erfscope.run_tiled`; ``possible`` is False where tiles differ from the whole image.

    Raises:
        ErfscopeError: unknown model, option or layer, a size with another number of axes, or several inputs of which
            none is named.
        MeasurementError: the model fails, or returns no map.
    """
    plan, *others = plans_of(model, Request.parse(options), tile=tile, layer=layer, image_size=image_size, wrt=wrt)
    if others:
        raise ErfscopeError(f"{plan.model} takes several inputs, and a plan is of one: wrt={plan.wrt!r}, say")
    return plan


def plans_of(
    model: Model,
    request: Request,
    *,
    tile: Size = 256,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
) -> list[TilePlan]:
    """The same, of a model that a request builds: a plan for each of several inputs that the layer depends on, where
    none is named."""
    found = tilings_of(model, request, tile=tile, layer=layer, image_size=image_size, wrt=wrt)
    return [TilePlan(**{each.name: getattr(tiling, each.name) for each in fields(tiling)}) for tiling in found]


def tile_file(
    model: Model,
    plan: TilePlan,
    source: str | Path,
    target: str | Path,
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
        source: (C, *space) or (B, C, *space) as the model takes it, in .npy; or one image in TIFF or zarr.
        target: The file that is written; one of that name is replaced.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.
        **options: Those of :func:`erfscope.analyze` that build the model, its weights and device.

    Raises:
        ErfscopeError: a file that cannot be read, an output that is the image, or as :func:`erfscope.run_tiled`.
        MeasurementError: the model fails.
    """
    request, opened = Request.parse(options), list[Result]()

    def open_model() -> ModuleAdapter:
        loaded = load_model(model, request, size=request.sizes[0], weights=request.weights[0])
        opened.append(failed(loaded, request.settings, None, ErfscopeError("nothing is measured")))
        return cast(ModuleAdapter, variant_of(loaded, request).adapter)

    with restored(*caller_modules(model)):
        run_file(open_model, plan, source, target, goes_on=goes_on, called=called)
    for row in opened:
        request.tell(f"{row.label}: {random_weights(row) or weights_condition(row).alone}")
