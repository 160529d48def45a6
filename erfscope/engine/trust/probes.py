"""The effect of noise on one image, compared with the prediction of its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from erfscope.engine.trust.noise import Gradient, UnitFunction
from erfscope.maps.probe import Probe
from erfscope.maps.trust import Trust

#: What moves a scalar by more than so many of its rounding errors is no rounding.
ROUNDINGS = 1e3
#: Neither is a change of a scalar that is within so many rounding errors of its terms known to be one.
ROUNDINGS_OF_TERMS = 10


def sigmas(dtype: torch.dtype) -> tuple[float, float]:
    """The standard deviations of noise that a gradient is judged by, in those of the reference.

    The square root of the rounding error, since a model with many kinks bends early, and the cube root, at which
    rounding and curvature of a central difference balance, for smooth models."""
    eps = torch.finfo(dtype).eps
    return eps**0.5, eps ** (1 / 3)


class Noise(NamedTuple):
    """The noise of one probe."""

    #: "" for noise everywhere, else the part of the reference that it is on.
    region: str
    sigma: float
    draws: int
    #: True for the cells that it is on, (*space) of the gradient; None for all.
    cells: Tensor | None = None


def of_gradient(function: UnitFunction, gradient: Gradient, draws: int, batch_size: int) -> Trust:
    """The check of one image's gradient by noise everywhere."""
    dtype = function.x.dtype
    everywhere = [Noise("", sigma, draws) for sigma in sigmas(dtype)]
    probes = list(probes_of(function, gradient, everywhere, batch_size))
    passes = 1 + 2 * len(everywhere) * draws
    if not all(map(math.isfinite, (gradient.norm, *(value for probe in probes for value in probe.found)))):
        return Trust(gradient=(), passes=passes, not_finite=1)
    if not gradient.norm > 0:
        least = ROUNDINGS * torch.finfo(dtype).eps * float(gradient.channels.abs().sum())
        moved = any(abs(change) * probe.sigma * gradient.spread > least for probe in probes for change in probe.found)
        return Trust(gradient=(), passes=passes, moved_without_gradient=int(moved))
    if _is_rounding(function, gradient, probes):
        return Trust(gradient=(), passes=passes, lost_in_rounding=1)
    return Trust(gradient=tuple(probes), passes=passes)


def probes_of(function: UnitFunction, gradient: Gradient, noises: Sequence[Noise], batch_size: int) -> Iterator[Probe]:
    """The probe of each noise."""
    drawn = [(noise, draw) for noise in noises for draw in range(noise.draws)]
    if not drawn:
        return
    shape = gradient.values.shape
    normals = [function.normal(shape, draw + 1) * (1 if noise.cells is None else noise.cells) for noise, draw in drawn]
    steps = [noise.sigma * gradient.spread for noise, _ in drawn]
    both = (sign * step * normal for step, normal in zip(steps, normals, strict=True) for sign in (1, -1))
    scalars = function.readout(function.moved(gradient, both, batch_size)).reshape(-1, 2)
    norm = gradient.norm or 1.0
    found = ((scalars[:, 0] - scalars[:, 1]) / 2 / norm / torch.tensor(steps)).tolist()
    predicted = [float((gradient.values * normal).sum()) / norm for normal in normals]
    for noise in noises:
        here = [at for at, (other, _) in enumerate(drawn) if other is noise]
        share = 1.0 if noise.cells is None else float((gradient.values * noise.cells).square().sum()) / norm**2
        yield Probe(
            sigma=noise.sigma,
            images=(function.image,) * len(here),
            predicted=tuple(predicted[at] for at in here),
            found=tuple(found[at] for at in here),
            shares=(share,) * len(here),
        )


def _is_rounding(function: UnitFunction, gradient: Gradient, probes: Sequence[Probe]) -> bool:
    """Whether the scalar neither moves by more than its rounding errors nor should, so that nothing can be said of the
    gradient."""
    least = ROUNDINGS_OF_TERMS * function.rounding(gradient.channels)
    changes = (
        probe.sigma * float(np.hypot.reduce((*probe.found, *probe.predicted))) / len(probe.found) ** 0.5
        for probe in probes
    )
    return all(change * gradient.spread * gradient.norm <= least for change in changes)
