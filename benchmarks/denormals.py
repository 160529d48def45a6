"""Where denormal numbers matter: 20 images up to each stage of thirty models, with denormal numbers taken as zero and
as they are.

    python benchmarks/denormals.py
    python benchmarks/denormals.py --models convnext_tiny --images 4

Seconds are medians of whole calls in turns, at random weights; counted are the denormal numbers of one image's gradient
where they are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from unittest.mock import patch

import timm
import torch
from together import leaves
from torch import Tensor
from whole_calls import SIZE, take_turns

import erfscope
from erfscope.adapters import load

MODELS = (
    "resnet18,resnet50,resnext50_32x4d,seresnet50,resnetv2_50,regnety_016,densenet121,vgg16_bn,inception_v3,"
    "mobilenetv3_large_100,mobilenetv2_100,efficientnet_b0,tf_efficientnet_lite0,ghostnet_100,mixnet_s,"
    "convnext_tiny,convnextv2_atto,edgenext_small,poolformer_s12,metaformer_pppa_s12_224,repvgg_a0,nfnet_l0,"
    "vit_small_patch16_224,deit3_small_patch16_224,cait_xxs24_224,swin_tiny_patch4_window7_224,maxvit_tiny_tf_224,"
    "coatnet_0_rw_224,mixer_s32_224,pvt_v2_b0"
)
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Denormal numbers as they are."""
    with patch("erfscope.core.run.engine.measure.denormals_as_zero", contextlib.nullcontext):
        yield


def denormals(adapter: erfscope.adapters.ModuleAdapter, x: Tensor, layer: str) -> tuple[int, int]:
    """Denormal numbers in the gradient of one image, and zeros."""
    found = list[Tensor]()
    gradient = torch.autograd.grad

    def watched(*given: object, **words: object) -> tuple[Tensor, ...]:
        every = gradient(*given, **words)
        found.append(every[0].abs())
        return every

    with kept(), patch("torch.autograd.grad", watched):
        erfscope.analyze(adapter, images=x[:1], layer=layer, draws=1)
    return int(((found[0] > 0) & (found[0] < SMALLEST_NORMAL)).sum()), int((found[0] == 0).sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", metavar="NAME,...", default=MODELS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--images", type=int, default=20)
    options = parser.parse_args(arguments)
    print("| model | stage | denormal | zero | as they are | as zero | times |\n|---|---|---:|---:|---:|---:|---:|")
    for name in options.models.split(","):
        config = timm.get_pretrained_cfg(name)
        adapter = load(
            name,
            weights="random",
            seed=0,
            input_size=max(SIZE, *config.input_size[1:]) if config.fixed_input_size else SIZE,
        )
        x = leaves(options.images, adapter.preprocess.size)
        for layer in adapter.stages:

            def ours(adapter=adapter, layer=layer, x=x) -> object:
                return erfscope.analyze(adapter, images=x, layer=layer)

            def as_they_are(ours=ours) -> object:
                with kept():
                    return ours()

            seconds = take_turns({"kept": as_they_are, "zero": ours}, options.rounds)
            times = median(a / b for a, b in zip(seconds["kept"], seconds["zero"], strict=True))
            counts = " | ".join(f"{count:,}" for count in denormals(adapter, x, layer))
            both = " | ".join(f"{median(seconds[each]):.2f} s" for each in ("kept", "zero"))
            print(f"| {name} | {layer} | {counts} | {both} | {times:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
