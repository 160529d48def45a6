"""Receptive fields of real models, and the behaviour of a recording."""

import copy
import itertools

import pytest
import timm
import torch
import torch.nn.functional as F
from test_trf_oracle import FIRST, covers, recorded, visit_with
from torch import nn

from erfscope.errors import ErfscopeError
from erfscope.geometry.layout import Layout
from erfscope.trf.record import RecordingError, record
from erfscope.trf.rules import RULES

SWIN = Layout(order="channels_last")


def of(name, space, *, layouts=None, **options):
    """The recording of a timm model built on the meta device."""
    with torch.device("meta"):
        module = timm.create_model(name, **options)
    return recorded(module, space, channels=3, layouts=layouts)


@pytest.mark.parametrize(
    ("name", "layer", "size"),
    [
        ("resnet18", "layer4", 435),
        ("resnet34", "layer4", 899),
        ("resnet50", "layer4", 427),
        ("resnet101", "layer4", 971),
        ("resnet152", "layer4", 1451),
        ("wide_resnet50_2", "layer4", 427),
        ("vgg16", "features", 212),
        ("convnext_tiny", "stages.3", 1688),
    ],
)
def test_published_sizes(name, layer, size):
    """Kim et al. 2023, table 1, for the ResNets; VGG-16 after pool5; ConvNeXt-T by the formula of its layers."""
    recording = of(name, (224, 224))
    field = recording.trf(layer, recording.default_unit(layer))
    assert field.size_px == field.local_size_px == (size, size)
    assert field.exact
    assert field.center_exact
    assert field.global_by is None
    assert field.stride_px == (32.0, 32.0)


def test_a_resnet_unit_sits_at_32_u_and_its_box_is_not_clipped():
    recording = of("resnet18", (224, 224))
    field = recording.trf("layer4", (3, 3))
    assert field.box_px == ((-121, 313), (-121, 313))
    assert field.clipped_box_px == ((0, 223), (0, 223))
    assert recording.default_unit("layer4") == (3, 3)
    for u in range(7):
        assert recording.trf("layer4", (u, 6 - u)).center_px == (32.0 * u, 32.0 * (6 - u))


def test_a_convnext_unit_sits_at_32_u_and_15_and_a_half():
    recording = of("convnext_tiny", (224, 288))
    assert recording.trf("stages.3", (2, 5)).center_px == (79.5, 175.5)
    assert recording.default_unit("stages.3") == (3, 4)


def test_a_plain_stack_of_3x3_sees_2_n_and_1():
    for n in (1, 5, 20):
        net = nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1) for _ in range(n)])
        assert recorded(net, (9, 9), channels=1).trf("out", (4, 4)).size_px == (2 * n + 1, 2 * n + 1)


@pytest.mark.parametrize("size", [224, 225, 230])
def test_padding_computed_from_the_size_gives_whole_boxes_of_one_size(size):
    recording = of("tf_mobilenetv3_small_minimal_100", (size, size))
    (shape,) = (layer.shape for layer in recording.layers if layer.name == "blocks")
    boxes = [recording.trf("blocks", (u, u)) for u in range(shape[2])]
    assert {box.local_size_px for box in boxes} == {boxes[0].local_size_px}
    assert {box.stride_px for box in boxes} == {(32.0, 32.0)}
    centers = [box.center_px[0] for box in boxes]
    assert {b - a for a, b in itertools.pairwise(centers)} == {32.0}
    nearest = min(range(shape[2]), key=lambda u: (abs(centers[u] - (size - 1) / 2), -u))
    assert recording.default_unit("blocks") == (nearest, nearest)


def test_squeeze_excite_is_global_with_a_local_size():
    recording = of("efficientnet_b0", (224, 224))
    field = recording.trf("blocks", recording.default_unit("blocks"))
    assert field.size_px == (224, 224)
    assert field.box_px == ((0, 223), (0, 223))
    assert field.local_size_px == (851, 851)
    assert field.global_by == "global average pooling (blocks.0.0.se)"
    assert field.center_px == (96.0, 96.0)


def test_a_vision_transformer_is_global_and_its_unit_is_a_patch():
    tokens = Layout(order="tokens", grid=(14, 12), prefix=1)
    recording = of(
        "vit_tiny_patch16_224", (224, 192), img_size=(224, 192), layouts={"blocks.3": tokens, "blocks.5": tokens}
    )
    assert recording.default_unit("blocks.5") == (7, 6)
    field = recording.trf("blocks.5", (7, 6))
    assert field.center_px == (16 * 7 + 7.5, 16 * 6 + 7.5)
    assert field.local_size_px == (16, 16)
    assert field.global_by == "softmax attention (blocks.0.attn)"
    inner = recording.trf("blocks.5", (7, 6), wrt="blocks.3")
    assert inner.size_px == (14, 12)
    assert inner.local_box_px == ((7, 7), (6, 6))
    assert inner.global_by == "softmax attention (blocks.4.attn)"
    assert inner.all_paths


def test_swin_sees_its_windows_and_becomes_global_where_one_window_is_the_map():
    names = ("layers.0.blocks.0", "layers.0", "layers.3")
    recording = of("swin_tiny_patch4_window7_224", (224, 224), layouts=dict.fromkeys(names, SWIN))
    first = recording.trf("layers.0.blocks.0", (30, 30))
    assert first.box_px == ((112, 139), (112, 139))  # tokens 28 to 34
    assert first.center_px == (121.5, 121.5)
    second = recording.trf("layers.0", (30, 30))
    # Shifted by 3: tokens 24 to 30 (31 starts the next window), which lie in the windows 21 to 27 and 28 to 34.
    assert second.box_px == ((84, 139), (84, 139))
    last = recording.trf("layers.3", (3, 3))
    assert last.global_by == "softmax attention (layers.3.blocks.0.attn)"
    assert last.center_px == (111.5, 111.5)
    assert last.exact


TINY = [name for name in timm.list_models("test_*") if name != "test_vit3"]


@pytest.mark.parametrize("name", TINY)
def test_no_gradient_of_a_tiny_model_lies_outside_its_box(name):
    """Random weights, float64, the last map of every architecture family that timm keeps for tests."""
    module = timm.create_model(name).eval().double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    size = module.default_cfg["input_size"][1:]
    x = torch.randn(1, 3, *size, dtype=torch.float64, requires_grad=True)
    kept = {}
    layer = next(n for n in ("stages", "blocks", "layer4") if hasattr(module, n))
    layer = f"{layer}.{len(module.get_submodule(layer)) - 1}"
    handle = module.get_submodule(layer).register_forward_hook(lambda _, args, out: kept.update(out=out))
    module(x)
    handle.remove()
    out, layouts = kept["out"], {layer: SWIN} if "mamba" in name else {}
    if out.dim() == 3:
        side = int(out.shape[1] ** 0.5)
        layouts[layer] = Layout(order="tokens", grid=(side, side), prefix=out.shape[1] - side * side)
    recording = recorded(module, size, channels=3, layouts=layouts)
    values = layouts.get(layer, FIRST).to_map(out)
    unit = recording.default_unit(layer)
    (gradient,) = torch.autograd.grad(
        (values[0, :, *unit] * torch.randn(values.shape[1], dtype=torch.float64)).sum(), x
    )
    seen = (gradient != 0).any(1)[0].nonzero()
    support = tuple(zip(seen.min(0).values.tolist(), seen.max(0).values.tolist(), strict=True))
    field = recording.trf(layer, unit)
    assert field.exact, field.inexact_by
    # Shortcuts through average pooling lie half a cell beside padded convolutions.
    assert field.center_exact == (name not in ("test_byobnet", "test_maxvit", "test_nfnet", "test_resnet")), (
        field.center_doubt
    )
    assert covers(field.clipped_box_px, support)
    if field.global_by is None:
        assert field.clipped_box_px == support


def test_the_field_in_an_inner_map_is_counted_in_its_cells():
    recording = of("resnet18", (224, 224))
    field = recording.trf("layer4", (3, 3), wrt="layer3")
    assert field.reference_px == (14, 14)
    assert field.size_px == (15, 15)  # 3x3 stride 2, then three 3x3: 1 + 2 + 3 * 2 * 2
    assert field.stride_px == (2.0, 2.0)
    assert field.center_px == (6.0, 6.0)
    assert field.all_paths
    assert recording.trf("layer4.1.bn2", (3, 3), wrt="layer4.1:in").size_px == (5, 5)
    assert recording.trf("layer3", (3, 3), wrt="layer3").box_px == ((3, 3), (3, 3))


def test_a_skip_around_the_reference_is_noticed():
    recording = of("resnet18", (64, 64))
    assert not recording.trf("layer1.0", (8, 8), wrt="layer1.0.conv1").all_paths
    assert recording.trf("layer1.0", (8, 8), wrt="layer1.0:in").all_paths


def test_a_reference_is_the_value_at_that_moment_not_what_an_in_place_operation_makes_of_it_later():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))

        def forward(self, x):
            y = self.a(x)
            y.add_(self.b(x))
            return self.c(y)

    recording = recorded(Net(), (16, 16))
    assert recording.trf("a", (8, 8)).size_px == (3, 3)
    assert recording.trf("c", (8, 8), wrt="a").size_px == (3, 3)
    assert not recording.trf("c", (8, 8), wrt="a").all_paths
    assert recording.trf("c", (8, 8), wrt="c:in").all_paths


def test_errors_say_what_was_asked_and_what_there_is():
    recording = of("resnet18", (64, 64))
    with pytest.raises(ErfscopeError, match=r"unknown layer 'layer5'.*did you mean 'layer"):
        recording.trf("layer5", (0, 0))
    with pytest.raises(ErfscopeError, match=r"unknown reference 'imag'.*did you mean 'image'"):
        recording.trf("layer4", (0, 0), wrt="imag")
    with pytest.raises(ErfscopeError, match=r"unit \(2, 0\) lies outside the map of layer4, which has 2x2 units"):
        recording.trf("layer4", (2, 0))
    with pytest.raises(ErfscopeError, match="layer 'layer2' does not depend on 'layer4'"):
        recording.trf("layer2", (0, 0), wrt="layer4")
    with pytest.raises(ErfscopeError, match=r"layer 'fc' holds no spatial map: its output has shape \(1, 1000\)"):
        recording.trf("fc", (0, 0))


def test_a_forward_that_asks_for_values_is_a_clear_error():
    class Net(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(RecordingError, match="cannot be recorded on the meta device"):
        recorded(Net(), (8, 8))


def test_errors_of_the_adapter_pass_through():
    def visit(x, visitor):
        raise ErfscopeError("mine")

    with pytest.raises(ErfscopeError, match="mine"):
        record(visit, torch.empty(1, 3, 8, 8, device="meta"))


def test_inference_mode_changes_nothing():
    tokens = {"blocks.5": Layout(order="tokens", grid=(14, 14), prefix=1)}
    with torch.device("meta"):
        module = timm.create_model("vit_tiny_patch16_224")
    plain = recorded(module, (224, 224), channels=3, layouts=tokens).trf("blocks.5", (7, 7))
    with torch.inference_mode():
        assert recorded(module, (224, 224), channels=3, layouts=tokens).trf("blocks.5", (7, 7)) == plain
    assert plain.exact


def test_a_fault_in_a_rule_is_not_taken_for_one_of_the_model(monkeypatch):
    def broken(call):
        raise KeyError("broken")

    monkeypatch.setitem(RULES, "convolution", broken)
    with pytest.raises(AssertionError, match=r"the rule of aten.convolution.default failed"):
        recorded(nn.Conv2d(2, 2, 3), (8, 8))


def test_layers_come_in_the_order_of_execution_with_their_stages():
    recording = of("resnet18", (64, 64))
    names = [layer.name for layer in recording.layers]
    assert names.index("layer1.0.conv1") < names.index("layer1.0") < names.index("layer1") < names.index("layer4")
    assert not any(name.endswith(":in") or name == "image" for name in names)
    by_name = {layer.name: layer for layer in recording.layers}
    assert by_name["layer4"].shape == (1, 512, 2, 2)
    assert "fc" not in by_name


def test_a_stage_made_by_views_after_its_module_wins_and_both_serve_as_reference():
    """timm's transformers permute a block's tokens into a map only after the block; later blocks go on from the
    tokens."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.one, self.two = nn.Conv2d(2, 4, 4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            t = self.one(self.patch(x).flatten(2).transpose(1, 2))
            return t, self.two(t)

    net = copy.deepcopy(Net()).to("meta")
    tokens = Layout(order="tokens", grid=(4, 5))

    def visit(x, visitor):
        visitor("image", x, FIRST)
        first, second = net(x)
        visitor("one", first, None)
        visitor("one", first.transpose(1, 2).reshape(1, 4, 4, 5), FIRST, stage=True)
        visitor("two", second, tokens)

    recording = record(visit, torch.empty(1, 2, 16, 20, device="meta"))
    (one,) = (layer for layer in recording.layers if layer.name == "one")
    assert one.stage
    assert one.shape == (1, 4, 4, 5)
    assert recording.trf("one", (1, 2)).box_px == ((4, 7), (8, 11))
    field = recording.trf("two", (1, 2), wrt="one")
    assert field.box_px == ((1, 1), (2, 2))
    assert field.all_paths


@pytest.mark.parametrize(("size", "unit"), [(8, 4), (7, 3), (9, 4), (1, 0)])
def test_of_two_central_units_the_one_with_the_larger_index_is_taken(size, unit):
    assert recorded(nn.Conv2d(2, 2, 3, padding=1), (size, size)).default_unit("out") == (unit, unit)


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
    recording = recorded(PooledBins(), (size, size))
    centers = [recording.trf("out", (unit, 0)).center_px[0] for unit in range(size)]
    off = [abs(center - (size - 1) / 2) for center in centers]
    nearest = max(unit for unit in range(size) if off[unit] <= min(off) + 1e-9)
    assert recording.default_unit("out") == (nearest, nearest)


def test_a_map_of_one_unit_keeps_its_size_beyond_the_borders():
    recording = of("resnet18", (32, 32))
    field = recording.trf("layer4", (0, 0))
    assert field.size_px == (435, 435)
    assert field.box_px == ((-217, 217), (-217, 217))
    assert field.clipped_box_px == ((0, 31), (0, 31))


def test_a_pooled_map_is_global_with_its_centre_in_the_middle():
    recording = recorded(nn.Sequential(nn.Conv2d(2, 2, 3), nn.AdaptiveAvgPool2d(1)), (12, 9))
    field = recording.trf("out", (0, 0))
    assert field.global_by == "global average pooling (1)"
    assert field.center_px == (5.5, 4.0)
    assert field.local_size_px == (12, 9)


def test_the_module_and_the_switches_of_pytorch_are_left_as_they_were():
    module = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    meta = copy.deepcopy(module).to("meta")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.layer = nn.Conv2d(2, 8, 4, 4, device="meta"), meta

        def forward(self, x):
            y = self.layer(self.patch(x).flatten(2).transpose(1, 2))
            return y.transpose(1, 2).unflatten(2, (4, 4))

    field = record(visit_with(Net()), torch.empty(1, 2, 16, 16, device="meta")).trf("out", (2, 1))
    assert field.global_by is not None
    assert field.exact
    assert field.local_box_px == ((8, 11), (4, 7))
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert module.linear1.weight.device.type == "cpu"


def test_resnet152_at_2048_pixels():
    with torch.device("meta"):
        module = timm.create_model("resnet152").eval()
    field = record(visit_with(module), torch.empty(1, 3, 2048, 2048, device="meta")).trf("layer4", (32, 32))
    assert field.size_px == (1451, 1451)
    assert field.box_px == ((299, 1749), (299, 1749))


def test_batch_normalisation_in_eval_mode_is_recorded_in_one_step(monkeypatch):
    """PyTorch's own way on the meta device takes it apart into a dozen operations, which was most of the time of a
    recording."""
    taken = []
    monkeypatch.setattr(
        torch._decomp.decompositions, "native_batch_norm_helper", lambda *args, **kwargs: taken.append(args)
    )
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    assert recorded(net, (8, 8)).trf("out", (2, 2)).size_px == (3, 3)
    assert taken == []


def test_an_image_of_a_million_by_a_million_pixels_costs_nothing():
    net = nn.Sequential(nn.Conv2d(2, 2, 7, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 2, 3, padding=1))
    field = recorded(net, (2**20, 2**20)).trf("out", (2**17, 2**17))
    assert field.size_px == (19, 19)
    assert field.center_px == (2.0**19, 2.0**19)


def test_a_decoder_has_a_stride_below_that_of_its_encoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(2, 2, 4, 4), nn.ConvTranspose2d(2, 2, 2, 2)

        def forward(self, x):
            return self.up(self.down(x))

    field = recorded(Net(), (32, 32)).trf("out", (6, 7))
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

    field = recorded(Pyramid(), (32, 32)).trf("out", (4, 5))
    # Unit 4 and 5 both sit over coarse unit 2, which reads the fine units 3 to 5.
    assert field.box_px == ((12, 23), (12, 23))
    assert field.stride_px == (4.0, 4.0)
