"""Inference on tiles from one file to another."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from erfscope.api.blocks import with_blocks
from erfscope.api.models import Model, live, load_model
from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line
from erfscope.options.keywords import Options, sizes
from erfscope.restore import restored, set_training
from erfscope.storage.files import DAMAGED
from erfscope.storage.writing import refuse_input
from erfscope.tiling import TilePlan, run_tiled
from erfscope.tiling.run import check_image


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
    with restored(*live(model)):
        asked = sizes(options.get("input_size"))
        loaded = load_model(model, options, size=asked[0], weights=str(options.get("weights", "auto")))
        module = next(iter(with_blocks(loaded, options)), loaded).adapter.module
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
