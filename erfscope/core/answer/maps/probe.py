"""Noise on the reference of a unit, and how far the changes that it makes are those that the gradient predicts.

A unit's scalar f moves by df where noise of standard deviation sigma moves the reference, and the gradient g predicts g
. noise. Over noise, E df^2 / sigma^2 tends to |g|^2 as sigma tends to 0, if g is the derivative. The prediction makes
that sharp: in the regression of what is found on what is predicted, whose mean square is known, little is left to
chance where the two agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from erfscope.core.answer.maps.erf_map import FloatArray

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
#: The energy that a gradient misses is less than its bound in all but this share of cases.
BEYOND_BOUND = 0.05
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

    @property
    def missed(self) -> float:
        """Mean square of what is found beyond what is predicted: the energy, over that of the whole gradient, that the
        gradient misses where the noise is, together with what kinks, curvature and rounding errors make."""
        return float(np.mean((np.array(self.found) - np.array(self.predicted)) ** 2))

    @property
    def most_missed(self) -> float:
        """The largest energy that the gradient may miss where the noise is, n ``missed`` / q: what n draws of Gaussian
        noise miss has a chi-squared distribution, whose quantile of :data:`BEYOND_BOUND` is q.

        Images differ, so that n is the number of draws that make up what is missed, (sum s)^2 / sum s^2 over their
        squares s."""
        from scipy.special import chdtri  # late: it takes long to import

        energies = (np.array(self.found) - np.array(self.predicted)) ** 2
        if not 0 < energies.sum() < math.inf:
            return math.inf if energies.any() else 0.0
        shares = energies / energies.sum()
        n = 1 / float(shares @ shares)
        return n * self.missed / float(chdtri(n, 1 - BEYOND_BOUND))

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


def is_unpredicted(probe: Probe) -> bool:
    """Whether noise moves the unit more than the gradient predicts, and most of that otherwise."""
    found, predicted = (float(np.square(changes).mean()) for changes in (probe.found, probe.predicted))
    return probe.missed > UNEXPLAINED * found and found > predicted


def miss_alike(one: Probe, other: Probe) -> bool:
    """Whether the gradient misses the same at two sigmas, which neither kinks nor curvature nor rounding errors
    explain."""
    if (one.images, one.dtype) != (other.images, other.dtype):
        return False
    missed, again = (np.array(probe.found) - np.array(probe.predicted) for probe in (one, other))
    return float((missed - again) @ (missed - again)) <= ALIKE * float(missed @ again) > 0


def is_off(probe: Probe) -> bool:
    """Whether changes are not those that a gradient predicts, beyond what curvature and chance explain."""
    if probe.unexplained > UNEXPLAINED or probe.misfit > MISFIT:
        return True
    off = (
        (abs(value - 1), max(LARGEST_ERROR, probe.standard_errors * se)) for value, se in (probe.energy, probe.slope)
    )
    return any(not error <= most for error, most in off)
