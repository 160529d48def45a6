"""Tiles of models, from Python and for files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from erfscope.adapters import ModuleAdapter
from erfscope.api.blocks import variant_of
from erfscope.api.models import Model, bare, live, load_model
from erfscope.attribution.readout import BATCH_NORMS
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.geometry.input_size import Size
from erfscope.graph.graph import name_of
from erfscope.model_errors import first_line
from erfscope.options.option import Building
from erfscope.options.request import Request
from erfscope.options.settings import Options
from erfscope.restore import restored, set_training
from erfscope.storage.files import DAMAGED
from erfscope.storage.writing import refuse_input
from erfscope.tiling import TilePlan, find_plan, run_tiled
from erfscope.tiling.run import check_image


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
    return plan_of(model, Request.parse(options), tile=tile, layer=layer, image_size=image_size)


def plan_of(
    model: Model, request: Request, *, tile: Size = 256, layer: str | None = None, image_size: Size | None = None
) -> TilePlan:
    """The same, of a model that a request builds."""

    def open_at(size: tuple[int, ...] | None) -> LoadedModel:
        own = request if size is None else replace(request, sizes=(size,))
        sized = model.at_size(size) if isinstance(model, ModuleAdapter) and size is not None else model
        loaded = bare(sized, own)
        # The masks of shifted windows are known by their numbers.
        is_rolled = isinstance(model, str) and any(name_of(node) == "roll" for node in loaded.recording.graph.live)
        return bare(model, own, has_numbers=True) if is_rolled else loaded

    modules = live(model)
    known = [
        f"batch norm in training mode ({name}) takes its statistics from the map; call model.eval()"
        for name, part in (modules[0].named_modules() if modules else ())
        if part.training and isinstance(part, BATCH_NORMS)
    ]
    with restored(*modules):
        return find_plan(open_at, tile=tile, layer=layer, image_size=image_size, known=known[:1])


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
    """Run a model tile by tile on an image in a .npy file, and write its output to another.

    The output stands in its place from the first tile on, with the count of tiles beside it until it is whole. One that
    was there before stays until then: the new one is called ``TARGET.part`` meanwhile.

    Args:
        model: As for :func:`erfscope.analyze`.
        plan: Its plan.
        source: (C, *space) or (B, C, *space), as the model takes it.
        target: The file that is written; one of that name is replaced.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.
        **options: Those that build the model, its weights and device.

    Raises:
        ErfscopeError: a file that cannot be read, an output that is the image, or as :func:`erfscope.run_tiled`.
        MeasurementError: the model fails.
    """
    target, mark, part = Path(target), Path(f"{target}.tiles.json"), Path(f"{target}.part")
    for each in (target, mark, part):
        refuse_input(each, [source])
    filled = part if part.exists() or (target.exists() and not mark.exists()) else target
    x = _image(source)
    check_image(x, len(plan.axes))
    found = _begun(filled) if goes_on and mark.exists() else None
    space = x.shape[-len(plan.axes) :]
    size = plan.output_size(space)
    request = Request.parse(options)
    with restored(*live(model)):
        loaded = load_model(model, request, size=request.sizes[0], weights=request.weights[0])
        module = variant_of(loaded, request).adapter.module
        set_training(module, False)
        if found is None:
            first = run_tiled(module, x[(..., *map(slice, map(min, plan.crop, space)))], plan)
            shape = (*first.shape[: -len(size)], *size)
            mark.unlink(missing_ok=True)
            found = np.lib.format.open_memmap(filled, mode="w+", dtype=first.dtype, shape=shape)
        run_tiled(module, x, plan, out=found, resume=mark, progress=called)
    if filled != target:
        filled.replace(target)


def _image(source: str | Path) -> Any:
    """An array on disk."""
    try:
        return np.lib.format.open_memmap(source, mode="r")
    except DAMAGED as error:
        if Path(source).is_file() and zipfile.is_zipfile(source):
            raise ErfscopeError(
                f"{source} is an archive of arrays; np.save the one that is the image as .npy"
            ) from error
        raise ErfscopeError(f"cannot read {source} ({first_line(error)}); name a .npy file of (C, *space)") from error


def _begun(filled: Path) -> NDArray[Any]:
    """The output of a run that was stopped."""
    try:
        # As it is: opened for writing, a file that is cut off would grow to its old length.
        np.lib.format.open_memmap(filled, mode="r")
        return np.lib.format.open_memmap(filled, mode="r+")
    except DAMAGED as error:
        raise ErfscopeError(f"cannot go on with {filled} ({first_line(error)}); start again with --force") from error
