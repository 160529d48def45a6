"""Tests of a gradient by forward passes with noise: whether it is the model's derivative, where it is large, and how
far it holds.

A unit's scalar f moves by df where noise of standard deviation sigma moves the reference, and the gradient g predicts g
. noise. Over noise, E df^2 / sigma^2 tends to |g|^2 as sigma tends to 0, if g is the derivative. The prediction makes
that sharp: in the regression of what is found on what is predicted, whose mean square is known, little is left to
chance where the two agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, Self, TypeVar

import numpy as np

from erfscope.maps.probe import SETTLED, VAGUE, Estimate, Probe, are_off, sharpest

#: Where the energy of a unit's change has moved by so much from that of small changes, the model is linear no more.
BENT = 0.1
#: A tenth of the input's contrast.
TENTH = 0.1


class _Joined(Protocol):
    """Values of some images that can be joined with those of others."""

    def joined(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=_Joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Noise on one part of the reference only: within a circle, between two, or outside."""

    name: str
    probe: Probe

    def joined(self, other: Self) -> Self:
        """This region and the same one of other images."""
        return replace(self, probe=self.probe.joined(other.probe))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Noise of one standard deviation everywhere, beside noise that is small. Lists have one entry per draw of
    noise."""

    #: As for :class:`Probe`.
    sigma: float
    images: tuple[int, ...]
    #: Energy of the unit's change over sigma squared, divided by that of the small noise.
    energies: tuple[float, ...]

    @property
    def ratio(self) -> Estimate:
        """Mean energy, with its standard error, infinite for a single draw: 1 where the model is linear."""
        several = len(self.energies) > 1
        se = float(np.std(self.energies, ddof=1) / math.sqrt(len(self.energies))) if several else math.inf
        return Estimate(float(np.mean(self.energies)), se)

    def joined(self, other: Self) -> Self:
        """This step and the same one of other images."""
        return replace(self, images=(*self.images, *other.images), energies=(*self.energies, *other.energies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The test of one unit's gradient by forward passes with noise."""

    #: Noise everywhere, at sigmas that are small against the reference's spread and large against rounding.
    gradient: tuple[Probe, ...]
    #: Noise within r50, between r50 and r90, and beyond.
    regions: tuple[Region, ...] = ()
    #: Larger noise, up to the reference's own standard deviation, sigma ascending.
    ladder: tuple[Step, ...] = ()
    #: Forward passes of one image each.
    passes: int
    #: Images whose gradient is zero though noise moves their unit.
    moved_without_gradient: int = 0
    #: Images whose gradient is so small that rounding errors hide what it predicts.
    lost_in_rounding: int = 0
    #: Images of whose unit or gradient noise makes NaN or infinity.
    not_finite: int = 0
    #: What one standard deviation of the reference is in grey levels of 255; None where it is no image.
    grey_levels: float | None = None
    #: Where the gradient disagrees, the module of the first operation whose gradient may not be its derivative, as the
    #: model's recording tells; "" for the model's own forward, None where no operation is known to be one.
    module: str | None = None
    #: Why no passes were made in float64; "" where they were, or were not needed.
    not_in_double: str = ""
    #: Whether the user accepts a gradient that disagrees.
    accepted: bool = False

    @property
    def n_images(self) -> int:
        """Number of images that had a gradient."""
        return len({image for probe in self.gradient for image in probe.images})

    @property
    def ratio(self) -> Estimate | None:
        """The energy that noise finds over that of the gradient, at the sigma where it explains most; None without any
        gradient.

        The smaller the sigma, the fewer kinks of the model and the more of its rounding errors lie within the noise.
        """
        best = self._sharpest
        return None if best is None else best.energy

    @property
    def missed(self) -> float | None:
        """Root mean square of what is found beyond what is predicted, over that of the prediction; None without any
        gradient."""
        best = self._sharpest
        return None if best is None else math.sqrt(best.misfit)

    @property
    def silent_because(self) -> str:
        """The reason why forward passes do not show whether a gradient is right; "" where they do, or without any."""
        if self.disagrees:
            return ""
        why = f" ({self.not_in_double})" if self.not_in_double else ""
        if self.ratio is not None:
            value, se = self.ratio
            return f"{value:.2g} ± {se:.2g} of its energy are found, too uncertain to decide{why}" if se > VAGUE else ""
        if self.not_finite:
            return "the gradient is untested: noise makes the unit or its gradient NaN or infinite"
        return (
            f"the gradient is untested: it predicts no more than rounding errors{why}" if self.lost_in_rounding else ""
        )

    @property
    def _sharpest(self) -> Probe | None:
        return sharpest(self.gradient) if self.gradient else None

    @property
    def is_settled(self) -> bool:
        """Whether changes are found as they are predicted, within :data:`SETTLED`, and none is lost in rounding
        errors."""
        return not self.lost_in_rounding and (self._sharpest is None or self._sharpest.misfit <= SETTLED**2)

    @property
    def is_in_double(self) -> bool:
        """Whether passes in float64 of a model of another type test the gradient."""
        return any(probe.dtype == "float64" for probe in self.gradient)

    @property
    def disagrees(self) -> bool:
        """Whether the gradient is not the model's derivative, beyond what rounding, chance and kinks explain."""
        return self.moved_without_gradient > 0 or (bool(self.gradient) and are_off(self.gradient))

    @property
    def linear_to(self) -> float | None:
        """The sigma at which the energy of a change has moved by :data:`BENT`; None where that is beyond the largest
        one tried."""
        return crossing([(step.sigma, step.ratio.value) for step in self.ladder])

    @property
    def at_tenth(self) -> Estimate | None:
        """The ratio for changes of a tenth of the reference's standard deviation."""
        return next((step.ratio for step in self.ladder if step.sigma == TENTH), None)


def crossing(ladder: Sequence[tuple[float, float]]) -> float | None:
    """The sigma at which a ratio leaves 1 by :data:`BENT`, in proportion between logarithms; None where it never does.

    Args:
        ladder: (sigma, ratio), sigma ascending.
    """
    offs = [(math.log(sigma), abs(ratio - 1)) for sigma, ratio in ladder]
    if offs and offs[0][1] >= BENT:
        return ladder[0][0]
    for (low, before), (high, after) in pairwise(offs):
        if after >= BENT:
            return math.exp(low + (high - low) * (BENT - before) / (after - before))
    return None


def join(parts: Sequence[Trust]) -> Trust:
    """Join the tests of several parts of the images.

    Args:
        parts: Of the same unit, probed alike; at least one.
    """
    some = [part for part in parts if part.gradient] or list(parts[:1])

    def joined(of: Callable[[Trust], Sequence[T]], key: Callable[[T], object]) -> list[T]:
        rows = dict[object, T]()
        for each in (row for part in some for row in of(part)):
            rows[key(each)] = rows[key(each)].joined(each) if key(each) in rows else each
        return list(rows.values())

    greys = [part.grey_levels for part in some if part.grey_levels is not None]
    return replace(
        some[0],
        gradient=tuple(joined(lambda part: part.gradient, lambda probe: (probe.sigma, probe.dtype))),
        regions=tuple(joined(lambda part: part.regions, lambda region: region.name)),
        ladder=tuple(joined(lambda part: part.ladder, lambda step: step.sigma)),
        passes=sum(part.passes for part in parts),
        moved_without_gradient=sum(part.moved_without_gradient for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        lost_in_rounding=sum(part.lost_in_rounding for part in parts),
        grey_levels=float(np.mean(greys)) if greys else None,
        module=next((part.module for part in parts if part.module is not None), None),
        not_in_double=next((part.not_in_double for part in parts if part.not_in_double), ""),
    )
