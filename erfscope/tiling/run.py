"""Inference on tiles: crop, run, keep the valid part, stitch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erfscope.errors import ErfscopeError
from erfscope.storage.writing import write_bytes
from erfscope.tiling.plan import TilePlan, Window

Progress = Callable[[int, int], None]


@torch.inference_mode()
def run_tiled(
    model: Callable[[Tensor], Any],
    x: Any,
    plan: TilePlan,
    *,
    batch_size: int = 1,
    out: Any = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Any:
    """Run a model on an image tile by tile, with the output of the whole image.

    Args:
        model: The model, in evaluation mode, on the device that it is to run on.
        x: The image (C, *space), or several (B, C, *space), as the model takes it: a tensor, an array, a memmap, or
            anything else with a shape and slices, such as a zarr array. Only the crop that is run is read.
        plan: From :func:`erfscope.tile`.
        batch_size: How many crops are run together.
        out: Where the output is written, by slices; a new tensor or array, as ``x`` is one, if None.
        resume: A small file that counts the tiles that were written: a run that was stopped goes on after them. It
            needs ``out`` on disk, and is removed at the end.
        progress: Called with the number of tiles done and of all.

    Returns:
        The output (C, *space) or (B, C, *space): ``out`` where it is given.

    Raises:
        ErfscopeError: no tiles are possible, sizes do not fit the plan, the model is in training mode, or ``resume``
            belongs to another run.
    """
    plan.require_possible()
    if isinstance(model, nn.Module) and model.training:
        raise ErfscopeError("the model is in training mode, where tiles see other statistics; call model.eval() first")
    if resume is not None and out is None:
        raise ErfscopeError("resume needs out: an array on disk, such as a numpy memmap, that is still there next time")
    rank = len(plan.axes)
    if len(x.shape) - rank not in (1, 2):
        raise ErfscopeError(
            f"the plan is for images (C, *space) or (B, C, *space) of {rank} axes; x has shape {tuple(x.shape)}"
        )
    lead = tuple(x.shape[: len(x.shape) - rank - 1])
    space, images = tuple(x.shape[len(lead) + 1 :]), lead[0] if lead else 1
    jobs = list(itertools.product(range(images), plan.windows(space)))
    mark = Mark(resume, plan, tuple(x.shape), len(jobs))
    done = mark.done
    for first in range(done, len(jobs), batch_size):
        batch = jobs[first : first + batch_size]
        crops = [_read(x, (image,) * len(lead), window) for image, window in batch]
        found = _output(model, torch.stack(crops).to(*_place(model)), plan)
        if out is None:
            shape = (*lead, found.shape[1], *plan.output_size(space))
            empty = torch.empty(shape, dtype=found.dtype, device=x.device if isinstance(x, Tensor) else None)
            out = empty if isinstance(x, Tensor) else empty.numpy()
        for (image, window), each in zip(batch, found, strict=True):
            part = each[(slice(None), *window.valid)]
            out[(*(image,) * len(lead), slice(None), *window.target)] = (
                part if isinstance(out, Tensor) else part.cpu().numpy()
            )
        done += len(batch)
        mark.set(done, out)
        if progress is not None:
            progress(done, len(jobs))
    mark.remove()
    return out


class Mark:
    """How many tiles of a run are written, in a file where one is named."""

    def __init__(self, file: str | Path | None, plan: TilePlan, shape: tuple[int, ...], tiles: int) -> None:
        self.file = None if file is None else Path(file)
        self.run = sha256(repr((plan, shape, tiles)).encode()).hexdigest()
        self.done = 0
        if self.file is not None and self.file.exists():
            found = json.loads(self.file.read_text(encoding="utf8"))
            if found.get("run") != self.run:
                raise ErfscopeError(
                    f"{self.file} belongs to another plan or image; remove it, or name another file with resume"
                )
            self.done = found["done"]

    def set(self, done: int, out: Any) -> None:
        """Note that so many tiles are written, and on the disk."""
        if self.file is not None:
            if hasattr(out, "flush"):
                out.flush()
            write_bytes(self.file, json.dumps({"run": self.run, "done": done}).encode(), force=True)

    def remove(self) -> None:
        """Remove the file of a run that is done."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def _read(x: Any, lead: tuple[int, ...], window: Window) -> Tensor:
    part = x[(*lead, slice(None), *window.crop)]
    return part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))


def _place(model: Any) -> tuple[torch.device, torch.dtype] | tuple[()]:
    """Device and dtype of a module; nothing for a function, which takes inputs as they are."""
    for each in model.parameters() if isinstance(model, nn.Module) else ():
        if each.is_floating_point():
            return each.device, each.dtype
    return ()


def _output(model: Callable[[Tensor], Any], crops: Tensor, plan: TilePlan) -> Tensor:
    """The map of the plan's layer, or of what the model returns."""
    kept: list[Any] = []
    if plan.layer:
        if not isinstance(model, nn.Module) or plan.layer not in dict(model.named_modules()):
            raise ErfscopeError(
                f"the plan is for layer {plan.layer!r}, and the model has no such module; plan for what it returns"
            )
        handle = model.get_submodule(plan.layer).register_forward_hook(
            lambda _module, _args, output: kept.append(output)
        )
        try:
            model(crops)
        finally:
            handle.remove()
        found = kept[-1]
    else:
        found = model(crops)
        for key in plan.path:
            found = found[key]
    if not isinstance(found, Tensor):
        raise ErfscopeError(f"the plan's output is a tensor, and the model returned {type(found).__name__}")
    space = plan.output_size(tuple(crops.shape[2:]))
    if found.shape[2:] != space == found.shape[1:-1]:  # timm's Swin has its channels last; its stages have them first
        found = found.movedim(-1, 1)
    if found.shape[2:] != space:
        raise ErfscopeError(f"the plan is for a map (B, C, *{space}), and the model gave {tuple(found.shape)}")
    return found
