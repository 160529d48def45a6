"""Units without a place and heads of detectors: what erfscope measures beside plain autograd in float64, by model.

Run ``python benchmarks/heads.py`` for the table of ``zoo.md``. The oracle shares no code with erfscope: a hook
on the layer, one gradient per channel of the unit, squared, summed, divided by its total for each image. Models of
packages that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from csv_rows import print_row
from torch import Tensor, nn
from zoo_plain import output_of, written_out_norms

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
    #: The axis of its tensor along which a unit without a place is counted.
    axis: int = 1
    #: A package that is not among erfscope's own requirements.
    package: str = ""


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


def ultralytics_model(configuration: str) -> Callable[[], nn.Module]:
    """Return what builds a model of ultralytics from its configuration."""

    def build() -> nn.Module:
        import ultralytics

        return ultralytics.YOLO(configuration, verbose=False).model

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


class Proposals(nn.Module):
    """The class scores of each proposal of a Faster R-CNN, (images, proposals, classes)."""

    def __init__(self) -> None:
        super().__init__()
        few = {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20}
        self.detector = torchvision_model("fasterrcnn_mobilenet_v3_large_320_fpn", min_size=96, max_size=160, **few)()

    def forward(self, x: Tensor) -> Tensor:
        detector = self.detector
        images, _ = detector.transform(list(x))
        features = detector.backbone(images.tensors)
        proposals, _ = detector.rpn(images, features)
        pooled = detector.roi_heads.box_roi_pool(features, proposals, images.image_sizes)
        return detector.roi_heads.box_predictor(detector.roi_heads.box_head(pooled))[0].unflatten(0, (len(x), -1))


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
    Head(name="torchvision Faster R-CNN, its pyramid", build=torchvision_model("fasterrcnn_mobilenet_v3_large_fpn",
         min_size=97, max_size=200), size=(61, 83), unit="1,1", layer="backbone[0]", expected="backbone[0]"),
    *(Head(name=f"torchvision Faster R-CNN, {what}", build=torchvision_model("fasterrcnn_resnet50_fpn", min_size=96,
           max_size=200), size=(64, 80), unit=unit, layer=layer, expected=layer)
      for what, unit, layer in (("scores of level 0", "8,9", "rpn.head[0][0]"),
                                ("scores of level 2", "2,3", "rpn.head[0][2]"),
                                ("boxes of level 3", "1,1", "rpn.head[1][3]"))),
    Head(name="torchvision Faster R-CNN, a proposal", build=Proposals, size=(64, 80), unit="row:7"),
    *(Head(name=f"ultralytics {name}", build=ultralytics_model(f"{name}.yaml"), size=(64, 96), unit=unit, layer=layer,
           expected=layer, axis=2, package="ultralytics")
      for name, unit, layer in (("yolov8n", "row:5", "output[0]"), ("yolov8n", "row:100", "output[0]"),
                                ("yolov8n", "row:125", "output[0]"), ("yolov8n", "3,5", "model.22.cv3.0"),
                                ("yolov8n", "2,3", "model.22.cv3.1"), ("yolov8n", "1,1", "model.22.cv3.2"),
                                ("yolo11n", "row:100", "output[0]"), ("yolo11n-seg", "row:100", "output[0][0]"),
                                ("yolo11n-seg", "5,7", "output[0][1]"))),
)  # fmt: skip


def channels_of(tensor: Tensor, unit: str, axis: int) -> Tensor:
    """The numbers of a unit: of a place, of an index along an axis, or of all."""
    kind, _, name = unit.partition(":")
    if not name and kind != "vector":
        row, column = map(int, unit.split(","))
        return tensor[..., row, column]
    return tensor if kind == "vector" else tensor.select(axis, int(name))


def by_autograd(module: nn.Module, x: Tensor, layer: str, unit: str, axis: int = 1) -> np.ndarray[Any, Any]:
    """The map of a unit by plain autograd, with sum 1."""
    total: Any = 0.0
    for image in x.split(1):
        leaf = image.clone().requires_grad_()
        energy: Any = 0.0
        with written_out_norms():
            output = output_of(module, partial(module, leaf), layer)
        for value in channels_of(output, unit, axis).flatten():
            (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
            energy = energy + gradient[0].square().sum(0)
        total = total + energy / energy.sum()
    root = total.sqrt()
    return (root / root.sum()).numpy()


def rows(heads: tuple[Head, ...] = HEADS) -> Iterator[tuple[Head, Any, float]]:
    """Each head with its result and the relative L1 distance from the oracle."""
    for head in heads:
        if head.package and importlib.util.find_spec(head.package) is None:
            print(f"{head.name} is left out: {head.package} is not installed", file=sys.stderr)
            continue
        torch.manual_seed(0)
        module = head.build().double().eval()
        x = torch.randn(1, 3, *head.size, dtype=torch.float64)
        asked = {} if head.layer is None else {"layer": head.layer}
        result = erfscope.analyze(
            module, images=x, input_size=head.size, unit=head.unit, draws="all", dtype="float64", **asked
        )
        truth = by_autograd(module, x, head.expected, head.unit, head.axis)
        yield head, result, float(np.abs(result.map.values - truth).sum())


def main() -> None:
    """Print the table."""
    print_row(("model", "unit", "layer", "input", "centroid_r50", "TRF", "off autograd"))
    wrong = 0
    for head, result, distance in rows():
        wrong += distance > ALLOWED or result.layer != head.expected
        chosen = "" if head.layer else " (default)"
        field = result.trf.global_by or "x".join(map(str, result.trf.size_px))
        cells = (head.name, head.unit, f"{result.layer}{chosen}", "x".join(map(str, head.size)))
        print_row((*cells, result["centroid_r50"], field, f"{distance:.0e}"))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
