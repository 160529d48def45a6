"""Models of several inputs: each input's map and share as erfscope measures them beside plain autograd.

Run ``python benchmarks/inputs.py`` for the table of ``zoo.md``. ``python benchmarks/inputs.py SiamFC RAFT`` are
the rows of these models. The oracle shares no code with erfscope: a hook on the layer, and one gradient of the unit's
value with respect to all inputs for each image. Needs torchvision, transformers and diffusers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from csv_rows import print_row
from heads import SMALL, SWIN, detr, mask2former, transformers_model
from input_nets import ChangeDetection, CorrelationStereo, Inpainting, PanSharpening, RgbD, Stereo, Tracker
from torch import Tensor, nn
from zoo_plain import Array, as_map, contribution, output_of, readout, written_out_norms

import erfscope

TEXT = {**SMALL, "vocab_size": 60, "max_position_embeddings": 16, "eos_token_id": 5, "bos_token_id": 0,
        "pad_token_id": 1}  # fmt: skip
VISION = {**SMALL, "image_size": 64, "patch_size": 16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, what it is given, and what is measured."""

    name: str
    build: Callable[[], nn.Module]
    #: (C, *space) of every input that is a map, by the name of the parameter.
    maps: Mapping[str, tuple[int, ...]]
    #: The other arguments.
    others: Mapping[str, Any] = field(default_factory=dict)
    #: (module, **inputs) where the model is not called so itself.
    forward: Callable[..., Any] | None = None
    #: Asked for; None for the default.
    layer: str | None = None
    layout: str | None = None
    unit: str | None = None
    #: The layer that erfscope must choose where ``layer`` is None.
    expected: str = "output"
    dtype: str = "float64"
    #: Tokens behind those of the map.
    suffix: int = 0

    @property
    def allowed(self) -> float:
        """The largest relative L1 distance of two right maps."""
        return 1e-9 if self.dtype == "float64" else 1e-4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One input of a model, measured and by the oracle."""

    case: Case
    result: Any
    #: Relative L1 distance of the two maps, difference of the two shares, and the oracle's map outside of the TRF.
    map_off: float
    share_off: float
    outside: float

    @property
    def is_right(self) -> bool:
        """Whether the layer is the expected one and all numbers agree."""
        layer = self.case.layer or self.case.expected
        return (
            self.result.layer == layer and self.outside == 0 and max(self.map_off, self.share_off) < self.case.allowed
        )


def diffusers_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a diffusers model with random weights, those that start at zero among them."""

    def build() -> nn.Module:
        import diffusers

        module: nn.Module = getattr(diffusers, name)(**options)
        for parameter in module.parameters():
            if parameter.dim() > 1 and not parameter.any():
                nn.init.normal_(parameter, std=0.05)
        return module

    return build


def raft() -> nn.Module:
    """The small RAFT of torchvision."""
    from torchvision.models.optical_flow import raft_small

    return raft_small(weights=None)


def image_and_text(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a transformers model of an image and a text."""
    configuration = name.partition("For")[0].removesuffix("Model") + "Config"
    return transformers_model(name, configuration, **{"text_config": TEXT, "vision_config": VISION, **options})


def depth_anything() -> nn.Module:
    """A small Prompt Depth Anything on a small DINOv2."""
    from transformers import Dinov2Config, PromptDepthAnythingConfig, PromptDepthAnythingForDepthEstimation

    backbone = Dinov2Config(
        **SMALL, image_size=56, patch_size=14, out_features=["stage1", "stage2"], reshape_hidden_states=False
    )
    config = PromptDepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=32, neck_hidden_sizes=[8, 16], reassemble_factors=[2, 1],
        fusion_hidden_size=8, head_hidden_size=8, patch_size=14,
    )  # fmt: skip
    module = PromptDepthAnythingForDepthEstimation(config)
    # Its last ReLU is dead at many random weights.
    nn.init.constant_(module.head.conv3.bias, 1.0)
    return module


def masked_modelling(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a transformers model that fills in patches."""
    decoder = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    return transformers_model(
        f"{name}ForPreTraining",
        f"{name}Config",
        **SMALL,
        **{f"decoder_{key}": value for key, value in decoder.items()},
        **options,
    )


def every_third(count: int) -> Tensor:
    """A mask (1, count) of patches."""
    return (torch.arange(count) % 3 == 0)[None]


IDS = torch.arange(2, 9)[None]
WORDS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PIXELS = {"pixel_values": (3, 64, 64)}
PIXEL_MASK = {"pixel_mask": torch.ones(1, 64, 64, dtype=torch.long)}
VIEWS = {"left": (3, 64, 64), "right": (3, 64, 64)}
UNET = {"layers_per_block": 1, "block_out_channels": (16, 32), "norm_num_groups": 4, "attention_head_dim": 8}
CONDITIONED = {**UNET, "in_channels": 4, "cross_attention_dim": 16, "down_block_types": (
               "CrossAttnDownBlock2D", "DownBlock2D")}  # fmt: skip
PROMPT = {"timestep": torch.tensor(10), "encoder_hidden_states": torch.linspace(-1, 1, 80).view(1, 5, 16)}
SEGMENT_ANYTHING = {
    "vision_config": {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1],
                      "num_pos_feats": 8, "mlp_dim": 32, "initializer_range": 0.02},
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 16},
    "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
    "initializer_range": 0.02,
}  # fmt: skip

CASES = (
    Case(name="PSMNet-like stereo", build=Stereo, maps=VIEWS),
    Case(name="DispNetC-like stereo", build=CorrelationStereo, maps=VIEWS),
    Case(name="SiamFC-like tracker", build=Tracker, maps={"z": (3, 63, 63), "x": (3, 127, 127)}),
    Case(name="FuseNet-like RGB-D", build=RgbD, maps={"rgb": (3, 64, 64), "depth": (1, 64, 64)}),
    Case(name="PanNet-like pan-sharpening", build=PanSharpening, maps={"ms": (4, 16, 16), "pan": (1, 64, 64)}),
    Case(name="FC-Siam-diff change detection", build=ChangeDetection,
         maps={"before": (3, 64, 64), "after": (3, 64, 64)}),
    Case(name="gated inpainting", build=Inpainting, maps={"image": (3, 64, 64), "mask": (1, 64, 64)}),
    Case(name="torchvision RAFT", build=raft,
         maps={"image1": (3, 128, 128), "image2": (3, 128, 128)}, others={"num_flow_updates": 2}, expected="output[1]",
         dtype="float32"),
    Case(name="diffusers UNet2DModel", build=diffusers_model("UNet2DModel", **UNET, sample_size=16,
         down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
         maps={"sample": (3, 16, 16)}, others={"timestep": torch.tensor([10])}, expected="conv_out"),
    Case(name="diffusers UNet2DConditionModel", build=diffusers_model("UNet2DConditionModel", **CONDITIONED,
         sample_size=16, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")), maps={"sample": (4, 16, 16)},
         others=PROMPT, expected="conv_out"),
    Case(name="diffusers ControlNetModel", build=diffusers_model("ControlNetModel", **CONDITIONED,
         conditioning_embedding_out_channels=(8, 16)), maps={"sample": (4, 16, 16), "controlnet_cond": (3, 32, 32)},
         others=PROMPT, expected="controlnet_down_blocks.2"),
    Case(name="diffusers DiTTransformer2DModel", build=diffusers_model("DiTTransformer2DModel", num_attention_heads=4,
         attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=16, norm_num_groups=4),
         maps={"hidden_states": (4, 16, 16)}, expected="proj_out_2",
         others={"timestep": torch.tensor([10]), "class_labels": torch.tensor([3])}),
    Case(name="diffusers AsymmetricAutoencoderKL", build=diffusers_model("AsymmetricAutoencoderKL",
         down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4,
         down_block_out_channels=(16, 32), up_block_out_channels=(16, 32), layers_per_down_block=1,
         layers_per_up_block=1, sample_size=32), maps={"sample": (3, 32, 32), "mask": (1, 32, 32)}, expected="decoder"),
    Case(name="transformers CLIP", build=image_and_text("CLIPModel", projection_dim=16), maps=PIXELS, others=WORDS,
         expected="vision_model[last_hidden_state]"),
    Case(name="transformers SigLIP", build=image_and_text("SiglipModel"), maps=PIXELS, others=WORDS,
         expected="vision_model.encoder[last_hidden_state]"),
    Case(name="transformers BLIP", build=transformers_model("BlipForImageTextRetrieval", "BlipConfig",
         text_config={**TEXT, "encoder_hidden_size": 32, "sep_token_id": 6}, vision_config=VISION, projection_dim=16,
         image_text_hidden_size=16), maps=PIXELS, others=WORDS, expected="vision_model.encoder[last_hidden_state]"),
    Case(name="transformers OWL-ViT", build=image_and_text("OwlViTForObjectDetection", projection_dim=32), maps=PIXELS,
         others=WORDS, expected="output[logits]"),
    Case(name="transformers OWLv2", build=image_and_text("Owlv2ForObjectDetection", projection_dim=32), maps=PIXELS,
         others=WORDS, expected="output[logits]"),
    Case(name="transformers GroupViT", build=image_and_text("GroupViTModel", projection_dim=16,
         projection_intermediate_dim=32, vision_config={**VISION, "depths": [1, 1, 1], "num_hidden_layers": 3,
         "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]}), maps=PIXELS, others=WORDS,
         layer="vision_model.encoder.stages.0.layers.0",
         suffix=8),
    Case(name="transformers DETR", build=detr, maps=PIXELS, others=PIXEL_MASK, unit="query:7",
         expected="output[logits]"),
    Case(name="transformers Mask2Former", build=mask2former, maps=PIXELS, others=PIXEL_MASK,
         expected="output[masks_queries_logits]"),
    Case(name="transformers Prompt Depth Anything", build=depth_anything,
         maps={"pixel_values": (3, 56, 56), "prompt_depth": (1, 16, 16)}, expected="output[predicted_depth]"),
    Case(name="transformers SAM", build=transformers_model("SamModel", "SamConfig", **SEGMENT_ANYTHING),
         maps={"pixel_values": (3, 64, 64), "input_masks": (1, 32, 32)},
         others={"input_points": torch.tensor([[[[20.0, 30.0]]]]), "input_labels": torch.ones(1, 1, 1).long()},
         expected="output[pred_masks]"),
    Case(name="transformers SegGPT", build=transformers_model("SegGptForImageSegmentation", "SegGptConfig",
         hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=[64, 32], patch_size=8, mlp_dim=64,
         merge_index=0, intermediate_hidden_state_indices=[0, 1], decoder_hidden_size=8, pretrain_image_size=32),
         maps=dict.fromkeys(("pixel_values", "prompt_pixel_values", "prompt_masks"), (3, 32, 32)), expected="decoder"),
    Case(name="transformers Swin V2, SimMIM", build=transformers_model("Swinv2ForMaskedImageModeling", "Swinv2Config",
         **SWIN, image_size=64), maps=PIXELS, others={"bool_masked_pos": every_third(256)}, expected="decoder"),
    Case(name="transformers ViTMAE", build=masked_modelling("ViTMAE", image_size=64, patch_size=16), maps=PIXELS,
         others={"noise": torch.linspace(0, 7, 16)[None].sin()}, layer="output[logits]", layout="NLC"),
    Case(name="transformers VideoMAE", build=masked_modelling("VideoMAE", image_size=32, patch_size=8, num_frames=4),
         maps={"pixel_values": (3, 4, 32, 32)}, others={"bool_masked_pos": every_third(32)}, unit="query:3",
         forward=lambda m, pixel_values, bool_masked_pos: m(pixel_values.transpose(1, 2), bool_masked_pos),
         layer="output[logits]"),
    Case(name="transformers Perceiver, optical flow", build=transformers_model("PerceiverForOpticalFlow",
         "PerceiverConfig", num_latents=8, d_latents=32, d_model=322, num_blocks=1, num_self_attends_per_block=1,
         num_self_attention_heads=4, num_cross_attention_heads=1, train_size=[16, 24]),
         maps={"first": (27, 16, 24), "second": (27, 16, 24)},
         forward=lambda m, first, second: m(torch.stack([first, second], 1)), layer="output[logits]", layout="NHWC"),
    Case(name="transformers EfficientLoFTR", build=transformers_model("EfficientLoFTRModel", "EfficientLoFTRConfig",
         stage_num_blocks=[1, 1, 1, 1], out_features=[8, 8, 16, 32], stage_stride=[2, 1, 2, 2], hidden_size=32,
         num_attention_layers=1, num_attention_heads=8, fine_fusion_dims=[32, 16, 8]), maps=VIEWS,
         forward=lambda m, left, right: m(torch.stack([left, right], 1)), layer="local_feature_transformer"),
)  # fmt: skip


def examples_of(case: Case) -> dict[str, Tensor]:
    """Two images of each map, (2, C, *space)."""
    made = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(2, *shape, generator=made, dtype=torch.float64).to(getattr(torch, case.dtype))
        for name, shape in case.maps.items()
    }


def by_autograd(case: Case, module: nn.Module, images: Mapping[str, Tensor], result: Any) -> dict[str, Array]:
    """The sum over images of |gradients| of the unit's value, by input."""
    others = {
        name: each.to(getattr(torch, case.dtype)) if isinstance(each, Tensor) and each.is_floating_point() else each
        for name, each in case.others.items()
    }
    total = dict.fromkeys(images, 0.0)
    for number in range(2):
        leaves = {name: each[number : number + 1].clone().requires_grad_() for name, each in images.items()}
        run = partial(case.forward, module) if case.forward else module
        with written_out_norms():
            found = output_of(module, partial(run, **leaves, **others), result.layer)
        found = found[:, : found.shape[1] - case.suffix] if case.suffix else found
        if result.unit.kind:
            value = readout(found[:, result.unit.index[0]].flatten(1))
        else:
            value = readout(as_map(found, result.unit.map_shape)[(..., *result.unit.index)])
        gradients = torch.autograd.grad(value.sum(), [*leaves.values()], materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            total[name] = total[name] + contribution(gradient)[0].double().numpy()
    return total


def rows(cases: tuple[Case, ...] = CASES) -> Iterator[Row]:
    """Every input of each model."""
    for case in cases:
        torch.manual_seed(0)
        module = case.build().to(getattr(torch, case.dtype)).eval()
        images = examples_of(case)
        given = {name: each[:1] for name, each in images.items()}
        adapter = erfscope.wrap(
            module, inputs={**given, **case.others}, forward=case.forward, layout=case.layout, name=case.name
        )
        asked = {key: value for key in ("layer", "unit") if (value := getattr(case, key)) is not None}
        report = erfscope.sweep(
            adapter,
            images=images if len(images) > 1 else next(iter(images.values())),
            convention=(readout, contribution),
            dtype=case.dtype,
            **asked,
        )
        if report[0].map is None:
            raise RuntimeError(f"{case.name}: {report[0].error}")
        truth = by_autograd(case, module, images, report[0])
        mass = sum(each.sum() for each in truth.values())
        for (name, plain), result in zip(truth.items(), report, strict=True):
            assert result.wrt in ("image", f"input:{name}")
            share = plain.sum() / mass
            outside = plain.copy()
            outside[tuple(slice(first, last + 1) for first, last in result.trf.clipped_box_px)] = 0
            yield Row(
                case=case,
                result=result,
                map_off=float(np.abs(result.map.values - plain / plain.sum()).sum()),
                share_off=abs(float(result["input_share"]) - share) if len(images) > 1 else 0.0,
                outside=float(outside.max()),
            )


def main(words: list[str]) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print_row(("model", "input", "layer", "unit", "TRF", "share", "off autograd", "run"))
    wrong = 0
    for row in rows(tuple(case for case in CASES if not words or any(word in case.name for word in words))):
        result, case = row.result, row.case
        wrong += not row.is_right
        sizes = "x".join(map(str, result.input.size))
        field_ = result.trf.global_by or "x".join(map(str, result.trf.size_px))
        cells = (
            case.name,
            f"{result.wrt} {sizes}",
            f"{result.layer}{'' if case.layer else ' (default)'}",
            case.unit or ",".join(map(str, result.unit.index)),
            field_ if result.trf.exact else f"at most {field_}",
            f"{float(result['input_share']):.2g}" if len(case.maps) > 1 else "",
            f"{row.map_off:.0e}" + (f", {row.share_off:.0e}" if len(case.maps) > 1 else ""),
            result.computed.path,
        )
        print_row(cells if row.is_right else (*cells, "WRONG"))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
