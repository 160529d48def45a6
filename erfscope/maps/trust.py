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
from itertools import combinations, pairwise
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from erfscope.maps.erf_map import FloatArray

#: A ratio refutes a gradient where it is further from 1 than this, and than chance moves it in all but this share of
#: cases.
LARGEST_ERROR, CHANCE = 0.05, 5e-4
#: Passes in float32 settle what they find within this share of what is predicted: kinks may hide as much again of an
#: error.
SETTLED_MISFIT = LARGEST_ERROR / 2
#: A ratio with a larger standard error confirms little.
UNDECIDED_SE = 0.15
#: A gradient is refuted, too, that explains less than half of the energy found, or that errs by more than it predicts,
#: whatever the ratio's error.
UNEXPLAINED, MISFIT = 0.5, 1.0
#: What a gradient misses of changes is the same at two sigmas where the two differ by less than this share of its
#: energy.
ALIKE = 0.01
#: Energies that differ by less than this factor are about the same: they are estimated from a few draws.
CLOSE = 4
#: Errors are over images where there are so many, else over draws of noise.
GROUPS = 8


class Estimate(NamedTuple):
    """A number with its standard error."""

    value: float
    se: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Noise of one standard deviation on the reference, or on a part of it. Lists have one entry per draw of noise.

    Changes are divided by sigma and by the norm of the image's whole gradient.
    """

    #: Standard deviation of the noise, in standard deviations of the reference.
    sigma: float
    #: The image of each draw.
    images: tuple[int, ...]
    #: The change that the gradient predicts, and the one that was found.
    predicted: tuple[float, ...]
    found: tuple[float, ...]
    #: The share of the gradient's energy that lies where the noise is.
    shares: tuple[float, ...]
    #: The type that the forward passes were computed in; None for the model's own.
    dtype: str | None = None

    @property
    def share(self) -> float:
        """Mean share of the gradient's energy that lies where the noise is."""
        return float(np.mean(self.shares))

    @property
    def energy(self) -> Estimate:
        """The energy that noise finds, over that of the whole gradient: 1 for noise everywhere and a gradient that is
        right.

        The error is that of a delete-one jackknife over images, or over draws where there are few images; infinite for
        a single draw."""
        return self._with_error(_energy)

    @property
    def slope(self) -> Estimate:
        """The part of the predicted change that is found: 1 for a gradient that is right."""
        return self._with_error(lambda predicted, found, _: _slope(predicted, found))

    def _with_error(self, of: Callable[[FloatArray, FloatArray, FloatArray], float]) -> Estimate:
        columns = [np.array(column) for column in (self.predicted, self.found, self.shares)]
        groups = self._groups
        names = np.unique(groups)
        if len(names) < 2:
            return Estimate(of(*columns), math.inf)
        left = np.array([of(*(column[groups != name] for column in columns)) for name in names])
        spread = float(((left - left.mean()) ** 2).sum())
        return Estimate(of(*columns), math.sqrt((len(names) - 1) / len(names) * spread))

    @property
    def _groups(self) -> NDArray[np.int_]:
        return np.array(self.images if len(set(self.images)) >= GROUPS else range(len(self.images)))

    @property
    def standard_errors(self) -> float:
        """The standard errors by which a ratio may be off by chance: Student's t, since an error of few groups is
        itself uncertain."""
        from scipy.special import stdtrit  # late: it takes long to import

        degrees = len(np.unique(self._groups)) - 1
        return float(stdtrit(degrees, 1 - CHANCE / 2)) if degrees else math.inf

    @property
    def unexplained(self) -> float:
        """Share of the energy found that is not in proportion to the prediction; 1 where nothing is found of what is
        predicted."""
        predicted, found = np.array(self.predicted), np.array(self.found)
        total, square = float(found @ found), float(predicted @ predicted)
        if not (total > 0 and square > 0):
            return float(square > 0)
        return 1 - float(predicted @ found) ** 2 / square / total

    @property
    def misfit(self) -> float:
        """Energy of the difference between what is found and what is predicted, over that of the prediction."""
        predicted, found = np.array(self.predicted), np.array(self.found)
        square = float(predicted @ predicted)
        return float((found - predicted) @ (found - predicted)) / square if square > 0 else 0.0

    def joined(self, other: Self) -> Self:
        """This probe and the same one of other images."""
        lists: Any = {
            name: (*getattr(self, name), *getattr(other, name)) for name in ("images", "predicted", "found", "shares")
        }
        return replace(self, **lists)


def _energy(predicted: FloatArray, found: FloatArray, shares: FloatArray) -> float:
    """Mean square of the changes found: of their part in proportion to the prediction, whose mean square is the share,
    and of the rest."""
    slope = _slope(predicted, found)
    rest = found - slope * predicted
    return slope**2 * float(shares.mean()) + float(rest @ rest) / max(len(found) - bool(predicted.any()), 1)


def _slope(predicted: FloatArray, found: FloatArray) -> float:
    square = float(predicted @ predicted)
    return float(predicted @ found) / square if square > 0 else 0.0


def sharpest(probes: Sequence[Probe]) -> Probe:
    """Return the probe of which the gradient explains most: one with fewer kinks, curvature and rounding errors within
    its noise."""
    return min(probes, key=lambda probe: probe.unexplained)


def are_off(probes: Sequence[Probe]) -> bool:
    """Whether changes are not those that a gradient predicts, at the sigma where it explains most, or at any two alike.

    Args:
        probes: Of the same noise, scaled to several sigmas; at least one.
    """
    # Where one probe is explained, others miss changes for reasons other than the gradient.
    least = min(probe.misfit for probe in probes)
    close = [probe for probe in probes if probe.misfit <= CLOSE * least]
    return is_off(sharpest(probes)) or any(_miss_alike(one, other) for one, other in combinations(close, 2))


def is_hidden(probes: Sequence[Probe]) -> bool:
    """Whether what a gradient misses is mostly rounding errors, which are the same whatever the noise.

    What a wrong gradient misses grows as sigma does, and what kinks and curvature make grows faster.

    Args:
        probes: Of the same noise in one type, scaled to two sigmas.
    """
    small, *_, large = sorted(probes, key=lambda probe: probe.sigma)
    if sharpest(probes).misfit <= UNDECIDED_SE**2:
        return False
    return CLOSE * small.misfit * small.sigma**2 >= large.misfit * large.sigma**2


def _miss_alike(one: Probe, other: Probe) -> bool:
    """Whether the gradient misses the same at two sigmas, which neither kinks nor curvature nor rounding errors
    explain."""
    if (one.images, one.dtype) != (other.images, other.dtype) or min(one.misfit, other.misfit) <= LARGEST_ERROR**2:
        return False
    missed, again = (np.array(probe.found) - np.array(probe.predicted) for probe in (one, other))
    return float((missed - again) @ (missed - again)) <= ALIKE * float(missed @ again)


def is_off(probe: Probe) -> bool:
    """Whether changes are not those that a gradient predicts, beyond what curvature and chance explain."""
    if probe.unexplained > UNEXPLAINED or probe.misfit > MISFIT:
        return True
    off = (
        (abs(value - 1), max(LARGEST_ERROR, probe.standard_errors * se)) for value, se in (probe.energy, probe.slope)
    )
    return any(not error <= most for error, most in off)


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
            return (
                f"{value:.2g} ± {se:.2g} of its energy are found, too uncertain to decide{why}"
                if se > UNDECIDED_SE
                else ""
            )
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
    def is_in_double(self) -> bool:
        """Whether passes in float64 of a model of another type test the gradient."""
        return any(probe.dtype == "float64" for probe in self.gradient)

    @property
    def disagrees(self) -> bool:
        """Whether the gradient is not the model's derivative, beyond what rounding, chance and kinks explain."""
        return self.moved_without_gradient > 0 or (bool(self.gradient) and are_off(self.gradient))

    @property
    def linear_to(self) -> float | None:
        """The sigma at which the energy of a change has moved by :data:`LINEAR_WITHIN`; None where that is beyond the
        largest one tried."""
        return crossing([(step.sigma, step.ratio.value) for step in self.ladder])

    @property
    def at_tenth(self) -> Estimate | None:
        """The ratio for changes of a tenth of the reference's standard deviation."""
        return next((step.ratio for step in self.ladder if step.sigma == TENTH_OF_SPREAD), None)


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
