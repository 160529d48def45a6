"""Tests of a gradient by forward passes with noise: whether it is the model's derivative, where it is large, and how
far it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Protocol, Self, TypeVar

import numpy as np

from erfscope.core.answer.maps.probe import (
    ALIKE,
    CLOSE,
    LARGEST_ERROR,
    SETTLED_MISFIT,
    UNDECIDED_SE,
    Estimate,
    Probe,
    is_off,
    miss_alike,
    sharpest,
)
from erfscope.core.values.printable import number

#: Where the energy of a unit's change has moved by so much from that of small changes, the model is linear no more.
LINEAR_WITHIN = 0.1
#: A tenth of the input's contrast.
TENTH_OF_SPREAD = 0.1


class _Joined(Protocol):
    """Values of some images that can be joined with those of others."""

    def joined(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=_Joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Noise on one part of the reference only: within a circle, between two, or outside."""

    name: str
    #: The distance from the unit that it ends at, in the unit of the map's distances; None for the outermost.
    ends_at: float | None = None
    #: How many cells get noise; 0 where that was not stored.
    cells: int = 0
    probe: Probe
    #: The same noise scaled to other sigmas, or in float64.
    further: tuple[Probe, ...] = ()

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All of them."""
        return self.probe, *self.further

    def joined(self, other: Self) -> Self:
        """This region and the same one of other images."""
        return replace(
            self,
            probe=self.probe.joined(other.probe),
            further=_joined((self.further, other.further), lambda probe: (probe.sigma, probe.dtype)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A measure of a map, and the largest value that forward passes leave possible."""

    printed: float
    largest: float
    #: Of both; "" for a share.
    unit: str = ""
    #: How much larger than the printed one it may be.
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether the printed one is the largest one, within the tolerance."""
        return self.largest <= self.printed + self.tolerance

    def __str__(self) -> str:
        places = None if self.unit else 3
        largest, printed = (number(value, places=places) for value in (self.largest, self.printed))
        return f"{f'{largest} {self.unit}'.rstrip()} ({printed} printed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a map may lack, since its gradient misses it, in the terms of the map."""

    #: The largest share of the whole map's mass that forward passes leave possible.
    share: float
    #: "r90" and "far_mass"; none of a unit without a place.
    sizes: Mapping[str, Size]
    #: The region in which noise moves the unit and the gradient predicts nothing of it; "" where there is none.
    region: str = ""
    #: The same where it may be rounding errors, kinks or curvature that move the unit.
    in_doubt: str = ""

    @property
    def is_within(self) -> bool:
        """Whether what is printed of the map is within what is possible."""
        if not self.sizes:
            return self.share <= LARGEST_ERROR
        return all(size.is_within for size in self.sizes.values())

    def __str__(self) -> str:
        if not self.sizes:
            return f"{100 * self.share:.2g} % of the map may be missing"
        return " and ".join(f"{name.replace('_', ' ')} up to {size}" for name, size in self.sizes.items())


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
    #: Noise within r50, between r50 and r90, between r90 and r99.9, and beyond.
    regions: tuple[Region, ...] = ()
    #: First cell that gets noise and the one behind the last, along each axis of the reference; () without any.
    box: tuple[tuple[int, int], ...] = ()
    #: Of each image the norms of the gradient at all cells, added up, over the norm of the whole gradient: the root of
    #: the number of cells that a uniform map of the same mass has.
    amplitudes: tuple[float, ...] = ()
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
    #: Whether the model's recording has any operation whose gradient may not be its derivative.
    has_unproved: bool = False
    #: Why no passes were made in float64; "" where they were, or were not needed.
    not_in_double: str = ""
    #: What the map may lack; None where there is no map, or no gradient.
    hidden: Hidden | None = None
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
            if se > UNDECIDED_SE:
                return f"{value:.2g} ± {se:.2g} of its energy are found, too uncertain to decide{why}"
            if self.is_within or not self.has_unproved:
                return ""
            return f"what is printed is not proved, since forward passes leave {self.hidden} possible{why}"
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
        """Whether changes are found as they are predicted, within :data:`SETTLED_MISFIT`, and none is lost in rounding
        errors."""
        return not self.lost_in_rounding and (self._sharpest is None or self._sharpest.misfit <= SETTLED_MISFIT**2)

    @property
    def is_within(self) -> bool:
        """Whether what is printed of the map is within what forward passes leave possible, where there is a map."""
        return self.hidden is None or self.hidden.is_within

    @property
    def is_in_double(self) -> bool:
        """Whether passes in float64 of a model of another type test the gradient."""
        return any(probe.dtype == "float64" for probe in self.gradient)

    @property
    def disagrees(self) -> bool:
        """Whether the gradient is not the model's derivative, beyond what rounding, chance and kinks explain."""
        is_missed = self.hidden is not None and self.hidden.region != ""
        return self.moved_without_gradient > 0 or is_missed or (bool(self.gradient) and are_off(self.gradient))

    @property
    def linear_to(self) -> float | None:
        """The sigma at which the energy of a change has moved by :data:`LINEAR_WITHIN`; None where that is beyond the
        largest one tried."""
        return crossing([(step.sigma, step.ratio.value) for step in self.ladder])

    @property
    def at_tenth(self) -> Estimate | None:
        """The ratio for changes of a tenth of the reference's standard deviation."""
        return next((step.ratio for step in self.ladder if step.sigma == TENTH_OF_SPREAD), None)


def are_off(probes: Sequence[Probe]) -> bool:
    """Whether changes are not those that a gradient predicts, at the sigma where it explains most, or at any two sigmas
    alike.

    Args:
        probes: Of the same noise, scaled to several sigmas; at least one.
    """
    return is_off(sharpest(probes)) or any(
        _miss_much(one, other) and not _is_overruled((one, other), probes) for one, other in combinations(probes, 2)
    )


def _miss_much(one: Probe, other: Probe) -> bool:
    return min(one.misfit, other.misfit) > LARGEST_ERROR**2 and miss_alike(one, other)


def _is_overruled(pair: tuple[Probe, Probe], probes: Sequence[Probe]) -> bool:
    """Whether the gradient explains what another probe finds: at a smaller sigma, which is nearer to the derivative, or
    at any where the pair finds nothing, since a model that rounds is flat at small sigmas."""
    least = min(probe.misfit for probe in pair) / CLOSE
    finest = min(probe.sigma for probe in pair)
    is_flat = all(np.square(probe.found).sum() <= ALIKE * np.square(probe.predicted).sum() for probe in pair)
    return any(probe.misfit < least and (is_flat or probe.sigma < finest) for probe in probes)


def crossing(ladder: Sequence[tuple[float, float]]) -> float | None:
    """The sigma at which a ratio leaves 1 by :data:`LINEAR_WITHIN`, in proportion between logarithms; None where it
    never does.

    Args:
        ladder: (sigma, ratio), sigma ascending.
    """
    offs = [(math.log(sigma), abs(ratio - 1)) for sigma, ratio in ladder]
    if offs and offs[0][1] >= LINEAR_WITHIN:
        return ladder[0][0]
    for (low, before), (high, after) in pairwise(offs):
        if after >= LINEAR_WITHIN:
            return math.exp(low + (high - low) * (LINEAR_WITHIN - before) / (after - before))
    return None


def join(parts: Sequence[Trust]) -> Trust:
    """Join the tests of several parts of the images.

    Args:
        parts: Of the same unit, probed alike; at least one.
    """
    some = [part for part in parts if part.gradient] or list(parts[:1])
    greys = [part.grey_levels for part in some if part.grey_levels is not None]
    return replace(
        some[0],
        gradient=_joined((part.gradient for part in some), lambda probe: (probe.sigma, probe.dtype)),
        regions=join_regions(part.regions for part in some),
        ladder=_joined((part.ladder for part in some), lambda step: step.sigma),
        amplitudes=tuple(amplitude for part in some for amplitude in part.amplitudes),
        passes=sum(part.passes for part in parts),
        moved_without_gradient=sum(part.moved_without_gradient for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        lost_in_rounding=sum(part.lost_in_rounding for part in parts),
        grey_levels=float(np.mean(greys)) if greys else None,
        module=next((part.module for part in parts if part.module is not None), None),
        not_in_double=next((part.not_in_double for part in parts if part.not_in_double), ""),
    )


def join_regions(lists: Iterable[Sequence[Region]]) -> tuple[Region, ...]:
    """Join the regions of several images, by their names."""
    return _joined(lists, lambda region: region.name)


def _joined(lists: Iterable[Sequence[T]], key: Callable[[T], object]) -> tuple[T, ...]:
    """The entries of several lists, those with the same key joined to one."""
    rows = dict[object, T]()
    for entry in (entry for entries in lists for entry in entries):
        rows[key(entry)] = rows[key(entry)].joined(entry) if key(entry) in rows else entry
    return tuple(rows.values())
