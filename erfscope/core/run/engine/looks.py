"""When a run has seen enough images: the error of r50 is looked at now and then, until it is small enough.

A run that ends where its error happens to be small prints one that is too small. The variance that all looks so far
have found, each counted by its images, hardly depends on the last one: both the end and the printed error are of it.
``benchmarks/coverage.py`` shows how often the truth then lies within.
"""

from __future__ import annotations

import math

import numpy as np

from erfscope.core.answer.maps.accumulator import GROUPS, MapAccumulator, jackknife_se, widening
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import MeasureValue
from erfscope.core.run.engine.outcome import half_mass_radius

#: Images before the first look: of one image in twenty that is unlike the others, so many hardly ever hold none.
FIRST = 4 * GROUPS


def places_of_looks(total: int) -> list[int]:
    """Numbers of images after which the error is looked at, whatever the batches and ranks: 40, then a quarter more, in
    tens, and all."""
    found, at = [], FIRST
    while at < total:
        found.append(at)
        at += at // (4 * GROUPS) * GROUPS
    return [*found, total]


def look(erf: ErfMap, average: MapAccumulator) -> MeasureValue:
    """Look at the error of a unit's r50, and let its sums remember what was found.

    With the jackknife's variance v_k of a look at n_k images, that of one image is A = sum n_k (n_k v_k) / sum n_k. The
    variances of looks j < k correlate with n_j / n_k, so that A has (g - 1) (sum n_k)^2 / sum n_j n_k (n_j / n_k)
    degrees of freedom, summed over all pairs: twice those of one look in the end. What is found without each group is
    spread by sqrt(A / (n v)), times the ratio of the widenings of both.

    Args:
        erf: The map so far.
        average: Its sums.

    Returns:
        r50, with the error that all looks share.
    """
    average.spread = 1.0
    r50 = half_mass_radius(erf, average)
    if r50.se is None:
        return r50
    n, variance, degrees = average.n_images, jackknife_se(r50.leave_one_out) ** 2, len(r50.leave_one_out) - 1
    average.looks = (*average.looks, (n, variance))
    images = np.array([images for images, _ in average.looks], dtype=np.float64)
    of_one = sum(images**2 * [variance for _, variance in average.looks]) / images.sum()
    pairs = np.minimum.outer(images, images) ** 2  # n_j n_k (n_j / n_k), n_j the smaller
    shared = widening(degrees * images.sum() ** 2 / pairs.sum()) / widening(degrees)
    average.spread = shared * math.sqrt(of_one / (n * variance)) if variance > 0 else 1.0
    return half_mass_radius(erf, average)
