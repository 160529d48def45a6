"""Does `--trust` raise a false alarm on models as they are, does it find a gradient that is wrong, and what does it
cost?

    python benchmarks/trust.py
    python benchmarks/trust.py --models 'swin*,*vit*' --seeds 0,1,2 --samples 4
    python benchmarks/trust.py --power --seeds 0,1,2
    python benchmarks/trust.py --detached --seeds 0,1
    python benchmarks/trust.py --time --rounds 3

The first runs over one small model of every model module of timm and some of torchvision, at random weights, each in a
process of its own. ``--power`` cuts a part of one late block's output off from autograd: 5 % of what it passes on.
``--detached`` detaches what the mean of the whole image does to a unit, which has little energy and, spread over all
pixels, much of the map; the same net with that attached has the true sizes.
``--time`` has whole calls take turns."""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import timm
import torch
from atlas import modules as timm_modules
from torch import Tensor, nn
from whole_calls import take_turns
from zoo_rows import ZOO

import erfscope
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.run.isolated import measure_alone
from erfscope.core.run.processes import Limits, run_alone

#: Models of torchvision: ``name@side``, or all sides of a clip.
TORCHVISION = """
    alexnet@128 vgg11_bn@128 resnet18@128 resnext50_32x4d@96 wide_resnet50_2@96 densenet121@96 googlenet@128
    inception_v3@171 squeezenet1_1@128 mobilenet_v2@128 mobilenet_v3_small@128 mnasnet0_5@128 shufflenet_v2_x0_5@128
    efficientnet_b0@128 efficientnet_v2_s@96 regnet_y_400mf@128 convnext_tiny@96 vit_b_32@96 swin_t@96 swin_v2_t@96
    maxvit_t@224 fcn_resnet50@96 lraspp_mobilenet_v3_large@128 r3d_18@4x32x32 mc3_18@4x32x32 swin3d_t@4x64x64
"""
#: For ``--power`` and ``--time``: a model, and one of its late blocks.
BLOCKS = {
    "resnet18": "layer4.1",
    "convnext_atto": "stages.3.blocks.1",
    "vit_tiny_patch16_224": "blocks.8",
    "swin_tiny_patch4_window7_224": "layers.3.blocks.1",
}
#: For ``--detached``: gates of so much gain, and side paths of so much weight; sides of the input in pixels.
CONTEXTS = (("gate", 2.0), ("gate", 8.0), ("gate", 20.0), ("gate", 50.0), ("side", 0.05), ("side", 1.0), ("side", 3.0))
SIZES = (24, 64)
#: What of a block's output autograd does not see.
CUT_OFF = 0.05
#: Passes that the gradient may be judged by, and images of a timed call.
PASSES, IMAGES = 64, 20
Row = tuple[str, tuple[int, ...] | None]


def rows() -> list[Row]:
    """(model, input size): the first model of each of timm's modules in ``zoo_rows.py``, and those of torchvision."""
    modules, found = timm_modules(), dict[str, Row]()
    for entry in ZOO:
        if isinstance(entry.model, str) and entry.model in modules:
            found.setdefault(modules[entry.model], (entry.model, entry.size))
    words = (word.partition("@") for word in TORCHVISION.split())
    return [*found.values(), *((f"torchvision:{name}", tuple(map(int, size.split("x")))) for name, _, size in words)]


def measure(row: Row, seed: int, asked: argparse.Namespace) -> erfscope.Result | str:
    """A model's result from a process of its own, or why there is none."""
    name, size = row
    options: dict[str, Any] = {
        "weights": "random",
        "samples": asked.samples,
        "seed": seed,
        "trust": True,
        "measures": ["r50", "r90"],
    }
    if size is not None:
        options["input_size"] = list(size * 2 if len(size) == 1 else size)
    limits = Limits(seconds=asked.time_limit, bytes=10 * 2**30)
    outcome = run_alone(measure_alone, name, name, name, options, limits=limits)
    return outcome.error or outcome.value[0]


def words_of(found: erfscope.Result | str) -> tuple[str, ...]:
    """Verdict, ratio and misfit at each sigma, module and status."""
    if isinstance(found, str) or found.trust is None or found.trust.ratio is None:
        return "none", "–", "–", "–", found if isinstance(found, str) else found.error or found.status
    trust = found.trust
    ratios = ", ".join(words_of_probes(trust))
    misfits = ", ".join(f"{probe.misfit:.1e}" for probe in trust.gradient)
    return (
        "ALARM" if trust.disagrees else "agrees",
        ratios,
        misfits,
        words_of_module(trust),
        found.error or found.status,
    )


def words_of_module(trust: Trust) -> str:
    """Where the gradient goes wrong."""
    return "–" if trust.module is None else trust.module or "its own forward"


def all_models(asked: argparse.Namespace) -> int:
    """One line per model and seed. Returns the number of alarms."""
    lines = list[tuple[str, str]]()
    wanted = [row for row in rows() if any(fnmatch.fnmatch(row[0], pattern) for pattern in asked.models.split(","))]
    for seed in asked.seeds:
        for row in wanted:
            start = time.perf_counter()
            words = words_of(measure(row, seed, asked))
            lines.append((words[0], f"{row[0]} | {seed} | {' | '.join(words)} | {time.perf_counter() - start:.0f} s"))
            print(lines[-1][1], flush=True)
    alarms = [line for verdict, line in lines if verdict == "ALARM"]
    counts = {word: sum(verdict == word for verdict, _ in lines) for word in ("agrees", "ALARM", "none")}
    print(f"\n{', '.join(f'{word}: {count}' for word, count in counts.items())}", *alarms, sep="\n")
    return len(alarms)


def broken(name: str, seed: int) -> nn.Module:
    """A model of timm with a part of one late block's output cut off from autograd."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = timm.create_model(name).eval()

    def cut(_module: nn.Module, _args: Any, y: Tensor) -> Tensor:
        return CUT_OFF * y.detach() + (1 - CUT_OFF) * y

    model.get_submodule(BLOCKS[name]).register_forward_hook(cut)
    return model


def power(asked: argparse.Namespace) -> int:
    """In how many seeds each broken model is found, by how many passes. Returns the number of those that were not found
    so."""
    missed = 0
    for name in chosen(asked):
        found, passes = list[str](), list[int]()
        for seed in asked.seeds:
            trust = erfscope.analyze(broken(name, seed), samples=asked.samples, seed=seed, trust=True).trust
            assert trust is not None
            passes.append(sum(2 * len(probe.images) for probe in trust.gradient))
            found.append(
                f"{' / '.join(words_of_probes(trust))} in {words_of_module(trust)}" if trust.disagrees else "not found"
            )
            missed += not trust.disagrees or passes[-1] > PASSES
        count = f"{len(found) - found.count('not found')} of {len(found)}"
        print(f"{name}, {BLOCKS[name]}: {count}, {max(passes)} passes; {'; '.join(found)}", flush=True)
    return missed


def words_of_probes(trust: Trust) -> Iterator[str]:
    """The ratio at each sigma."""
    for probe in trust.gradient:
        yield f"{probe.energy.value:.4f} ± {probe.energy.se:.4f}"


class Context(nn.Module):
    """A convolution, and what the mean of the whole image does to it by a gate or a side path."""

    def __init__(self, kind: str, weight: float, seed: int, *, is_detached: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv, self.mix = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.kind, self.weight, self.is_detached = kind, weight, is_detached

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 8, H, W)."""
        y = self.conv(x)
        context = self.weight * self.mix(y.mean((2, 3), keepdim=True))
        context = context.detach() if self.is_detached else context
        return y * torch.sigmoid(context) if self.kind == "gate" else y + context


def detached(asked: argparse.Namespace) -> int:
    """Paths over the whole image, attached and detached. Returns the number of verdicts that are not as they should
    be."""
    wrong = 0
    for (kind, weight), size, seed in itertools.product(CONTEXTS, SIZES, asked.seeds):
        nets = (Context(kind, weight, seed, is_detached=is_detached).eval() for is_detached in (False, True))
        options: dict[str, Any] = {"measures": ["r90", "far_mass"], "seed": seed, "trust": True, "input_size": size}
        true, cut = (erfscope.analyze(net, samples=asked.samples, **options) for net in nets)
        assert true.trust is not None
        assert cut.trust is not None
        is_wrong = true.trust.disagrees or not true.trust.is_within or not cut.trust.disagrees
        wrong += is_wrong
        found = (
            f"{name} {'disagrees' if trust.disagrees else 'agrees'}, {trust.hidden}, {trust.passes} passes"
            for name, trust in (("attached", true.trust), ("detached", cut.trust))
        )
        print(f"{kind} {weight:g}, {size} px, seed {seed}: {'; '.join(found)}{'; WRONG' * is_wrong}", flush=True)
    return wrong


def times(asked: argparse.Namespace) -> int:
    """Seconds of whole calls with and without trust. Returns 0."""
    for name in chosen(asked):
        adapter = erfscope.adapters.load(name, weights="random", seed=0)
        plain = partial(erfscope.analyze, adapter, samples=IMAGES)
        seconds = take_turns({"without": plain, "with": partial(plain, trust=True)}, asked.rounds)
        ratio = median(b / a for a, b in zip(seconds["without"], seconds["with"], strict=True))
        print(
            f"{name}: {median(seconds['without']):.2f} s, {median(seconds['with']):.2f} s with trust; ratio"
            f" {ratio:.2f}",
            flush=True,
        )
    return 0


def chosen(asked: argparse.Namespace) -> list[str]:
    """Those of the models with a late block that match."""
    return [name for name in BLOCKS if any(fnmatch.fnmatch(name, pattern) for pattern in asked.models.split(","))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the number of lines that are not as they should be, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", metavar="PATTERNS", default="*", help="comma list of shell patterns; default: all")
    parser.add_argument(
        "--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1, 2], help="default: 0,1,2"
    )
    parser.add_argument("--samples", type=int, default=8, help="images; default: 8")
    parser.add_argument("--rounds", type=int, default=3, help="of --time; default: 3")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="SECONDS", help="of one model; default: 120")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--power", dest="run", action="store_const", const=power, default=all_models, help="is a wrong gradient found?"
    )
    mode.add_argument(
        "--detached", dest="run", action="store_const", const=detached, help="is a wrong gradient found far away?"
    )
    mode.add_argument("--time", dest="run", action="store_const", const=times, help="what does it cost?")
    asked = parser.parse_args(arguments)
    return min(asked.run(asked), 99)


if __name__ == "__main__":
    sys.exit(main())
