"""Where numbers below 1e-38 slow a backward pass: 30 models, each stage's central unit, at random weights.

    OMP_NUM_THREADS=1 python benchmarks/denormals.py
    OMP_NUM_THREADS=1 python benchmarks/denormals.py --weights random-raw

One image of 224 px, or the model's own size, on one thread: a processor's flag for denormal numbers holds for the
calling thread alone. Seconds are the least of a few passes as they are, and with denormal numbers taken as zero.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from csv_rows import print_row
from torch import Tensor, nn

import erfscope
from erfscope.adapters import load

MODELS = (
    *("resnet18", "resnet50", "resnext50_32x4d", "densenet121", "vgg11_bn", "efficientnet_b0", "mobilenetv2_100"),
    *("mobilenetv3_large_100", "regnetx_004", "regnety_004", "repvgg_a0", "ghostnet_100", "inception_v3", "dla34"),
    *("convnext_tiny", "convnextv2_atto", "inception_next_tiny", "edgenext_small", "mobilevit_s", "poolformer_s12"),
    *("vit_small_patch16_224", "deit_tiny_patch16_224", "cait_xxs24_224", "swin_tiny_patch4_window7_224"),
    *("mixer_s16_224", "resmlp_12_224", "maxvit_tiny_rw_224", "pvt_v2_b0", "xcit_nano_12_p16_224", "coatnet_0_rw_224"),
)
PASSES = 3


def main() -> None:
    """Print a row for each model and stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", default="random")
    weights = parser.parse_args().weights
    print_row(("model", "stage", "denormal, share of the gradient", "s", "s without", "times"))
    for name in MODELS:
        adapter = load(name, weights=weights, seed=0)
        stages = [row.name for row in erfscope.layers(adapter).rows if row.part]
        for stage in stages:
            with passes(adapter.module, stage, adapter.preprocess.size) as backward:
                share, plain = timed(backward)
                torch.set_flush_denormal(True)
                _, without = timed(backward)
                torch.set_flush_denormal(False)
            print_row((name, stage, f"{share:.2g}", f"{plain:.3f}", f"{without:.3f}", f"{plain / without:.2f}"))


@contextlib.contextmanager
def passes(module: nn.Module, stage: str, size: tuple[int, ...]) -> Iterator[Callable[[], Tensor]]:
    """A function that takes the gradient of the stage's central unit with respect to the image."""
    kept: list[Tensor] = []
    handle = module.get_submodule(stage).register_forward_hook(lambda _m, _x, y: kept.append(y))
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0), requires_grad=True)
    try:
        module(x)
    finally:
        handle.remove()
    y = kept[0]
    seed = torch.zeros_like(y)
    # Maps (B, C, H, W) or (B, H, W, C), tokens (B, N, C).
    middle = tuple(side // 2 for side in y.shape[1:])
    if y.ndim == 4 and y.shape[1] >= y.shape[3]:
        seed[0, :, middle[1], middle[2]] = 1
    else:
        seed[(0, *middle[:-1])] = 1
    yield lambda: torch.autograd.grad(y, x, seed, retain_graph=True)[0]


def timed(backward: Callable[[], Tensor]) -> tuple[float, float]:
    """The share of denormal numbers in a gradient, and the least seconds of a few passes."""
    found, best = torch.zeros(1), float("inf")
    for _ in range(PASSES):
        begin = time.perf_counter()
        found = backward()
        best = min(best, time.perf_counter() - begin)
    small = (found != 0) & (found.abs() < torch.finfo(found.dtype).tiny)
    return float(small.float().mean()), best


if __name__ == "__main__":
    main()
