"""One batch of pictures through the model and into the averages, in smaller batches where memory runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from erfscope.attribution.gradient import Contribution, GradientOptions, GradientRequest, cone_draws, gradient_draws
from erfscope.attribution.node_removal import removal_draws
from erfscope.engine.batch_size import device_and_dtype
from erfscope.engine.run import Run
from erfscope.environment import ran_out
from erfscope.errors import ErfscopeError
from erfscope.failures.model import model_failed
from erfscope.options.settings import by_removal


def accumulate(run: Run, batch: Sequence[int]) -> None:
    """Add a batch of pictures to the averages: together, or in halves, quarters and so on if that does not fit into memory.

    What did not fit is not tried again: ``run.at_once`` becomes smaller. What was added of it stays, and is passed over the next time.

    Args:
        run: What is asked, and the averages.
        batch: Indices of pictures, ascending.

    Raises:
        ErfscopeError: a picture cannot be read.
        AnotherPath: the model takes another path than where it was recorded.
        MeasurementError: the model fails, or does not fit into memory with one picture.
    """
    done = 0
    while done < len(batch):
        part = batch[done : done + run.at_once]
        x: Tensor | None = None
        draw: Contribution | None = None
        pending = _Pending(run)
        paths: list[list[str]] = []
        loaded = False
        try:
            x, images = _load(run, part)
            loaded = True
            for draw in _draws(run, x, images, paths) if images else ():
                pending.take(draw, images)
                while paths:
                    run.subject.check_path(paths.pop(), run.layer, run.settings.wrt)
            pending.store(images)
            done += len(part)
        except ErfscopeError:
            raise
        except Exception as error:  # anything a model may raise
            if not loaded and not ran_out(error):
                raise
            if not ran_out(error) or len(part) == 1:
                raise model_failed(run.subject.label, run.subject.adapter, error) from error
            run.at_once = len(part) // 2
        # Whatever holds the graph of a pass that did not fit is let go of before the next one.
        x = draw = None
        del pending


class _Pending:
    """Draws of one unit and one batch, until they are all there."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._unit = 0
        self._draws: list[Contribution] = []

    def take(self, draw: Contribution, images: Sequence[int]) -> None:
        """Keep a draw; those of the unit before it are stored."""
        if draw.unit != self._unit:
            self.store(images)
            self._unit, self._draws = draw.unit, []
        self._draws.append(draw)
        if draw.unit not in self._run.ratios and (ratio := _ratio(draw)) is not None:
            self._run.ratios[draw.unit] = ratio

    def store(self, images: Sequence[int]) -> None:
        """Add the unit's contributions, each picture's once, however often its batch is tried."""
        for position, image in enumerate(images):
            if image >= self._run.counted.get(self._unit, 0):
                maps = [draw.maps[position].numpy() for draw in self._draws]
                self._run.averages[self._unit].add(image, maps, self._draws[0].origin)
                self._run.counted[self._unit] = image + 1


def _load(run: Run, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    device, dtype = device_and_dtype(run)
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


def _draws(run: Run, x: Tensor, images: list[int], paths: list[list[str]]) -> Iterator[Contribution]:
    settings, yardstick = run.settings, len(run.ratios) < len(run.units)
    known = run.subject.recording.layouts(run.layer, settings.wrt)
    if settings.method == "gradient":
        amp = getattr(torch, settings.amp_dtype) if settings.amp_dtype else None
        words: GradientOptions = {"images": images, "seed": settings.seed, "draws": run.draws, "yardstick": yardstick, "amp_dtype": amp}
        if run.cones is None:
            where = {"layer": run.layer, "wrt": settings.wrt, "known": known}
            return gradient_draws(run.subject.adapter, x, run.units, run.convention, **where, **words)  # type: ignore[arg-type]
        first = None if run.box is None else tuple(low for low, _ in run.box)
        asked = GradientRequest(convention=run.convention, paths=paths, **words)
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


def _ratio(draw: Contribution) -> float | None:
    """How large the gradient is against one with random signs, for the first image that has a gradient; None if none has."""
    norms = draw.norms.numpy()
    yardstick = norms if draw.yardstick is None else draw.yardstick.numpy()
    usable = np.flatnonzero(np.isfinite(norms) & np.isfinite(yardstick) & (norms > 0))
    if not usable.size:
        return None
    norm, random = float(norms[usable[0]]), float(yardstick[usable[0]])
    # Two channels alike may cancel with random signs and not with the readout's.
    return norm / random if random > 0 else math.inf
