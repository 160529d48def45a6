"""One batch of images through the model and into the averages, in smaller batches where memory runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor

from erfscope.attribution.gradient import (
    Contribution,
    GradientRequest,
    gradient_draws,
    graph_draws,
)
from erfscope.attribution.node_removal import removal_draws
from erfscope.engine.batch_size import device_and_dtype
from erfscope.engine.state import Plan, Source, Sums
from erfscope.environment import ran_out
from erfscope.errors import ErfscopeError
from erfscope.model_errors import model_failed
from erfscope.options.settings import by_removal


def accumulate(plan: Plan, sums: Sums, batch: Sequence[int], read: Source) -> None:
    """Add a batch of images to the averages: together, or in halves, quarters and so on if that does not fit into
    memory.

    What did not fit is not tried again: ``sums.batch_size`` becomes smaller. What was added of it stays, and is passed
    over the next time.

    Args:
        plan: What is measured.
        sums: What the batch is added to.
        batch: Indices of images, ascending.
        read: Gives the part of an image that is needed.

    Raises:
        ErfscopeError: an image cannot be read.
        MeasurementError: the model fails, or does not fit into memory with one image.
    """
    done = 0
    while done < len(batch):
        part = batch[done : done + (1 if _compares(plan, sums) else sums.batch_size)]
        try:
            x, images = _load(plan, sums, part, read)
            every = draws(plan, x, images, most=sums.batch_size) if images else iter(())
            for number, found in groupby(every, attrgetter("unit")):
                _add(sums, number, images, list(found))
            done += len(part)
        except ErfscopeError:
            raise
        except Exception as error:  # anything a model may raise
            if not ran_out(error) or len(part) == 1:
                raise model_failed(plan.model.label, plan.model.adapter, error) from error
            sums.batch_size = len(part) // 2


def _compares(plan: Plan, sums: Sums) -> bool:
    """Whether the next image is measured alone, with a second backward pass, to tell gradients from rounding noise."""
    return plan.may_cancel and len(sums.ratios) < len(plan.units)


def _add(sums: Sums, number: int, images: list[int], found: list[Contribution]) -> None:
    """Add the draws of one unit."""
    if number not in sums.ratios and (ratio := _ratio(found[0])) is not None:
        sums.ratios[number] = ratio
    sums.running[number].add(images, [draw.maps for draw in found], found[0].origin)


def _load(plan: Plan, sums: Sums, indices: Sequence[int], read: Source) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    device, dtype = device_and_dtype(plan)
    loaded: list[Tensor] = []
    images: list[int] = []
    for index in indices:
        if index in sums.unreadable:
            continue
        try:
            loaded.append(read(index))
            images.append(index)
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
            sums.unreadable.append(index)
    if not images:
        return torch.empty(0), []
    x = loaded[0] if len(loaded) == 1 else torch.cat(loaded)
    # From pinned memory a copy does not wait for what the device is doing.
    x = x.pin_memory() if device.type == "cuda" else x
    return x.to(device=device, dtype=dtype, non_blocking=True), images


def draws(plan: Plan, x: Tensor, images: list[int], *, most: int = 1) -> Iterator[Contribution]:
    """Contributions of a batch to every unit, by the method and with the draws that are planned.

    Args:
        plan: What is measured.
        x: Inputs (B, C_in, *space), or the part of them that is needed, where the model lies.
        images: Their indices. One alone has the norm of its gradient with random signs taken too, where its gradient
            may be rounding noise.
        most: How many images a batch will have at most.
    """
    settings = plan.settings
    known = plan.model.recording.layouts(plan.layer, settings.wrt)
    compares = plan.may_cancel and len(images) == 1
    if settings.method == "gradient":
        asked = GradientRequest(
            convention=plan.convention,
            images=images,
            seed=settings.seed,
            draws=plan.draws,
            with_random_signs=compares,
            amp_dtype=getattr(torch, settings.amp_dtype) if settings.amp_dtype else None,
        )
        if plan.plain:
            adapter, layer, wrt = plan.model.adapter, plan.layer, settings.wrt
            return gradient_draws(adapter, x, plan.units, asked, layer=layer, wrt=wrt, known=known)
        first = [low for low, _ in plan.box or ()]
        return graph_draws(plan.passes(len(images), most), x, plan.units, asked, first=first)
    if by_removal(settings):
        which = {"layer": plan.layer, "wrt": settings.wrt, "images": images, "known": known}
        return removal_draws(plan.model.adapter, x, plan.units, plan.convention, **which)  # type: ignore[arg-type]
    from erfscope.attribution.captum_methods import captum_draws

    return captum_draws(
        plan.model.adapter,
        x,
        plan.units,
        plan.convention,
        method=settings.method,
        layer=plan.layer,
        wrt=settings.wrt,
        images=images,
        seed=settings.seed,
        draws=int(plan.draws),
        with_random_signs=compares,
        known=known,
    )


def _ratio(draw: Contribution) -> float | None:
    """How large the gradient is against one with random signs, for the first image that has a gradient; None if none
    has, or it was not asked for."""
    for norm, other in zip(*(each.flatten(1).sum(1).sqrt().tolist() for each in draw.squares or ()), strict=True):
        if math.isfinite(norm) and math.isfinite(other) and norm > 0:
            # Two channels alike may cancel with random signs and not with the readout's.
            return norm / other if other > 0 else math.inf
    return None
