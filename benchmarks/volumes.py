"""Volumes and clips: the layer, the unit's centre and the map of 3-D nets as erfscope has them beside plain autograd.

Run ``python benchmarks/volumes.py`` for the tables of ``zoo.md``. ``python benchmarks/volumes.py VNet X3D`` are
the rows of these models. The oracle shares no code with erfscope: a hook on the layer, one gradient for each channel of
the unit (of its weighted sum where it has many), and receptive-field arithmetic for the centre (``zoo_plain.py``).
Needs torchvision, transformers and ``pip install --no-deps monai einops``; models of what is not installed are left
out.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from csv_rows import print_row
from heads import ALLOWED, SMALL, transformers_model
from torch import Tensor, nn
from volume_nets import X3D, MedNeXt, PlainUNet, SlowFast, TemporalShift, VNet
from zoo_built import monai_model, vision_model
from zoo_plain import Array, Oracle, as_map, contribution, output_of, readout, written_out_norms

import erfscope


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its input and what must be found."""

    name: str
    build: Callable[[], nn.Module]
    size: tuple[int, int, int]
    #: The layer that erfscope must choose.
    expected: str = "output"
    channels: int = 1
    #: Off the middle, so that axes that are exchanged are seen; None for the middle.
    unit: tuple[int, int, int] | None = None
    #: Many channels: one weighted sum of them, and absolute values of its gradient.
    wide: bool = False
    #: Of tokens behind a class token: the grid (h, w, T) that they form, all frames of a place side by side.
    places_first: tuple[int, int, int] | None = None
    packages: tuple[str, ...] = ()

    @property
    def convention(self) -> Any:
        """As ``erfscope.analyze`` takes it."""
        return (readout, contribution) if self.wide else "jacobian"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model, measured and by the oracle."""

    case: Case
    result: Any
    #: Relative L1 distance of the two maps, and the largest value of the oracle's map outside of the TRF.
    map_off: float
    outside: float
    #: What is wrong with the centre of the unit.
    centre_note: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether layer, centre and map are the oracle's."""
        return (
            self.result.layer == self.case.expected
            and not self.centre_note
            and self.outside == 0
            and self.map_off < ALLOWED
        )


class FramesFirst(nn.Module):
    """A model of (B, T, C, H, W) that takes (B, C, T, H, W)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x.transpose(1, 2))


def frames_first(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a transformers model of clips, whose frames come before the channels."""
    build = transformers_model(f"{name}Model", f"{name}Config", **SMALL, **options)
    return lambda: FramesFirst(build())


def small_mvit() -> nn.Module:
    """A small MViTv2 of torchvision: the queries stride once."""
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(num_heads=1, input_channels=16, output_channels=16, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3],
                      stride_q=[1, 1, 1], stride_kv=[1, 2, 2]),
        MSBlockConfig(num_heads=2, input_channels=16, output_channels=32, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3],
                      stride_q=[1, 2, 2], stride_kv=[1, 1, 1]),
    ]  # fmt: skip
    return MViT(
        spatial_size=(32, 32), temporal_size=4, block_setting=blocks, residual_pool=True,
        residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True,
    )  # fmt: skip


def s3d() -> nn.Module:
    """S3D of torchvision with a pooling that takes every size."""
    module = vision_model("s3d")()
    module.avgpool = nn.AdaptiveAvgPool3d(1)
    return module


def small_swin3d() -> nn.Module:
    """A small Video Swin of torchvision."""
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d(
        patch_size=[2, 4, 4], embed_dim=16, depths=[2, 2], num_heads=[1, 2], window_size=[2, 4, 4], num_classes=5
    )


NETS = {"spatial_dims": 3, "in_channels": 1}
PLANES = {**NETS, "out_channels": 2}
STAGES = {"channels": (4, 8, 12), "strides": (2, 2)}
monai = partial(Case, packages=("monai",))
torchvision_clip = partial(Case, channels=3, packages=("torchvision",))
transformers_clip = partial(Case, channels=3, packages=("transformers",))

VOLUMES = (
    Case(name="nnU-Net-like plain U-Net", build=PlainUNet, size=(8, 24, 32), unit=(2, 9, 20)),
    Case(name="MedNeXt-like", build=MedNeXt, size=(16, 16, 24), unit=(5, 9, 16)),
    Case(name="V-Net-like", build=VNet, size=(16, 16, 24), unit=(5, 9, 16)),
    monai(name="MONAI UNet", build=monai_model("UNet", **PLANES, **STAGES, num_res_units=1), size=(24, 32, 32),
          unit=(9, 20, 11)),
    monai(name="MONAI BasicUNet", build=monai_model("BasicUNet", **PLANES, features=(4, 4, 8, 8, 8, 4)),
          size=(16, 16, 32), unit=(9, 5, 20)),
    monai(name="MONAI DynUNet", build=monai_model("DynUNet", **PLANES, kernel_size=[[1, 3, 3], [3] * 3, [3] * 3],
          strides=[[1] * 3, [1, 2, 2], [2] * 3], upsample_kernel_size=[[1, 2, 2], [2] * 3], filters=[4, 8, 12]),
          size=(8, 24, 32), unit=(3, 9, 20)),
    monai(name="MONAI SegResNet", build=monai_model("SegResNet", **PLANES, init_filters=8, blocks_down=(1, 1, 1),
          blocks_up=(1, 1)), size=(16, 16, 24), unit=(9, 5, 16)),
    monai(name="MONAI VNet", build=monai_model("VNet", spatial_dims=3, in_channels=1, out_channels=2),
          size=(16, 16, 16), unit=(9, 5, 7)),
    monai(name="MONAI AttentionUnet", build=monai_model("AttentionUnet", **PLANES, **STAGES), size=(16, 16, 24),
          unit=(9, 5, 16)),
    monai(name="MONAI HighResNet", build=monai_model("HighResNet", **PLANES, layer_params=(
          {"name": "conv_0", "n_features": 4, "kernel_size": 3},
          {"name": "res_1", "n_features": 4, "kernels": (3, 3), "repeat": 1},
          {"name": "res_2", "n_features": 8, "kernels": (3, 3), "repeat": 2},
          {"name": "conv_1", "n_features": 8, "kernel_size": 1},
          {"name": "conv_2", "kernel_size": 1})), size=(24, 16, 16), unit=(9, 5, 7)),
    monai(name="MONAI UNETR", build=monai_model("UNETR", in_channels=1, out_channels=2, img_size=(16, 32, 32),
          feature_size=4, hidden_size=24, mlp_dim=48, num_heads=2), size=(16, 32, 32), unit=(9, 5, 20),
          packages=("monai", "einops")),
    monai(name="MONAI SwinUNETR", build=monai_model("SwinUNETR", in_channels=1, out_channels=2, feature_size=12,
          depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 4), window_size=2), size=(32, 32, 64), unit=(9, 5, 20),
          packages=("monai", "einops")),
    monai(name="MONAI AutoEncoder", build=monai_model("AutoEncoder", **PLANES, channels=(4, 8),
          strides=(2, 2)), size=(16, 16, 24),
          unit=(9, 5, 16)),
    monai(name="MONAI DenseNet (3-D)", build=monai_model("DenseNet", **PLANES, init_features=8, growth_rate=4,
          block_config=(2, 2, 2)), size=(32, 32, 48), expected="class_layers.relu", unit=(1, 0, 2)),
    monai(name="MONAI ResNet (3-D)", build=monai_model("ResNet", block="basic", layers=[1, 1, 1, 1],
          block_inplanes=[4, 8, 12, 16], n_input_channels=1, num_classes=2), size=(32, 32, 48), expected="layer4",
          unit=(1, 0, 2)),
    monai(name="MONAI ViT (3-D)", build=monai_model("ViT", in_channels=1, img_size=(16, 16, 24), patch_size=8,
          hidden_size=24, mlp_dim=48, num_layers=2, num_heads=2), size=(16, 16, 24), expected="blocks.1",
          unit=(1, 0, 2), packages=("monai", "einops")),
)  # fmt: skip

CLIPS = (
    Case(name="Temporal Shift ResNet", build=TemporalShift, channels=3, size=(8, 32, 48), unit=(2, 3, 9)),
    Case(name="X3D-like", build=X3D, channels=3, size=(6, 32, 48), expected="stages", unit=(2, 1, 4)),
    Case(name="X3D-like without squeezing", build=partial(X3D, squeeze=False), channels=3, size=(6, 32, 48),
         expected="stages", unit=(2, 1, 4)),
    Case(name="SlowFast-like", build=SlowFast, channels=3, size=(16, 32, 48), unit=(1, 3, 9)),
    *(torchvision_clip(name=f"torchvision {name}", build=vision_model(name), size=(8, 32, 48), expected="layer4",
                       unit=unit, wide=True)
      for name, unit in (("r3d_18", (0, 1, 2)), ("mc3_18", (5, 1, 2)), ("r2plus1d_18", (0, 1, 2)))),
    torchvision_clip(name="torchvision S3D", build=s3d, size=(16, 64, 96), expected="features",
                     unit=(1, 1, 2), wide=True),
    torchvision_clip(name="torchvision MViTv2", build=small_mvit, size=(4, 32, 32), expected="blocks.1[0]",
                     unit=(1, 1, 2)),
    torchvision_clip(name="torchvision Video Swin", build=small_swin3d, size=(4, 32, 48), expected="features",
                     unit=(1, 1, 4)),
    transformers_clip(name="transformers VideoMAE", build=frames_first("VideoMAE", image_size=32, patch_size=8,
                      num_frames=4), size=(4, 32, 32), expected="model[last_hidden_state]", unit=(1, 1, 2)),
    transformers_clip(name="transformers ViViT", build=frames_first("Vivit", image_size=32, num_frames=4,
                      tubelet_size=[2, 8, 8]), size=(4, 32, 32), expected="model.layers.1",
                      unit=(1, 1, 2)),
    transformers_clip(name="transformers TimeSformer", build=frames_first("Timesformer", image_size=32, patch_size=8,
                      num_frames=4), size=(4, 32, 32), expected="model.encoder[last_hidden_state]", unit=(1, 1, 2),
                      places_first=(4, 4, 4)),
)  # fmt: skip


def features_of(case: Case, module: nn.Module, x: Tensor, layer: str) -> Tensor:
    """What a layer returns, by a hook; tokens that do not go frame by frame as (B, C, T, h, w)."""
    output = output_of(module, partial(module, x), layer)
    if case.places_first is None:
        return output
    return output[:, 1:].unflatten(1, case.places_first).permute(0, 4, 3, 1, 2)


def by_autograd(case: Case, module: nn.Module, x: Tensor, result: Any) -> tuple[Array, str]:
    """The map of the unit with sum 1, and what is wrong with its centre."""
    unit = result.unit
    shape, index = tuple(unit.map_shape), tuple(unit.index)
    deepest = partial(features_of, case, module, layer=result.layer)
    truth = Oracle(module=module, deepest=deepest).truth(x, result.layer, shape, index)
    if truth.map is None:
        raise RuntimeError(f"{case.name}: {truth.note}")
    assumed = any(finding.code == "assumed_layout" for finding in result.findings)
    _, note = truth.judge_centre(unit.center_px, exact=unit.center_exact and not assumed)
    if case.wide:
        return truth.map, note
    leaf = x.clone().requires_grad_()
    with written_out_norms():
        features = as_map(deepest(leaf), shape)
    assert features is not None
    energy: Any = 0.0
    for value in features[(0, slice(None), *index)]:
        (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
        energy = energy + gradient[0].square().sum(0)
    root = energy.sqrt()
    return (root / root.sum()).numpy(), note


def measure(case: Case) -> Row:
    """A model as erfscope and the oracle have it."""
    torch.manual_seed(0)
    module = case.build().double().eval()
    x = torch.randn(1, case.channels, *case.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    began = time.perf_counter()
    result = erfscope.analyze(
        module,
        images=x,
        input_size=case.size,
        in_chans=case.channels,
        unit="center" if case.unit is None else case.unit,
        convention=case.convention,
        draws="all",
        dtype="float64",
    )
    seconds = time.perf_counter() - began
    truth, note = by_autograd(case, module, x, result)
    outside = truth.copy()
    outside[tuple(slice(first, last + 1) for first, last in result.trf.clipped_box_px)] = 0
    off = float(np.abs(result.map.values - truth).sum())
    return Row(case=case, result=result, map_off=off, outside=float(outside.max()), centre_note=note, seconds=seconds)


def rows(cases: tuple[Case, ...]) -> Iterator[Row]:
    """Every model whose packages are installed."""
    for case in cases:
        absent = [name for name in case.packages if importlib.util.find_spec(name) is None]
        if absent:
            print(f"{case.name} is left out: {' and '.join(absent)} not installed", file=sys.stderr)
            continue
        yield measure(case)


def cells(row: Row) -> tuple[str, ...]:
    """The columns of one row."""
    result, unit = row.result, row.result.unit
    field = result.trf.global_by or "x".join(map(str, result.trf.size_px))
    return (
        row.case.name,
        "x".join(map(str, (row.case.channels, *row.case.size))),
        result.layer,
        "x".join(map(str, unit.map_shape)),
        ", ".join(f"{step:g}" for step in unit.stride_px),
        field if result.trf.exact else f"at most {field}",
        ", ".join(f"{place:.4g}" for place in unit.center_px) + ("" if unit.center_exact else " (inexact)"),
        f"{row.map_off:.0e}",
    )


def main(words: list[str]) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    wrong = 0
    print_row(("kind", "model", "input", "layer (default)", "map", "stride", "TRF", "unit centre", "off autograd"))
    for kind, cases in (("volume", VOLUMES), ("clip", CLIPS)):
        for row in rows(tuple(case for case in cases if not words or any(word in case.name for word in words))):
            wrong += not row.is_right
            print_row((kind, *cells(row)))
            if not row.is_right:
                print(f"WRONG {row.case.name}: outside {row.outside:.0e}; {row.centre_note}", file=sys.stderr)
            if row.seconds > 10:
                print(f"{row.case.name} takes {row.seconds:.0f} s", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
