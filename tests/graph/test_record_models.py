"""Public models: each is recorded by its shapes alone, and is what its modules' hooks see."""

import importlib.util

import pytest
import timm
import torch
import torchvision
from replay import assert_marks_are_what_hooks_see, assert_same_derivative

from erfscope.core.graph.record import record
from erfscope.core.system.containers import tensors_of

pytestmark = pytest.mark.more

#: A small model of each of timm's modules.
TIMM = """\
    test_vit test_byobnet beit_base_patch16_224 halonet_h1 caformer_s18 cait_xxs24_224 coat_tiny test_coatnet
    convit_tiny convmixer_768_32 test_convnext cpubone_nano crossvit_tiny_240 cs3darknet_focus_s csatv2 cspnext_tiny
    davit_tiny deepseek_vit_412m deit_tiny_patch16_224 densenet121 dla34 test_nfnet dpn48b ese_vovnet19b_slim_dw
    test_resnet edgenext_xx_small efficientformer_l1 efficientformerv2_s0 test_efficientnet efficientvim_m1
    efficientvit_b0 efficientvit_m0 vit_tiny_patch16_dinov3_qkvb fasternet_t0 fastvit_s12 mobilenetv3_small_050
    focalnet_tiny_srf gcvit_xxtiny gemma4_vit_167m ghostnet_050 mixer_s16_224 hardcorenas_b hgnetv2_b0
    hiera_tiny_224 sam2_hiera_tiny hrnet_w18_small iformer_s inception_next_atto inception_resnet_v2 inception_v3
    inception_v4 lcnetv2_small legacy_seresnet18 legacy_xception levit_384_s8 lowformer_b0 test_mambaout
    mobilenetv5_base mobilevit_xxs mvitv2_tiny naflexvit_base_patch16_siglip nasnetalarge nest_tiny nextvit_small
    pit_xs_224 pnasnet5large pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1 res2next50
    resnest14d resnetv2_18 rexnet_100 samvit_base_patch16_224 selecsls42 sequencer2d_s shvit_s1 skresnet18
    starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224
    test_vit_relpos tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_svt_small vgg11 visformer_tiny
    vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224 xception41p xcit_nano_12_p8_224
""".split()  # noqa: SIM905
#: What a forward pass may do: writes to views, inner autocast, attributes that it sets, attention of all kinds.
MEASURED = {
    "convit_tiny": {"img_size": 64, "depth": 3},
    "edgenext_xx_small": {},
    "efficientformerv2_s0": {"img_size": 64},
    "efficientnet_b0": {},
    "efficientvit_b0": {},
    "levit_128s": {"img_size": 64},
    "mobilevit_xxs": {},
    "pvt_v2_b0": {},
    "resnet18": {},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4, "depths": (2, 2)},
    "test_convnext": {},
    "test_vit_relpos": {"img_size": 64},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 3},
    "xcit_nano_12_p16_224": {"img_size": 64},
}
BRANCHING = {
    "fasterrcnn_resnet50_fpn": {"min_size": 64, "max_size": 96},
    "retinanet_resnet50_fpn": {"min_size": 64, "max_size": 96},
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
WINDOWS = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
}
STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
TRANSFORMERS = {
    **dict.fromkeys(("ViT", "DeiT", "Beit", "Dinov2", "DINOv3ViT", "CLIPVision", "SiglipVision", "Yolos"), VIT),
    "Yolos": VIT | {"image_size": [32, 32]},
    **dict.fromkeys(("Swin", "Swinv2"), WINDOWS),
    **dict.fromkeys(("ConvNextV2", "DINOv3ConvNext"), STAGES),
    "Segformer": STAGES,
    "PvtV2": STAGES | {"num_attention_heads": [1, 2, 2, 2]},
    "Hiera": {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2]},
    "MobileViT": {"hidden_sizes": [16] * 3, "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16], "image_size": 64},
    "FocalNet": {"image_size": 32, "embed_dim": 12, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]},
}


def built(name, **options):
    torch.manual_seed(0)
    return timm.create_model(name, **options).eval()


def images(batch, side=64, **more):
    return torch.rand(batch, 3, side, side, **{"dtype": torch.float64} | more)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize("name", TIMM)
def test_a_model_of_each_of_timms_modules_is_recorded_without_numbers(name):
    with torch.device("meta"):
        module = built(name)
    found = {key: id(tensor) for key, tensor in tensors_of(module).items()}
    graph = record(module, (images(2, module.pretrained_cfg["input_size"][-1], device="meta", dtype=torch.float32),))
    assert (graph.by, graph.unfaithful) == ("shapes", ())
    assert {key: id(tensor) for key, tensor in tensors_of(module).items()} == found
    assert set(graph.marks[""].outputs.values()) <= graph.live


@pytest.mark.parametrize("name", MEASURED)
def test_every_modules_inputs_and_outputs_are_what_hooks_see(name):
    module, x = built(name, **MEASURED[name]).double(), images(2)
    graph = record(module, (x,))
    assert_marks_are_what_hooks_see(graph, module, x)
    assert_same_derivative(graph, module, x)


@pytest.mark.parametrize("name", BRANCHING)
def test_a_whole_detector_is_recorded_along_the_path_taken(name):
    torch.manual_seed(0)
    options = {"weights": None, "weights_backbone": None, **BRANCHING[name]}
    module = torchvision.models.get_model(name, **options).double().eval()
    pictures = list(images(2, 80))
    graph = record(module, (pictures,))
    assert graph.by == "path taken"
    assert_marks_are_what_hooks_see(graph, module, pictures)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers_are_recorded_by_their_shapes(name):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name])
    module = getattr(transformers, f"{name}Model")(config).double().eval()
    side = TRANSFORMERS[name].get("image_size", 64)
    x = images(2, side[0] if isinstance(side, list) else side)
    graph = record(module, (x,))
    assert (graph.by, graph.unfaithful) == ("shapes", ())
    assert_marks_are_what_hooks_see(graph, module, x)
