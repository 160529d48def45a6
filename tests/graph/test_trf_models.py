"""Receptive fields of real models, and the behaviour of a recording."""

import itertools

import pytest
import timm
import torch
import torch.nn.functional as F
from oracle import load, sound_norms
from torch import nn

import erfscope
from erfscope import ErfscopeError


def of(name, space, **options):
    """A timm model built on the meta device."""
    with torch.device("meta"):
        return load(timm.create_model(name, **options), space)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "size"),
    [
        ("resnet18", "layer4", 435),
        ("resnet34", "layer4", 899),
        ("resnet50", "layer4", 427),
        ("resnet101", "layer4", 971),
        ("resnet152", "layer4", 1451),
        ("wide_resnet50_2", "layer4", 427),
        ("vgg16", "features.30", 212),
        ("convnext_tiny", "stages.3", 1688),
    ],
)
def test_published_sizes(name, layer, size):
    """Kim et al. 2023, table 1, for the ResNets; VGG-16 after pool5; ConvNeXt-T by the formula of its layers."""
    model = of(name, (224, 224))
    field = model.site(layer).trf(model.site(layer).nearest_unit())
    assert field.size_px == field.local_size_px == (size, size)
    assert field.exact
    assert field.center_exact
    assert field.global_by is None
    assert field.stride_px == (32.0, 32.0)


@pytest.mark.slow
def test_a_convnext_unit_sits_at_32_u_and_15_and_a_half():
    model = of("convnext_tiny", (224, 288))
    assert model.site("stages.3").trf((2, 5)).center_px == (79.5, 175.5)
    assert model.site("stages.3").nearest_unit() == (3, 4)


def test_a_plain_stack_of_3x3_sees_2_n_and_1():
    for n in (1, 5, 20):
        net = nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1) for _ in range(n)])
        assert load(net, (9, 9), 1).site("output").trf((4, 4)).size_px == (2 * n + 1, 2 * n + 1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [224, 225, 230])
def test_padding_computed_from_the_size_gives_whole_boxes_of_one_size(size):
    model = of("tf_mobilenetv3_small_minimal_100", (size, size))
    (shape,) = (layer.shape for layer in model.recording.layers if layer.name == "blocks.5")
    boxes = [model.site("blocks.5").trf((u, u)) for u in range(shape[2])]
    assert {box.local_size_px for box in boxes} == {boxes[0].local_size_px}
    assert {box.stride_px for box in boxes} == {(32.0, 32.0)}
    centers = [box.center_px[0] for box in boxes]
    assert {b - a for a, b in itertools.pairwise(centers)} == {32.0}
    nearest = min(range(shape[2]), key=lambda u: (abs(centers[u] - (size - 1) / 2), -u))
    assert model.site("blocks.5").nearest_unit() == (nearest, nearest)


@pytest.mark.slow
def test_resnet152_at_2048_pixels():
    field = of("resnet152", (2048, 2048)).site("layer4").trf((32, 32))
    assert field.size_px == (1451, 1451)
    assert field.box_px == ((299, 1749), (299, 1749))


@pytest.mark.slow
def test_a_transformers_stages_are_maps_and_references():
    """timm permutes a block's tokens into a map only after the block; later blocks go on from the tokens."""
    model = of("vit_tiny_patch16_224", (224, 192), img_size=(224, 192))
    (stage,) = (layer for layer in model.recording.layers if layer.name == "blocks.5")
    assert (stage.stage, stage.shape) == (True, (1, 192, 14, 12))
    assert model.site("blocks.5").nearest_unit() == (7, 6)
    field = model.site("blocks.5").trf((7, 6))
    assert field.center_px == (16 * 7 + 7.5, 16 * 6 + 7.5)
    assert field.local_size_px == (16, 16)
    inner = model.site("blocks.5", "blocks.3").trf((7, 6))
    assert (inner.size_px, inner.local_box_px, inner.all_paths) == ((14, 12), ((7, 7), (6, 6)), True)
    tokens = model.site("blocks.4.mlp.fc1", "blocks.3").trf((7, 6))
    assert (tokens.size_px, tokens.local_box_px, tokens.all_paths) == ((14, 12), ((7, 7), (6, 6)), True)


TINY = [name for name in timm.list_models("test_*") if name != "test_vit3"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_no_gradient_of_a_tiny_model_lies_outside_its_box(name):
    """Random weights, float64, the last map of every architecture family that timm keeps for tests."""
    module = timm.create_model(name).eval().double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    size = module.default_cfg["input_size"][1:]
    x = torch.randn(1, 3, *size, dtype=torch.float64, requires_grad=True)
    model = load(module, size)
    layer = next(n for n in ("stages", "blocks", "layer4") if hasattr(module, n))
    layer = f"{layer}.{len(module.get_submodule(layer)) - 1}"
    unit = model.site(layer).nearest_unit()
    with sound_norms():
        values = model.adapter.features(x, model.site(layer)).map[(0, slice(None), *unit)]
    (gradient,) = torch.autograd.grad((values * torch.randn(len(values), dtype=torch.float64)).sum(), x)
    seen = (gradient != 0).any(1)[0].nonzero()
    support = tuple(zip(seen.min(0).values.tolist(), seen.max(0).values.tolist(), strict=True))
    field = model.site(layer).trf(unit)
    assert field.exact, field.inexact_by
    # Shortcuts through average pooling lie half a cell beside padded convolutions.
    beside = ("test_byobnet", "test_maxvit", "test_nfnet", "test_resnet")
    assert field.center_exact == (name not in beside), field.center_inexact_reason
    box = field.clipped_box_px
    assert all(first <= low and high <= last for (first, last), (low, high) in zip(box, support, strict=True))
    if field.global_by is None:
        assert box == support


def test_a_modules_input_is_a_reference():
    assert of("resnet18", (224, 224)).site("layer4.1.bn2", "layer4.1:in").trf((3, 3)).size_px == (5, 5)


def test_a_skip_around_the_reference_is_noticed():
    model = of("resnet18", (64, 64))
    assert not model.site("layer1.0", "layer1.0.conv1").trf((8, 8)).all_paths
    assert model.site("layer1.0", "layer1.0:in").trf((8, 8)).all_paths


def test_a_reference_is_the_value_at_that_moment_not_what_an_in_place_operation_makes_of_it_later():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))

        def forward(self, x):
            y = self.a(x)
            y.add_(self.b(x))
            return self.c(y)

    model = load(Net(), (16, 16), 2)
    assert model.site("a").trf((8, 8)).size_px == (3, 3)
    assert model.site("c", "a").trf((8, 8)).size_px == (3, 3)
    assert not model.site("c", "a").trf((8, 8)).all_paths
    assert model.site("c", "c:in").trf((8, 8)).all_paths


def test_errors_say_what_was_asked_and_what_there_is():
    model = of("resnet18", (64, 64))
    with pytest.raises(ErfscopeError, match=r"unknown layer 'layer5'.*did you mean 'layer"):
        model.site("layer5").trf((0, 0))
    with pytest.raises(ErfscopeError, match=r"unknown reference 'imag'.*did you mean 'image'"):
        model.site("layer4", "imag").trf((0, 0))
    with pytest.raises(ErfscopeError, match=r"unit \(2, 0\) lies outside the map of layer4, which has 2x2 units"):
        model.site("layer4").trf((2, 0))
    with pytest.raises(ErfscopeError, match="layer 'layer2' does not depend on 'layer4'"):
        model.site("layer2", "layer4").trf((0, 0))
    with pytest.raises(ErfscopeError, match=r"layer 'fc' holds no spatial map: its output has shape \(1, 1000\)"):
        model.site("fc").trf((0, 0))


def test_errors_of_the_callers_own_forward_pass_through():
    def forward(module, x):
        raise ErfscopeError("mine")

    adapter = erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=(8, 8), forward=forward)
    with pytest.raises(ErfscopeError, match="mine"):
        _ = adapter.recording


@pytest.mark.slow
def test_inference_mode_changes_nothing():
    with torch.device("meta"):
        module = timm.create_model("vit_tiny_patch16_224")
    plain = load(module, (224, 224)).site("blocks.5").trf((7, 7))
    with torch.inference_mode():
        assert load(module, (224, 224)).site("blocks.5").trf((7, 7)) == plain
    assert plain.exact


def test_pytorchs_fused_encoder_is_seen_through_and_its_switch_is_left_as_it_was():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(2, 8, 4, 4)
            self.layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)

        def forward(self, x):
            y = self.layer(self.patch(x).flatten(2).transpose(1, 2))
            return y.transpose(1, 2).unflatten(2, (4, 4))

    before = torch.backends.mha.get_fastpath_enabled()
    field = load(Net().eval(), (16, 16), 2).site("output").trf((2, 1))
    assert field.global_by is not None
    assert field.exact
    assert field.local_box_px == ((8, 11), (4, 7))
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_layers_come_in_the_order_of_execution_with_their_stages():
    model = of("resnet18", (64, 64))
    names = [layer.name for layer in model.recording.layers]
    assert names.index("layer1.0.conv1") < names.index("layer1.0") < names.index("layer1") < names.index("layer4")
    assert not any(name.endswith(":in") or name == "image" for name in names)
    by_name = {layer.name: layer for layer in model.recording.layers}
    assert by_name["layer4"].shape == (1, 512, 2, 2)
    assert "fc" not in by_name


class PooledBins(nn.Module):
    """Means over 3 x 3 bins beside the map that they are of, both interpolated with aligned corners, as in PSPNet.

    Where the bins' centre lies more than a stride from the middle of a unit's share of the image, the centre is the
    map's: centres jump."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 2, 3, 8, 1)

    def forward(self, x):
        y = self.stem(x)
        bins = F.interpolate(F.adaptive_avg_pool2d(y, 3), size=y.shape[2:], mode="bilinear", align_corners=True)
        return F.interpolate(torch.cat([bins, y], 1), size=x.shape[2:], mode="bilinear", align_corners=True)


@pytest.mark.parametrize("size", [40, 64])
def test_the_default_unit_is_the_nearest_of_all_where_centres_are_not_evenly_spaced(size):
    model = load(PooledBins(), (size, size), 2)
    centers = [model.site("output").trf((unit, 0)).center_px[0] for unit in range(size)]
    off = [abs(center - (size - 1) / 2) for center in centers]
    nearest = max(unit for unit in range(size) if off[unit] <= min(off) + 1e-9)
    assert model.site("output").nearest_unit() == (nearest, nearest)


def test_a_pooled_map_is_global_with_its_centre_in_the_middle():
    model = load(nn.Sequential(nn.Conv2d(2, 2, 3), nn.AdaptiveAvgPool2d(1)), (12, 9), 2, layout="NCHW")
    field = model.site("output").trf((0, 0))
    assert field.global_by == "global average pooling (1)"
    assert field.center_px == (5.5, 4.0)
    assert field.local_size_px == (12, 9)


@pytest.mark.slow
def test_an_image_of_a_million_by_a_million_pixels_costs_nothing():
    net = nn.Sequential(nn.Conv2d(2, 2, 7, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 2, 3, padding=1))
    field = load(net, (2**20, 2**20), 2).site("output").trf((2**17, 2**17))
    assert field.size_px == (19, 19)
    assert field.center_px == (2.0**19, 2.0**19)


def test_a_decoder_has_a_stride_below_that_of_its_encoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(2, 2, 4, 4), nn.ConvTranspose2d(2, 2, 2, 2)

        def forward(self, x):
            return self.up(self.down(x))

    field = load(Net(), (32, 32), 2).site("output").trf((6, 7))
    assert field.stride_px == (2.0, 2.0)
    assert field.box_px == ((12, 15), (12, 15))


def test_interpolated_features_join_a_finer_map():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(2, 2, 4, 4), nn.Conv2d(2, 2, 3, 2, 1)

        def forward(self, x):
            fine = self.fine(x)
            return fine + F.interpolate(self.coarse(fine), size=fine.shape[2:])

    field = load(Pyramid(), (32, 32), 2).site("output").trf((4, 5))
    # Unit 4 and 5 both sit over coarse unit 2, which reads the fine units 3 to 5.
    assert field.box_px == ((12, 23), (12, 23))
    assert field.stride_px == (4.0, 4.0)
