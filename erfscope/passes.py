"""One batch of pictures through the model and into the averages, in smaller batches where memory runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from erfscope.attribution.gradient import Asked, AskedWords, Draw, cone_draws, gradient_draws
from erfscope.attribution.removal import by_removal, removal_draws
from erfscope.batching import home
from erfscope.conclusion import Run
from erfscope.errors import ErfscopeError
from erfscope.memory import ran_out
from erfscope.subject import model_failed


def add(run: Run, batch: Sequence[int]) -> None:
    """Add a batch of pictures to the averages: together, or in halves, quarters and so on if that does not fit into memory.

    What did not fit is not tried again: ``run.at_once`` becomes smaller.

    Args:
        run: What is asked, and the averages.
        batch: Indices of pictures, ascending.

    Raises:
        ErfscopeError: a picture cannot be read.
        MeasurementError: the model fails, or does not fit into memory with one picture.
    """
    done = 0
    while done < len(batch):
        part = batch[done : done + run.at_once]
        if _fits(run, part):
            done += len(part)
        else:
            run.at_once = len(part) // 2


def _fits(run: Run, indices: Sequence[int]) -> bool:
    """Whether a batch could be added. What was added of one that could not stays, and is passed over the next time."""
    try:
        x, images = _load(run, indices)
        if images:
            _pass(run, x, images)
    except Exception as error:
        if not ran_out(error):
            raise
        if len(indices) == 1:
            raise model_failed(run.subject.label, run.subject.adapter, error) from error
        # Going on outside this block lets go of the traceback, and with it of the graph.
        return False
    return True


def _load(run: Run, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    device, dtype = home(run)
    loaded: list[Tensor] = []
    images: list[int] = []
    for index in indices:
        if index in run.unreadable:
            continue
        try:
            loaded.append(run.source(index).to(device=device, dtype=dtype, non_blocking=True))
            images.append(index)
        except ErfscopeError:
            if not run.settings.keep_going:
                raise
            run.unreadable.append(index)
    return (torch.cat(loaded), images) if loaded else (torch.empty(0), [])


def _pass(run: Run, x: Tensor, images: list[int]) -> None:
    """Add one batch to the averages, unit by unit."""
    pending: list[Draw] = []
    paths: list[list[str]] = []
    current = 0
    try:
        for draw in _draws(run, x, images, paths):
            if draw.unit != current:
                _flush(run, current, images, pending)
                current, pending = draw.unit, []
            pending.append(draw)
            while paths:
                run.subject.check_path(paths.pop(), run.layer, run.settings.wrt)
            if draw.unit not in run.ratios and (ratio := _ratio(draw)) is not None:
                run.ratios[draw.unit] = ratio
    except ErfscopeError:
        raise
    except Exception as error:  # anything a model may raise
        if ran_out(error):
            raise
        raise model_failed(run.subject.label, run.subject.adapter, error) from error
    _flush(run, current, images, pending)


def _draws(run: Run, x: Tensor, images: list[int], paths: list[list[str]]) -> Iterator[Draw]:
    settings, yardstick = run.settings, len(run.ratios) < len(run.units)
    known = run.subject.recording.layouts(run.layer, settings.wrt)
    if settings.method == "gradient":
        amp = getattr(torch, settings.amp_dtype) if settings.amp_dtype else None
        words: AskedWords = {"images": images, "seed": settings.seed, "draws": run.draws, "yardstick": yardstick, "amp_dtype": amp}
        if run.cones is None:
            where = {"layer": run.layer, "wrt": settings.wrt, "known": known}
            return gradient_draws(run.subject.adapter, x, run.units, run.convention, **where, **words)  # type: ignore[arg-type]
        first = None if run.box is None else tuple(low for low, _ in run.box)
        asked = Asked(convention=run.convention, paths=paths, **words)
        return cone_draws(run.subject.adapter, x, run.cones, asked, first=first, folding=run.folding)
    if by_removal(settings):
        which = {"layer": run.layer, "wrt": settings.wrt, "images": images, "known": known}
        return removal_draws(run.subject.adapter, x, run.units, run.convention, **which)  # type: ignore[arg-type]
    from erfscope.attribution.captum_methods import captum_draws

    return captum_draws(
        run.subject.adapter,
        x,
        run.units,
        run.convention,
        method=settings.method,
        layer=run.layer,
        wrt=settings.wrt,
        images=images,
        seed=settings.seed,
        draws=int(run.draws),
        yardstick=yardstick,
        known=known,
    )


def _flush(run: Run, unit: int, images: list[int], draws: list[Draw]) -> None:
    """Add a unit's contributions, each picture's once, however often its batch is tried."""
    for position, image in enumerate(images):
        if image >= run.counted.get(unit, 0):
            run.averages[unit].add(image, [draw.maps[position].numpy() for draw in draws], draws[0].origin)
            run.counted[unit] = image + 1


def _ratio(draw: Draw) -> float | None:
    """How large the gradient is against one with random signs, for the first image that has a gradient; None if none has."""
    norms = draw.norms.numpy()
    yardstick = norms if draw.yardstick is None else draw.yardstick.numpy()
    usable = np.flatnonzero(np.isfinite(norms) & np.isfinite(yardstick) & (norms > 0))
    if not usable.size:
        return None
    norm, random = float(norms[usable[0]]), float(yardstick[usable[0]])
    # Two channels alike may cancel with random signs and not with the readout's.
    return norm / random if random > 0 else math.inf
