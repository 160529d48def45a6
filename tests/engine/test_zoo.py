"""Models of every kind can be measured: timm's own tiny ones, pyramids, dicts of maps, other channels, shapes and
numbers of axes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import timm
import torch
import torchvision
from oracle import sound_norms
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor

import erfscope
from erfscope.adapters import load

TINY = timm.list_models("test_*")
FEW = {"samples": 4, "draws": 2, "measures": ["r50", "center_share"]}


def centroid(result: erfscope.Result) -> list[float]:
    """Mean position of a map, axis by axis."""
    values = result.map.magnitude
    return [
        float((values.sum(axis=tuple(k for k in range(values.ndim) if k != i)) * np.arange(n)).sum())
        for i, n in enumerate(values.shape)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_timm_model_is_measured_where_its_unit_is(name):
    """The unit is off the diagonal: a map read with rows and columns, or space and channels, exchanged would have its
    mass elsewhere."""
    adapter = load(name, weights="random")
    h, w = adapter.features(torch.zeros(1, 3, 160, 160), adapter.site(adapter.default_layer)).map.shape[2:]
    unit = (h // 4, 3 * w // 4)
    result = erfscope.analyze(adapter, unit=unit, convention="energy", **FEW)
    assert (result.status, result.error) == ("ok", None)
    assert result.unit.map_shape[1:] == (h, w)
    assert result.map.values.sum() == pytest.approx(1, abs=1e-12)
    assert "outside_trf" not in {warning.code for warning in result.findings}
    row, col = centroid(result)
    center = result.unit.center_px
    assert all(0 <= c <= 159 for c in center)
    # Global parts pull the mean towards the middle of the picture: by one stride at most (test_vit_relpos and
    # test_coatnet).
    off = np.hypot(row - center[0], col - center[1])
    assert off < 1.5 * result.unit.stride_px[0]
    assert off < 0.75 * np.hypot(row - center[1], col - center[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_convnext3"])
def test_the_gradient_fills_the_clipped_field_and_no_more(name):
    """Plain autograd, since the engine itself looks only where the field is."""
    adapter = load(name, weights="random")
    trf = erfscope.theoretical(name, unit=(1, 3))
    x = torch.randn(4, 3, 160, 160, requires_grad=True)
    with sound_norms():
        features = adapter.features(x, adapter.site(adapter.default_layer)).map
    features[:, :, 1, 3].square().sum().backward()
    rows, cols = x.grad.abs().sum((0, 1)).nonzero().T
    assert trf.clipped_box_px == ((int(rows.min()), int(rows.max())), (int(cols.min()), int(cols.max())))
    assert trf.clipped_box_px[0] != (0, 159)


class Pyramid(nn.Module):
    """Three maps at strides 2, 4 and 8."""

    def __init__(self, kind: type = list) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(c, 6, 3, 2, 1) for c in (3, 6, 6))
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        maps = []
        for convolution in self.down:
            x = convolution(x).relu()
            maps.append(x)
        return maps if self.kind is list else {"fine": maps[0], "coarse": maps[2], "vector": x.mean((2, 3))}


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layer", "stride", "side"),
    [(list, "output[1]", 4, 7), (list, "output[2]", 8, 15), (dict, "output[fine]", 2, 3)],
)
def test_every_map_of_a_pyramid_has_its_own_field(kind, layer, stride, side):
    result = erfscope.analyze(Pyramid(kind), input_size=(48, 48), layer=layer, unit=(2, 3), **FEW)
    assert result.ok
    assert result.trf.size_px == (side, side)
    assert result.unit.stride_px == (stride, stride)
    assert result.unit.center_px == (2 * stride, 3 * stride)


def test_a_vector_among_the_maps_is_refused_by_shape():
    result = erfscope.analyze(Pyramid(dict), input_size=(48, 48), layer="output[vector]", **FEW, errors="row")
    assert result.status == "error"
    assert re.search(r"output\[vector\].*\(1, 6\)", result.error or "")


@pytest.mark.slow
def test_a_segmentation_net_that_returns_a_dict_is_measured_by_default():
    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Conv2d(3, 8, 3, 4, 1)
            self.classifier = nn.Conv2d(8, 5, 3, 1, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            small = self.classifier(self.backbone(x))
            return {"out": nn.functional.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False)}

    result = erfscope.analyze(Segmenter(), input_size=(32, 32), **FEW)
    assert (result.status, result.layer, result.trf.size_px) == ("ok", "output[out]", (15, 15))
    assert result.unit.map_shape == (5, 32, 32)
    small = erfscope.analyze(Segmenter(), input_size=(32, 32), layer="classifier", **FEW)
    assert (small.status, small.trf.size_px) == ("ok", (11, 11))


class Stages(nn.Module):
    """Three stages of a sum each, which no module returns, at strides 2, 4 and 8; through convolutions of their own as
    levels."""

    def __init__(self, *, levels: bool = False) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(c, 6, 3, 2, 1) for c in (3, 6, 6))
        self.branch = nn.ModuleList(nn.Conv2d(6, 6, 3, 1, 1) for _ in range(3))
        self.norm = nn.ModuleList(nn.GroupNorm(1, 6) for _ in range(3))
        self.level = nn.ModuleList(nn.Conv2d(6, 6, 3, 1, 1) for _ in range(3 * levels))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for down, branch in zip(self.down, self.branch, strict=True):
            x = down(x)
            x = x + self.norm[len(maps)](branch(x))
            maps.append(self.level[len(maps)](x) if self.level else x.relu())
        return {f"c{number}": each for number, each in enumerate(maps)}


class Picked(nn.Module):
    """Some of the stages, in an order of its own."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.net, self.names = Stages(), names

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.net(x)
        return {name: maps[name] for name in self.names}


@pytest.mark.slow
@pytest.mark.parametrize("kept", [("c0", "c1", "c2"), ("c2",), ("c2", "c0")])
def test_of_returned_maps_that_come_from_one_another_the_last_is_the_default(kept):
    """And not the norm in the residual branch, which is the deepest module."""
    net = erfscope.wrap(Picked(*kept), input_size=(48, 48))
    result = erfscope.analyze(net, **FEW)
    assert (result.status, result.layer) == ("ok", f"output[{max(kept)}]")
    assert "several_outputs" not in {finding.code for finding in result.findings}


@pytest.mark.slow
def test_of_levels_that_do_not_come_from_one_another_the_smallest_is_taken_and_all_are_named():
    result = erfscope.analyze(Stages(levels=True), input_size=(48, 48), **FEW)
    (said,) = (finding.text for finding in result.findings if finding.code == "several_outputs")
    assert (result.layer, result.unit.map_shape) == ("level.2", (6, 6, 6))
    assert (
        ": output[c2] (6x6), output[c1] (12x12), output[c0] (24x24); level.2 (on the way to output[c2]) is measured"
        in said
    )


class Rounds(nn.Module):
    """Estimates that are refined round by round, of which each is returned enlarged, as flows are; or two heads."""

    def __init__(self, *, heads: bool = False) -> None:
        super().__init__()
        self.stem, self.update = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(8, 2, 3, 1, 1)
        self.heads = nn.ModuleList(nn.Conv2d(2, 2, 3, 1, 1) for _ in range(2 * heads))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.stem(x)
        found, now = [], features[:, :2]
        for number in range(3):
            now = now + self.update(torch.cat([features, now], 1))
            found.append(nn.functional.interpolate(now, scale_factor=2.0, mode="bilinear"))
        return [head(now) for head in self.heads] or found


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "layer"), [(False, "output[2]"), (True, "heads.0")])
def test_of_the_results_of_a_loop_the_last_is_the_default_and_of_two_heads_the_first(heads, layer):
    result = erfscope.analyze(Rounds(heads=heads), input_size=(32, 32), **FEW)
    assert result.layer == layer
    assert ("several_outputs" in {finding.code for finding in result.findings}) is heads


class Chosen(nn.Module):
    """Tokens in an order by their values, and how far the first is from the image."""

    def __init__(self, *, loss: bool) -> None:
        super().__init__()
        self.stem, self.mix, self.loss = nn.Conv2d(3, 6, 8, 8), nn.Linear(6, 6), loss

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        order = tokens.sum(2).argsort(1)[..., None].expand(-1, -1, 6)
        tokens = self.mix(tokens.gather(1, order)).relu()
        loss = nn.functional.mse_loss(tokens.mean((1, 2)), x.mean((1, 2, 3)))
        return {"loss": loss, "tokens": tokens} if self.loss else {"tokens": tokens}


@pytest.mark.slow
@pytest.mark.parametrize("loss", [False, True])
def test_a_loss_that_is_returned_too_does_not_hide_that_the_deepest_layer_has_no_positions(loss):
    result = erfscope.analyze(Chosen(loss=loss), input_size=(32, 32), **FEW, errors="row")
    assert "has no default layer: its deepest map-like layer, 'output[tokens]'" in (result.error or "")


class Attended(nn.Module):
    """Tokens of the image, the weights with which words attend to them, and a score of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.encoder = nn.Conv2d(3, 8, 8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.words, self.softmax, self.score = nn.Parameter(torch.randn(5, 8)), nn.Softmax(-1), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.encoder(self.patches(x).flatten(2).transpose(1, 2))
        words = self.softmax(self.words @ tokens.transpose(1, 2)) @ tokens
        return {"score": self.score(words).mean(1), "features": tokens}


@pytest.mark.slow
def test_weights_of_attention_to_the_image_are_no_default_layer_before_a_score():
    assert erfscope.analyze(Attended(), input_size=(32, 32), **FEW).layer in ("encoder", "encoder.1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet"])
def test_a_feature_extractor_of_timm_is_measured_at_the_last_stage_of_its_model(name):
    """Whose map is the same, whether the stages are declared or found."""
    whole, stages = (
        erfscope.layers(name, weights="random", model_kwargs=more) for more in ({}, {"features_only": True})
    )
    last = {row.name: (row.shape, row.trf.size_px) for row in stages.rows}[stages.default_layer]
    assert last == {row.name: (row.shape, row.trf.size_px) for row in whole.rows}[whole.default_layer]


@pytest.mark.slow
def test_a_feature_extractor_of_torchvision_is_measured_at_the_sum_that_ends_its_last_stage():
    net = torchvision.models.resnet18(weights=None).eval()
    for names in ([f"layer{number}" for number in (1, 2, 3, 4)], ["layer4"]):
        extractor = erfscope.wrap(create_feature_extractor(net, names), input_size=(64, 64))
        assert extractor.default_layer == "output[layer4]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("test_resnet", {}), ("test_vit", {}), ("test_vit_relpos", {}), ("test_maxvit", {})],
)
def test_inputs_that_are_not_square(name, options):
    # 160 x 320 has whole windows in MaxViT too.
    result = erfscope.analyze(name, weights="random", input_size=(160, 320), convention="energy", **options, **FEW)
    stride = result.unit.stride_px[0]
    assert result.ok
    assert result.unit.map_shape[1:] == (160 // stride, 320 // stride)
    assert result.unit.stride_px == (stride, stride)
    assert all(abs(found - c) < 1.5 * stride for found, c in zip(centroid(result), result.unit.center_px, strict=True))


def test_a_one_dimensional_net_gives_the_ramp_of_two_boxes():
    """Two box kernels of three samples convolve to 1 2 3 2 1."""
    net = nn.Sequential(nn.Conv1d(1, 1, 3, 1, 1, bias=False), nn.Conv1d(1, 1, 3, 1, 1, bias=False))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    result = erfscope.analyze(net, images=torch.randn(4, 1, 32), unit=(10,), measures=["r50"])
    assert result.ok
    assert (result.trf.size_px, result.unit.center_px) == ((5,), (10.0,))
    np.testing.assert_allclose(result.map.values[8:13], np.array([1, 2, 3, 2, 1]) / 9, atol=1e-12)
    assert result.map.values.sum() == pytest.approx(1)


class Block(nn.Module):
    """A LayerNorm inside a residual branch, channels last inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


@pytest.mark.slow
def test_the_default_layer_is_the_last_block_and_not_a_part_of_it():
    """Memory of a LayerNorm's output is reused by the tensors after it, which are no normalised maps for that."""
    for depth in range(1, 9):
        net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), *(Block() for _ in range(depth)))
        assert erfscope.wrap(net, input_size=(32, 32)).default_layer == "output"
        assert erfscope.wrap(nn.Sequential(net, nn.AdaptiveAvgPool2d(1)), input_size=(32, 32)).default_layer == "0"


class Windows(nn.Module):
    """Windows along the batch axis, as window attention has them; then the image again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.attend = nn.Linear(8, 8)
        self.back = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        windows = x.reshape(b, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1).reshape(b * 4, h * w // 4, c)
        windows = self.attend(windows).reshape(b, 2, 2, h // 2, w // 2, c)
        return self.back(windows.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w))


@pytest.mark.slow
def test_windows_along_the_batch_axis_are_no_map_and_the_layer_around_them_is_named():
    net = Windows()
    result = erfscope.analyze(net, input_size=(32, 32), layer="attend", unit=(1, 6), **FEW, errors="row")
    assert "its output has shape (8, 16, 8)" in str(result.error)
    assert "name the layer around it, 'output', with --layer" in str(result.error)
    whole = erfscope.analyze(net, input_size=(32, 32), unit=(1, 6), **FEW, errors="row")
    assert (whole.layer, whole.unit.map_shape, whole.unit.center_px) == ("output", (8, 8, 8), (5.5, 25.5))
    assert whole.unit.center_exact
