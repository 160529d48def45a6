"""Tiles of large images: ``tile``."""

from __future__ import annotations

from typing import Unpack

import torch

from erfscope.adapters import ModuleAdapter
from erfscope.api.models import Model, live
from erfscope.api.structure import bare
from erfscope.attribution.readout import BATCH_NORMS
from erfscope.engine.model import LoadedModel
from erfscope.geometry.input_size import Size
from erfscope.graph.graph import name_of
from erfscope.options.keywords import Building
from erfscope.restore import restored
from erfscope.tiling import TilePlan, find_plan


@torch.inference_mode(False)
def tile(
    model: Model,
    tile: Size = 256,
    *,
    layer: str | None = None,
    image_size: Size | None = None,
    **options: Unpack[Building],
) -> TilePlan:
    """How a model is run on tiles of a large image: the exact overlap (halo) that they need, or why there is none.

    The halo is that of every unit's theoretical receptive field, from forward passes without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`.
        tile: Side of the part of the output that each tile gives, in input cells: a number, or one for each axis. It is
            rounded up to what the model's strides allow.
        layer: The layer whose map is put together; what the model returns if None.
        image_size: Size of the images, or of one that leaves the same when divided by the total stride; the model's
            own size if None.
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The plan, for :func:`erfscope.run_tiled`; ``possible`` is False where tiles differ from the whole image.

    Raises:
        ErfscopeError: unknown model, option or layer, or a size with another number of axes.
        MeasurementError: the model fails, or returns no map.
    """

    def open_at(size: tuple[int, ...] | None) -> LoadedModel:
        if isinstance(model, ModuleAdapter):
            return bare(model if size is None else model.at_size(size), options)
        given: Building = options if size is None else {**options, "input_size": size}
        loaded = bare(model, given)
        # The masks of shifted windows are known by their numbers.
        is_rolled = any(name_of(node) == "roll" for node in loaded.recording.graph.live)
        return bare(model, given, has_numbers=True) if is_rolled else loaded

    modules = live(model)
    known = [
        f"batch norm in training mode ({name}) takes its statistics from the map; call model.eval()"
        for name, part in (modules[0].named_modules() if modules else ())
        if part.training and isinstance(part, BATCH_NORMS)
    ]
    with restored(*modules):
        return find_plan(open_at, tile=tile, layer=layer, image_size=image_size, known=known[:1])
