"""Inference on tiles from one file to another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import numpy as np

from erfscope.api.blocks import with_blocks
from erfscope.api.models import Model, live, load_model
from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line
from erfscope.options.keywords import Options, sizes
from erfscope.restore import restored, set_training
from erfscope.tiling import TilePlan, run_tiled


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

    Args:
        model: As for :func:`erfscope.analyze`.
        plan: Its plan.
        source: (C, *space) or (B, C, *space), as the model takes it.
        target: The file is written as the run goes on; how many tiles it holds is kept beside it meanwhile.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.
        **options: Those that build the model, its weights and device.

    Raises:
        ErfscopeError: a file that cannot be read, or as :func:`erfscope.run_tiled`.
    """
    mark = Path(f"{target}.tiles.json")
    try:
        x = np.load(source, mmap_mode="r")
        found = np.load(target, mmap_mode="r+") if goes_on and mark.exists() else None
    except (OSError, ValueError) as error:
        raise ErfscopeError(f"cannot read {source} ({first_line(error)}); name a .npy file of (C, *space)") from error
    space = x.shape[-len(plan.axes) :]
    size = plan.output_size(space)
    with restored(*live(model)):
        asked = sizes(options.get("input_size"))
        loaded = load_model(model, options, size=asked[0], weights=str(options.get("weights", "auto")))
        module = next(iter(with_blocks(loaded, options)), loaded).adapter.module
        set_training(module, False)
        if found is None:
            mark.unlink(missing_ok=True)
            first = run_tiled(module, x[(..., *map(slice, map(min, plan.crop, space)))], plan)
            shape = (*first.shape[: -len(size)], *size)
            found = np.lib.format.open_memmap(target, mode="w+", dtype=first.dtype, shape=shape)
        run_tiled(module, x, plan, out=found, resume=mark, progress=called)
