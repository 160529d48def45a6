"""What a search of a design found: the candidates, their numbers, and which of them reach the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from erfscope.apps.advise.candidates import inserted
from erfscope.apps.advise.halving import CHOOSING, ENOUGH, FIRST_DRAWS, Trial, difference, front, mean_and_error, paired
from erfscope.apps.advise.target import HALO, Bound
from erfscope.apps.advise.verdict import DECIDING, FINALISTS, REPORTING, Verdict, margins, verdict

#: What a candidate of a smaller halo is judged by: at each distance up to the model's own halo, the share of its ERF
#: that lies farther, divided by that of the model as it is, at most 1; the mean over these distances.
REACH = "reach"


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """What a search found: the candidates, their costs and what was measured of them."""

    target: Bound
    budget: tuple[Bound, ...]
    layer: str
    #: The measure, :data:`REACH` where a halo is to be small, and the cost that it is weighed against: "gmacs" or
    #: "halo".
    measure: str
    price: str
    #: The model as it is, then the candidates.
    trials: tuple[Trial, ...]
    #: Whether every candidate of the front is known to be there, at one standard error.
    is_settled: bool
    #: Whether choosing ended by itself, the best put together where none seemed to reach the target; not by the time.
    is_complete: bool = False
    #: Whether each draw has random weights of its own; else they are the model's, and draws differ in the images.
    draws_weights: bool
    #: The model as commands name it, "" of a live module; the edits that it was given with, and its size.
    spec: str
    base: tuple[str, ...]
    input_size: tuple[int, ...]
    #: Differences of the measure on the trained weights, with their errors, of edits that keep them, by text.
    on_weights: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    #: The parts of the model that skip connections pass by.
    bypassed: tuple[str, ...] = ()

    @property
    def own(self) -> Trial:
        """The model as it is."""
        return self.trials[0]

    @property
    def front(self) -> list[Trial]:
        """The candidates that no other beats, the cheapest first, of those with draws enough for an error."""
        return front([each for each in self.trials if len(each.among(CHOOSING)) >= FIRST_DRAWS])

    @property
    def sign(self) -> int:
        """-1 where the measure is to be small: candidates have it with its sign changed."""
        return -1 if self.target.is_most and self.price != HALO else 1

    def command(self, trial: Trial) -> str:
        """What measures a candidate, under a draw more; of a live module its edits alone."""
        edits = inserted((*self.base, *trial.candidate.edits))
        if not self.spec:
            return edits
        size = "x".join(map(str, trial.candidate.size or self.input_size))
        return f"erfscope analyze {self.spec} --input-size {size} --layer {self.layer} --weights random {edits}".strip()

    def draws(self, trial: Trial) -> range:
        """The draws that a candidate's numbers are shown of: of those tested the ones that report, of others those that
        choose."""
        return REPORTING if trial in self.tested else CHOOSING

    def value(self, trial: Trial) -> float | None:
        """The number of a candidate that the target is about; None where it is unknown."""
        return trial.costs[HALO] if self.target.name == HALO else self.measured(trial)[0]

    def measured(self, trial: Trial) -> tuple[float | None, float]:
        """The measure of a candidate and its error, infinite for fewer than four draws; None where it is unknown."""
        mean, error = mean_and_error([*trial.among(self.draws(trial)).values()])
        return self.sign * mean if trial.values else None, error

    def change(self, trial: Trial) -> tuple[float | None, float]:
        """The measure of a candidate minus that of the model as it is, and the error over paired draws."""
        change, error = difference(trial, self.own, self.draws(trial))
        return self.sign * change if trial.values else None, error

    def r50(self, trial: Trial) -> tuple[tuple[float, float], tuple[float, float]]:
        """The r50 of a candidate and its paired difference to that of the model as it is, each with its error: of a
        search for smaller halos beside the reach, of others where that is the measure."""
        ours, theirs = (each.r50 or each.among(self.draws(trial)) for each in (trial, self.own))
        return mean_and_error([*ours.values()]), paired(ours, theirs)

    def hidden(self) -> list[str]:
        """The parts that skip connections pass by and that r50, or the measure, does not see: a candidate that edits
        them was measured, and changes it by less than 1 %."""
        blind = [each for each in self.trials if each.values and self._is_blind(each)]
        return [part for part in self.bypassed if any(part in each.candidate.places for each in blind)]

    def _is_blind(self, trial: Trial) -> bool:
        change, error = self.r50(trial)[1]
        return error < float("inf") and abs(change) < ENOUGH * abs(self.r50(self.own)[0][0])

    def met(self) -> list[Trial]:
        """The candidates that reach the target, the cheapest first, and of equal costs the one furthest beyond it by
        the draws that decide; of smaller halos those first that keep most of the reach, with fewer edits and the larger
        halo of those that keep as much."""
        found = [each for each in self.trials if self.meets(each)]
        if self.price != HALO:
            return sorted(found, key=lambda each: (each.price, -self._beyond(each), each.order))
        least = ENOUGH * abs(self.own.mean) if self.own.values else 1.0
        return sorted(
            found, key=lambda e: (-round(e.mean / least) if e.values else 0, len(e.candidate.edits), -e.price)
        )

    def meets(self, trial: Trial) -> bool:
        """Whether a candidate reaches the target, and keeps the budget."""
        return self.is_allowed(trial) and self.verdict_on(trial) == "met"

    def verdict_on(self, trial: Trial) -> Verdict:
        """Whether a candidate reaches the target; halos are exact."""
        if self.price == HALO:
            return "met" if self.target.holds(trial.costs[HALO], self.own.costs[HALO]) else "not met"
        return verdict(trial, self.own, self.target, len(self.tested))

    @property
    def tested(self) -> list[Trial]:
        """The candidates with fresh draws."""
        return [each for each in self.trials if not each.values.keys().isdisjoint(REPORTING)]

    @property
    def best(self) -> Trial:
        """Of the candidates tested and allowed, the one that lies furthest beyond the target, by the draws that decide,
        so that those that report do not choose; the model as it is where none is."""
        return max(filter(self.is_allowed, self.tested), key=self._beyond, default=self.own)

    def _beyond(self, trial: Trial) -> float:
        """How far a candidate lies beyond the target, by the draws that decide."""
        return mean_and_error(margins(trial, self.own, self.target, DECIDING))[0]

    @property
    def known_front(self) -> list[Trial]:
        """The front, once every candidate allowed has draws enough to be on it."""
        return self.front if self.all_counted else []

    @property
    def all_counted(self) -> bool:
        """Whether every candidate allowed has draws enough for an error."""
        allowed = filter(self.is_allowed, self.trials)
        return all(len((each.values.keys() | each.missing) & {*CHOOSING}) >= FIRST_DRAWS for each in allowed)

    @property
    def verdict(self) -> Verdict:
        """Whether any candidate reaches the target: not, where choosing was complete, all have draws enough, and all
        finalists miss it."""
        if any(map(self.meets, self.trials)):
            return "met"
        if self.price == HALO:
            return "not met"
        allowed = [*filter(self.is_allowed, self.trials)]
        missed = [self.verdict_on(each) == "not met" for each in self.tested if each in allowed]
        is_whole = self.is_complete and self.all_counted and len(missed) >= min(FINALISTS, len(allowed))
        return "not met" if is_whole and all(missed) else "not decided"

    def is_open(self, trial: Trial) -> bool:
        """Whether more draws of a candidate may change the answer: it is not decided, and no cheaper one is met."""
        met = min((each.price for each in self.trials if self.meets(each)), default=float("inf"))
        return self.is_allowed(trial) and trial.price <= met and self.verdict_on(trial) == "not decided"

    def seems_met(self, trial: Trial) -> bool:
        """Whether a candidate reaches the target by an error, over the draws that choose."""
        if self.price == HALO:
            return self.meets(trial)
        mean, error = mean_and_error(margins(trial, self.own, self.target, CHOOSING))
        return self.is_allowed(trial) and mean >= error

    def is_allowed(self, trial: Trial) -> bool:
        """Whether a candidate can be made, and keeps the budget."""
        return not trial.failure and self.keeps_budget(trial)

    def keeps_budget(self, trial: Trial) -> bool:
        """Whether a candidate costs no more than is allowed."""
        return all(each.holds(trial.costs[each.name], self.own.costs[each.name]) for each in self.budget)
