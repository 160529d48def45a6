"""Tiled inference from an image file to another of its kind, which can be stopped and go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from erfscope.adapters.module import ModuleAdapter
from erfscope.apps.tile.rasters import Raster, new_output, open_output, open_raster
from erfscope.apps.tile.run import check_image, run_tiled
from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core.answer.storage.writing import behind_link, refuse_input, refuse_inside, take_place, writing_to
from erfscope.core.images.files import is_zarr, suffixes_like
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.unit import size_text


def run_file(
    open_model: Callable[[], ModuleAdapter],
    plan: TilePlan,
    source: str | Path,
    target: str | Path,
    *,
    goes_on: bool = False,
    called: Callable[[int, int], None] | None = None,
) -> None:
    """Run a model tile by tile on an image in a file, and write its output to another of its kind.

    See :func:`erfscope.apps.tile.tiles.tile_file`.

    Args:
        open_model: Gives the model, once it is known that the files can be used.
        plan: Its plan.
        source: (C, *space) or (B, C, *space) as the model takes it, in .npy; or one image in TIFF or zarr.
        target: The file that is written; one of that name is replaced.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.

    Raises:
        ErfscopeError: a file that cannot be read, an output that is the image or a folder of something else, or as
            :func:`erfscope.run_tiled`.
        MeasurementError: the model fails.
    """
    target = behind_link(target)
    mark, part = Path(f"{target}.tiles.json"), Path(f"{target}.part")
    for each in (target, mark, part):
        refuse_input(each, [source])
        refuse_inside(each, [source])
        if each.is_dir() and not (is_zarr(each) and suffixes_like(source) == (".zarr",)):
            raise ErfscopeError(f"{each} is a folder that no such run wrote; choose another name for the output")
    filled = part if part.exists() or (target.exists() and not mark.exists()) else target
    with open_raster(source, len(plan.axes)) as raster:
        x = raster.x
        check_image(x, len(plan.axes))
        output = open_output(raster, filled) if goes_on and mark.exists() else None
        model = open_model()
        if output is None:
            shape, dtype = _output_of(model, raster, plan)
            with writing_to(target):
                mark.unlink(missing_ok=True)
                filled.parent.mkdir(parents=True, exist_ok=True)
                try:
                    output = new_output(raster, filled, shape, dtype, plan)
                except BaseException:
                    shutil.rmtree(filled) if filled.is_dir() else filled.unlink(missing_ok=True)
                    raise
        run_tiled(model, x, plan, out=output, resume=mark, progress=called)
    if filled != target:
        with writing_to(target):
            take_place(filled, target)


def _output_of(model: ModuleAdapter, raster: Raster, plan: TilePlan) -> tuple[tuple[int, ...], Any]:
    """The shape and the type of an image's output, found by its first crop."""
    x, rank = raster.x, len(plan.axes)
    lead, space = x.shape[:-rank], x.shape[-rank:]
    try:
        size = plan.output_size(space)
        first = run_tiled(model, x[(*(slice(None),) * len(lead), *map(slice, map(min, plan.crop, space)))], plan)
    except ErfscopeError as error:
        found, takes = lead[-1], model.preprocess.channels
        if found == takes:
            raise
        held = f"{str(raster.path)!r} is read as {found} channel{'s' * (found != 1)} of {size_text(space)}"
        text = f"{held}, and {plan.model} takes {takes}; give an image with {takes}, the channels first"
        raise MeasurementError(text) from error
    return (*first.shape[:-rank], *size), first.dtype
