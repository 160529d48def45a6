"""Tiled inference from an image file to another of its kind, which can be stopped and go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from erfscope.adapters.module import ModuleAdapter
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.unit import size_text
from erfscope.stimuli.files import is_zarr, suffixes_like
from erfscope.storage.writing import behind_link, refuse_input, take_place
from erfscope.tiling.plan import Tiling
from erfscope.tiling.rasters import new_output, open_output, open_raster
from erfscope.tiling.run import check_image, run_tiled


def run_file(
    open_model: Callable[[], ModuleAdapter],
    plan: Tiling,
    source: str | Path,
    target: str | Path,
    *,
    goes_on: bool = False,
    called: Callable[[int, int], None] | None = None,
) -> None:
    """Run a model tile by tile on an image in a file, and write its output to another of its kind.

    See :func:`erfscope.api.tile.tile_file`.

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
        if each.is_dir() and not (is_zarr(each) and suffixes_like(source) == (".zarr",)):
            raise ErfscopeError(f"{each} is a folder that no such run wrote; choose another name for the output")
    filled = part if part.exists() or (target.exists() and not mark.exists()) else target
    with open_raster(source, len(plan.axes)) as raster:
        x = raster.x
        check_image(x, len(plan.axes))
        output = open_output(raster, filled) if goes_on and mark.exists() else None
        space = x.shape[-len(plan.axes) :]
        size = plan.output_size(space)
        model = open_model()
        if output is None:
            corner = (*(slice(None),) * (len(x.shape) - len(space)), *map(slice, map(min, plan.crop, space)))
            try:
                first = run_tiled(model, x[corner], plan)
            except MeasurementError as error:
                found, takes = x.shape[-len(space) - 1], model.preprocess.channels
                if found == takes:
                    raise
                held = (
                    f"{str(source)!r} is read as {found} channels of {size_text(space)}, and {plan.model} takes {takes}"
                )
                raise MeasurementError(f"{held}; give an image with {takes}, the channels first") from error
            mark.unlink(missing_ok=True)
            filled.parent.mkdir(parents=True, exist_ok=True)
            output = new_output(raster, filled, (*first.shape[: -len(size)], *size), first.dtype, plan)
        run_tiled(model, x, plan, out=output, resume=mark, progress=called)
    if filled != target:
        take_place(filled, target)
