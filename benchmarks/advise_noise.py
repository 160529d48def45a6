"""Does a search of ``erfscope advise`` name only candidates that reach the target, with values that are true?

    python benchmarks/advise_noise.py
    python benchmarks/advise_noise.py --searches 1000 --noise 0.2

The search itself runs on a made-up measure of 12 candidates, whose true values are known. A draw has Gaussian noise of
10 or 20 % of the value, half of its variance shared by all candidates. The time is counted in draws: 13 and 26 are one
and two of each candidate and of the model as it is. At every setting at most 5 % of the searches may say "met" of any
candidate that misses the target, and the value that the answer names must be the truth within 1 % on average, or two
standard errors of this average."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from erfscope.apps.advise import search as search_module
from erfscope.apps.advise.candidates import Candidate
from erfscope.apps.advise.halving import Trial
from erfscope.apps.advise.outcome import Search
from erfscope.apps.advise.search import SearchRun
from erfscope.apps.advise.target import parse_budget, parse_target

COUNT = 12
#: Shares of the target that the candidates have: none reaches it, by 1 %, 30 % or hardly; four do, or half.
TRUTHS = {
    "none": np.linspace(0.80, 0.99, COUNT),
    "none, far": np.linspace(0.40, 0.70, COUNT),
    "none, close": np.full(COUNT, 0.999),
    "four": np.array([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.15, 1.2, 1.25, 1.3]),
    "half, by 2 to 30 %": np.r_[np.linspace(0.6, 0.98, COUNT // 2), np.linspace(1.02, 1.3, COUNT // 2)],
}
#: Numbers of draws that there is time for.
TIMES = (13, 26, 60, 120, 240, 1000)
#: The unchanged model has two thirds of a target of 30, or three halves where it is to be small.
LIMIT = 30.0
TARGETS = {"r50>=30": 20.0, "r50<=30": 45.0, "r50>=1.5x": 20.0}
#: The model as it is and 12 edits of one place, which are not put together; and the edit of each, "" of none.
EVERY = [Candidate(), *(Candidate(edits=(f"net: dilation={number}",)) for number in range(COUNT))]
EDITS = ["".join(each.edits) for each in EVERY]
#: False "met" allowed, and the error of the reported value.
FALSE, WRONG = 0.05, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What searches are simulated of."""

    truths: str
    target: str
    noise: float
    draws: int
    budget: str = ""


class NoisySearch(SearchRun):
    """A search whose candidates have known values. Only what they cost and their measure are made up."""

    def __init__(self, truths: Sequence[float], setting: Setting, seed: int) -> None:
        self.truths, self.noise, self.spent = dict(zip(EDITS, truths, strict=True)), setting.noise, 0
        #: By seed what all candidates share of a draw, and what each has alone.
        self.parts: dict[int, np.ndarray] = {}
        self.model, self.seconds, self.end = "net", float(setting.draws), setting.draws - 0.5
        self.chosen = self.end / 2
        self.request = SimpleNamespace(insert=None, progress=lambda *_: None, stop=lambda: False)  # type: ignore[assignment]
        self.options, self.kept, self.known, self.count = {"seed": seed}, {"keep_in": None, "resume": None}, {}, 0
        self.given = self.options
        self.search = Search(
            target=parse_target(setting.target),
            budget=(parse_budget(setting.budget),) if setting.budget else (),
            layer="layer",
            measure="r50",
            price="gmacs",
            trials=(),
            is_settled=False,
            draws_weights=True,
            spec="net",
            base=(),
            input_size=(64, 64),
        )

    def _trials(self, candidates: Sequence[Candidate]) -> list[Trial]:
        costs = {each.text: 1.0 + number for number, each in enumerate(EVERY)}
        found = []
        for each in candidates:
            price = costs[each.text]
            values = self.known.get(each.text, {})
            costs_of = dict.fromkeys(("gmacs", "params", "memory"), price)
            found.append(Trial(candidate=each, costs=costs_of, price=price, order=int(price), values=dict(values)))
        return found

    def _candidates(self, structure: Any) -> tuple[list[Candidate], tuple[str, ...]]:
        return EVERY[1:], ()

    def analyze(self, model: str, *, insert: list[str] | None, seed: int, **options: Any) -> dict[str, Any]:
        """The measure of one candidate under one draw."""
        self.spent += 1
        edit = insert[0] if insert else ""
        if seed not in self.parts:
            self.parts[seed] = np.random.default_rng(seed).normal(size=2 + COUNT) * self.noise * np.sqrt(0.5)
        parts = self.parts[seed]
        value = self.truths[edit] * (1 + parts[-1] + parts[EDITS.index(edit)])
        return {"r50": SimpleNamespace(value=float(value))}

    def found(self) -> Search:
        """What the search finds."""
        clock = SimpleNamespace(monotonic=lambda: float(self.spent))
        with mock.patch.multiple(search_module, clock=clock, analyze=self.analyze):
            return self.run(None)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What many searches said at one setting, as shares of them."""

    false_met: float
    met: float
    not_decided: float
    #: "not met" where a candidate does reach the target.
    false_not_met: float
    #: The mean error of the value that the answer names, of the candidate that meets the target or else of the best, as
    #: a share of its truth, and its standard error; NaN of none.
    wrong: float
    wrong_se: float
    #: Draws spent, on average.
    draws: float

    @property
    def holds(self) -> bool:
        """Whether hardly any search names what misses the target, and the values are true."""
        return self.false_met <= FALSE and not abs(self.wrong) > max(WRONG, 2 * self.wrong_se)


def simulate(setting: Setting, searches: int, first_seed: int = 0) -> Shares:
    """Search many times, the candidates' true values in another order of costs each time."""
    is_most, own = "<=" in setting.target, TARGETS[setting.target]
    counts, wrong, spent = np.zeros(4), list[float](), 0
    for seed in range(first_seed, first_seed + searches):
        shares = np.random.default_rng((seed, COUNT)).permutation(TRUTHS[setting.truths])
        truths = [own, *(LIMIT * (2 - shares if is_most else shares))]
        run = NoisySearch(truths, setting, seed)
        found = run.found()
        reaches = {each: found.target.holds(run.truths["".join(each.candidate.edits)], own) for each in found.trials}
        met = found.met()
        can = any(reaches[each] and found.keeps_budget(each) for each in found.trials)
        counts += (
            not all(reaches[each] for each in met),
            bool(met) and reaches[met[0]],
            found.verdict == "not decided",
            found.verdict == "not met" and can,
        )
        if named := (met[0] if met else found.best):
            wrong.append(found.value(named) / run.truths["".join(named.candidate.edits)] - 1)
        spent += run.spent
    shares = counts / searches
    return Shares(
        false_met=shares[0],
        met=shares[1],
        not_decided=shares[2],
        false_not_met=shares[3],
        wrong=float(np.mean(wrong)) if wrong else float("nan"),
        wrong_se=float(np.std(wrong, ddof=1) / np.sqrt(len(wrong))) if len(wrong) > 1 else float("inf"),
        draws=spent / searches,
    )


def settings(noises: Sequence[float]) -> Iterator[Setting]:
    """All that are simulated."""
    for truths, target, noise, draws in product(TRUTHS, TARGETS, noises, TIMES):
        if target == "r50>=30" or truths in ("none, close", "four"):
            yield Setting(truths=truths, target=target, noise=noise, draws=draws)
    # The dearer third is beyond the budget.
    for noise, draws in product(noises, TIMES):
        yield Setting(truths="four", target="r50>=30", noise=noise, draws=draws, budget="gmacs<=9")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table. Returns 1 where a setting says too much; else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--searches", type=int, default=200, help="at each setting; default: %(default)s")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.1, 0.2], help="default: %(default)s")
    asked = parser.parse_args(arguments)
    print("truths | target | budget | noise | time, draws | false met | met | undecided | false no | value | holds")
    all_hold = True
    for each in settings(asked.noise):
        found = simulate(each, asked.searches)
        all_hold &= found.holds
        cells = [each.truths, each.target, each.budget or "-", f"{each.noise:.0%}", f"{each.draws}, {found.draws:.0f}"]
        cells += [f"{found.false_met:.1%}", f"{found.met:.0%}", f"{found.not_decided:.0%}"]
        cells += [f"{found.false_not_met:.1%}", f"{found.wrong:+.1%} ± {found.wrong_se:.1%}"]
        print(" | ".join([*cells, "yes" if found.holds else "NO"]), flush=True)
    return int(not all_hold)


if __name__ == "__main__":
    sys.exit(main())
