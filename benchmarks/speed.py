"""How fast is one ERF map, and how much memory does it take: erfscope, the scripts people use, and the least that it can cost.

    python benchmarks/speed.py -o docs/speed.md --json speed.json
    python benchmarks/speed.py --quick

The whole run takes about twenty-five minutes of two cores, the quick one two minutes. Linux only: peak memory is read from /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from math import isqrt, prod
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
import whole_calls
from captum.attr import NeuronGradient
from numpy.typing import NDArray
from torch import Tensor

from erfscope.adapters import load
from erfscope.engine.measure import measure
from erfscope.engine.model import LoadedModel
from erfscope.engine.state import Hooks
from erfscope.environment import available_bytes, versions
from erfscope.errors import ErfscopeError
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures import with_errors
from erfscope.options.settings import Settings
from erfscope.results.result import Result
from erfscope.stimuli import synthetic
from erfscope.stimuli.feed import TensorFeed

HAS_OPENERF = find_spec("openerf") is not None
if HAS_OPENERF:
    import openerf.erf

T = TypeVar("T")
MODELS = ("resnet18", "resnet50", "resnet101", "convnext_tiny", "vit_small_patch16_224", "swin_tiny_patch4_window7_224")
TRANSFORMERS = MODELS[4:]
SIZES = (224, 512, 1024, 2048)
#: Sizes at which erfscope runs alone.
ALONE = {"resnet50": 4096, "convnext_tiny": 4096}
QUICK = {"models": "resnet18,resnet50,vit_small_patch16_224", "sizes": "224,512", "repeats": 3}
#: A first run above ONCE seconds is the only one; above LIMIT, by estimate, there is none. A row stops after three rounds or ROW seconds.
ONCE, LIMIT, ROW = 20.0, 60.0, 60.0
#: Maps are compared in float64 up to this size.
DOUBLE_UP_TO = 512
#: One square matrix product, whose rate the floor is counted with.
SQUARE = 2048
OURS, MATMUL, FLOOR = "erfscope", "matmul", "floor"
#: The convention of the RepLKNet procedure; `coverage` because it is the cheapest measure, which is not timed.
SETTINGS = Settings(convention="replknet", draws=1, batch_size=1, measures=("coverage",))

ABOUT = f"""\
Printed by `python benchmarks/speed.py`. One picture (dead leaves), random weights, batch of 1, float32. Every method runs on the same
module and tensor; timed is the way from the normalised tensor to the map of the last stage's central unit.

* **erfscope**: `erfscope.engine.measure.measure`, convention `replknet`, from handing over a picture to having its map in the average;
  every picture but the first, which takes one backward pass more to tell a gradient from rounding noise. **plan** comes once for a model
  and size: recording the model, planning cone and memory. **cone** is the share of the multiply-adds left.
* **RepLKNet**: the procedure of Ding et al. 2022. **OpenERF**: its `compute_erf`, fed with the tensor instead of files, with the layer and
  unit that it chooses. **Captum**: its `NeuronGradient`. All on the whole picture.
* **floor**: one forward pass and one gradient of the input, that is twice the cone's multiply-adds, at the rate of a float32 product of
  {SQUARE} x {SQUARE} matrices.
* Times are medians over rounds in which all take turns, ratios medians of the rounds' own ratios with a 95 % bootstrap interval. What
  takes above {ONCE:.0f} s is run once; what is estimated above {LIMIT:.0f} s or half of the memory is left out, marked with the estimate.
* Memory is the growth of the peak of resident anonymous memory during one call, in a process of its own.
* **L1**: relative L1 distance of erfscope's map from the RepLKNet procedure's in float64, up to {DOUBLE_UP_TO} px. **r50**: relative
  difference of their r50 in float32.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model at one input size, and its input (1, 3, size, size)."""

    loaded: LoadedModel
    x: Tensor

    @property
    def net(self) -> Any:
        """The module that all methods run."""
        return self.loaded.adapter.module


@dataclass
class Place:
    """Where everything is computed."""

    device: torch.device

    def wait(self) -> None:
        """Until what was asked of it is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


PLACE = Place(torch.device("cpu"))


@cache
def pixels(size: int) -> NDArray[np.uint8]:
    """The one picture, (1, size, size, 3)."""
    return synthetic("leaves", samples=1, seed=0, size=(size, size), channels=3).get(0).pixels[None]


def opened(model: str, size: int, dtype: torch.dtype = torch.float32) -> Case:
    """A model as ``--weights random`` makes it."""
    adapter = load(model, weights="random", seed=0, input_size=(size, size)).to(device=PLACE.device, dtype=dtype)
    adapter.module.eval()
    return Case(loaded=LoadedModel(adapter=adapter, label=model), x=adapter.preprocess.normalise(pixels(size)).to(PLACE.device, dtype))


def differentiable(x: Tensor) -> Tensor:
    """The same numbers as a leaf, not copied."""
    return x.detach().requires_grad_(True)


def positive(g: Tensor) -> FloatArray:
    """Gradient (1, 3, H, W) -> map (H, W)."""
    return g.relu().sum((0, 1)).double().cpu().numpy()


def replknet(case: Case) -> FloatArray:
    """The gradient of sum_c relu(y_c) at the central unit, positive part, summed over colours. Parameters are in the graph as they are."""
    x, last = differentiable(case.x), len(case.net.feature_info) - 1
    y = case.net.forward_intermediates(x, indices=[last], norm=False, stop_early=True, intermediates_only=True)[0]
    scalar = y[:, :, y.shape[2] // 2, y.shape[3] // 2].relu().sum()
    return positive(torch.autograd.grad(scalar, x)[0])


def captum(case: Case) -> FloatArray:
    """The same readout as the selector of a neuron in the last stage's own layout."""
    prefix, is_last = getattr(case.net, "num_prefix_tokens", 0), getattr(case.net, "output_fmt", "") == "NHWC"

    def central(y: Tensor) -> Tensor:
        if y.ndim == 3:
            side = isqrt(y.shape[1] - prefix)
            y = y[:, prefix + side // 2 * (side + 1)]
        else:
            y = y[:, y.shape[1] // 2, y.shape[2] // 2] if is_last else y[:, :, y.shape[2] // 2, y.shape[3] // 2]
        return y.relu().sum(1)

    layer = case.net.get_submodule(case.loaded.default_layer)
    return positive(NeuronGradient(case.net, layer).attribute(differentiable(case.x), central))


def openerf_map(case: Case) -> FloatArray:
    """OpenERF's loop over one picture, with its own choice of layer for timm models: forward_features."""
    ready: dict[str, Any] = {"FlatImageDataset": lambda **_: [(case.x[0], "")], "build_timm_eval_transform": lambda _: (None, {})}
    with mock.patch.multiple(openerf.erf, **ready):
        found: FloatArray = openerf.erf.compute_erf(case.net, device=str(PLACE.device), show_progress=False).erf_map
    return found


PEERS: dict[str, Callable[[Case], FloatArray]] = {"RepLKNet": replknet, "OpenERF": openerf_map, "Captum": captum}


@dataclass(frozen=True, slots=True)
class Rounds(TensorFeed):
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
        return TensorFeed.batch(self, [0], box)

    def done(self, pictures: int, _total: int) -> None:
        """Called when a picture is in the average."""
        if pictures > 1:
            self.seconds[OURS].append(time.perf_counter() - self.clock[-1])


def timed(work: Callable[[], T]) -> tuple[float, T]:
    PLACE.wait()
    start = time.perf_counter()
    made = work()
    PLACE.wait()
    return time.perf_counter() - start, made


def ours(case: Case, feed: TensorFeed, done: Callable[[int, int], None] | None = None) -> Result:
    """erfscope's result; its unit must be the one that the others take."""
    (result,) = measure(case.loaded, feed, SETTINGS, hooks=Hooks(progress=done))
    if result.map is None or result.unit is None:
        raise ErfscopeError(f"{result.label} has no map: {result.error}")
    if result.unit.index != tuple(side // 2 for side in result.unit.map_shape[1:]):
        raise ErfscopeError(f"{result.label} has another central unit, {result.unit.index}")
    return result


def peak_bytes(model: str, size: int, name: str, device: str) -> int:
    """Growth of the peak memory during one call, on a GPU its own, else the anonymous resident one; for a process of its own."""
    PLACE.device = torch.device(device)
    run = PEERS.get(name, lambda case: ours(case, TensorFeed(case.x)))
    run(opened("resnet18", 64))  # what a process loads only once is not counted
    case = opened(model, size)
    gc.collect()
    if PLACE.device.type == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(case)
        return torch.cuda.max_memory_allocated() - held
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    run(case)
    after = _resident()
    return after["VmHWM"] - before["VmRSS"] - (after["RssFile"] - before["RssFile"])


def _resident() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words and words[-1] == "kB"}


def in_own_process(work: Callable[..., int], *arguments: Any) -> int:
    """Forked from a server that has imported everything and run nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["captum.attr", "openerf.erf", "erfscope.adapters", "erfscope.engine.measure"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return pool.submit(work, *arguments).result()


@dataclass(kw_only=True)
class Row:
    """What was measured of one model at one size."""

    model: str
    size: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    #: Why a method was left out.
    missing: dict[str, str] = field(default_factory=dict)
    plan: float | None = None
    gmacs: float | None = None
    share: float | None = None
    #: Sides of the part of the picture that erfscope computes on, were the picture large enough; None if all of it.
    reach: tuple[int, ...] | None = None
    l1: float | None = None
    r50: float | None = None

    def time(self, name: str) -> float | None:
        return median(self.seconds[name]) if self.seconds.get(name) else None

    def ratios(self, above: str, below: str) -> list[float]:
        """Round by round; a single one where a method was run only once."""
        a, b = self.seconds.get(above, []), self.seconds.get(below, [])
        if not a or not b:
            return []
        return [x / y for x, y in zip(a, b, strict=True)] if len(a) == len(b) else [median(a) / median(b)]

    def outlook(self, name: str, size: int) -> tuple[float, float]:
        """Seconds and bytes that a method would take at another size, by the pixels that it computes on; attention by their square."""
        most = self.reach if name == OURS and self.reach else (size, size)
        growth = prod(min(size, side) for side in most) / prod(min(self.size, side) for side in most)
        return (self.time(name) or 0.0) * growth ** (2 if self.model.startswith("vit") else 1), self.peak[name] * growth


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
            row.missing[name] = f"left out (≈ {_size(peak)})"
        else:
            try:
                row.peak[name] = in_own_process(peak_bytes, model, size, name, str(PLACE.device))
            except (ErfscopeError, RuntimeError) as error:
                row.missing[name] = f"failed: {str(error).splitlines()[0][:100]}"
    take_turns(row, opened(model, size), repeats, expected)
    if size <= DOUBLE_UP_TO and OURS in row.seconds:
        double = opened(model, size, torch.float64)
        theirs, erf = replknet(double), ours(double, TensorFeed(double.x)).map
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
    assert result.cone is not None
    assert result.trf is not None
    row.share, row.gmacs = result.cone.share, result.cone.gmacs
    # Forward and backward, each as many products as the cone has.
    row.seconds[FLOOR] = [2e9 * row.gmacs / SQUARE**3 * seconds for seconds in row.seconds[MATMUL]]
    if not result.trf.is_global:
        row.reach = tuple(int(side) for side in result.trf.size_px)
    if "RepLKNet" in maps and result.map is not None:
        own, their = _r50(result.map), _r50(dataclasses.replace(result.map, values=maps["RepLKNet"] / maps["RepLKNet"].sum()))
        row.r50 = abs(own - their) / their


def _r50(erf: ErfMap) -> float:
    return float(with_errors(erf, (), ["r50"])["r50"].value)  # type: ignore[arg-type]


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return median(ratios), float(low), float(high)


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    middle, low, high = spread(ratios)
    return f"{middle:.2f}" + (f" ({low:.2f}–{high:.2f})" if len(ratios) > 1 else "")


def line(row: Row) -> str:
    """One row of the table."""
    cells = [row.model, str(row.size), "–" if row.share is None else f"{row.share:.1%}", _time(row.plan)]
    for name in (OURS, *PEERS):
        once = " (once)" if len(row.seconds.get(name, [])) == 1 else ""
        done = f"{_time(row.time(name))}{once}, {_size(row.peak[name])}" if row.time(name) is not None else "–"
        cells.append(row.missing.get(name, done))
    cells += [_time(row.time(FLOOR)), *(_ratio(row.ratios(name, OURS)) for name in PEERS), _ratio(row.ratios(OURS, FLOOR))]
    cells += ["–" if row.l1 is None else f"{row.l1:.0e}", "–" if row.r50 is None else f"{row.r50:.2%}"]
    return f"| {' | '.join(cells)} |"


COLUMNS = ("model", "px", "cone", "plan", OURS, *PEERS, FLOOR, *(f"{name} / {OURS}" for name in PEERS), f"{OURS} / floor", "L1", "r50")


@dataclass(frozen=True)
class Claim:
    """What must hold: a number, None where it was not measured, and its limit."""

    text: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        verdict = {None: "not measured", True: "holds", False: "**does not hold**"}[self.holds]
        value = "" if self.value is None else f"{self.value:.3g}; "
        return f"* {self.text}: {value}{'at least' if self.at_least else 'at most'} {self.limit:g}: {verdict}"


def over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """What must hold of the table."""
    found: defaultdict[tuple[str, int], Row] = defaultdict(lambda: Row(model="", size=0))
    found.update({(row.model, row.size): row for row in rows})
    main, large = found["resnet50", 1024], found["resnet50", 2048]
    faster = over(main.time("RepLKNet"), main.time(OURS))
    yield Claim("resnet50 at 1024, times faster than the RepLKNet procedure", faster, 8, at_least=True)
    yield Claim("the same, as aimed at", faster, 12, at_least=True)
    yield Claim("resnet50 at 1024, time over the floor, as aimed at", over(main.time(OURS), main.time(FLOOR)), 1.7)
    yield Claim("relative L1 in float64, largest", max((row.l1 for row in rows if row.l1 is not None), default=None), 1e-10)
    yield Claim("relative difference of r50 in float32, largest", max((row.r50 for row in rows if row.r50 is not None), default=None), 2e-3)
    for model, few, many in (("resnet50", 512, 2048), ("convnext_tiny", 2048, 4096)):
        flat = over(found[model, many].time(OURS), found[model, few].time(OURS))
        yield Claim(f"{model}, time at {many} over time at {few}", flat, 1.3)
    saved = over(large.peak.get(OURS), large.peak.get("RepLKNet"))
    yield Claim("resnet50 at 2048, memory over the whole-image computation's", saved, 0.2)
    yield Claim("resnet50 at 4096, memory in GiB", over(found["resnet50", 4096].peak.get(OURS), 2**30), 2)
    for row in (row for row in rows if row.model in TRANSFORMERS):
        times = {name: seconds for name in PEERS if (seconds := row.time(name)) is not None}
        ratios = row.ratios(OURS, min(times, key=times.__getitem__)) if times else []
        where = f"{row.model} at {row.size}, time over the fastest peer's"
        yield Claim(f"{where}, low end of the interval", spread(ratios)[1] if ratios else None, 1.05)
        if ratios and row.share is not None and row.share < 0.99:
            yield Claim(f"{where}, {1 - row.share:.1%} of the work being cut", median(ratios), 1)


def machine() -> str:
    """Processor, cores and versions: no names, no paths."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), platform.machine())
    found = {**versions(), "openerf": version("openerf") if HAS_OPENERF else "not installed"}
    packages = ", ".join(f"{package} {found[package]}" for package in ("erfscope", "torch", "timm", "openerf", "captum"))
    memory = _size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if PLACE.device.type == "cuda":
        cpu = f"{torch.cuda.get_device_name(PLACE.device)} beside {cpu}"
    return f"{cpu}, {os.cpu_count()} cores, {memory}; {torch.get_num_threads()} threads; {packages}"


def page(rows: Sequence[Row], seconds: float, whole: str) -> str:
    """The whole page, in Markdown: whole calls first, then the steady state."""
    turns = [SQUARE**3 * 2e-9 / each for row in rows for each in row.seconds.get(MATMUL, [])]
    rate = f"; matrix product {median(turns):.0f} GFLOP/s" if turns else ""
    table = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS), *map(line, rows)]
    parts = [
        "# Speed",
        whole,
        "## Steady state",
        ABOUT.strip(),
        f"{machine()}{rate}; the run took {seconds / 60:.0f} min.",
        "\n".join(table),
    ]
    return "\n\n".join([*parts, "## Must hold", "\n".join(map(str, claims(rows)))]) + "\n"


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
