"""Peak memory of `erfscope.analyze` beside that of the script that people copy, each in a process of its own.

    python benchmarks/memory.py
    python benchmarks/memory.py --models resnet50 --jobs 1024x1,224x20

MiB by which the peak exceeds what the process holds that has imported everything and built the model, with the peak of
the whole process in brackets. Random weights, float32, on the CPU. Linux only: peak memory is read from /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from pathlib import Path

import torch
from speed_methods import in_own_process, resident
from torch import Tensor
from whole_calls import script

import erfscope
from erfscope.adapters import load
from erfscope.core import ModuleAdapter
from erfscope.core.images import synthetic

MODELS = ("resnet18", "resnet50", "convnext_tiny", "swin_tiny_patch4_window7_224")
#: Side in px, and number of images.
JOBS = ("224x20", "1024x1", "1024x4", "2048x1")
#: Of the script's memory, what `analyze` may take at most.
GOAL = 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", metavar="NAME,...", default=",".join(MODELS))
    parser.add_argument("--jobs", metavar="PXxIMAGES,...", default=",".join(JOBS))
    options = parser.parse_args()
    print("| model | px | images | script | analyze | share | at most a third |\n|---|---:|---:|---:|---:|---:|---|")
    for model in options.models.split(","):
        for job in options.jobs.split(","):
            size, images = map(int, job.split("x"))
            script_peak, own = (in_own_process(peaks, model, size, images, name) for name in ("script", "analyze"))
            share = own[0] / script_peak[0]
            cells = (f"{above / 2**20:,.0f} ({whole / 2**20:,.0f})" for above, whole in (script_peak, own))
            holds = "holds" if share <= GOAL else "**does not hold**"
            print(f"| {model} | {size} | {images} | {' | '.join(cells)} | {share:.2f} | {holds} |", flush=True)


def peaks(model: str, size: int, images: int, name: str) -> tuple[int, int]:
    """Bytes at the peak of one call, above what the process holds before it and in all; for a process of its own."""
    call(name, *prepared("resnet18", 64, 1))  # What a process loads only once is not counted.
    adapter, inputs = prepared(model, size, images)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident()["VmRSS"]
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak so far.
    call(name, adapter, inputs)
    peak = resident()["VmHWM"]
    return peak - before, peak


def prepared(model: str, size: int, images: int) -> tuple[ModuleAdapter, Tensor]:
    """A model and its inputs, (images, 3, size, size)."""
    adapter: ModuleAdapter = load(model, weights="random", seed=0, input_size=size)
    source = synthetic("leaves", samples=images, seed=0, size=(size, size), channels=3)
    inputs = [adapter.preprocess.normalise(source.pixels(index)[None]) for index in range(images)]
    return adapter, torch.cat(inputs).float()


def call(name: str, adapter: ModuleAdapter, inputs: Tensor) -> None:
    """Average the maps of inputs by the script, or by erfscope."""
    if name == "script":
        script(adapter.module, inputs.split(1))
    else:
        erfscope.analyze(adapter, images=inputs, convention="replknet")


if __name__ == "__main__":
    main()
