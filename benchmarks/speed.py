"""How fast is one ERF map, and how much memory does it take: erfscope, the scripts people use, and the least that it
can cost.

    python benchmarks/speed.py -o speed.md --json speed.json
    python benchmarks/speed.py --quick

The whole run takes about twenty-five minutes of two cores, the quick one two minutes. Linux only: peak memory is read
from /proc."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import whole_calls
from speed_methods import HAS_OPENERF, PEERS, PLACE, Case, in_own_process, opened, ours, peak_bytes, replknet, timed
from speed_table import (
    DOUBLE_UP_TO,
    FLOOR,
    LIMIT,
    MATMUL,
    MODELS,
    ONCE,
    OURS,
    ROW,
    SQUARE,
    Row,
    claims,
    line,
    machine,
    page,
    size_text,
)
from torch import Tensor

from erfscope import ErfMap, ErfscopeError
from erfscope.core import FloatArray
from erfscope.core.answer.measures import with_errors
from erfscope.core.images.feed import TensorImages
from erfscope.core.system.environment import available_bytes

SIZES = (224, 512, 1024, 2048)
#: Sizes at which erfscope runs alone.
ALONE = {"resnet50": 4096, "convnext_tiny": 4096}
QUICK = {"models": "resnet18,resnet50,vit_small_patch16_224", "sizes": "224,512", "repeats": 3}


@dataclass(frozen=True, slots=True)
class Rounds(TensorImages):
    """One input, handed out again and again; before each time but the first, the other methods have their turn.

    So all methods alternate, and the noise of a shared machine hits all alike.
    """

    rounds: int
    others: Mapping[str, Callable[[], object]]
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: When an input was handed out.
    clock: list[float] = field(default_factory=list)

    @property
    def n(self) -> int:
        return 1 + self.rounds

    def batch(self, indices: Sequence[int], box: tuple[tuple[int, int], ...] | None = None) -> Tensor:
        if self.clock:
            for name, other in self.others.items():
                self.seconds[name].append(timed(other)[0])
        self.clock.append(time.perf_counter())
        return TensorImages.batch(self, [0], box)

    def done(self, pictures: int, _total: int) -> None:
        """Called when an image is in the average."""
        if pictures > 1:
            self.seconds[OURS].append(time.perf_counter() - self.clock[-1])


def measured(model: str, size: int, methods: Sequence[str], before: Sequence[Row], repeats: int, memory: float) -> Row:
    """One row; ``before`` are the rows of smaller sizes of the same model."""
    row = Row(model=model, size=size)
    expected = 0.0
    for name in methods:
        last = next((old for old in reversed(before) if name in old.peak and old.time(name)), None)
        seconds, peak = last.outlook(name, size) if last else (0.0, 0.0)
        expected = seconds if name == OURS else expected
        if name == "OpenERF" and not HAS_OPENERF:
            row.missing[name] = "not installed"
        elif seconds > LIMIT:
            row.missing[name] = f"left out (≈ {seconds:.0f} s)"
        elif peak > memory / 2:
            row.missing[name] = f"left out (≈ {size_text(peak)})"
        else:
            try:
                row.peak[name] = in_own_process(peak_bytes, model, size, name, str(PLACE.device))
            except (ErfscopeError, RuntimeError) as error:
                row.missing[name] = f"failed: {str(error).splitlines()[0][:100]}"
    take_turns(row, opened(model, size), repeats, expected)
    if size <= DOUBLE_UP_TO and OURS in row.seconds:
        double = opened(model, size, torch.float64)
        theirs, erf = replknet(double), ours(double, TensorImages(double.x)).map
        assert erf is not None
        row.l1 = float(np.abs(erf.values - theirs / theirs.sum()).sum())
    return row


def take_turns(row: Row, case: Case, repeats: int, expected: float) -> None:
    """Time the methods that are not left out: once each to warm up, then in turns."""
    maps: dict[str, FloatArray] = {}
    for name in (name for name in PEERS if name in row.peak):
        first, maps[name] = timed(partial(PEERS[name], case))
        row.seconds[name] = [first]
    if OURS not in row.peak:
        return
    again = [name for name, seconds in row.seconds.items() if seconds[0] <= ONCE]
    others: dict[str, Callable[[], object]] = {name: partial(PEERS[name], case) for name in again}
    square = torch.randn(SQUARE, SQUARE, generator=torch.Generator().manual_seed(0)).to(PLACE.device)
    others[MATMUL] = lambda: square @ square
    turn = sum(row.seconds[name][0] for name in again) + expected
    rounds = 1 if expected > ONCE and not again else max(3, min(repeats, int(ROW / turn))) if turn else repeats
    feed = Rounds(case.x, rounds, others)
    start = time.perf_counter()
    result = ours(case, feed, feed.done)
    row.plan = feed.clock[0] - start
    row.seconds |= feed.seconds
    assert result.computed is not None
    assert result.trf is not None
    row.share, row.gmacs = result.computed.share, result.computed.gmacs
    # Forward and backward, each as many products as the unit needs.
    row.seconds[FLOOR] = [2e9 * row.gmacs / SQUARE**3 * seconds for seconds in row.seconds[MATMUL]]
    if not result.trf.is_global:
        row.reach = tuple(int(side) for side in result.trf.size_px)
    if "RepLKNet" in maps and result.map is not None:
        own, their = (
            _r50(result.map),
            _r50(dataclasses.replace(result.map, values=maps["RepLKNet"] / maps["RepLKNet"].sum())),
        )
        row.r50 = abs(own - their) / their


def _r50(erf: ErfMap) -> float:
    return float(with_errors(erf, (), ["r50"])["r50"].value)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", metavar="NAME,...", default=",".join(MODELS))
    parser.add_argument("--sizes", metavar="N,...", default=",".join(map(str, SIZES)))
    parser.add_argument("--repeats", type=int, metavar="N", default=7, help="rounds at most; default 7")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default cpu")
    parser.add_argument("--quick", action="store_true", help="three models at 224 and 512, three rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every single time and size, too")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page, too")
    if (arguments if arguments is not None else sys.argv[1:]).count("--quick"):
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    PLACE.device = torch.device(options.device)
    models, sizes = options.models.split(","), sorted(int(size) for size in options.sizes.split(","))
    start = time.perf_counter()
    rows: list[Row] = []
    memory = available_bytes(PLACE.device) or 0
    for model in models:
        plan = [(size, (OURS, *PEERS)) for size in sizes]
        plan += [(ALONE[model], (OURS,))] if model in ALONE and sizes[-1] == SIZES[-1] else []
        for size, methods in plan:
            mine = [row for row in rows if row.model == model]
            rows.append(measured(model, size, methods, mine, options.repeats, memory))
            print(f"{time.perf_counter() - start:5.0f} s  {line(rows[-1])}", file=sys.stderr, flush=True)
    chosen = [model for model in whole_calls.MODELS if model in models]
    whole, missed = whole_calls.section(chosen, options.repeats, large=1024 in sizes, every=not options.quick)
    text = page(rows, time.perf_counter() - start, whole)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    if options.json:
        found = [{**dataclasses.asdict(claim), "holds": claim.holds} for claim in claims(rows)]
        content = {"machine": machine(), "rows": [dataclasses.asdict(row) for row in rows], "claims": found}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(missed > 0 or any(claim.holds is False for claim in claims(rows)))


if __name__ == "__main__":
    sys.exit(main())
