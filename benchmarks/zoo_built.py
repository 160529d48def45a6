"""Models of torchvision, transformers, MONAI, segmentation-models-pytorch and open_clip for ``zoo_oracle.py``: random
weights, small sizes.

What is not installed has no rows. Detectors are built for inputs that they need not resize much.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model, and what must hold."""

    group: str
    name: str
    make: Callable[[], nn.Module]
    size: tuple[int, ...] = (64, 64)
    channels: int = 3
    #: The deepest layer with positions; () accepts any whose unit and map are right.
    layers: tuple[str, ...] = ()
    #: Sizes that its map may have; () accepts every one.
    spaces: tuple[tuple[int, ...], ...] = ()
    #: Largest relative L1 difference of two right maps; larger for models that compute in float32 whatever their
    #: weights are.
    tolerance: float = 1e-9
    #: right: must be measured. refused: must not. either.
    expected: str = "right"


#: Patches of 8 x 8 pixels of 64 x 64.
PATCHES = ((8, 8),)


def vision_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a torchvision model without weights."""

    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options)

    return make


def _detector(name: str, **options: Any) -> Callable[[], nn.Module]:
    return vision_model(name, weights_backbone=None, **options)


def _small_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(image_size=64, patch_size=8, num_layers=3, num_heads=2, hidden_dim=24, mlp_dim=48)


def _small_maxvit() -> nn.Module:
    from torchvision.models.maxvit import MaxVit

    return MaxVit(
        (64, 64),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16],
        block_layers=[1, 1],
        head_dim=4,
        stochastic_depth_prob=0,
    )


def _torchvision() -> list[Built]:
    if importlib.util.find_spec("torchvision") is None:
        return []
    row = partial(Built, group="torchvision")
    plain = {
        "resnet18": ("layer4",),
        "resnext50_32x4d": ("layer4",),
        "vgg11_bn": ("avgpool",),
        "densenet121": ("features",),
        "convnext_tiny": ("features",),
        "efficientnet_b0": ("features",),
        "regnet_y_400mf": ("trunk_output",),
        "mobilenet_v3_small": ("features",),
        "shufflenet_v2_x0_5": ("conv5",),
        "mnasnet0_5": ("layers",),
        "squeezenet1_1": ("classifier.2", "classifier.1", "features"),
        "swin_t": ("features",),
        "swin_v2_t": ("features",),
    }
    return [
        *(row(name=name, make=vision_model(name), size=(96, 96), layers=layers) for name, layers in plain.items()),
        row(
            name="googlenet",
            make=vision_model("googlenet", init_weights=False, aux_logits=False),
            size=(96, 96),
            layers=("inception5b",),
        ),
        row(name="vit (small)", make=_small_vit, layers=("encoder.layers",)),
        row(name="maxvit (small)", make=_small_maxvit, layers=("blocks", "blocks.1")),
        row(name="fcn_resnet50", make=_detector("fcn_resnet50", num_classes=5), layers=("classifier", "output[out]")),
        row(
            name="deeplabv3_mobilenet",
            make=_detector("deeplabv3_mobilenet_v3_large", num_classes=5, aux_loss=True),
            layers=("classifier", "aux_classifier", "output[out]", "output[aux]"),
        ),
        row(
            name="lraspp_mobilenet",
            make=_detector("lraspp_mobilenet_v3_large", num_classes=5),
            layers=("classifier", "output[out]"),
        ),
        row(name="r3d_18", make=vision_model("r3d_18"), size=(4, 32, 32), layers=("layer4",)),
        row(name="mc3_18", make=vision_model("mc3_18"), size=(4, 32, 32), layers=("layer4",)),
        row(name="swin3d_t", make=vision_model("swin3d_t"), size=(4, 64, 64), layers=("features",)),
        row(name="ssdlite320", make=_detector("ssdlite320_mobilenet_v3_large"), size=(320, 320), expected="either"),
        row(
            name="fasterrcnn_mobilenet",
            make=_detector("fasterrcnn_mobilenet_v3_large_320_fpn", min_size=128, max_size=160),
            size=(128, 128),
            expected="either",
        ),
        row(
            name="retinanet_resnet50",
            make=_detector("retinanet_resnet50_fpn", min_size=128, max_size=160),
            size=(128, 128),
            expected="either",
        ),
        row(
            name="maskrcnn_resnet50 (resizes)",
            make=_detector("maskrcnn_resnet50_fpn", min_size=96, max_size=160),
            size=(64, 64),
            expected="either",
        ),
    ]


def _config(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers from its configuration's name, without "Config", and the model's, as ``Config:Model``."""
    config, _, model = kind.partition(":")

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, model or f"{config}Model")(getattr(transformers, f"{config}Config")(**options))

    return make


class _Calls(nn.Module):
    """A model with another calling convention."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.module, x)


def _clips(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A model of clips (B, T, C, H, W), of (B, C, T, H, W)."""
    return lambda: _Calls(make(), lambda m, x: m(x.transpose(1, 2)).last_hidden_state)


def _embedded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A language model, of embeddings (B, C, L)."""
    return lambda: _Calls(make(), lambda m, x: m(inputs_embeds=x.transpose(1, 2)).last_hidden_state)


def _mask2former() -> nn.Module:
    import transformers as t

    backbone = t.SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=12,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = t.Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=25,
    )
    return t.Mask2FormerModel(config)


def _detr() -> nn.Module:
    import transformers as t

    backbone = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = t.DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        d_model=16,
        num_queries=100,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    return t.DetrModel(config)


def _transformers() -> list[Built]:
    if importlib.util.find_spec("transformers") is None:
        return []
    vit = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    square = {**vit, "image_size": 64, "patch_size": 8}
    text = {**vit, "vocab_size": 50, "max_position_embeddings": 64}

    return [
        Built(group="transformers", name=name, make=make, **more)
        for name, make, more in (
            ("ViT", _config("ViT", **square), {"layers": ("layers.2",), "spaces": PATCHES}),
            (
                "DINOv2 with registers",
                _config("Dinov2WithRegisters", **square, num_register_tokens=4, mlp_ratio=2),
                {"layers": ("encoder.layer.2",), "spaces": PATCHES},
            ),
            (
                "DINOv3 ViT",
                _config("DINOv3ViT", **square, num_register_tokens=4),
                {"layers": ("model.layer.2",), "spaces": PATCHES},
            ),
            (
                "Swin",
                _config(
                    "Swin", image_size=64, patch_size=4, embed_dim=12, depths=[2, 2], num_heads=[2, 2], window_size=4
                ),
                {"layers": ("encoder.layers.1", "encoder.layers.1[0]"), "spaces": PATCHES},
            ),
            (
                "SegFormer",
                _config("Segformer", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], decoder_hidden_size=16),
                {"layers": ("stages.3", "stages.3.blocks.0")},  # before the norm that ends a stage
            ),
            ("CLIP vision", _config("CLIPVision", **square), {"layers": ("encoder.layers.2",), "spaces": PATCHES}),
            ("SigLIP vision", _config("SiglipVision", **square), {"layers": ("encoder.layers.2",), "spaces": PATCHES}),
            ("BEiT", _config("Beit", **square), {"layers": ("layers.2",), "spaces": PATCHES}),
            (
                "ViTMAE",
                _config(
                    "ViTMAE",
                    **square,
                    decoder_hidden_size=16,
                    decoder_num_hidden_layers=1,
                    decoder_num_attention_heads=2,
                ),
                {"expected": "refused"},
            ),
            (
                "Hiera",
                _config("Hiera", image_size=[64, 64], embed_dim=8, depths=[1, 1, 2, 1], num_heads=[1, 1, 2, 2]),
                {"expected": "either", "layers": ("encoder.stages.3",), "spaces": ((2, 2),)},
            ),
            (
                "VideoMAE",
                _clips(_config("VideoMAE", **square, num_frames=4)),
                {"size": (4, 64, 64), "layers": ("module.encoder.layer.2",), "spaces": ((2, 8, 8),)},
            ),
            (
                "OWL-ViT vision",
                _config("OwlViTVision", **square),
                {"layers": ("vision_model.encoder.layers.2",), "spaces": PATCHES},
            ),
            ("DETR", _detr, {"expected": "refused"}),
            ("Mask2Former", _mask2former, {"expected": "either", "spaces": ((16, 16), (8, 8), (4, 4), (2, 2))}),
            ("Llama (ids)", _config("Llama", **text, num_key_value_heads=2), {"expected": "refused"}),
            (
                "Llama on embeddings",
                _embedded(_config("Llama", **text, num_key_value_heads=2)),
                {
                    "size": (48,),
                    "channels": 24,
                    "layers": ("module.layers.2", "module.norm", "output"),
                    "spaces": ((48,),),
                },
            ),
            (
                "Mamba on embeddings",
                _embedded(_config("Mamba", vocab_size=50, hidden_size=24, state_size=4, num_hidden_layers=2)),
                {
                    "size": (48,),
                    "channels": 24,
                    "layers": ("module.layers.1", "module.norm_f", "output"),
                    "spaces": ((48,),),
                    "tolerance": 1e-5,
                },
            ),
            (
                "ConvNeXtV2",
                _config("ConvNextV2", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
                {"layers": ("encoder.stages.3",)},
            ),
        )
    ]


def monai_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what builds a net of MONAI."""

    def make() -> nn.Module:
        import monai.networks.nets as nets

        return getattr(nets, name)(**options)

    return make


def _smp(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import segmentation_models_pytorch as smp

        return getattr(smp, name)("resnet18", encoder_weights=None, classes=4)

    return make


def _clip_tower() -> nn.Module:
    from open_clip.transformer import VisionTransformer

    return VisionTransformer(image_size=64, patch_size=8, width=24, layers=3, heads=2, mlp_ratio=2.0, output_dim=16)


def _others() -> list[Built]:
    rows: list[Built] = []
    if importlib.util.find_spec("monai") is not None:
        plane = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
        rows += [
            Built(
                group="others",
                name="MONAI UNet",
                make=monai_model("UNet", **plane, channels=(8, 16, 16), strides=(2, 2)),
                channels=1,
            ),
            Built(
                group="others",
                name="MONAI BasicUNet",
                make=monai_model("BasicUNet", **plane, features=(8, 8, 8, 16, 16, 8)),
                channels=1,
            ),
            Built(
                group="others",
                name="MONAI SegResNet",
                make=monai_model("SegResNet", **plane, init_filters=8),
                channels=1,
            ),
            *(
                []
                if importlib.util.find_spec("einops") is None
                else [
                    Built(
                        group="others",
                        name="MONAI SwinUNETR",
                        make=monai_model("SwinUNETR", **plane, feature_size=12, depths=(1, 1, 1, 1)),
                        channels=1,
                    ),
                    Built(
                        group="others",
                        name="MONAI UNETR",
                        channels=1,
                        make=monai_model(
                            "UNETR", **plane, img_size=64, feature_size=8, hidden_size=24, mlp_dim=48, num_heads=2
                        ),
                    ),
                ]
            ),
            Built(
                group="others",
                name="MONAI UNet (volume)",
                size=(32, 32, 32),
                channels=1,
                make=monai_model("UNet", spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,)),
            ),
        ]
    if importlib.util.find_spec("segmentation_models_pytorch") is not None:
        kinds = ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3Plus", "Linknet", "MAnet", "Segformer")
        rows += [
            Built(group="others", name=f"smp {name}", make=_smp(name), layers=("segmentation_head",)) for name in kinds
        ]
    if importlib.util.find_spec("open_clip") is not None:
        rows.append(Built(group="others", name="open_clip vision tower", make=_clip_tower, layers=("transformer",)))
    return rows


BUILT: tuple[Built, ...] = (*_torchvision(), *_transformers(), *_others())
