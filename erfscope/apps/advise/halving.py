"""A search for the variants of a model that see most at each cost: successive halving on paired draws.

Every draw is one set of images, with weights of its own where these are random, the same for all candidates. Those
that may still be on the Pareto front get twice as many draws, until it is settled at one standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from erfscope.apps.advise.candidates import Candidate
from erfscope.core import ErfscopeError

#: Draws that each candidate gets, and that one gets at most: Student's t has a standard deviation from four on.
FIRST_DRAWS, MOST_DRAWS = 4, 32
#: The draws that choose: those that decide and report, after these, play no part here.
CHOOSING = range(MOST_DRAWS)
#: Differences below this share of a measure count for nothing.
ENOUGH = 0.01


@dataclass(slots=True, kw_only=True, eq=False)
class Trial:
    """One candidate, what it costs, and what was measured of it."""

    candidate: Candidate
    #: 10^9 multiply-adds, parameters, and bytes of the tensors of one image's forward pass; None where unknown.
    costs: Mapping[str, float | None]
    #: What is kept small: one of the costs; and its turn among all candidates.
    price: float
    order: int
    #: By draw; the sign is that of a measure that is to be large.
    values: dict[int, float] = field(default_factory=dict)
    #: By draw the r50, where the values are of the reach.
    r50: dict[int, float] = field(default_factory=dict)
    #: Draws without a number, as of a narrow net whose units are all off under some weights.
    missing: set[int] = field(default_factory=set)
    #: Why it could not be measured, in two draws more than it could; "" where it could.
    failure: str = ""

    def among(self, draws: range) -> dict[int, float]:
        """Its values under some draws."""
        return {draw: value for draw, value in self.values.items() if draw in draws}

    @property
    def mean(self) -> float:
        """The mean over the draws that choose."""
        return mean_and_error([*self.among(CHOOSING).values()])[0]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of values, NaN of none, and its error: the standard deviation of a Student's t of so many draws,
    infinite for fewer than four."""
    n = len(values)
    if n < FIRST_DRAWS:
        return float(np.mean(values)) if n else math.nan, math.inf
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(n) * math.sqrt((n - 1) / (n - 3)))


def difference(one: Trial, other: Trial, draws: range = CHOOSING) -> tuple[float, float]:
    """The mean paired difference of two candidates over those of the draws that both have, 0 for none, and its
    error."""
    return paired(one.among(draws), other.among(draws))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float]:
    """The mean difference of two series of values over the draws that both have, 0 for none, and its error."""
    found = [value - theirs[draw] for draw, value in ours.items() if draw in theirs]
    return mean_and_error(found) if found else (0.0, math.inf)


def beats(one: Trial, other: Trial) -> bool:
    """Whether a candidate leaves no reason for another: that costs as much or more, and has surely less than 1 %
    more; or both cost the same, and it has clearly more."""
    if one is other or one.price > other.price:
        return False
    mean, error = difference(one, other)
    if (one.price, one.order) < (other.price, other.order):
        return error - mean < ENOUGH * abs(one.mean)
    return mean > error and not beats(other, one)


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The candidates that no other beats, the cheapest first."""
    good = [each for each in trials if each.values and not each.failure]
    found = (each for each in good if not any(beats(one, each) for one in good))
    return sorted(found, key=lambda each: (each.price, each.order))


def undecided(trials: Sequence[Trial]) -> list[Trial]:
    """The candidates of the front of which it is not known whether a cheaper one has as much, and these."""
    left, found = front(trials), dict[int, Trial]()
    for number, one in enumerate(left):
        for other in left[number + 1 :]:
            mean, error = difference(other, one)
            if mean <= error:
                found |= {id(one): one, id(other): other}
    return list(found.values())


def settle(
    trials: Sequence[Trial],
    measure: Callable[[Candidate, int], float],
    *,
    stop: Callable[[], bool],
    most: int = MOST_DRAWS,
) -> bool:
    """Measure candidates until the front is settled; whether it is.

    Args:
        trials: The candidates; those with draws from an earlier run go on. Their values are filled in.
        measure: The measure of a candidate under one draw.
        stop: Whether the time is up, asked before each draw.
        most: Draws that one candidate gets at most.
    """
    wanted, asked = FIRST_DRAWS, list(trials)
    while asked:
        if not fill(asked, CHOOSING[:wanted], measure, stop=stop):
            return False
        wanted, asked = 2 * wanted, undecided(trials)
        if wanted > most:
            break
    return not asked


def fill(
    trials: Sequence[Trial], draws: range, measure: Callable[[Candidate, int], float], *, stop: Callable[[], bool]
) -> bool:
    """Measure what candidates lack of some draws; whether there was time. One draw after another, so that a run that is
    stopped has about the same of all."""
    for draw in draws:
        for trial in trials:
            if draw in trial.values or draw in trial.missing or trial.failure:
                continue
            if stop():
                return False
            try:
                trial.values[draw] = measure(trial.candidate, draw)
            except ErfscopeError as error:
                trial.missing.add(draw)
                trial.failure = str(error) if len(trial.missing) > 1 + len(trial.values) else ""
    return True
