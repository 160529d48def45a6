"""Comparison of a measured influence matrix with that of the theory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from erfscope.maps.erf_map import FloatArray


class HasValues(Protocol):
    """A result that keeps its numbers in ``values``, as an influence matrix does."""

    @property
    def values(self) -> ArrayLike:
        """The numbers, (m, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Distance between two arrays."""

    #: Largest |difference|; infinite if a number is not finite.
    max_absolute: float
    #: The same, divided by the largest |value| of the closed form.
    max_relative: float
    #: Where the difference is largest: (p, i) of an influence matrix.
    worst: tuple[int, ...]

    def within(self, tolerance: float = 1e-10) -> bool:
        """Whether the relative error is at most ``tolerance``; never so if a number is not finite."""
        return self.max_relative <= tolerance


def compare(influence: ArrayLike | HasValues, closed_form: ArrayLike) -> Agreement:
    """Compare a measured array with its closed form.

    The relative error is max |difference| / max |closed form|, not the largest ratio of entries: closed forms are
    exactly 0 outside their support, and rounding of a sum grows with its largest terms, not with what is left of them.
    Where the closed form is 0 everywhere, the relative error is the absolute one.

    Args:
        influence: (m, n), or an object that has such ``values``; other shapes (a whole Jacobian) serve as well.
        closed_form: What the theory gives, of the same shape.

    Returns:
        Errors, and where the worst is.

    Raises:
        ValueError: different shapes, or empty ones.

    Source: the limit of ``erfscope study theorems`` is 1e-10; the engine and the closed forms differ by some 1e-14 in
    float64."""
    held = getattr(influence, "values", influence)
    obtained = np.asarray(influence if callable(held) else held, dtype=np.float64)  # a tensor's `values` is a method
    expected = np.asarray(closed_form, dtype=np.float64)
    if obtained.shape != expected.shape or obtained.size == 0:
        raise ValueError(
            f"an influence of shape {obtained.shape} cannot be compared with a closed form of shape {expected.shape}"
        )
    difference = _difference(obtained, expected)
    worst = np.unravel_index(int(difference.argmax()), difference.shape)
    largest, scale = float(difference[worst]), float(np.abs(expected).max())
    relative = largest / scale if 0 < scale < np.inf else largest
    return Agreement(max_absolute=largest, max_relative=relative, worst=tuple(int(index) for index in worst))


def _difference(obtained: FloatArray, expected: FloatArray) -> FloatArray:
    """|obtained - expected|, infinite wherever one of the two is not finite."""
    finite = np.isfinite(obtained) & np.isfinite(expected)
    difference: FloatArray = np.subtract(obtained, expected, out=np.full(obtained.shape, np.inf), where=finite)
    return np.abs(difference)
