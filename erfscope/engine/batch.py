"""One batch of images through the model and into the averages, in smaller batches where memory runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from erfscope.attribution.gradient import (
    Contribution,
    GradientOptions,
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

    What did not fit is not tried again: ``sums.at_once`` becomes smaller. What was added of it stays, and is passed
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
        part = batch[done : done + (1 if _compares(plan, sums) else sums.at_once)]
        x: Tensor | None = None
        draw: Contribution | None = None
        pending = _Pending(sums, random=plan.convention.random)
        loaded = False
        try:
            x, images = _load(plan, sums, part, read)
            loaded = True
            for draw in draws(plan, x, images, most=sums.at_once) if images else ():
                pending.take(draw, images)
            pending.store(images)
            done += len(part)
        except ErfscopeError:
            raise
        except Exception as error:  # anything a model may raise
            if not loaded and not ran_out(error):
                raise
            if not ran_out(error) or len(part) == 1:
                raise model_failed(plan.model.label, plan.model.adapter, error) from error
            sums.at_once = len(part) // 2
        # Whatever holds the graph of a pass that did not fit is let go of before the next one.
        x = draw = None
        del pending


def _compares(plan: Plan, sums: Sums) -> bool:
    """Whether the next image is measured alone, with a second backward pass, to tell gradients from rounding noise."""
    return plan.may_cancel and len(sums.ratios) < len(plan.units)


class _Pending:
    """Draws of one unit and one batch, until they are all there."""

    def __init__(self, sums: Sums, *, random: bool) -> None:
        self._sums, self._random = sums, random
        self._unit = 0
        self._draws: list[Contribution] = []

    def take(self, draw: Contribution, images: Sequence[int]) -> None:
        """Keep a draw; those of the unit before it are stored."""
        if draw.unit != self._unit:
            self.store(images)
            self._unit, self._draws = draw.unit, []
        self._draws.append(draw)
        # Draws with random signs need no others to be compared with.
        compared = self._random or draw.random_sign_norm is not None
        if draw.unit not in self._sums.ratios and compared and (ratio := _ratio(draw)) is not None:
            self._sums.ratios[draw.unit] = ratio

    def store(self, images: Sequence[int]) -> None:
        """Add the unit's contributions, each image's once, however often its batch is tried."""
        for position, image in enumerate(images):
            if image >= self._sums.counted.get(self._unit, 0):
                maps = [draw.maps[position].numpy() for draw in self._draws]
                self._sums.averages[self._unit].add(image, maps, self._draws[0].origin)
                self._sums.counted[self._unit] = image + 1


def _load(plan: Plan, sums: Sums, indices: Sequence[int], read: Source) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    device, dtype = device_and_dtype(plan)
    loaded: list[Tensor] = []
    images: list[int] = []
    for index in indices:
        if index in sums.unreadable:
            continue
        try:
            loaded.append(read(index).to(device=device, dtype=dtype, non_blocking=True))
            images.append(index)
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
            sums.unreadable.append(index)
    return (torch.cat(loaded), images) if loaded else (torch.empty(0), [])


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
        amp = getattr(torch, settings.amp_dtype) if settings.amp_dtype else None
        words: GradientOptions = {"images": images, "seed": settings.seed, "draws": plan.draws, "amp_dtype": amp}
        words |= {"with_random_signs": compares}
        if plan.plain:
            where = {"layer": plan.layer, "wrt": settings.wrt, "known": known}
            return gradient_draws(plan.model.adapter, x, plan.units, plan.convention, **where, **words)  # type: ignore[arg-type]
        asked = GradientRequest(convention=plan.convention, **words)
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
    has."""
    norms = draw.norms.numpy()
    random_sign_norm = norms if draw.random_sign_norm is None else draw.random_sign_norm.numpy()
    usable = np.flatnonzero(np.isfinite(norms) & np.isfinite(random_sign_norm) & (norms > 0))
    if not usable.size:
        return None
    return _noise_ratio(float(norms[usable[0]]), float(random_sign_norm[usable[0]]))


def _noise_ratio(norm: float, random: float) -> float:
    # Two channels alike may cancel with random signs and not with the readout's.
    return norm / random if random > 0 else math.inf
