"""Models of every kind can be measured: timm's own tiny ones, pyramids, dicts of maps, other shapes and numbers of
axes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import timm
import torch
from nets import Does, conv
from oracle import sound_norms
from torch import nn

import erfscope
from erfscope.adapters import load

TINY = timm.list_models("test_*")
FEW = {"samples": 2, "draws": 1, "measures": ["r50", "center_share"]}
#: Whose shortcuts through average pooling lie half a cell beside padded convolutions.
BESIDE = ("test_byobnet", "test_maxvit", "test_nfnet", "test_resnet")


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
    mass elsewhere. Plain autograd says where the gradient is, since the engine itself looks only where the field is."""
    adapter = load(name, weights="random")
    site, x = adapter.site(adapter.default_layer), torch.randn(2, 3, 160, 160, requires_grad=True)
    with sound_norms():
        features = adapter.features(x, site).map
    h, w = features.shape[2:]
    unit = (h // 4, 3 * w // 4)
    features[(..., *unit)].square().sum().backward()
    result = erfscope.analyze(adapter, unit=unit, convention="energy", **FEW)
    assert (result.status, result.error) == ("ok", None)
    assert result.unit.map_shape[1:] == (h, w)
    assert result.map.values.sum() == pytest.approx(1, abs=1e-12)
    center, field = result.unit.center_px, result.trf
    assert field.exact, field.inexact_by
    assert name == "test_vit3" or field.center_exact == (name not in BESIDE), field.center_inexact_reason
    seen = tuple((int(cells.min()), int(cells.max())) for cells in x.grad.abs().sum((0, 1)).nonzero().T)
    sides = zip(field.clipped_box_px, seen, strict=True)
    assert all(first <= low and high <= last for (first, last), (low, high) in sides)
    assert field.global_by is not None or field.clipped_box_px == seen
    # Global parts pull the mean towards the middle of the picture: by one stride at most (test_vit_relpos and
    # test_coatnet).
    row, col = centroid(result)
    off = np.hypot(row - center[0], col - center[1])
    assert off < 1.5 * result.unit.stride_px[0]
    assert off < 0.75 * np.hypot(row - center[1], col - center[0])


def pyramid(*, listed: bool) -> nn.Module:
    """Three maps at strides 2, 4 and 8."""

    def forward(m, x):
        maps = []
        for convolution in m.down:
            x = convolution(x).relu()
            maps.append(x)
        return maps if listed else {"fine": maps[0], "coarse": maps[2], "vector": x.mean((2, 3))}

    return Does(forward, down=nn.ModuleList(conv(c, 6, s=2) for c in (3, 6, 6)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listed", "layer", "stride", "side"),
    [(True, "output[1]", 4, 7), (True, "output[2]", 8, 15), (False, "output[fine]", 2, 3)],
)
def test_every_map_of_a_pyramid_has_its_own_field(listed, layer, stride, side):
    result = erfscope.analyze(pyramid(listed=listed), input_size=(48, 48), layer=layer, unit=(2, 3), **FEW)
    assert result.ok
    assert result.trf.size_px == (side, side)
    assert result.unit.stride_px == (stride, stride)
    assert result.unit.center_px == (2 * stride, 3 * stride)


def test_a_vector_among_the_maps_is_refused_by_shape():
    result = erfscope.analyze(pyramid(listed=False), input_size=48, layer="output[vector]", **FEW, errors="row")
    assert result.status == "error"
    assert re.search(r"output\[vector\].*\(1, 6\)", result.error or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_vit_relpos", "test_maxvit"])
def test_inputs_that_are_not_square(name):
    # 160 x 320 has whole windows in MaxViT too.
    result = erfscope.analyze(name, weights="random", input_size=(160, 320), convention="energy", **FEW)
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


@pytest.mark.slow
def test_windows_along_the_batch_axis_are_no_map_and_the_layer_around_them_is_named():
    """As window attention has them; then the image again."""

    def forward(m, x):
        b, c, h, w = (x := m.stem(x)).shape
        windows = x.reshape(b, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1).reshape(b * 4, h * w // 4, c)
        windows = m.attend(windows).reshape(b, 2, 2, h // 2, w // 2, c)
        return m.back(windows.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w))

    net = Does(forward, stem=nn.Conv2d(3, 8, 4, 4), attend=nn.Linear(8, 8), back=nn.Identity())
    result = erfscope.analyze(net, input_size=(32, 32), layer="attend", unit=(1, 6), **FEW, errors="row")
    assert "its output has shape (8, 16, 8)" in str(result.error)
    assert "name the layer around it, 'output', with --layer" in str(result.error)
    whole = erfscope.analyze(net, input_size=(32, 32), unit=(1, 6), **FEW, errors="row")
    assert (whole.layer, whole.unit.map_shape, whole.unit.center_px) == ("output", (8, 8, 8), (5.5, 25.5))
    assert whole.unit.center_exact
