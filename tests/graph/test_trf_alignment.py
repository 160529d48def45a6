"""The unit's centre where paths to it disagree: branches that go down and up again pull the middle of the box away from
the unit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import erfscope


class DownAndUp(nn.Module):
    """Residual blocks whose branch halves the map and doubles it again: its middle lags behind the shortcut's."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.downs = nn.ModuleList(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(depth))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: Tensor) -> Tensor:
        for down in self.downs:
            x = x + self.up(down(x))
        return x


@pytest.mark.parametrize("unit", [(32, 32), (33, 33), (20, 41)])
def test_paths_that_disagree_give_no_exact_centre(unit):
    trf = erfscope.theoretical(DownAndUp(5), unit=unit, input_size=(64, 64))
    assert not trf.center_exact
    assert trf.center_px == tuple(float(u) for u in unit)
    middle = tuple((first + last) / 2 for first, last in trf.box_px)
    assert max(abs(m - u) for m, u in zip(middle, unit, strict=True)) > 1


@pytest.mark.slow
def test_the_map_of_such_a_net_peaks_where_the_centre_says():
    torch.manual_seed(0)
    result = erfscope.analyze(DownAndUp(5), unit=(32, 32), input_size=(64, 64), samples=4, draws=8, layer="output")
    assert result.map is not None
    peak = divmod(int(result.map.values.argmax()), 64)
    assert max(abs(p - c) for p, c in zip(peak, result.map.center_px, strict=True)) <= 1


def test_a_net_without_padding_keeps_its_exact_centre_far_from_the_natural_one():
    net = nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(9)))
    trf = erfscope.theoretical(net, unit=(0, 13), input_size=(32, 32))
    assert trf.center_exact
    assert trf.center_px == (9.0, 22.0)


@pytest.mark.slow
def test_a_pyramids_finest_map_follows_its_lateral_path():
    """Top-down paths come in steps of 32 pixels; the lateral one puts unit u near 4u."""
    torchvision = pytest.importorskip("torchvision")
    fpn = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    fpn = erfscope.wrap(fpn, input_size=(224, 224))
    centres = [erfscope.theoretical(fpn, "output[0]", (u, u)).center_px[0] for u in range(12, 44)]
    assert all(abs(centre - 4 * u) <= 4 for u, centre in zip(range(12, 44), centres, strict=True))


def test_up_sampled_units_lie_between_the_centres_of_their_patches():
    net = nn.Sequential(nn.Conv2d(3, 4, 16, 16), nn.Upsample(scale_factor=2, mode="bilinear"))
    found = [erfscope.theoretical(net, unit=(u, u), input_size=(96, 96)) for u in (5, 6)]
    assert [trf.center_px[0] for trf in found] == [43.5, 51.5]
    assert all(
        trf.center_exact and trf.offset_px[0] + u * trf.stride_px[0] == trf.center_px[0]
        for u, trf in zip((5, 6), found, strict=True)
    )


class Pooled(nn.Module):
    """x + up(conv(pool(x))): both paths give every unit the same centre."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = self.conv(torch.nn.functional.avg_pool2d(x, 2))
        return x + torch.nn.functional.interpolate(low, scale_factor=2, mode="bilinear")


@pytest.mark.parametrize("unit", [(31, 31), (32, 32), (0, 63)])
def test_a_pooled_branch_agrees_with_its_shortcut(unit):
    trf = erfscope.theoretical(Pooled(), unit=unit, input_size=(64, 64))
    assert (trf.center_exact, trf.center_px) == (True, tuple(map(float, unit)))


def test_branches_that_disagree_are_named_with_what_each_says():
    trf = erfscope.theoretical(DownAndUp(1), unit=(32, 32), input_size=(64, 64))
    assert "downs.0" in trf.center_inexact_reason or "up" in trf.center_inexact_reason
    assert "puts unit 0 at 0 px" in trf.center_inexact_reason
    assert "puts unit 0 at -0.5 px" in trf.center_inexact_reason


@pytest.mark.parametrize(("scales", "words"), [((1, 2), "along the width"), ((2, 1), "along the height"), ((2, 2), "")])
def test_the_axis_along_which_branches_disagree_is_named_where_others_agree(scales, words):
    """A strided convolution and a resize move units along the axes that they halve and double alone."""

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 3, 3, scales, 1)
            self.up = nn.Upsample(scale_factor=scales, mode="nearest")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(self.down(x))

    reason = erfscope.theoretical(Halved(), input_size=(64, 64)).center_inexact_reason
    assert "puts unit 0 at" in reason
    assert reason.endswith(f", {words} alone") if words else "along" not in reason
