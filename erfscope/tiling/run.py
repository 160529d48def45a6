"""Inference on tiles: crop, run, keep the valid part, stitch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erfscope.containers import parts_of
from erfscope.environment import ran_out
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.unit import size_text
from erfscope.model_errors import contain_exits, first_line
from erfscope.tiling.mark import Mark, shares_memory
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
            needs ``out`` on disk, and is removed at the end. It knows the plan, the model's weights and the image: a
            memmap by its file's size and time, an array in memory by its digest, anything else by its shape alone; and
            the first tile is run again, to see that the model still makes what ``out`` holds.
        progress: Called with the number of tiles done and of all.

    Returns:
        The output (C, *space) or (B, C, *space): ``out`` where it is given.

    Raises:
        ErfscopeError: no tiles are possible, sizes do not fit the plan, ``x`` has no real numbers or is ``out``, the
            model is in training mode, or ``resume`` is damaged or belongs to another run or output.
        MeasurementError: the model fails on a crop.
    """
    plan.require_possible()
    if isinstance(model, nn.Module) and model.training:
        raise ErfscopeError("the model is in training mode, where tiles see other statistics; call model.eval() first")
    if resume is not None and out is None:
        raise ErfscopeError("resume needs out: an array on disk, such as a numpy memmap, that is still there next time")
    rank = len(plan.axes)
    check_image(x, rank)
    if out is not None and shares_memory(x, out):
        raise ErfscopeError(
            "out is x itself, and later tiles need what earlier ones would write over; give another out"
        )
    lead = tuple(x.shape[: len(x.shape) - rank - 1])
    space, images = tuple(x.shape[len(lead) + 1 :]), lead[0] if lead else 1
    jobs = list(itertools.product(range(images), plan.windows(space)))
    mark = Mark(resume, model, x, plan, jobs)
    done = mark.done(out)
    if done:
        number, start = jobs[0]
        again = _output(model, _read(x, (number,) * len(lead), start)[None].to(*_place(model)), plan)[0]
        mark.check_first(again[(slice(None), *start.valid)], out)
    elif out is not None:
        mark.set(0, out)
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


def check_image(x: Any, rank: int) -> None:
    """Refuse what is not one image of real numbers, or several, of so many axes.

    Raises:
        ErfscopeError: it is not.
    """
    shape = tuple(x.shape)
    if len(shape) - rank not in (1, 2):
        raise ErfscopeError(f"the plan is for images (C, *space) or (B, C, *space) of {rank} axes; x has shape {shape}")
    if 0 in shape:
        raise ErfscopeError(f"x has shape {shape}, which holds no numbers; give an image (C, *space)")
    # Of other libraries' types nothing is known.
    if x.dtype.is_complex if isinstance(x, Tensor) else getattr(x.dtype, "kind", "f") not in "fiub":
        raise ErfscopeError(f"x holds {x.dtype}, and an image holds real numbers; convert it")


def _read(x: Any, lead: tuple[int, ...], window: Window) -> Tensor:
    part = x[(*lead, slice(None), *window.crop)]
    if isinstance(part, Tensor):
        return part
    array = np.array(part)
    # PyTorch knows the machine's own order of bytes, and nothing longer than float64.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.float64))


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
            _run(model, crops, plan)
        finally:
            handle.remove()
        found = kept[-1]
    else:
        found = _run(model, crops, plan)
        for key in plan.path:
            found = parts_of(found)[key]
    if not isinstance(found, Tensor):
        raise ErfscopeError(f"the plan's output is a tensor, and the model returned {type(found).__name__}")
    space = plan.output_size(tuple(crops.shape[2:]))
    if found.shape[2:] != space == found.shape[1:-1]:  # timm's Swin has its channels last; its stages have them first
        found = found.movedim(-1, 1)
    if found.shape[2:] != space:
        raise ErfscopeError(f"the plan is for a map (B, C, *{space}), and the model gave {tuple(found.shape)}")
    return found


def _run(model: Callable[[Tensor], Any], crops: Tensor, plan: TilePlan) -> Any:
    try:
        with contain_exits():
            return model(crops)
    except Exception as error:  # anything a model may raise
        hint = "give smaller tiles" if ran_out(error) else "give images (C, *space) as the model takes them"
        text = f"{plan.model} fails on a crop of {crops.shape[1]} channels at {size_text(tuple(crops.shape[2:]))}"
        raise MeasurementError(f"{text}: {first_line(error)}; {hint}") from error
