"""Whole calls as users make them: `erfscope.analyze` on a loaded adapter beside the short script that people copy.

    python benchmarks/whole_calls.py
    python benchmarks/whole_calls.py --models resnet18 --rounds 3

The script takes one image at a time and asks `torch.autograd.grad` for the gradient of the last stage's central unit.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import erfscope
from erfscope.adapters import load
from erfscope.core import ModuleAdapter
from erfscope.core.images import synthetic

PICTURES, SIZE = 20, 224
MODELS = ("resnet18", "resnet50", "convnext_tiny", "vit_small_patch16_224", "swin_tiny_patch4_window7_224")
#: What must hold: times faster than the script, in both conventions and from files too.
GOALS = {
    "resnet18": 1.45,
    "resnet50": 1.6,
    "convnext_tiny": 1.15,
    "vit_small_patch16_224": 1.15,
    "swin_tiny_patch4_window7_224": 1.15,
}
#: resnet50 at 1024, one image: the first call on an adapter, the second, and later ones.
LARGE = ("resnet50", 1024)
LARGE_GOALS = {"first call": 4.5, "second call": 9.0, "later calls": 10.0}
#: Every unit of resnet18's layer1 at 224, one image, against one call for each: how many units are measured so, and the
#: least ratio.
EVERY = ("resnet18", "layer1", 224)
ALONE, EVERY_GOAL = 50, 15.0
ONE_BY_ONE = f"unit by unit, from {ALONE}"
REPLKNET, DEFAULT, FILES = "replknet", "default convention", "default convention, PNG files"

ABOUT = f"""\
Whole calls: all of `erfscope.analyze` on a loaded adapter beside the script that people copy, which takes one image at
a time and asks `torch.autograd.grad` for the gradient of the last stage's central unit. {PICTURES} images (dead
leaves), random weights, float32; seconds are medians over rounds in which all take turns, ratios medians of the rounds'
own. Printed by `python benchmarks/whole_calls.py`, and by `python benchmarks/speed.py` with the rest."""
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """Seconds of the script and of other calls, round by round."""

    model: str
    size: int
    pictures: int
    seconds: dict[str, list[float]]

    def ratio(self, name: str) -> float:
        """Times faster than the script of the same round: the median."""
        script = self.seconds["script, PNG files" if name == FILES else "script"]
        return median(a / b for a, b in zip(script, self.seconds[name], strict=False))


def script(net: Any, inputs: Sequence[Tensor]) -> FloatArray:
    """The average map of the last stage's central unit, by one forward and one backward pass per image."""
    total, last = 0.0, len(net.feature_info) - 1
    for each in inputs:
        x = each.detach().requires_grad_(True)
        y = net.forward_intermediates(x, indices=[last], norm=False, stop_early=True, intermediates_only=True)[0]
        unit = y[:, :, y.shape[2] // 2, y.shape[3] // 2].relu().sum()
        total = total + torch.autograd.grad(unit, x)[0].relu().sum((0, 1)).numpy()
    return np.asarray(total, dtype=np.float64) / len(inputs)


def opened(net: Any, files: Sequence[Path]) -> Iterator[Tensor]:
    """Images as the script reads them, with the transform that timm gives for the model."""
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net), is_training=False)
    for path in files:
        yield transform(Image.open(path).convert("RGB"))[None]


def pictures(size: int, count: int, folder: Path) -> list[Path]:
    """Dead leaves as PNG files."""
    source = synthetic("leaves", samples=count, seed=0, size=(size, size), channels=3)
    files = [folder / f"{index:02d}.png" for index in range(count)]
    for index, path in enumerate(files):
        Image.fromarray(source.pixels(index)).save(path)
    return files


def take_turns(calls: dict[str, Callable[[], object]], rounds: int, before: int = 1) -> dict[str, list[float]]:
    """Seconds of each call, one after the other in every round; rounds before those that count are warm-ups."""
    seconds = defaultdict[str, list[float]](list)
    for turn in range(before + rounds):
        for name, call in calls.items():
            gc.collect()
            start = time.perf_counter()
            call()
            if turn >= before:
                seconds[name].append(time.perf_counter() - start)
    return dict(seconds)


def common_job(model: str, rounds: int, folder: Path) -> Times:
    """Twenty images of 224 px: from tensors in two conventions, and from files."""
    adapter: ModuleAdapter = load(model, weights="random", seed=0, input_size=SIZE)
    net, files = adapter.module, pictures(SIZE, PICTURES, folder)
    inputs = list(opened(net, files))
    batch = torch.cat(inputs)
    calls: dict[str, Callable[[], object]] = {
        "script": lambda: script(net, inputs),
        REPLKNET: lambda: erfscope.analyze(adapter, images=batch, convention="replknet"),
        DEFAULT: lambda: erfscope.analyze(adapter, images=batch),
        "script, PNG files": lambda: script(net, list(opened(net, files))),
        FILES: lambda: erfscope.analyze(adapter, images=files),
    }
    return Times(model, SIZE, PICTURES, take_turns(calls, rounds))


def large_picture(rounds: int, folder: Path) -> Times:
    """One image of 1024 px: the first call on an adapter, the second and the third, each time with a new adapter."""
    model, size = LARGE
    (path,) = pictures(size, 1, folder)
    seconds = defaultdict[str, list[float]](list)
    for turn in range(1 + rounds):
        adapter = load(model, weights="random", seed=0, input_size=size)
        x = adapter.preprocess.normalise(np.asarray(Image.open(path))[None]).float()

        def ours(adapter: ModuleAdapter = adapter, x: Tensor = x) -> object:
            return erfscope.analyze(adapter, images=x, convention="replknet")

        calls = {"script": lambda adapter=adapter, x=x: script(adapter.module, [x]), **dict.fromkeys(LARGE_GOALS, ours)}
        for name, found in take_turns(calls, 1, before=0).items():
            seconds[name] += found if turn else []
    return Times(model, size, 1, dict(seconds))


def every_unit(rounds: int, folder: Path) -> tuple[float, float, float]:
    """All units of a layer in one call, and one call for each unit, of the two sizes alone: seconds of both, and the
    median ratio.

    The second is what 50 units spread over the layer take, times the number of units over 50.
    """
    model, layer, size = EVERY
    adapter: ModuleAdapter = load(model, weights="random", seed=0, input_size=size)
    x = adapter.preprocess.normalise(np.asarray(Image.open(pictures(size, 1, folder)[0]))[None]).float()
    asked: dict[str, Any] = {"images": x, "layer": layer, "measures": "r50,context_r50"}
    shape = erfscope.analyze(adapter, **asked).unit.map_shape[1:]
    chosen = [np.unravel_index(number, shape) for number in np.linspace(0, np.prod(shape) - 1, ALONE).astype(int)]
    alone, together = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        for row, column in chosen:
            erfscope.analyze(adapter, unit=(int(row), int(column)), **asked)
        alone.append((time.perf_counter() - start) * float(np.prod(shape)) / ALONE)
        start = time.perf_counter()
        erfscope.analyze(adapter, unit="all", **asked)
        together.append(time.perf_counter() - start)
    return median(alone), median(together), median(a / b for a, b in zip(alone, together, strict=True))


def table(times: Sequence[Times]) -> str:
    """Medians of seconds, and of the rounds' own ratios, in Markdown."""
    names = {name: None for each in times for name in each.seconds}
    lines = ["| " + " | ".join(["model", "px", "images", *names]) + " |", "|" + "---|" * (3 + len(names))]
    for each in times:
        cells = []
        for name in names:
            taken = each.seconds.get(name)
            faster = "" if not taken or name.startswith("script") else f", {each.ratio(name):.2f}x"
            cells.append(f"{median(taken):.2f} s{faster}" if taken else "–")
        lines.append(f"| {each.model} | {each.size} | {each.pictures} | {' | '.join(cells)} |")
    return "\n".join(lines)


def goals(times: Sequence[Times]) -> Iterator[tuple[str, float, float]]:
    """What must hold: a sentence, the ratio found, and the least it should be."""
    for each in times:
        found = (
            LARGE_GOALS
            if (each.model, each.size) == LARGE
            else dict.fromkeys((REPLKNET, DEFAULT, FILES), GOALS.get(each.model, 1.0))
        )
        for name, least in found.items():
            yield (
                f"{each.model} at {each.size}, {each.pictures} picture(s), {name}, times faster than the script",
                each.ratio(name),
                least,
            )


def measured(models: Sequence[str], rounds: int, *, large: bool = True) -> list[Times]:
    """All whole calls, told of as they are done."""
    found: list[Times] = []
    for model in [*models, *([None] if large else [])]:
        with tempfile.TemporaryDirectory() as folder:
            found.append(
                large_picture(rounds, Path(folder)) if model is None else common_job(model, rounds, Path(folder))
            )
        print(table(found[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return found


def section(models: Sequence[str], rounds: int, *, large: bool = True, every: bool = True) -> tuple[str, int]:
    """What whole calls take, in Markdown, and how many things that must hold do not."""
    times = measured(models, rounds, large=large)
    parts, wanted = [ABOUT, table(times)], list(goals(times))
    if every:
        with tempfile.TemporaryDirectory() as folder:
            alone, together, ratio = every_unit(min(rounds, 3), Path(folder))
        parts.append(
            f"Every unit of {EVERY[1]} of {EVERY[0]} at {EVERY[2]} px: {ONE_BY_ONE} {alone:.1f} s; `--unit all`"
            f" {together:.1f} s."
        )
        wanted.append(
            (f"every unit of {EVERY[1]} of {EVERY[0]} at {EVERY[2]}, times faster than unit by unit", ratio, EVERY_GOAL)
        )
    lines = [
        f"* {text}: {ratio:.2f}; at least {least:g}: {'holds' if ratio >= least else '**does not hold**'}"
        for text, ratio, least in wanted
    ]
    return "\n\n".join([*parts, "\n".join(lines)]), sum(ratio < least for _, ratio, least in wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", metavar="NAME,...", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-large", dest="large", action="store_false")
    parser.add_argument("--no-every-unit", dest="every", action="store_false")
    options = parser.parse_args(arguments)
    models = [name for name in options.models.split(",") if name]
    text, missed = section(models, options.rounds, large=options.large, every=options.every)
    print(text)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
