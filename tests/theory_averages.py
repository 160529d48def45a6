"""Averages over random draws with their standard errors, and how many of those a closed form is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from erfscope.maps.erf_map import FloatArray
from erfscope.theory import Moments
from erfscope.theory.arrays import count

#: A batch holds about this many numbers, so that it stays in a few megabytes.
BATCH_CELLS = 2**18
#: A number that never varies may differ from its closed form by this share of the largest, through rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class MonteCarlo:
    """A mean over independent draws."""

    mean: FloatArray
    #: Standard error of the mean, of the same shape.
    standard_error: FloatArray
    #: Number of draws.
    n: int

    def z(self, closed_form: ArrayLike) -> FloatArray:
        """(mean - closed form) / standard error, entry by entry.

        Args:
            closed_form: What the theory gives, of the mean's shape.

        Returns:
            Scores; below 4 in size is agreement. Where the draws never vary, 0 if the closed form is that number, else
            infinite.

        Raises:
            ValueError: another shape.
        """
        expected = np.asarray(closed_form, dtype=np.float64)
        if expected.shape != self.mean.shape:
            raise ValueError(
                f"a mean of shape {self.mean.shape} cannot be compared with a closed form of shape {expected.shape}"
            )
        difference = self.mean - expected
        varies = self.standard_error > 0
        same = np.abs(difference) <= ROUNDING * np.abs(expected).max(initial=0.0)
        fixed = np.where(same, 0.0, np.copysign(np.inf, difference))
        return np.divide(difference, self.standard_error, out=fixed, where=varies)

    def worst_z(self, closed_form: ArrayLike) -> float:
        """Largest absolute :meth:`z`; infinite if a number is not finite."""
        return float(np.abs(self.z(closed_form)).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMoments:
    """The same by draws. The variance is the mean square, the mean being 0 by theory; that it is, ``mean`` tells."""

    mean: MonteCarlo
    variance: MonteCarlo

    def worst_z(self, closed_form: Moments) -> float:
        """Largest absolute score of both."""
        return float(np.max([self.mean.worst_z(closed_form.mean), self.variance.worst_z(closed_form.variance)]))


def average(draw: Callable[[int], FloatArray], samples: int, *, cells: int) -> MonteCarlo:
    """Mean of independent draws, made in batches.

    Args:
        draw: Number of draws b -> their values, (b, ...).
        samples: How many draws, at least 2.
        cells: Numbers that one draw takes while it is made, for the size of a batch.

    Returns:
        Mean, standard error and number of draws.

    Raises:
        ValueError: fewer than two draws.
    """
    if count(samples, "the number of draws") < 2:
        raise ValueError("one draw has no standard error; ask for two or more")
    batch = max(1, BATCH_CELLS // max(cells, 1))
    done, mean, squares = 0, np.zeros(()), np.zeros(())
    while done < samples:
        values = draw(min(batch, samples - done))
        size = len(values)
        step = values.mean(axis=0) - mean
        squares = (
            squares
            + np.square(values - values.mean(axis=0)).sum(axis=0)
            + np.square(step) * (done * size / (done + size))
        )
        mean = mean + step * (size / (done + size))
        done += size
    return MonteCarlo(mean=mean, standard_error=np.sqrt(squares / (done - 1) / done), n=done)


def moments(draw: Callable[[int], FloatArray], samples: int, *, cells: int) -> SampledMoments:
    """Mean and mean square of independent draws of something whose mean is 0 by theory.

    Args:
        draw: Number of draws b -> their values, (b, ...).
        samples: How many draws, at least 2.
        cells: Numbers that one draw takes while it is made.

    Returns:
        Both averages, over the same draws.

    Raises:
        ValueError: fewer than two draws.
    """

    def both(size: int) -> FloatArray:
        values = draw(size)
        return np.stack([values, np.square(values)], axis=1)

    pair = average(both, samples, cells=cells)
    first, second = (MonteCarlo(mean=pair.mean[k], standard_error=pair.standard_error[k], n=pair.n) for k in (0, 1))
    return SampledMoments(mean=first, variance=second)
