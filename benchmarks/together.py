"""Many questions of one model in one call, beside one of them: all stages and the deepest alone, several references and
one, two inputs and one.

    python benchmarks/together.py
    python benchmarks/together.py --rounds 1 --images 4

Ratios are medians over rounds in which all calls take turns: dead leaves at 224 px, random weights, float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median

import timm
import torch
from torch import Tensor, nn
from whole_calls import SIZE, take_turns

import erfscope
from erfscope.adapters import load
from erfscope.core.images import synthetic

#: The most times what one question takes.
STAGES = {"resnet50": 1.35, "convnext_tiny": 1.35, "vit_small_patch16_224": 12.0, "swin_tiny_patch4_window7_224": 2.0}
REFERENCES, TRUNK, TOWERS = 1.2, 1.2, 2.2
Call = Callable[[], object]
#: What is asked, the call with all questions, that with one, and the most times that it may take.
Case = tuple[str, Call, Call, float]


class Pair(nn.Module):
    """Two images, each through a ResNet-18, and their last maps together."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.one = timm.create_model("resnet18", num_classes=0, global_pool="")
        self.other = self.one if shared else timm.create_model("resnet18", num_classes=0, global_pool="")
        self.both = nn.Conv2d(1024, 64, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """(B, 3, H, W) twice -> (B, 64, h, w)."""
        return self.both(torch.cat([self.one(one), self.other(other)], 1))


def leaves(images: int, size: Sequence[int] = (SIZE, SIZE)) -> Tensor:
    """Dead leaves, (B, 3, H, W)."""
    source = synthetic("leaves", samples=images, seed=0, size=tuple(size), channels=3)
    pixels = torch.stack([torch.tensor(source.pixels(index)) for index in range(images)])
    return pixels.movedim(-1, 1).float() / 127.5 - 1


def cases(images: int) -> list[Case]:
    """All cases, on so many images."""
    x, found = leaves(images), list[Case]()
    for name, most in STAGES.items():
        adapter = load(name, weights="random", seed=0, input_size=SIZE)
        first, *_, last = adapter.stages

        def stages(adapter=adapter) -> object:
            return erfscope.sweep(adapter, images=x, layer="stages")

        def deepest(adapter=adapter, last=last) -> object:
            return erfscope.analyze(adapter, images=x, layer=last)

        def references(adapter=adapter, last=last, first=first) -> object:
            return erfscope.sweep(adapter, images=x, layer=last, wrt=["image", first])

        found.append((f"{name}: its {len(adapter.stages)} stages, beside {last} alone", stages, deepest, most))
        found.append(
            (f"{name}: {last} of the image and of {first}, beside the image alone", references, deepest, REFERENCES)
        )
    torch.manual_seed(0)
    pairs = {shared: Pair(shared=shared).eval() for shared in (True, False)}
    adapters = {
        shared: erfscope.wrap(net, example_inputs={"one": x[:1], "other": x[:1]}) for shared, net in pairs.items()
    }
    given = {"images": {"one": x, "other": x.flip(0)}, "layer": "both"}
    tower = erfscope.wrap(pairs[False].one, input_size=SIZE)
    found.append(
        (
            "two inputs that share a trunk, beside one of them",
            lambda: erfscope.sweep(adapters[True], **given),
            lambda: erfscope.analyze(adapters[True], wrt="input:one", **given),
            TRUNK,
        )
    )
    found.append(
        (
            "two towers of resnet18, beside one measured alone",
            lambda: erfscope.sweep(adapters[False], **given),
            lambda: erfscope.analyze(tower, images=x),
            TOWERS,
        )
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=20)
    options = parser.parse_args(arguments)
    print("| asked | all | one | times | at most |\n|---|---:|---:|---:|---:|")
    missed = 0
    for text, every, one, most in cases(options.images):
        seconds = take_turns({"all": every, "one": one}, options.rounds)
        times = median(a / b for a, b in zip(seconds["all"], seconds["one"], strict=True))
        missed += times > most
        both = " | ".join(f"{median(seconds[name]):.2f} s" for name in ("all", "one"))
        print(f"| {text} | {both} | {times:.2f} | {most:g}{'' if times <= most else ', does not hold'} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
