"""How long does an exact theoretical receptive field take, beside the way people find it: the support of a gradient.

    python benchmarks/trf.py
    python benchmarks/trf.py --models resnet50,vit_small_patch16_224 --sizes 224

One unit of the last stage. *trf*: recording the module from shapes alone, and following the pass back.
*support*: one forward and one backward pass with numbers, which gives a lower bound of the field, cut off at the image.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import timm
import torch

from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.core import OpenModel, Request
from erfscope.core.run.models import load_model

MODELS = "resnet18,resnet50,resnet152,convnext_tiny,swin_tiny_patch4_window7_224"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--sizes", default="224,512,2048")
    parser.add_argument(
        "--support-up-to", type=int, default=512, metavar="PX", help="gradients are not computed above this size"
    )
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    print("| model | px | field | trf | trf, processor | support | support / trf |\n|---|---|---|---|---|---|---|")
    for name in asked.models.split(","):
        for size in map(int, asked.sizes.split(",")):
            row(name, size, asked)


def row(name: str, size: int, asked: argparse.Namespace) -> None:
    loaded = load_model(name, Request.parse({}), size=(size, size), weights=NO_NUMBERS)
    layer = loaded.adapter.default_layer
    field: list[str] = []
    trf, processor = timed(lambda: field.append(found(unrecorded(loaded), layer)), asked.repeats)
    support, ratio = "–", "–"
    if size <= asked.support_up_to:
        seconds, _ = timed(supporting(name, size), 3)
        support, ratio = f"{seconds * 1e3:.0f} ms", f"{seconds / trf:.1f}"
    print(f"| {name} | {size} | {field[0]} | {trf * 1e3:.0f} ms | {processor * 1e3:.0f} ms | {support} | {ratio} |")


def unrecorded(loaded: OpenModel) -> OpenModel:
    """The model with an adapter of its own, since a recorded pass is kept as long as its adapter."""
    return replace(loaded, adapter=copy.copy(loaded.adapter))


def found(loaded: OpenModel, layer: str) -> str:
    site = loaded.site(layer)
    field = site.trf(site.nearest_unit())
    return f"{'all, ' if field.is_global else ''}{'x'.join(map(str, field.local_size_px))}"


def supporting(name: str, size: int) -> Callable[[], None]:
    own = {"img_size": size} if "swin" in name or "vit" in name else {}
    model = timm.create_model(name, **own).eval()
    x = torch.rand(1, 3, size, size, requires_grad=True)

    def run() -> None:
        y = model.forward_intermediates(x, indices=[-1], norm=False, output_fmt="NCHW", intermediates_only=True)[0]
        torch.autograd.grad(y[..., y.shape[-2] // 2, y.shape[-1] // 2].sum(), x)

    return run


def timed(function: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Medians of wall and of processor seconds."""
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return median(walls), median(processors)


if __name__ == "__main__":
    main()
