"""When a run has seen enough images: the error of r50 is looked at now and then, and the images end once it is small
enough.

A run that ends where its error happens to be small prints one that is too small. The variance of an image that the looks
so far have found, each counted by its images, hardly knows which of them is the last; both the end and the printed error
are of it. ``benchmarks/coverage.py`` shows how often the truth then lies within.
"""

from __future__ import annotations

import math

from erfscope.engine.outcome import half_mass_radius
from erfscope.engine.plan import Plan, Sums, map_of
from erfscope.maps.accumulator import GROUPS, jackknife_se

#: Images before the first look: of one image in twenty that is unlike the others, so many hardly ever hold none.
FIRST = 4 * GROUPS


def places_of_looks(total: int) -> list[int]:
    """Numbers of images after which the error is looked at, the same for every batch size and number of ranks: 40, then a
    quarter more, in tens, and all."""
    found, at = [], FIRST
    while at < total:
        found.append(at)
        at += at // (4 * GROUPS) * GROUPS
    return [*found, total]


def look(plan: Plan, sums: Sums, whole: Sums, target: float) -> bool:
    """Look at the error of r50 of every unit.

    With the jackknife's variance v_k of a look at n_k images, the variance of an image is A = sum n_k (n_k v_k) / sum n_k,
    and what is found without each group is spread by sqrt(A / (n v)).

    Args:
        plan: What is measured.
        sums: Of this rank, which remember the looks.
        whole: Those of all ranks together.
        target: Relative error that is asked for.

    Returns:
        Whether every unit's error is below it.
    """
    is_enough = True
    for number, (own, average) in enumerate(zip(sums.averages, whole.averages, strict=True)):
        average.spread = 1.0
        r50 = half_mass_radius(map_of(plan, whole, number), average)
        if r50.se is None:
            is_enough = False
            continue
        n, variance = average.n_images, jackknife_se(r50.leave_one_out) ** 2
        weighted, images = average.looks
        own.looks = average.looks = (weighted + n * n * variance, images + n)
        if variance > 0:
            own.spread = average.spread = math.sqrt(average.looks[0] / average.looks[1] / (n * variance))
        r50 = half_mass_radius(map_of(plan, whole, number), average)
        is_enough &= r50.se is not None and r50.se <= target * float(r50)
    return is_enough
