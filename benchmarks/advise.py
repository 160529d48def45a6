"""Does the search of ``erfscope advise`` find what measuring every candidate finds, with a third of the draws?

    python benchmarks/advise.py
    python benchmarks/advise.py --models stack --draws 16

Each net is small and built anew, with random weights, for every draw. The search runs as a user starts it; then
``erfscope.analyze`` measures each of its candidates in every draw. At each cost the best candidate of the search's
front must have as much as the best of all, but for the hundredth that the search leaves open and two errors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope
from erfscope.apps.advise.halving import CHOOSING, ENOUGH, MOST_DRAWS, Trial, difference
from erfscope.apps.advise.outcome import Search
from erfscope.apps.advise.search import IMAGES, draw_seed

#: Draws that the search may take, of those of all candidates.
SHARE = 1 / 3


def convs(taken: int, given: int, count: int, stride: int = 1) -> nn.Sequential:
    """Convolutions of 3 x 3, each with ReLU."""
    parts = [
        (nn.Conv2d(given if n else taken, given, 3, 1 if n else stride, 1), nn.BatchNorm2d(given), nn.ReLU())
        for n in range(count)
    ]
    return nn.Sequential(*(part for each in parts for part in each))


def stack() -> nn.Module:
    """Three stages in a row."""
    return nn.Sequential(convs(3, 8, 1), convs(8, 8, 2, stride=2), convs(8, 8, 1))


class Residual(nn.Module):
    """Three residual blocks, one of them with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convs(3, 8, 1)
        self.blocks = nn.ModuleList([convs(8, 8, 2, stride=stride) for stride in (1, 2, 1)])
        self.short = nn.Conv2d(8, 8, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Add each block to its shortcut."""
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = F.relu((self.short(x) if number == 1 else x) + block(x))
        return x


class UNet(nn.Module):
    """One level down, and up again beside its skip."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid, self.dec = convs(3, 8, 1), convs(8, 8, 2), convs(16, 8, 1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel."""
        skip = self.enc(x)
        deep = self.up(self.mid(F.max_pool2d(skip, 2)))
        return self.head(self.dec(torch.cat([deep, skip], 1)))


#: A net, and the target of its search.
NETS = {"stack": "r50>=1.5x", "Residual": "r50>=1.5x", "UNet": "r90>=1.2x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a search compares with all candidates in all draws."""

    name: str
    candidates: int
    #: Draws of the search, without those that decide on the target, and of all candidates.
    draws: tuple[int, int]
    fronts: tuple[int, int]
    seconds: tuple[float, float]
    #: The largest loss of the search at one cost as a share of the measure, and what is allowed there.
    loss: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the search found as much with as few draws."""
        return self.loss <= self.allowed and self.draws[0] <= SHARE * self.draws[1]


def search_of(name: str, side: int) -> Search:
    """The search as ``erfscope advise`` runs it."""
    found = erfscope.advise(f"{__file__}:{name}", input_size=side, target=NETS[name], time=3600.0).search
    assert found is not None
    return found


def measure_all(name: str, side: int, found: Search, draws: int) -> list[Trial]:
    """Each candidate of a search in every draw; those that cannot be measured are left out."""
    every = [
        Trial(candidate=each.candidate, costs=each.costs, price=each.price, order=each.order)
        for each in found.trials
        if not each.failure
    ]
    for each in every:
        options = {"insert": [*each.candidate.edits] or None, "input_size": each.candidate.size or side}
        for draw in range(draws):
            result = erfscope.analyze(
                f"{__file__}:{name}",
                weights="random",
                samples=IMAGES,
                seed=draw_seed(0, draw),
                layer=found.layer,
                measures=[found.measure],
                **options,
            )
            each.values[draw] = result[found.measure].value
    return every


def compare(name: str, side: int, draws: int) -> Outcome:
    """Search, measure everything, and compare at each cost."""
    start = time.perf_counter()
    found = search_of(name, side)
    middle = time.perf_counter()
    every = measure_all(name, side, found, draws)
    seconds = middle - start, time.perf_counter() - middle
    whole, ours = ({each.candidate: each for each in some} for some in (every, found.trials))
    for candidate, each in whole.items():
        # Both measure the same draws.
        assert {d: v for d, v in each.values.items() if d in ours[candidate].values} == {
            d: v for d, v in ours[candidate].values.items() if d < draws
        }
    losses = []
    for limit in sorted({each.price for each in every}):
        best = max((each for each in every if each.price <= limit), key=lambda each: each.mean)
        mine = max((whole[each.candidate] for each in found.front if each.price <= limit), key=lambda each: each.mean)
        error = difference(ours[best.candidate], ours[mine.candidate])[1] if best is not mine else 0.0
        losses.append(((best.mean - mine.mean) / mine.mean, ENOUGH + 2 * error / mine.mean))
    loss, allowed = max(losses, key=lambda each: each[0] - each[1])
    fronts = len(found.front), len(erfscope.apps.advise.halving.front(every))
    spent = sum(len(each.among(CHOOSING)) for each in found.trials), sum(len(each.values) for each in every)
    return Outcome(
        name=name,
        candidates=len(every),
        draws=spent,
        fronts=fronts,
        seconds=seconds,
        loss=loss,
        allowed=allowed,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table. Returns 1 where a search finds less, or takes more than a third of the draws; else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(NETS), help="comma list; default: %(default)s")
    parser.add_argument("--side", type=int, default=32, help="of the input in pixels; default: %(default)s")
    parser.add_argument("--draws", type=int, default=MOST_DRAWS, help="of every candidate; default: %(default)s")
    asked = parser.parse_args(arguments)
    print("net | candidates | draws: search, all | share | front: search, all | loss, allowed | s: search, all | holds")
    outcomes = []
    for name in asked.models.split(","):
        each = compare(name, asked.side, asked.draws)
        outcomes.append(each)
        print(
            f"{each.name} | {each.candidates} | {each.draws[0]}, {each.draws[1]} | {each.draws[0] / each.draws[1]:.2f}"
            f" | {each.fronts[0]}, {each.fronts[1]} | {each.loss:.2%}, {each.allowed:.2%}"
            f" | {each.seconds[0]:.0f}, {each.seconds[1]:.0f} | {'yes' if each.holds else 'NO'}",
            flush=True,
        )
    print(f"\nmean share of the draws: {np.mean([each.draws[0] / each.draws[1] for each in outcomes]):.2f}")
    return int(not all(each.holds for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
