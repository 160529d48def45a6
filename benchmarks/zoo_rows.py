"""The rows of the family table of ``zoo.py``: small models on small inputs, one or more of every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """A row to be measured."""

    family: str
    model: str | Callable[[], nn.Module]
    #: What the table calls it; the model's own name if empty.
    name: str = ""
    size: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name in the table."""
        return self.name or (self.model if isinstance(self.model, str) else self.model.__name__)


class Signal(nn.Module):
    """A one-dimensional convolution net: stride 4, a field of 31 samples, unit u at 4u."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 16, 7, 2, 3),
            nn.ReLU(),
            nn.Conv1d(16, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(16, 16, 5, 1, 2),
            nn.Conv1d(16, 8, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2, L) -> (B, 8, L / 4)."""
        return self.body(x)


class Pyramid(nn.Module):
    """A feature pyramid that returns a list of maps, coarse ones added to fine ones."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(c, 16, 3, 2, 1) for c in (3, 16, 16))
        self.side = nn.ModuleList(nn.Conv2d(16, 8, 1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> maps at strides 2, 4 and 8."""
        maps = []
        for convolution in self.down:
            x = convolution(x).relu()
            maps.append(x)
        found = [self.side[2](maps[2])]
        for level in (1, 0):
            found.insert(0, self.side[level](maps[level]) + nn.functional.interpolate(found[0], scale_factor=2))
        return found


def seeded(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """``kind`` with the same numbers on every call."""

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return kind()

    make.__name__ = kind.__name__
    return make


def _timm(text: str, size: tuple[int, ...] | None = None) -> list[ZooEntry]:
    """Rows from lines ``family: model model@size ...``."""
    entries = []
    for line in text.strip().splitlines():
        family, _, models = line.strip().partition(": ")
        for word in models.split():
            model, _, side = word.partition("@")
            entries.append(ZooEntry(family=family, model=model, size=(int(side),) * 2 if side else size))
    return entries


CONVOLUTIONS = """
    ResNet: resnet18 resnet50@160 seresnet50@128
    ResNetV2: resnetv2_50@128
    ResNeSt: resnest14d@160
    SKNet: skresnet18@160
    Res2Net: res2net50_26w_4s@128
    RegNet: regnetx_002 regnety_002
    VGG: vgg11_bn@128
    DenseNet: densenet121@128
    Inception: inception_v3@171 inception_v4@171 inception_resnet_v2@139
    Xception: xception41@160 legacy_xception@160
    NASNet: nasnetalarge@99 pnasnet5large@99
    DPN: dpn68@128
    DLA: dla34@128
    HRNet: hrnet_w18_small@128
    VoVNet: ese_vovnet19b_slim_dw@160
    CSPNet: cspdarknet53@128 darknet53@96
    SelecSLS: selecsls42b@128
    HGNet: hgnetv2_b0
    TResNet: tresnet_m@128
    EfficientNet: efficientnet_b0@160
    EfficientNet (SAME): tf_efficientnet_b0@160 tf_efficientnet_b0@225
    EfficientNetV2: tf_efficientnetv2_b0@160
    MobileNetV2: mobilenetv2_100@160
    MobileNetV3: mobilenetv3_small_100 tf_mobilenetv3_small_100
    MobileNetV4: mobilenetv4_conv_small mobilenetv4_hybrid_medium@160
    MobileOne: mobileone_s0@160
    GhostNet: ghostnet_100@160 ghostnetv2_100@160
    RepGhost: repghostnet_050
    ReXNet: rexnet_100@160
    RepVGG: repvgg_a0@128
    NFNet: nfnet_l0@128 dm_nfnet_f0@96
    ConvNeXt: convnext_atto
    ConvNeXtV2: convnextv2_atto
    ConvMixer: convmixer_1024_20_ks9_p14@112
    InceptionNeXt: inception_next_atto
    RDNet: rdnet_tiny@96
    StarNet: starnet_s050
    FasterNet: fasternet_t0
    MambaOut: mambaout_femto
    FocalNet: focalnet_tiny_srf@128
    BoTNet: botnet26t_256
    HaloNet: halonet26t
    LambdaNet: lambda_resnet26t@256
    CPUBone: cpubone_nano@160
    CSATv2: csatv2@256
    CSPNeXt: cspnext_tiny@160
    HardCoRe-NAS: hardcorenas_a@160
    LCNetV2: lcnetv2_small@160
    SENet: legacy_seresnet18@128
    LowFormer: lowformer_b0@160
    MobileNetV5: mobilenetv5_300m@128
"""
TRANSFORMERS = """
    ViT: vit_tiny_patch16_224 vit_small_patch32_224 vit_tiny_r_s16_p8_224
    ViT (registers): vit_wee_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256@128
    ViT (relative position): vit_relpos_small_patch16_224@128
    DINOv2: vit_small_patch14_dinov2@112
    DeiT: deit_tiny_distilled_patch16_224
    DeiT3: deit3_small_patch16_224@128
    BEiT: beit_base_patch16_224@96
    EVA02: eva02_tiny_patch14_224
    CaiT: cait_xxs24_224@128
    XCiT: xcit_nano_12_p16_224 xcit_nano_12_p8_224@112
    ConViT: convit_tiny
    CrossViT: crossvit_tiny_240
    TNT: tnt_s_patch16_224
    VOLO: volo_d1_224@128
    MLP-Mixer: mixer_s32_224 gmlp_s16_224
    ResMLP: resmlp_12_224
    SAM ViT: samvit_base_patch16_224@128
    NaFlexViT: naflexvit_base_patch16_gap@96
    Swin: swin_tiny_patch4_window7_224 swin_s3_tiny_224
    SwinV2: swinv2_tiny_window8_256@128
    SwinV2-CR: swinv2_cr_tiny_224@224
    MaxViT: maxvit_pico_rw_256@128 maxvit_tiny_tf_224@224
    CoAtNet: coatnet_pico_rw_224 coatnet_nano_rw_224
    CoaT: coat_lite_tiny@128 coat_tiny@128
    PVTv2: pvt_v2_b0
    Twins: twins_svt_small@128 twins_pcpvt_small@128
    PiT: pit_ti_224
    LeViT: levit_128s levit_conv_128s
    NesT: nest_tiny@224
    GCViT: gcvit_xxtiny@224
    DaViT: davit_tiny@128
    EdgeNeXt: edgenext_xx_small
    EfficientFormer: efficientformer_l1 efficientformerv2_s0
    EfficientViT: efficientvit_b0 efficientvit_m0
    EfficientViM: efficientvim_m1
    FastViT: fastvit_t8
    MobileViT: mobilevit_xxs mobilevitv2_050
    PoolFormer: poolformer_s12 poolformerv2_s12@128
    CAFormer: caformer_s18@128 convformer_s18@128
    Hiera: hiera_tiny_224 hieradet_small@128
    MViTv2: mvitv2_tiny
    Sequencer2D: sequencer2d_s@112
    TinyViT: tiny_vit_5m_224
    RepViT: repvit_m0_9
    SHViT: shvit_s1
    SwiftFormer: swiftformer_xs
    NextViT: nextvit_small@128
    Visformer: visformer_tiny
    iFormer: iformer_t
    ViTamin: vitamin_small_224@128
    Qwen3 ViT: qwen3_vit_88m@128
    Gemma4 ViT: gemma4_vit_167m@144
    DeepSeek ViT: deepseek_vit_412m@112
"""
TINY = """
    timm test: test_byobnet test_coatnet test_convnext test_convnext2 test_convnext3 test_efficientnet
    timm test: test_efficientnet_evos test_efficientnet_gn test_efficientnet_ln test_mambaout test_maxvit test_nfnet
    timm test: test_resnet test_vit test_vit2 test_vit3 test_vit4 test_vit_relpos
"""
TORCHVISION_FPN = "torchvision.models.detection.backbone_utils:resnet_fpn_backbone"
FPN = {"model_kwargs": {"backbone_name": "resnet50", "weights": None}}
OTHERS = (
    *(
        ZooEntry(family="torchvision", model=f"torchvision:{name}", size=(128, 128))
        for name in ("resnet50", "convnext_tiny", "vgg11")
    ),
    *(
        ZooEntry(family="torchvision", model=f"torchvision:{name}", size=(128, 128))
        for name in ("swin_t", "swin_v2_t", "vit_b_16")
    ),
    *(
        ZooEntry(family="torchvision", model=f"torchvision:{name}")
        for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5")
    ),
    *(
        ZooEntry(family="torchvision", model=f"torchvision:{name}", size=(160, 160))
        for name in ("googlenet", "squeezenet1_1")
    ),
    ZooEntry(family="torchvision", model="torchvision:maxvit_t", size=(224, 224)),
    ZooEntry(family="video", model="torchvision:r3d_18", size=(8, 56, 56)),
    ZooEntry(family="video", model="torchvision:swin3d_t", size=(8, 64, 64)),
    ZooEntry(family="segmentation (dict)", model="torchvision:fcn_resnet50", size=(96, 96)),
    ZooEntry(
        family="segmentation (dict)", model="torchvision:fcn_resnet50", size=(96, 96), options={"layer": "output[out]"}
    ),
    ZooEntry(
        family="segmentation (dict)",
        model="torchvision:lraspp_mobilenet_v3_large",
        size=(128, 128),
        options={"layer": "output[out]"},
    ),
    ZooEntry(family="segmentation (dict)", model="torchvision:deeplabv3_mobilenet_v3_large", size=(128, 128)),
    *(
        ZooEntry(
            family="pyramid (dict)",
            model=TORCHVISION_FPN,
            name="resnet50_fpn",
            size=(128, 128),
            options={**FPN, "layer": f"output[{key}]"},
        )
        for key in ("0", "3", "pool")
    ),
    *(
        ZooEntry(family="pyramid (list)", model=seeded(Pyramid), size=(128, 128), options={"layer": f"output[{level}]"})
        for level in (0, 2)
    ),
    ZooEntry(family="1 channel", model="resnet18", size=(128, 128), options={"in_chans": 1}),
    ZooEntry(family="1 channel", model="vit_tiny_patch16_224", size=(128, 128), options={"in_chans": 1}),
    ZooEntry(family="6 channels", model="resnet18", size=(128, 128), options={"in_chans": 6}),
    ZooEntry(family="6 channels", model="convnext_atto", size=(128, 128), options={"in_chans": 6}),
    ZooEntry(family="non-square", model="resnet18", size=(96, 160)),
    ZooEntry(family="non-square", model="swin_tiny_patch4_window7_224", size=(96, 160)),
    ZooEntry(family="non-square", model="vit_tiny_patch16_224", size=(96, 160)),
    ZooEntry(
        family="non-square",
        model="vit_tiny_patch16_224",
        size=(100, 150),
        options={"model_kwargs": {"dynamic_img_size": True, "dynamic_img_pad": True}},
    ),
    ZooEntry(
        family="dynamic_img_size",
        model="vit_tiny_patch16_224",
        size=(96, 160),
        options={"model_kwargs": {"dynamic_img_size": True}},
    ),
    ZooEntry(
        family="1-D",
        model=seeded(Signal),
        options={"images": torch.randn(4, 2, 256, generator=torch.Generator().manual_seed(0))},
    ),
)
ZOO: tuple[ZooEntry, ...] = (*_timm(CONVOLUTIONS), *_timm(TRANSFORMERS), *_timm(TINY), *OTHERS)
