"""The table that `speed.py` prints: its rows, what must hold of them, and the page."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import torch
from speed_methods import HAS_OPENERF, PEERS, PLACE

from erfscope.core.system.environment import versions

MODELS = ("resnet18", "resnet50", "resnet101", "convnext_tiny", "vit_small_patch16_224", "swin_tiny_patch4_window7_224")
TRANSFORMERS = MODELS[4:]
OURS, MATMUL, FLOOR = "erfscope", "matmul", "floor"
#: A first run above ONCE seconds is the only one; above LIMIT, by estimate, there is none. A row stops after three
#: rounds or ROW seconds.
ONCE, LIMIT, ROW = 20.0, 60.0, 60.0
#: Maps are compared in float64 up to this size.
DOUBLE_UP_TO = 512
#: One square matrix product, whose rate the floor is counted with.
SQUARE = 2048

ABOUT = f"""\
Printed by `python benchmarks/speed.py`. One image (dead leaves), random weights, batch of 1, float32. Every method
runs on the same module and tensor; timed is the way from the normalised tensor to the map of the last stage's central
unit.

* **erfscope**: `erfscope.core.run.engine.measure.measure_units`, convention `replknet`, from handing over an image to
  having its map in the average; every image but the first, which takes one backward pass more to tell a gradient from
  rounding noise. **plan** comes once for a model and size: recording the model, cutting its graph, planning memory.
  **share** is that of the multiply-adds which the unit needs.
* **RepLKNet**: the procedure of Ding et al. 2022. **OpenERF**: its `compute_erf`, fed with the tensor instead of
  files, with the layer and unit that it chooses. **Captum**: its `NeuronGradient`. All on the whole image.
* **floor**: one forward pass and one gradient of the input, that is twice these multiply-adds, at the rate of a
  float32 product of {SQUARE} x {SQUARE} matrices.
* Times are medians over rounds in which all take turns, ratios medians of the rounds' own ratios with a 95 %
  bootstrap interval. What takes above {ONCE:.0f} s is run once; what is estimated above {LIMIT:.0f} s or half of the
  memory is left out, marked with the estimate.
* Memory is the growth of the peak of resident anonymous memory during one call, in a process of its own.
* **L1**: relative L1 distance of erfscope's map from the RepLKNet procedure's in float64, up to {DOUBLE_UP_TO} px.
  **r50**: relative difference of their r50 in float32.
"""


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
    #: Sides of the part of the image that erfscope computes on, were the image large enough; None if all of it.
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
        """Seconds and bytes that a method would take at another size, by the pixels that it computes on; attention by
        their square."""
        most = self.reach if name == OURS and self.reach else (size, size)
        growth = prod(min(size, side) for side in most) / prod(min(self.size, side) for side in most)
        return (self.time(name) or 0.0) * growth ** (2 if self.model.startswith("vit") else 1), self.peak[name] * growth


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return median(ratios), float(low), float(high)


def time_text(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size_text(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    middle, low, high = spread(ratios)
    return f"{middle:.2f}" + (f" ({low:.2f}–{high:.2f})" if len(ratios) > 1 else "")


def line(row: Row) -> str:
    """One row of the table."""
    cells = [row.model, str(row.size), "–" if row.share is None else f"{row.share:.1%}", time_text(row.plan)]
    for name in (OURS, *PEERS):
        once = " (once)" if len(row.seconds.get(name, [])) == 1 else ""
        done = f"{time_text(row.time(name))}{once}, {size_text(row.peak[name])}" if row.time(name) is not None else "–"
        cells.append(row.missing.get(name, done))
    cells += [
        time_text(row.time(FLOOR)),
        *(_ratio(row.ratios(name, OURS)) for name in PEERS),
        _ratio(row.ratios(OURS, FLOOR)),
    ]
    cells += ["–" if row.l1 is None else f"{row.l1:.0e}", "–" if row.r50 is None else f"{row.r50:.2%}"]
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "model",
    "px",
    "share",
    "plan",
    OURS,
    *PEERS,
    FLOOR,
    *(f"{name} / {OURS}" for name in PEERS),
    f"{OURS} / floor",
    "L1",
    "r50",
)


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
    yield Claim(
        "relative L1 in float64, largest", max((row.l1 for row in rows if row.l1 is not None), default=None), 1e-10
    )
    yield Claim(
        "relative difference of r50 in float32, largest",
        max((row.r50 for row in rows if row.r50 is not None), default=None),
        2e-3,
    )
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
    packages = ", ".join(
        f"{package} {found[package]}" for package in ("erfscope", "torch", "timm", "openerf", "captum")
    )
    memory = size_text(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
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
