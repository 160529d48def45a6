"""Try the gate: how often it alarms for nothing, decides and finds a change, and whether random tolerances hold.

    python benchmarks/gate.py --power 100 --others 20 --unchanged 200 --graded 100

First come checks over other images than the baseline's, of three nets and a harder one, simulated from what each net
does on 1300 images (``gate_power.py``). At the default tolerance of -5 %, at most 1 % may fail without a change and
under 10 % be inconclusive, and 9 of 10 must fail where r50 or r90 is smaller by 5 %; none smaller by 10 % may pass.
Whole calls over other images than the baseline's follow.

Nets differ in widths, dilations and weights. An unchanged one is measured again in other batches and on other threads,
under tolerances drawn at random: words, numbers and :class:`erfscope.gate.Tolerance`, of several measures at once;
it must not fail. A loss is made by taking weight from a net's far branch, by little or much; what it really is, 200
other images say. Where that is beyond what is tolerated, by three standard errors of the gate's own, the verdict must
not be a pass. Every third tolerance is one that would guard nothing: it must be refused, or called so where only the
baseline's value tells. Prints one row per kind. Exit code 1
after any wrong verdict."""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gate_power import GUARDED as POWER_GUARDED
from gate_power import Pool, tallies
from torch import nn

import erfscope
from erfscope import gate
from erfscope.apps.gate.gate import Tolerance, Verdict

SIZE, SAMPLES, TRUTH = 48, 20, 200
#: Measures that a loss moves down, in the order in which they are drawn; all are checked.
GUARDED = ("r50", "r90", "side50", "sigma_row", "entropy_area", "far_mass")
#: Rounding flips single ReLU gates: sizes differ by up to 0.2 % from one batch size to another.
LEAST = 0.005


class Branched(nn.Module):
    """A stem, a near and a far branch, and a last layer; ``kept`` of the far branch's weight is left."""

    def __init__(self, seed: int, kept: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width, dilation = 4 + seed % 5, 3 + seed % 4
        self.stem, self.near = nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.far, self.late = (
            nn.Conv2d(width, width, 3, 1, dilation, dilation=dilation),
            nn.Conv2d(width, width, 3, 1, 1),
        )
        with torch.no_grad():
            self.far.weight.mul_(2.0 * kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A map of half the size."""
        x = torch.relu(self.stem(x))
        return self.late(torch.relu(self.near(x)) + torch.relu(self.far(x)))


def drawn(chance: random.Random, values: dict[str, float]) -> dict[str, Any]:
    """Tolerances against a narrower ERF, of one to three measures, each in one of the ways it can be given."""
    found: dict[str, Any] = {}
    for name in chance.sample(GUARDED, chance.randint(1, 3)):
        share = 10 ** chance.uniform(-2, -0.05)
        share, value, sign = max(share, LEAST), values[name], chance.choice(["-", ""])
        ways: list[Any] = [
            f"{sign}{share * 100:.6f}%",
            Tolerance(side="narrower" if sign else "both", amount=share, relative=True),
        ]
        if value > 0 and share * value >= 1e-4:
            ways += [f"{sign}{share * value:.9f}", -share * value if sign else share * value]
        found[name] = chance.choice(ways)
    return found


def pointless(chance: random.Random, values: dict[str, float]) -> dict[str, Any]:
    """A tolerance that lets everything be lost, in one of the ways it can be given."""
    name = chance.choice(GUARDED)
    more = values[name] * 10 ** chance.uniform(0, 6) + 1e-3
    ways = [
        -more,
        f"-{more:.6f}",
        more,
        f"{more:.6f}",
        -1e300,
        1e300,
        "-1e300",
        "-100%",
        f"{chance.uniform(100, 1e6):.3f}%",
    ]
    ways += [float("inf"), float("-inf"), float("nan"), "inf", "-nan", -chance.randint(1000, 9999)]
    return {name: chance.choice(ways)}


def asked(chance: random.Random, **more: Any) -> dict[str, Any]:
    """Settings that change nothing about what is measured."""
    torch.set_num_threads(chance.choice([1, 2]))
    return {
        "input_size": SIZE,
        "samples": SAMPLES,
        "batch_size": chance.choice([1, 3, 8, 20]),
        "measures": list(GUARDED),
        **more,
    }


@functools.cache
def whole_sizes(seed: int) -> dict[str, float]:
    """What a whole net's measures are, on other images than the gate's."""
    return sizes(Branched(seed))


def sizes(net: nn.Module) -> dict[str, float]:
    """What a net's measures are, on other images than the gate's."""
    found = erfscope.analyze(net, input_size=SIZE, samples=TRUTH, measures=list(GUARDED), device="cpu", seed=1)
    return {name: float(found[name]) for name in GUARDED}


def values_of(net: nn.Module, name: str, baseline: Path, chance: random.Random) -> dict[str, float]:
    """What the baseline has of a net, which is measured for it the first time."""
    if name not in gate.read(baseline):
        first = erfscope.check(net, name=name, baseline=baseline, missing="accept", **asked(chance))
        assert first.word == "new", first.text
    return {measure: float(found.value or 0) for measure, found in gate.read(baseline)[name].measures.items()}


def unchanged(number: int, baseline: Path) -> tuple[str, str]:
    """One re-run of an unchanged net: its verdict, and what is wrong with that."""
    chance, net = random.Random(f"unchanged {number}"), Branched(number % 20)
    name = f"net{number % 20}"
    values = values_of(net, name, baseline, chance)
    verdict = erfscope.check(net, name=name, baseline=baseline, tolerances=drawn(chance, values), **asked(chance))
    return verdict.word, verdict.text if verdict.word == "fail" else ""


def graded(number: int, baseline: Path) -> tuple[str, str]:
    """One net that has lost something: the verdict, and what is wrong with that."""
    chance, seed = random.Random(f"graded {number}"), number % 20
    net, name = Branched(seed), f"graded{seed}"
    values = values_of(net, name, baseline, chance)
    less = Branched(seed, kept=1 - 10 ** chance.uniform(-1.5, 0))
    if number % 3 == 2:
        words = pointless(chance, values)
        try:
            verdict = erfscope.check(less, name=name, baseline=baseline, tolerances=words, **asked(chance))
        except erfscope.ErfscopeError:
            return "refused", ""
        is_named = verdict.word == "cannot tell" and "guards nothing" in verdict.text
        return verdict.word, "" if is_named else f"{words} was not refused: {verdict.text}"
    words = drawn(chance, values)
    verdict = erfscope.check(less, name=name, baseline=baseline, tolerances=words, **asked(chance))
    lost = beyond(verdict, whole_sizes(seed), sizes(less))
    return verdict.word, f"{lost} passed under {words}" if lost and verdict.word == "pass" else ""


def beyond(verdict: Verdict, whole: dict[str, float], less: dict[str, float]) -> str:
    """The measures whose real loss is beyond the tolerance by three standard errors of the gate's difference."""
    found = []
    for measure in verdict.measures:
        assert measure.expected is not None
        assert measure.expected.value is not None
        if whole[measure.name] <= 0:
            # Nothing is there to be lost.
            continue
        loss = (whole[measure.name] - less[measure.name]) / whole[measure.name] * measure.expected.value
        if measure.limit is not None and loss > measure.limit + 3 * (measure.se or 0.0):
            found.append(f"{measure.name} -{loss:.4g} (tolerated {measure.limit:.4g})")
    return ", ".join(found)


#: Nets of the simulation, whether it is held to what is aimed at, and how they are measured.
NETS: dict[str, tuple[bool, Any, dict[str, Any]]] = {
    "test_resnet": (True, "test_resnet", {"weights": "random", "input_size": 96}),
    "test_vit": (True, "test_vit", {"weights": "random"}),
    "Branched(2)": (True, Branched(2), {"input_size": SIZE}),
    "convnext_atto": (False, "convnext_atto", {"weights": "random", "input_size": 64}),
}
HEAD = "net             smaller by    fail inconclusive   pass    20 images: fail inconclusive   pass   images baseline"


def power(runs: int) -> list[str]:
    """Print the verdicts on other images than the baseline's; what is wrong with them."""
    print(HEAD)
    wrong = []
    for name, (is_held, net, asked) in NETS.items():
        for change, tally in tallies(Pool(net, **asked), runs).items():
            fail, unknown, passed = (tally.share(word) for word in ("fail", "cannot tell", "pass"))
            first = [tally.first[word] / runs for word in ("fail", "cannot tell", "pass")]
            print(
                f"{name:15} {change:10.0%} {fail:7.1%} {unknown:12.1%} {passed:6.1%}"
                f"   {first[0]:16.1%} {first[1]:12.1%} {first[2]:6.1%}"
                f" {tally.images / runs:8.0f} {tally.baseline / runs:8.0f}"
                f"  {', '.join(f'{measure} -{fall:.1%}' for measure, fall in tally.falls.items()) if change else ''}"
            )
            # 1 % with three standard errors of so many runs.
            false = change == 0 and fail > 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)
            missed = (change == 0.1 and passed > 0) or (change and is_held and fail < 0.9)
            if false or missed or (change == 0 and is_held and unknown >= 0.1):
                wrong.append(f"{name}, smaller by {change:.0%}: {dict(tally.words)}")
    return wrong


def others(number: int, baseline: Path) -> tuple[str, str]:
    """One whole check of an unchanged net over other images than the baseline's: its verdict, and what is wrong."""
    net, name, file = Branched(2), f"others{number}", baseline.with_name("others.json")
    asked = {"input_size": SIZE, "tolerances": dict.fromkeys(POWER_GUARDED, "-5%"), "name": name, "baseline": file}
    erfscope.check(net, update=True, seed=number + 1, **asked)
    entry = gate.read(file)[name]
    # As if these were the images of the other seed.
    gate.update(file, {name: replace(entry, protocol={**entry.protocol, "seed": 0})})
    verdict = erfscope.check(net, **asked)
    return verdict.word, verdict.text if verdict.word == "fail" else ""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--power", type=int, default=100)
    parser.add_argument("--others", type=int, default=20)
    parser.add_argument("--unchanged", type=int, default=200)
    parser.add_argument("--graded", type=int, default=100)
    given = parser.parse_args()
    for text in (wrong := power(given.power) if given.power else []):
        print(text, file=sys.stderr)
    faults = len(wrong)
    with tempfile.TemporaryDirectory(prefix="erfscope-gate-") as folder:
        for kind, trial, count in (
            ("others", others, given.others),
            ("unchanged", unchanged, given.unchanged),
            ("graded", graded, given.graded),
        ):
            started, words = time.perf_counter(), Counter[str]()
            wrong = []
            for number in range(count):
                word, fault = trial(number, Path(folder) / "baseline.json")
                words[word] += 1
                wrong += [f"{kind} {number}: {fault}"] if fault else []
            listed = ", ".join(f"{number} {word}" for word, number in sorted(words.items()))
            print(f"{kind}: {count} in {time.perf_counter() - started:.0f} s: {listed}; {len(wrong)} wrong")
            for text in wrong:
                print(text, file=sys.stderr)
            faults += len(wrong)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
