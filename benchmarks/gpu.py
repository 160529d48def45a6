"""Whole calls on a graphics processor beside the script that people copy: times faster, and what must hold.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --few     a try without one, of a few images

The script takes one image at a time. All is in float32, of random weights, and takes turns in every round; ratios are
medians of the rounds' own. The first call, which records the model, is timed by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from whole_calls import EVERY

import erfscope
from erfscope.adapters import load

#: Model, side and number of images -> times faster than the script at least.
GOALS = {
    ("resnet50", 224, 20): 4.0,
    ("vit_small_patch16_224", 224, 20): 3.0,
    ("swin_tiny_patch4_window7_224", 224, 20): 3.0,
    ("resnet50", 1024, 1): 1.0,
    ("resnet50", 224, 2000): 20.0,
}
#: A bare module at its second call, seconds of a first call, and of every unit of a layer.
BARE, FIRST, EVERY_UNIT = 1.2, 2.0, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    print(torch.cuda.get_device_name(device) if device.type == "cuda" else str(device), f"PyTorch {torch.__version__}")
    failed = 0
    for (name, side, count), goal in GOALS.items():
        failed += job(name, side, min(count, 2) if asked.few else count, goal, device, asked.rounds)
    failed += every_unit(device, side=32 if asked.few else EVERY[2])
    sys.exit(bool(failed))


def job(name: str, side: int, count: int, goal: float, device: torch.device, rounds: int) -> int:
    """Print the lines of one model, and return how many goals are missed."""
    adapter = load(name, weights="random", seed=0, input_size=side).to(device=device)
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    few = count > 100  # the script takes half a minute

    def ours(model: Any, convention: str) -> Callable[[], object]:
        size = {} if model is adapter else {"input_size": side}
        return lambda: erfscope.analyze(model, images=images, convention=convention, **size)  # type: ignore[arg-type]

    calls = {
        "script": lambda: script(adapter.module, images[: 100 if few else count], device),
        "replknet": ours(adapter, "replknet"),
        "default convention": ours(adapter, "jacobian"),
        "bare module": ours(adapter.module, "replknet"),
    }
    script(adapter.module, images[:1], device)  # kernels are loaded
    first, *_ = (seconds(call, device) for call in (calls["replknet"], *calls.values()))
    rounds_of = [{key: seconds(call, device) for key, call in calls.items()} for _ in range(1 if few else rounds)]
    for each in rounds_of:
        each["script"] *= count / 100 if few else 1
    missed = verdict(f"{name}, {count} x {side}, first call", f"{first:.2f} s", first <= FIRST)
    for key in [*calls][1:]:
        ratio = median(each["script"] / each[key] for each in rounds_of)
        took = f"{median(each[key] for each in rounds_of):.3f} s, {ratio:.2f}x the script"
        limit = {"replknet": goal, "bare module": BARE}.get(key)
        missed += verdict(f"{name}, {count} x {side}, {key}", took, limit is None or ratio >= limit)
    return missed


def every_unit(device: torch.device, side: int) -> int:
    """The same of every unit of a layer."""
    name, layer, _ = EVERY
    adapter = load(name, weights="random", seed=0, input_size=side).to(device=device)
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    took = [seconds(lambda: erfscope.analyze(adapter, images=image, layer=layer, unit="all"), device) for _ in range(2)]
    return verdict(f"{name}, every unit of {layer} at {side}", f"{took[-1]:.2f} s", took[-1] <= EVERY_UNIT)


def script(net: Any, images: Tensor, device: torch.device) -> Tensor:
    """The average map of the last stage's central unit, by one forward and one backward pass per image."""
    total, last = torch.zeros(()), len(net.feature_info) - 1
    for each in images:
        x = each[None].to(device).requires_grad_(True)
        y: Sequence[Tensor] = net.forward_intermediates(
            x, indices=[last], norm=False, stop_early=True, intermediates_only=True
        )
        unit = y[0][:, :, y[0].shape[2] // 2, y[0].shape[3] // 2].relu().sum()
        total = total + torch.autograd.grad(unit, x)[0].relu().sum((0, 1)).cpu()
    return total / len(images)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def verdict(name: str, took: str, is_met: bool) -> int:
    print(f"  {name:55} {took:32} {'ok' if is_met else 'MISSED'}", flush=True)
    return not is_met


if __name__ == "__main__":
    main()
