"""A unit is an index of the tensor: random nets of ordinary layers in any order against plain autograd, none of whose
outputs (B, C, H, W) is refused, folded or renumbered."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import sound_norms
from torch import Tensor, nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")
SIDE = 24
#: Seeds of one test, and tests.
SEEDS, TESTS = 10, 30


class Step(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def shift_rows(x: Tensor) -> Tensor:
    """As a temporal shift."""
    out = torch.zeros_like(x)
    out[:, :, 2:] = x[:, :, :-2]
    return out


def shift_columns(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[..., :-1] = x[..., 1:]
    return out


def shift_both(x: Tensor) -> Tensor:
    """As a shift in four directions."""
    out, half = torch.zeros_like(x), x.shape[1] // 2
    out[:, :half, :, 1:] = x[:, :half, :, :-1]
    out[:, half:, 1:] = x[:, half:, :-1]
    return out


def cost_volume(x: Tensor) -> Tensor:
    """As of stereo nets."""
    out = x.new_zeros(x.shape[0], 4, *x.shape[2:])
    for gap in range(4):
        out[:, gap, :, gap:] = (x[..., gap:] + x[..., : x.shape[-1] - gap]).mean(1)
    return out


def pad_into(x: Tensor) -> Tensor:
    out = x.new_zeros(*x.shape[:2], x.shape[2] + 4, x.shape[3] + 4)
    out[:, :, 2:-2, 2:-2] = x
    return out


def inverse_wavelet(x: Tensor) -> Tensor:
    out = torch.zeros_like(x).repeat(1, 1, 2, 2)
    for row in (0, 1):
        for column in (0, 1):
            out[:, :, row::2, column::2] = (1 + row + 2 * column) * x
    return out


def blank(x: Tensor) -> Tensor:
    out = x.clone()
    out[:, :, ::2, 1::2] = 0
    return out


def mix_windows(x: Tensor) -> Tensor:
    """As attention in windows."""
    b, c, h, w = x.shape
    windows = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
    windows = windows + windows.mean(1, keepdim=True)
    return windows.reshape(b, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)


def as_tokens(x: Tensor) -> Tensor:
    return (2 * x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


def layers(c: int, h: int, w: int) -> list[Callable[[], nn.Module]]:
    """The layers that may follow a map of this shape."""
    found: list[Callable[[], nn.Module]] = [
        *(lambda: nn.Conv2d(c, 8, 3, padding=1), lambda: nn.Conv2d(c, 4, 3, padding=1)) * 2,
        *(lambda: nn.Conv2d(c, c, 3, padding=1, groups=c), lambda: nn.BatchNorm2d(c)),
    ]
    found += [
        lambda each=each: Step(each)  # type: ignore[misc]
        for each in (shift_rows, shift_columns, cost_volume, blank, as_tokens)
    ]
    found += [
        lambda: Step(lambda x: torch.roll(x, (1, -2), (2, 3))),
        lambda: Step(lambda x: x.flip(3)),
        lambda: Step(lambda x: x[:, :, 1:]),
        lambda: Step(lambda x: x[..., 1:-1, 1:-1]),
    ]
    if c % 2 == 0:
        found += [lambda: nn.Conv2d(c, c, 3, padding=1, groups=2)] * 2 + [lambda: Step(shift_both)]
    if min(h, w) >= 8:
        found += [
            lambda: nn.Conv2d(c, 8, 3, 2, 1),
            lambda: nn.AvgPool2d(3, 2, 1),
            lambda: nn.AvgPool2d(2),
            lambda: Step(lambda x: x[..., ::2]),
        ]
    if h % 2 == w % 2 == 0 and min(h, w) >= 8 and c <= 16:
        found += [lambda: nn.PixelUnshuffle(2)] * 3 + [lambda: Step(mix_windows)]
    if c % 4 == 0:
        found += [lambda: nn.PixelShuffle(2)] * 2
    if max(h, w) <= 40:
        found += [
            lambda: nn.Upsample(scale_factor=2),
            lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
            lambda: nn.ConvTranspose2d(c, c, 2, 2),
            lambda: Step(inverse_wavelet),
            lambda: Step(pad_into),
        ]
    return found


def net_of(seed: int) -> nn.Module:
    """A net of positive weights, whose gradients cancel nowhere."""
    chance, x = random.Random(seed), torch.zeros(1, 3, SIDE, SIDE)
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1)]
    x = parts[0](x)
    for _ in range(chance.randint(1, 6)):
        part = chance.choice(layers(*x.shape[1:]))()
        after = part.eval()(x)
        if 3 <= min(after.shape[2:]) <= max(after.shape[2:]) <= 64 >= after.shape[1]:
            parts.append(part)
            x = after
    net = nn.Sequential(*parts)
    for weight in net.parameters():
        nn.init.uniform_(weight, 0.1, 1)
    return net.eval().double()


def extent(there: np.ndarray) -> tuple[tuple[int, int], ...]:
    spots = [np.flatnonzero(each) for each in (there.any(1), there.any(0))]
    return tuple((int(each[0]), int(each[-1])) for each in spots)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(TESTS))
def test_a_unit_of_a_random_net_is_an_index_of_its_output(number: int) -> None:
    for seed in range(number * SEEDS, (number + 1) * SEEDS):
        net = net_of(seed)
        x = torch.rand(1, 3, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        x.requires_grad_(True)
        with sound_norms():
            out = net(x)
        chance = random.Random(seed)
        unit = tuple(chance.randrange(side) for side in out.shape[2:])
        gradient = torch.autograd.grad(out[0, :, unit[0], unit[1]].sum(), x)[0][0]
        asked: Any = {"layer": "output", "unit": f"{unit[0]},{unit[1]}", "measures": "r50", "dtype": "float64"}
        there = (gradient.abs().sum(0) > 0).numpy()
        if not there.any():
            continue  # the unit stands in what was padded
        found = erfscope.analyze(net, images=x.detach(), convention="kim", **asked)
        assert found.ok, (seed, found.error)
        assert (found.unit.index, found.unit.map_shape) == (unit, tuple(out.shape[1:])), seed
        expected = gradient.clamp(min=0).sum(0).numpy()
        ours = np.asarray(found.map)
        np.testing.assert_allclose(ours / ours.sum(), expected / expected.sum(), atol=1e-9, err_msg=str(seed))
        assert found.trf is not None
        for (first, last), (low, high) in zip(found.trf.box_px, extent(there), strict=True):
            assert first <= low <= high <= last, seed
        assert not found.trf.exact or found.trf.clipped_box_px == extent(there), seed
        if seed % 3 == 0:
            check_tiles(net, seed)


def check_tiles(net: nn.Module, seed: int) -> None:
    """Where a plan is called possible, tiles give the whole image."""
    plan = erfscope.tile(net, 9, input_size=SIDE, image_size=2 * SIDE)
    if plan.possible:
        image = torch.randn(3, 2 * SIDE, 2 * SIDE, dtype=torch.float64)
        with torch.no_grad():
            whole = net(image[None])[0]
            tiled = erfscope.run_tiled(net, image, plan)
        torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-9 * float(whole.abs().max()), msg=str(seed))


class Stereo(nn.Module):
    """A volume of correlations between two images at four shifts, as of stereo nets."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.features(left), self.features(right)
        volume = a.new_zeros(a.shape[0], 4, *a.shape[2:])
        for gap in range(4):
            volume[:, gap, :, gap:] = (a[..., gap:] * b[..., : b.shape[-1] - gap]).mean(1)
        return self.out(volume)


def test_a_cost_volume_stands_where_its_left_image_does() -> None:
    other = torch.randn(1, 3, SIDE, SIDE)
    net = erfscope.wrap(
        Stereo().eval(), forward=lambda m, x: m(x, other.to(x).expand(len(x), -1, -1, -1)), input_size=SIDE
    )
    trf = erfscope.theoretical(net, unit=(12, 12))
    assert (trf.size_px, trf.center_px) == ((5, 5), (12.0, 12.0))


def test_channels_that_were_shifted_in_four_directions_are_one_map() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), Step(shift_both), nn.Conv2d(8, 8, 1)).eval()
    x = torch.rand(1, 3, SIDE, SIDE)
    found = erfscope.analyze(net, images=x, unit="6,6", measures="r50")
    assert found.unit.map_shape == tuple(net(x).shape[1:])
    assert found.trf is not None
    # A row and a column of patches before the unit's own.
    assert found.trf.box_px == ((10, 13), (10, 13))
    assert "centre_not_exact" in {finding.code for finding in found.findings}


def test_a_rolled_map_stays_as_the_model_holds_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Step(lambda x: torch.roll(x, (3, -5), (2, 3)))).eval()
    trf = erfscope.theoretical(net, "output", (10, 4), input_size=SIDE)
    assert trf.box_px == ((7, 7), (9, 9))
    assert trf.center_px == (7.0, 9.0)
