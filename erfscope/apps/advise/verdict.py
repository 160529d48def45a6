"""Whether a candidate reaches the target, in spite of the noise of its draws and of having been chosen among many.

The search chooses a few finalists, on draws of its own. These get fresh draws: every other one decides, by Student's
t at a level that is shared among the finalists and the looks at their draws; those between report the value. So no draw
that chose or decided is in the number that is shown, which would make it too good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from erfscope.apps.advise.halving import CHOOSING, FIRST_DRAWS, Trial, mean_and_error
from erfscope.apps.advise.target import Bound

Verdict = Literal["met", "not met", "not decided"]
#: The most finalists, and the chance that any of them is said to reach a target that it misses.
FINALISTS, LEVEL = 4, 0.05
#: Numbers of deciding draws at which it is looked whether they are enough.
LOOKS = (4, 8, 16, 32)
FRESH = range(CHOOSING.stop, CHOOSING.stop + 2 * LOOKS[-1])
DECIDING, REPORTING = FRESH[::2], FRESH[1::2]


def margins(trial: Trial, own: Trial, target: Bound, draws: range) -> list[float]:
    """How far a candidate lies beyond the target in each draw; beside the unchanged model's value in the same draw
    where the target is a multiple of that."""
    sign = -1 if target.is_most else 1
    beside = own.among(draws) if target.is_factor else dict.fromkeys(draws, 0.0)
    values = trial.among(draws)
    return [target.margin(sign * values[draw], sign * beside[draw]) for draw in values if draw in beside]


def verdict(trial: Trial, own: Trial, target: Bound, tested: int) -> Verdict:
    """Whether the interval of the margin over the deciding draws of the last complete look, mean ± t s / sqrt(n), lies
    on one side of 0; and for "met" whether the reporting draws agree.

    Args:
        trial: The candidate.
        own: The model as it is.
        target: The target.
        tested: How many candidates have deciding draws; t is of level 0.05 / (that number, at least 4) / 4 looks.
    """
    done = trial.values.keys() | trial.missing
    look = max((look for look in LOOKS if done.issuperset(FRESH[: 2 * look])), default=0)
    values = margins(trial, own, target, DECIDING[:look])
    if (n := len(values)) < FIRST_DRAWS:
        return "not decided"
    level = LEVEL / max(FINALISTS, tested) / len(LOOKS)
    mean, half = float(np.mean(values)), float(stdtrit(n - 1, 1 - level) * np.std(values, ddof=1) / math.sqrt(n))
    if mean + half < 0:
        return "not met"
    reported = mean_and_error(margins(trial, own, target, REPORTING[:look]))[0]
    return "met" if mean - half >= 0 and reported >= 0 else "not decided"


def finalists(trials: Sequence[Trial], own: Trial, target: Bound) -> list[Trial]:
    """Of the candidates allowed, those that are tested: the one with the best mean over the draws that choose, the
    model as it is, then those that seem to reach the target, the cheapest first, then those nearest to it."""
    means = {each: mean_and_error(margins(each, own, target, CHOOSING))[0] for each in trials}
    means = {each: mean for each, mean in means.items() if not math.isnan(mean)}
    order = sorted(means, key=lambda each: (max(0.0, -means[each]), each.price, each.order))
    best = sorted(means, key=lambda each: -means[each])[:1]
    return list(dict.fromkeys([*best, *(each for each in order if each is own), *order]))[:FINALISTS]
