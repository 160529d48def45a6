"""Successive halving on made-up measures: the front of all draws, with a third of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from erfscope import ErfscopeError
from erfscope.apps.advise.candidates import Candidate
from erfscope.apps.advise.halving import ENOUGH, MOST_DRAWS, Trial, beats, difference, front, settle, undecided

Measure = Callable[[Candidate, int], float]


def never() -> bool:
    return False


def trials(*prices: float) -> list[Trial]:
    return [
        Trial(candidate=Candidate(edits=(str(n),)), costs={}, price=price, order=n) for n, price in enumerate(prices)
    ]


def number(candidate: Candidate) -> int:
    return int(candidate.edits[0])


def names(found: list[Trial]) -> list[int]:
    return [each.order for each in found]


def made_up(*means: float, noise: float = 0.1) -> Measure:
    """Means with a deviation of their own in every draw."""
    parts = np.random.default_rng(0).normal(size=(len(means), 2 * MOST_DRAWS)) * noise
    return lambda candidate, draw: means[number(candidate)] + parts[number(candidate), draw]


@pytest.mark.parametrize("seed", range(6))
def test_the_front_is_that_of_all_draws_within_errors_with_a_third_of_them(seed):
    draw = np.random.default_rng(seed)
    count = 40
    price = draw.uniform(1, 2, count).round(1)
    mean = 60 + draw.normal(0, 5, count) + 5 * (price - 1)
    # What all candidates share in a draw cancels in paired differences.
    noise = draw.normal(size=(count, MOST_DRAWS)) * draw.uniform(0.2, 3, (count, 1)) + draw.normal(0, 3, MOST_DRAWS)

    def measure(candidate: Candidate, which: int) -> float:
        return mean[number(candidate)] + noise[number(candidate), which]

    ours, every = trials(*price), trials(*price)
    settle(ours, measure, stop=never)
    for each in every:
        each.values = {which: measure(each.candidate, which) for which in range(MOST_DRAWS)}
    assert sum(len(each.values) for each in ours) <= count * MOST_DRAWS / 3
    # At each price the best of either front has as much as that of the other, within a hundredth and two errors.
    mine, theirs = names(front(ours)), names(front(every))
    for limit in price:
        cheap = ([n for n in some if price[n] <= limit] for some in (mine, theirs))
        one, other = (max(each, key=lambda n: every[n].mean) for each in cheap)
        loss = every[other].mean - every[one].mean
        assert loss <= ENOUGH * every[one].mean + 2 * difference(ours[other], ours[one])[1]


def test_a_candidate_that_costs_more_and_has_clearly_more_is_on_the_front():
    found = trials(1, 2, 2, 3)
    assert settle(found, made_up(10, 20, 15, 15), stop=never)
    assert names(front(found)) == [0, 1]
    # Those that are clearly beaten after four draws get no more.
    assert [len(each.values) for each in found] == [4, 4, 4, 4]


def test_the_first_of_equals_is_on_the_front():
    found = trials(1, 1, 1)
    assert settle(found, lambda candidate, draw: 7.0 + draw, stop=never)
    assert names(front(found)) == [0]
    assert beats(found[0], found[1])
    assert not beats(found[1], found[0])
    # The cheaper one of equals, whatever its turn.
    later = trials(2, 1)
    assert settle(later, lambda candidate, draw: 7.0, stop=never)
    assert names(front(later)) == [1]


def test_differences_below_a_hundredth_count_for_nothing_and_those_above_do():
    found = trials(1, 2)
    assert settle(found, made_up(10, 10 * (1 + ENOUGH / 2), noise=1e-4), stop=never)
    # It has clearly more: an expensive candidate is on the front until that is sure to be less than a hundredth.
    assert names(front(found)) == [0]
    found = trials(1, 2)
    assert settle(found, made_up(10, 10 * (1 + 2 * ENOUGH), noise=1e-4), stop=never)
    assert names(front(found)) == [0, 1]


def test_what_stays_undecided_gets_twice_as_many_draws_up_to_the_most():
    def measure(candidate: Candidate, draw: int) -> float:
        # The first two differ by 2 in every other draw and by -2 in those between; the third is far below.
        return [10.0, 10.0 + 2 * (-1) ** draw, -90.0][number(candidate)]

    found = trials(1, 2, 3)
    assert not settle(found, measure, stop=never)
    assert [len(each.values) for each in found] == [MOST_DRAWS, MOST_DRAWS, 4]
    assert {*names(undecided(found))} == {0, 1}
    few = trials(1, 2, 3)
    settle(few, measure, stop=never, most=8)
    assert [len(each.values) for each in few] == [8, 8, 4]


def test_a_failure_is_kept_and_leaves_the_others():
    def measure(candidate: Candidate, draw: int) -> float:
        if number(candidate) == 1 or (number(candidate) == 2 and draw == 2):
            raise ErfscopeError("no such layer")
        return 10.0 * (1 + number(candidate))

    found = trials(1, 1, 2)
    assert settle(found, measure, stop=never)
    # One draw without a number is missing, two at the beginning are a failure.
    assert [each.failure for each in found] == ["", "no such layer", ""]
    assert [sorted(each.missing) for each in found] == [[], [0, 1], [2]]
    assert not found[1].values
    assert names(front(found)) == [0, 2]


def test_other_exceptions_pass():
    def measure(candidate: Candidate, draw: int) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        settle(trials(1), measure, stop=never)


def test_a_stop_leaves_all_with_about_as_many_draws_and_is_not_settled():
    found, left = trials(1, 2, 3), iter([False] * 7)
    assert not settle(found, made_up(1, 2, 3), stop=lambda: next(left, True))
    assert [sorted(each.values) for each in found] == [[0, 1, 2], [0, 1], [0, 1]]


def test_what_is_known_is_not_measured_again():
    means = made_up(10, 10.3, 10.1, 5, noise=0.5)
    whole = trials(1, 2, 2, 3)
    assert settle(whole, means, stop=never) in (True, False)
    resumed, left, asked = trials(1, 2, 2, 3), iter([False] * 9), list[tuple[int, int]]()

    def measure(candidate: Candidate, draw: int) -> float:
        asked.append((number(candidate), draw))
        return means(candidate, draw)

    settle(resumed, measure, stop=lambda: next(left, True))
    settle(resumed, measure, stop=never)
    assert [each.values for each in resumed] == [each.values for each in whole]
    assert len({*asked}) == len(asked) == sum(len(each.values) for each in whole)
    assert names(front(resumed)) == names(front(whole))


def test_the_error_of_a_difference_is_that_of_paired_draws():
    one, other = trials(1, 1)
    # Differences of 1, 2, 3, 6 and a draw that one of them has alone.
    one.values, other.values = {0: 11, 1: 22, 2: 33, 3: 46, 4: 99}, {0: 10, 1: 20, 2: 30, 3: 40}
    mean, error = difference(one, other)
    spread = np.std([1, 2, 3, 6], ddof=1) / 2
    # A Student's t of three degrees of freedom has the variance 3 / (3 - 2).
    assert (mean, error) == pytest.approx((3, spread * math.sqrt(3)))
    other.values = {0: 10, 1: 20}
    assert difference(one, other) == (1.5, math.inf)
    other.values = {}
    assert difference(one, other) == (0.0, math.inf)
    assert math.isnan(other.mean)


def test_without_draws_there_is_no_front():
    assert front(trials(1, 2)) == []
    assert settle([], made_up(), stop=never)
