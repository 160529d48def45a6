"""Second and fourth moments of an ERF: spread per axis, principal axes, tails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from erfscope.maps.erf_map import FloatArray

#: Variances and covariances below this share of the total variance are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Moments around the centroid, in cells of the reference; (row, col)."""

    #: Centroid, as an offset from the unit's centre.
    mean: tuple[float, float]
    variance: tuple[float, float]
    covariance: float
    #: Fourth central moments of the two marginals.
    fourth: tuple[float, float]

    @property
    def sigma(self) -> tuple[float, float]:
        """Standard deviations along rows and columns."""
        return math.sqrt(self.variance[0]), math.sqrt(self.variance[1])

    @property
    def principal(self) -> tuple[float, float]:
        """Standard deviations along the major and the minor axis."""
        half_sum, half_difference = sum(self.variance) / 2, (self.variance[0] - self.variance[1]) / 2
        reach = math.hypot(half_difference, self.covariance)
        minor = half_sum - reach
        return math.sqrt(half_sum + reach), math.sqrt(minor) if minor > ROUNDING * half_sum else 0.0

    @property
    def anisotropy(self) -> float | None:
        """Major / minor axis, at least 1; None if the minor axis is 0."""
        major, minor = self.principal
        return major / minor if minor > 0 else None

    @property
    def angle_deg(self) -> float | None:
        """Angle of the major axis from +col towards +row, in (-90, 90]; None if the spread is the same in all
        directions."""
        rounding = ROUNDING * sum(self.variance)
        covariance = self.covariance if abs(self.covariance) > rounding else 0.0
        difference = self.variance[1] - self.variance[0]
        if covariance == 0 and abs(difference) <= rounding:
            return None
        return math.degrees(math.atan2(2 * covariance, difference)) / 2

    @property
    def excess_kurtosis(self) -> tuple[float | None, float | None]:
        """Excess kurtosis of the two marginals: 0 for a Gaussian, -1.2 for a box, 3 for a Laplace; None along an axis
        without spread."""
        row, col = (
            fourth / variance**2 - 3 if variance > 0 else None
            for fourth, variance in zip(self.fourth, self.variance, strict=True)
        )
        return row, col


def moments(weights: FloatArray, rows: FloatArray, cols: FloatArray) -> Moments:
    """Moments of a map around its centroid.

    Args:
        weights: (H, W), non-negative, sum 1.
        rows: (H,), signed distance of every row to the unit's centre, in cells.
        cols: (W,), the same for the columns.
    """
    along_rows, along_cols = weights.sum(axis=1), weights.sum(axis=0)
    mean = float(along_rows @ rows), float(along_cols @ cols)
    row, col = rows - mean[0], cols - mean[1]
    return Moments(
        mean=mean,
        variance=(_spread(along_rows, row, mean[0]), _spread(along_cols, col, mean[1])),
        covariance=float(row @ weights @ col),
        fourth=(float(along_rows @ np.power(row, 4)), float(along_cols @ np.power(col, 4))),
    )


def _spread(weights: FloatArray, offsets: FloatArray, mean: float) -> float:
    """Variance along an axis; 0 where it is what the rounding of the mean leaves."""
    variance = float(weights @ offsets**2)
    return variance if variance > ROUNDING**2 * max(1.0, mean**2) else 0.0
