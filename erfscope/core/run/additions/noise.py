"""Forward passes with noise on the reference of one unit, and what its gradient predicts of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from erfscope.core.adapter import Adapter
from erfscope.core.answer.maps.probe import Probe
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.graph.run import Crop, Forward
from erfscope.core.run.attribution.forward import ForwardPass, GraphForward, ModelForward, guarded
from erfscope.core.run.attribution.gradient import backward, in_double, random_rows
from erfscope.core.run.attribution.readout import unit_channels
from erfscope.core.run.engine.batch import device_and_dtype
from erfscope.core.run.engine.plan import Plan
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.names import is_input

#: Standard deviation of the noise that is added to a reference before anything else, in its own: no two neighbours are
#: the same then, as they are in flat parts of an image, where the largest of them has no derivative.
JITTER = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of one unit's scalar with respect to the cells of the reference that it depends on, near one
    image."""

    #: (C_X, *space), float64.
    values: Tensor
    #: The noise that was added to the reference, as the values.
    jitter: Tensor
    #: Standard deviation of the reference over these cells and channels; 1 where it is the same everywhere.
    spread: float
    #: The first cell along each axis of the reference.
    origin: tuple[int, ...]
    #: The channels of the unit that the scalar is made of, (C,), float64.
    channels: Tensor

    @property
    def norm(self) -> float:
        """Norm over all cells and channels."""
        return float(self.values.norm())

    @property
    def amplitude(self) -> float:
        """The sum over cells of the norm over channels, over the norm of all: 1 of one cell, sqrt(N) of N alike."""
        return float(self.values.norm(dim=0).sum()) / self.norm

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """First cell and the one behind the last, along each axis of the reference."""
        return tuple((low, low + size) for low, size in zip(self.origin, self.values.shape[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class UnitFunction:
    """The scalar of one unit of one image, as a function of the reference, without autocast: by the graph where that is
    the image, else by the model itself."""

    plan: Plan
    #: The plan's model, or a copy of it in another precision, with its input's dtype.
    adapter: Adapter
    #: Of the plan's units.
    number: int
    #: Global index, which the readout's random signs are keyed by.
    image: int
    #: (1, C_in, *space), where the model lies: what the graph needs of it, or all of it.
    x: Tensor

    def normal(self, shape: Sequence[int], draw: int) -> Tensor:
        """Standard normal numbers, float64 on the CPU, the same for every sigma, batch size and rank; draw 0 is the
        jitter's."""
        key = np.array([self.plan.question.seed, 0x7157], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, self.image, draw]))
        return torch.from_numpy(generator.standard_normal(tuple(shape)))

    def gradient(self) -> Gradient:
        """The gradient by autograd, at the reference with its jitter."""
        spread, jitter = 1.0, torch.zeros(0)

        def near(values: Tensor) -> Tensor:
            nonlocal spread, jitter
            spread = float(in_double(values.detach()).std(correction=min(1, values.numel() - 1))) or 1.0
            jitter = JITTER * spread * self.normal(values.shape[1:], 0)
            return jitter.to(values).expand(values.shape)

        (features,) = self._forward()(self.x, near)
        with guarded(self.x.device):
            channels = self._channels(features.map)
            (gradient,) = backward([features], self.readout(channels), keep=False)
            values = gradient.cpu()
        origin = features.reference.origin or (0,) * (values.dim() - 2)
        return Gradient(
            values=values[0], jitter=jitter, spread=spread, origin=origin, channels=channels[0].detach().cpu()
        )

    def moved(self, gradient: Gradient, noises: Iterable[Tensor], batch_size: int) -> Tensor:
        """The unit's channels (N, C), float64 on the CPU, where noise is added to the reference with its jitter.

        Args:
            gradient: Of this function.
            noises: N times (C_X, *space), float64 on the CPU, as the gradient's values.
            batch_size: How many passes fit into memory together.
        """
        found, left = [], iter(noises)
        while chunk := list(islice(left, batch_size)):
            noise = torch.stack([each + gradient.jitter for each in chunk])
            copies = self.x.expand(len(chunk), *self.x.shape[1:])
            (features,) = self._forward(len(chunk), batch_size)(copies, noise.to, with_gradients=False)
            found.append(self._channels(features.map).cpu())
        return torch.cat(found)

    @cached_property
    def _crop(self) -> Crop | None:
        return crop_of(self.plan, self.number)

    def _forward(self, images: int = 1, most: int = 1) -> ForwardPass:
        """The forward pass of so many copies of the image, of at most ``most``."""
        plan, crop = self.plan, self._crop
        if crop is None:
            return ModelForward(self.adapter, plan.question)
        unit = plan.question.units[self.number].index
        try:
            (own,) = plan.model.crops(plan.site, [unit], images=images, most=most, adapter=self.adapter)
        except ErfscopeError as error:
            # A copy in float64 fails as such a model does.
            raise error.__cause__ or error from error
        first = [low for low, _ in crop.image]
        return GraphForward(Forward(own, self.adapter.tensors()), first, [plan.question.place])

    def rounding(self, channels: Tensor) -> float:
        """About how large rounding errors of the scalar of channels (C,) are: those of its terms, one by one."""
        with torch.enable_grad():
            leaf = channels[None].detach().requires_grad_(True)
            (weights,) = torch.autograd.grad(self.readout(leaf).sum(), leaf)
        return torch.finfo(self.x.dtype).eps * float((weights * leaf.detach()).norm())

    def readout(self, channels: Tensor) -> Tensor:
        """The scalar (N,) of channels (N, C)."""
        random = self.plan.question.convention.random
        signs = random_rows(channels, [self.image] * len(channels), self.plan.question.seed, 0) if random else None
        return self.plan.question.convention.readout(channels, signs)

    def _channels(self, features: Tensor) -> Tensor:
        """The unit's channels (B, C) of maps (B, C, *space), in double precision."""
        unit = self.plan.question.units[self.number]
        return in_double(unit_channels(features, unit if self._crop is None else replace(unit, index=(0,))))


def crop_of(plan: Plan, number: int) -> Crop | None:
    """The part of the image that one unit needs; None where the model itself is run."""
    if plan.plain_reason is not None or not is_input(plan.site.wrt):
        return None
    return plan.model.crops(plan.site, [plan.question.units[number].index])[0]


def function_of(plan: Plan, number: int, image: int) -> UnitFunction:
    """One unit's scalar of one image, by passes of the model's own type.

    Raises:
        ErfscopeError: the image cannot be read.
    """
    device, dtype = device_and_dtype(plan)
    crop = crop_of(plan, number)
    x = plan.feed.batch([image], None if crop is None else crop.image).to(device=device, dtype=dtype)
    return UnitFunction(plan=plan, adapter=plan.model.adapter, number=number, image=image, x=x)


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

    sigma: float
    draws: int
    #: True for the cells that it is on, (*space) of the gradient; None for all.
    cells: Tensor | None = None


def of_gradient(function: UnitFunction, gradient: Gradient, draws: int, batch_size: int) -> Trust:
    """The check of one image's gradient by noise everywhere."""
    dtype = function.x.dtype
    everywhere = [Noise(sigma, draws) for sigma in sigmas(dtype)]
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
    return Trust(gradient=tuple(probes), passes=passes, box=gradient.box, amplitudes=(gradient.amplitude,))


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
    found = ((scalars[:, 0] - scalars[:, 1]) / 2 / norm / torch.tensor(steps, dtype=torch.float64)).tolist()
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
