"""Tiled inference from a .npy file to another, which can be stopped and go on."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erfscope.adapters.module import ModuleAdapter
from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line
from erfscope.storage.files import DAMAGED
from erfscope.storage.writing import refuse_input
from erfscope.tiling.plan import TilePlan
from erfscope.tiling.run import check_image, run_tiled


def run_file(
    open_model: Callable[[], ModuleAdapter],
    plan: TilePlan,
    source: str | Path,
    target: str | Path,
    *,
    goes_on: bool = False,
    called: Callable[[int, int], None] | None = None,
) -> None:
    """Run a model tile by tile on an image in a .npy file, and write its output to another.

    See :func:`erfscope.api.tile.tile_file`.

    Args:
        open_model: Gives the model, once it is known that the files can be used.
        plan: Its plan.
        source: (C, *space) or (B, C, *space), as the model takes it.
        target: The file that is written; one of that name is replaced.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.

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
    output = _begun(filled) if goes_on and mark.exists() else None
    space = x.shape[-len(plan.axes) :]
    size = plan.output_size(space)
    model = open_model()
    if output is None:
        first = run_tiled(model, x[(..., *map(slice, map(min, plan.crop, space)))], plan)
        shape = (*first.shape[: -len(size)], *size)
        mark.unlink(missing_ok=True)
        filled.parent.mkdir(parents=True, exist_ok=True)
        output = np.lib.format.open_memmap(filled, mode="w+", dtype=first.dtype, shape=shape)
    run_tiled(model, x, plan, out=output, resume=mark, progress=called)
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
        raise ErfscopeError(
            f"cannot read {source} ({first_line(error)}); name a .npy file of an array such as (C, H, W)"
        ) from error


def _begun(filled: Path) -> NDArray[Any]:
    """The output of a run that was stopped."""
    try:
        # As it is: opened for writing, a file that is cut off would grow to its old length.
        np.lib.format.open_memmap(filled, mode="r")
        return np.lib.format.open_memmap(filled, mode="r+")
    except DAMAGED as error:
        raise ErfscopeError(f"cannot go on with {filled} ({first_line(error)}); start again with --force") from error
