"""What a call costs besides the model: a net whose pass takes half a millisecond, alone and beside a busy program.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --rounds 5

Threads are PyTorch's default ones. The busy program multiplies matrices with as many threads as it gets.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import erfscope

SIZE, MANY = 32, 2000
#: Milliseconds of one call at most, whatever else the machine does.
GOALS = {"adapter, replknet": 12.0, "adapter, default convention": 20.0, "bare module, default convention": 20.0}
#: Many images take at most so many times as long as one batched pass of the model, and so many seconds more.
TIMES, MORE = 1.3, 0.1
BUSY = "import torch\nx = torch.randn(1024, 1024)\nwhile True: x = torch.tanh(x @ x)"


def net() -> nn.Module:
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(*convolutions, nn.Conv2d(8, 8, 3, padding=1)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    too_slow = []
    for beside in ("alone", "beside a busy program"):
        with busy() if beside != "alone" else contextlib.nullcontext():
            print(beside)
            for name, call in calls().items():
                call()
                seconds = [timed(call) for _ in range(rounds)]
                took = f"{1e3 * median(seconds):8.1f} ms, at most {1e3 * max(seconds):.1f}"
                too_slow += verdict(name, took, median(seconds) <= GOALS[name] / 1e3, f"{GOALS[name]:g} ms")
            floor, whole = many_images(max(rounds // 4, 1))
            took = f"{whole:8.3f} s, one batched pass {floor:.3f} s"
            limit = TIMES * floor + MORE
            too_slow += verdict(f"adapter, {MANY:,} images", took, whole <= limit, f"{limit:.3f} s")
    sys.exit(bool(too_slow))


def calls() -> dict[str, Callable[[], object]]:
    """One image each: on an adapter, and on a module that is measured again."""
    module, image = net(), np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    adapter = erfscope.wrap(module, input_size=SIZE)
    return {
        "adapter, replknet": lambda: erfscope.analyze(adapter, images=image, convention="replknet"),
        "adapter, default convention": lambda: erfscope.analyze(adapter, images=image),
        "bare module, default convention": lambda: erfscope.analyze(module, images=image, input_size=SIZE),
    }


def many_images(rounds: int) -> tuple[float, float]:
    """Seconds of one batched pass of many images, and of their analysis."""
    module = net()
    images = torch.randn(MANY, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    adapter = erfscope.wrap(module, input_size=SIZE)
    pairs = [
        (timed(lambda: one_pass(module, images)), timed(lambda: erfscope.analyze(adapter, images=images)))
        for _ in range(rounds)
    ]
    floor, whole = (median(each) for each in zip(*pairs, strict=True))
    return floor, whole


def one_pass(module: nn.Module, many: Tensor) -> None:
    """All images in one batch, forwards and backwards from the central unit."""
    x = many.clone().requires_grad_()
    y = module(x)
    torch.autograd.grad(y[:, :, SIZE // 2, SIZE // 2].sum(), x)


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def verdict(name: str, took: str, is_met: bool, limit: str) -> list[str]:
    """Print a line; what is too slow."""
    print(f"  {name:34} {took} (limit {limit}): {'ok' if is_met else 'TOO SLOW'}", flush=True)
    return [] if is_met else [name]


@contextlib.contextmanager
def busy() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        time.sleep(3)
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    main()
