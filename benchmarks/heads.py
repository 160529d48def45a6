"""Units without a place, model by model: what erfscope measures beside plain autograd in float64.

Run ``python benchmarks/heads.py``; it prints the table of docs/zoo.md. The oracle shares no code with erfscope: a hook
on the layer, one gradient per channel of the unit, squared, summed, divided by its total for each image.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from zoo_plain import output_of

import erfscope

#: Relative L1 distance of two maps that are computed in float64.
ALLOWED = 1e-9


@dataclass(frozen=True, kw_only=True)
class Head:
    """A model and the unit that is measured."""

    name: str
    build: Callable[[], nn.Module]
    size: tuple[int, int]
    unit: str
    #: Named to erfscope; None for the default.
    layer: str | None = None
    #: What erfscope must choose where ``layer`` is None, and what the oracle reads.
    expected: str = "output"


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a timm model with random weights."""

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **options)

    return build


def torchvision_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a torchvision model with random weights."""

    def build() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, weights_backbone=None, **options)

    return build


def transformers_model(kind: str, configuration: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a transformers model from its configuration."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(getattr(transformers, configuration)(**options))

    return build


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SWIN = {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8], "window_size": 4}


def detr() -> nn.Module:
    """A small DETR on a small ResNet."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    return DetrForObjectDetection(
        DetrConfig(
            use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone, d_model=32,
            num_queries=10,
            encoder_layers=1, decoder_layers=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
            encoder_attention_heads=4, decoder_attention_heads=4,
        )
    )  # fmt: skip


def mask2former() -> nn.Module:
    """A small Mask2Former on a small Swin."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    backbone = SwinConfig(**SWIN, image_size=64, out_features=["stage1", "stage2", "stage3", "stage4"])
    return Mask2FormerForUniversalSegmentation(
        Mask2FormerConfig(
            backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32,
            dim_feedforward=32, encoder_layers=1, decoder_layers=2, num_attention_heads=4, num_queries=10,
        )
    )  # fmt: skip


HEADS = (
    Head(name="vit_tiny_patch16_224", build=timm_model("vit_tiny_patch16_224", img_size=64), size=(64, 64),
         unit="token:0", expected="blocks.11"),
    Head(name="vit_small_patch14_reg4_dinov2", build=timm_model("vit_small_patch14_reg4_dinov2", img_size=56),
         size=(56, 56), unit="token:4", expected="blocks.11"),
    Head(name="deit_tiny_distilled", build=timm_model("deit_tiny_distilled_patch16_224", img_size=64), size=(64, 64),
         unit="token:1", expected="blocks.11"),
    Head(name="resnet18", build=timm_model("resnet18"), size=(64, 64), unit="class:207"),
    Head(name="convnext_atto", build=timm_model("convnext_atto"), size=(64, 64), unit="vector", layer="head.flatten",
         expected="head.flatten"),
    Head(name="transformers ViT", build=transformers_model("ViTModel", "ViTConfig", **SMALL, image_size=64),
         size=(64, 64), unit="token:0", layer="layernorm", expected="layernorm"),
    Head(name="transformers DINOv2 with registers", build=transformers_model(
         "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", **SMALL, image_size=56), size=(56, 56),
         unit="token:3", layer="layernorm", expected="layernorm"),
    Head(name="transformers CLIP vision", build=transformers_model("CLIPVisionModel", "CLIPVisionConfig", **SMALL,
         image_size=64, patch_size=16), size=(64, 64), unit="vector", expected="output[pooler_output]"),
    Head(name="transformers SigLIP vision", build=transformers_model("SiglipVisionModel", "SiglipVisionConfig", **SMALL,
         image_size=64, patch_size=16), size=(64, 64), unit="vector", expected="output[pooler_output]"),
    Head(name="transformers SegFormer", build=transformers_model("SegformerForSemanticSegmentation", "SegformerConfig",
         hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16, num_labels=5), size=(64, 64), unit="class:3",
         expected="output[logits]"),
    Head(name="transformers DETR", build=detr, size=(64, 64), unit="query:7", expected="output[logits]"),
    Head(name="transformers DETR, boxes", build=detr, size=(64, 64), unit="query:7", layer="output[pred_boxes]",
         expected="output[pred_boxes]"),
    Head(name="transformers Mask2Former", build=mask2former, size=(64, 64), unit="query:2",
         expected="output[class_queries_logits]"),
    Head(name="torchvision FCOS", build=torchvision_model("fcos_resnet50_fpn", min_size=96, max_size=96),
         size=(64, 64), unit="row:100", layer="head.regression_head[0]", expected="head.regression_head[0]"),
    Head(name="torchvision RetinaNet", build=torchvision_model("retinanet_resnet50_fpn", min_size=96, max_size=96),
         size=(64, 64), unit="row:1000", layer="head.regression_head", expected="head.regression_head"),
)  # fmt: skip


def by_autograd(module: nn.Module, x: Tensor, layer: str, unit: str) -> np.ndarray[Any, Any]:
    """The map of a unit by plain autograd, with sum 1."""
    kind, _, name = unit.partition(":")
    total: Any = 0.0
    for image in x.split(1):
        leaf = image.clone().requires_grad_()
        tensor = output_of(module, partial(module, leaf), layer)
        channels = (tensor if kind == "vector" else tensor[:, int(name)]).flatten()
        energy: Any = 0.0
        for value in channels:
            (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
            energy = energy + gradient[0].square().sum(0)
        total = total + energy / energy.sum()
    root = total.sqrt()
    return (root / root.sum()).numpy()


def rows(heads: tuple[Head, ...] = HEADS) -> Iterator[tuple[Head, Any, float]]:
    """Each head with its result and the relative L1 distance from the oracle."""
    for head in heads:
        torch.manual_seed(0)
        module = head.build().double().eval()
        x = torch.randn(1, 3, *head.size, dtype=torch.float64)
        asked = {} if head.layer is None else {"layer": head.layer}
        result = erfscope.analyze(
            module, images=x, input_size=head.size, unit=head.unit, draws="all", dtype="float64", **asked
        )
        truth = by_autograd(module, x, head.expected, head.unit)
        yield head, result, float(np.abs(result.map.values - truth).sum())


def main() -> None:
    """Print the table."""
    print("| model | unit | layer | input | centroid_r50 | TRF | off autograd |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for head, result, distance in rows():
        wrong += distance > ALLOWED or result.layer != head.expected
        chosen = "" if head.layer else " (default)"
        field = result.trf.global_by or "x".join(map(str, result.trf.size_px))
        cells = (head.name, f"`{head.unit}`", f"{result.layer}{chosen}", "x".join(map(str, head.size)))
        print(f"| {' | '.join(cells)} | {result['centroid_r50']} | {field} | {distance:.0e} |", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
