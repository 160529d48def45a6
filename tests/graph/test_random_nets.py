"""Random nets against plain autograd: a unit is an index of the tensor, its field is what the gradient reaches, its map
is the gradient, and tiles give the whole image."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does, conv, kind_of
from nets.ordinary import Chain
from oracle import plain_gradient, scrambled, sees_outside, support, units_of
from plain import agrees
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError
from erfscope.core import OpenModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]
SPACE = (24, 18)
#: Each draws ten nets; most of them for the night.
DRAWS = [*range(6), *(pytest.param(number, marks=pytest.mark.more) for number in range(6, 20))]


def does(function: Callable[[Tensor], Tensor], **parts: nn.Module) -> Callable[[], nn.Module]:
    """A function of the map alone as a layer."""
    return lambda: Does(lambda _, x: function(x), **parts)


def written(shift: Callable[[Tensor, Tensor], None]) -> Callable[[], nn.Module]:
    """Zeros of the map's shape, into which parts of the map are written."""

    def function(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        shift(out, x)
        return out

    return does(function)


def shift_rows(out: Tensor, x: Tensor) -> None:
    """As a temporal shift."""
    out[:, :, 2:] = x[:, :, :-2]


def shift_columns(out: Tensor, x: Tensor) -> None:
    out[..., :-1] = x[..., 1:]


def shift_both(out: Tensor, x: Tensor) -> None:
    """As a shift in four directions."""
    half = x.shape[1] // 2
    out[:, :half, :, 1:] = x[:, :half, :, :-1]
    out[:, half:, 1:] = x[:, half:, :-1]


def blank(out: Tensor, x: Tensor) -> None:
    out[:] = x
    out[:, :, ::2, 1::2] = 0


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


def side_by_side(m: nn.Module, x: Tensor) -> Tensor:
    """Two halves that go different ways."""
    one, other = x.tensor_split(2, 3)
    return torch.cat([one, m.inner(other)], 3)


def unshuffle(m: nn.Module, x: Tensor) -> Tensor:
    x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
    return m.inner(torch.cat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1))


def in_windows(size: int, shift: int, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """(B * windows, cells, C) -> the same, in the windows of a shifted map that is padded to whole ones."""

    def forward(x: Tensor) -> Tensor:
        (b, c, h, w), s = x.shape, size
        y = F.pad(x, (0, -w % s, 0, -h % s)).permute(0, 2, 3, 1).roll((-shift, -shift), (1, 2))
        rows, cols = y.shape[1] // s, y.shape[2] // s
        y = function(y.view(b, rows, s, cols, s, c).transpose(2, 3).reshape(-1, s * s, c))
        y = y.view(b, rows, cols, s, s, c).transpose(2, 3).reshape(b, rows * s, cols * s, c)
        return x + y.roll((shift, shift), (1, 2))[:, :h, :w].permute(0, 3, 1, 2)

    return forward


def mixed_in_windows(size: int, shift: int) -> Callable[[], nn.Module]:
    return lambda: Does(
        lambda m, x: in_windows(size, shift, lambda t: m.mix(t.mT).mT)(x), mix=nn.Linear(size**2, size**2)
    )


def attended_in_windows(size: int, shift: int) -> Callable[[], nn.Module]:
    """Without a softmax, which saturates."""
    return lambda: Does(
        lambda m, x: in_windows(size, shift, lambda t: m.mix(t) @ t.mT / 100 @ t)(x), mix=nn.Linear(4, 4)
    )


def convolution_in_windows(m: nn.Module, x: Tensor) -> Tensor:
    """With zeros around each window; the map is cut to whole windows."""
    (b, c, h, w), s = x.shape, 3
    rows, cols = h // s, w // s
    y = x[:, :, : rows * s, : cols * s].reshape(b, c, rows, s, cols, s).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, s, s)
    y = m.inner(y)
    k = y.shape[-1]
    return y.view(b, rows, cols, c, k, k).permute(0, 3, 1, 4, 2, 5).reshape(b, c, rows * k, cols * k)


def dilated(k: int, s: int, d: int) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(4, 4, k, s, (k - 1) * d // 2, d)


def residual(k: int, d: int) -> Callable[[], nn.Module]:
    """The shortcut lies outside the modules, and the sum is made in place."""
    return lambda: Does(lambda m, x: m.inner(x).add_(x), inner=nn.Conv2d(4, 4, k, 1, k // 2 * d, d))


def branches(one: int, two: int, s: int) -> Callable[[], nn.Module]:
    parts = {"one": lambda: nn.Conv2d(4, 2, one, s, one // 2), "two": lambda: nn.Conv2d(4, 2, two, s, two // 2)}
    return lambda: Does(
        lambda m, x: torch.cat([m.one(x), m.two(x)], 1), **{name: make() for name, make in parts.items()}
    )


def resized(mode: str, *, corners: bool | None = None) -> Callable[[], nn.Module]:
    return lambda: nn.Upsample(scale_factor=2, mode=mode, align_corners=corners)


#: Layers on maps of four channels whose field is the gradient's where no weight is negative.
TIGHT: list[Callable[[], nn.Module]] = [
    *(dilated(k, s, d) for k, s, d in ((3, 1, 1), (5, 2, 1), (3, 2, 2), (3, 3, 3), (1, 2, 1), (5, 1, 3))),
    *(residual(3, 1), residual(5, 2), residual(1, 1), branches(3, 1, 1), branches(5, 3, 2)),
    *(mixed_in_windows(2, 1), mixed_in_windows(3, 0), attended_in_windows(4, 0), attended_in_windows(3, 1)),
    lambda: Does(convolution_in_windows, inner=nn.Conv2d(4, 4, 3, 2, 1)),
    lambda: Does(convolution_in_windows, inner=conv(4)),
    lambda: Does(side_by_side, inner=conv(4, k=5)),
    lambda: Does(unshuffle, inner=nn.Conv2d(16, 4, 1)),
    *(lambda: nn.AvgPool2d(3, 2, 1), lambda: nn.AvgPool2d(2), lambda: nn.AvgPool2d(3, 2, ceil_mode=True)),
    *(lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1), lambda: nn.ConvTranspose2d(4, 4, 3, 1, 1)),
    *(lambda: nn.ConvTranspose2d(4, 4, 2, 2), resized("nearest"), resized("bilinear")),
    *(lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode) for mode in ("circular", "replicate")),
    *(lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), lambda: nn.BatchNorm2d(4), lambda: nn.PixelShuffle(2)),
    lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(16, 4, 3, padding=1, groups=4)),
    *(written(each) for each in (shift_rows, shift_columns, shift_both, blank)),
    *(does(each) for each in (cost_volume, pad_into, inverse_wavelet)),
    does(lambda x: (2 * x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)),
    does(lambda x: torch.roll(x, (1, -2), (2, 3))),
    *(does(lambda x: x.flip(3)), does(lambda x: x[:, :, 1:]), does(lambda x: x[..., 1:-1, ::2])),
]


class Catches(nn.Module):
    """Runs a module that fails, and another one then."""

    def __init__(self) -> None:
        super().__init__()
        self.failing, self.good = nn.Conv2d(9, 4, 1), conv(4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.failing(x)
        except RuntimeError:
            return self.good(x)


def channels_last(m: nn.Module, x: Tensor) -> Tensor:
    """A ConvNeXt block."""
    return x + m.mlp(m.norm(m.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def attention(m: nn.Module, tokens: Tensor) -> Tensor:
    q, k, v = m.qkv(tokens).chunk(3, -1)
    return (q @ k.mT / 2).softmax(-1) @ v


def same(x: Tensor) -> Tensor:
    """Padding as TensorFlow's "SAME", before a pooling with stride 2."""
    rows, cols = (max((math.ceil(s / 2) - 1) * 2 + 3 - s, 0) for s in x.shape[2:])
    return F.avg_pool2d(F.pad(x, (cols // 2, cols - cols // 2, rows // 2, rows - rows // 2)), 3, 2)


def coordinates(m: nn.Module, x: Tensor) -> Tensor:
    """CoordConv."""
    rows = torch.linspace(-1, 1, x.shape[2], **kind_of(x))[:, None].expand(len(x), 1, *x.shape[2:])
    return m.inner(torch.cat([x, rows], 1)).sin()


#: Layers that pick, gate, saturate, keep or look at everything.
OTHERS: list[Callable[[], nn.Module]] = [
    *(lambda k=k, c=c: nn.MaxPool2d(k, 2, k // 2, ceil_mode=c) for k, c in ((2, True), (3, False))),
    lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    lambda: nn.Sequential(conv(4), nn.BatchNorm2d(4), nn.GELU()),
    lambda: Does(lambda m, x: m.conv(F.leaky_relu(y := x * 1, 0.3, inplace=True)) + y, conv=conv(4)),
    lambda: Does(
        channels_last, depthwise=nn.Conv2d(4, 4, 5, padding=2, groups=4), norm=nn.LayerNorm(4), mlp=nn.Linear(4, 4)
    ),
    lambda: Does(lambda m, x: x * m.gate(x.mean((2, 3), keepdim=True)).sigmoid(), gate=conv(4, k=1)),
    lambda: Does(lambda m, x: m.same(m.wide(m.same(x)).tanh()), same=conv(4), wide=dilated(3, 1, 2)()),
    lambda: Does(lambda m, x: m.sum(m.conv(x), other=x), conv=conv(4), sum=Keyword()),
    Catches,
    *(
        lambda s=s: Does(lambda m, x: in_windows(3, s, lambda t: attention(m, t))(x), qkv=nn.Linear(4, 12))
        for s in (0, 1)
    ),
    *(lambda: nn.GroupNorm(2, 4), lambda: nn.InstanceNorm2d(4, affine=True), lambda: nn.AdaptiveAvgPool2d(9)),
    *(resized("bicubic"), resized("bilinear", corners=True), lambda: nn.Conv2d(4, 4, 4, 2, 2, padding_mode="reflect")),
    does(lambda x: F.adaptive_max_pool2d(x, [max(s // 3, 1) for s in x.shape[2:]])),
    *(does(lambda x: x + x.flip(3)), does(lambda x: x + x.roll(-3, 3)), does(same)),
    lambda: Does(coordinates, inner=conv(5)),
    lambda: Does(
        lambda m, x: (x + m.map[:, :, : x.shape[2], : x.shape[3]]).sin(), map=nn.Parameter(torch.randn(1, 4, 160, 160))
    ),
    does(lambda x: x / x.shape[-1] ** 0.5),
    does(lambda x: x * 2 if x.shape[-1] > 20 else x),
    does(lambda x: F.unfold(x, 3, padding=1).view(len(x), 4, 9, *x.shape[2:]).mean(2)),
    does(lambda x: F.local_response_norm(x, 3) + x.cumsum(2) / 9),
]


class Keyword(nn.Module):
    """A module with two inputs, one by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = conv(4)

    def forward(self, one: Tensor, *, other: Tensor) -> Tensor:
        return self.inner(one) + other


def layers_of(chance: random.Random, kinds: list[Callable[[], nn.Module]], most: int) -> list[nn.Module]:
    """Up to so many layers in a row; one that does not fit the map, or leaves little of it, is left out."""
    x, found = torch.zeros(1, 4, *SPACE), []
    for _ in range(chance.randint(1, most)):
        layer = chance.choice(kinds)().eval()
        try:
            after = layer(x)
        except RuntimeError:  # a kernel larger than the map, or odd sides
            continue
        if 3 <= min(after.shape[2:]) <= max(after.shape[2:]) <= 60:
            mix = [] if after.shape[1] == 4 else [nn.Conv2d(after.shape[1], 4, 1)]
            x, found = mix[0](after) if mix else after, [*found, layer, *mix]
    return found


@pytest.mark.parametrize("number", DRAWS)
def test_a_unit_of_a_random_net_is_an_index_of_its_output_and_sees_what_its_gradient_reaches(number: int) -> None:
    for seed in range(number * 10, number * 10 + 10):
        torch.manual_seed(seed)
        chance = random.Random(seed)
        net = nn.Sequential(conv(3), *layers_of(chance, TIGHT, 6)).eval().double()
        for weight in net.parameters():
            nn.init.uniform_(weight, 0.1, 1)
        x = torch.rand(1, 3, *SPACE, dtype=torch.float64) + 0.5
        out = net(x)
        adapter = erfscope.wrap(net, input_size=SPACE)
        site = OpenModel(adapter, "net").site("output")
        for unit in units_of(out.shape[2:]):

            def read(y: Tensor, unit: tuple[int, ...] = unit) -> Tensor:
                return y[(slice(None), slice(None), *unit)]

            seen = support(net, x, read)
            if seen is None:
                with pytest.raises(ErfscopeError, match="no path leads from 'image' to unit"):
                    site.trf(unit)
                continue
            field = site.trf(unit)
            assert (field.exact, field.global_by) == (True, None), (seed, field.inexact_by)
            assert field.clipped_box_px == seen, (seed, unit)
            assert not sees_outside(net, x, read, field.clipped_box_px)
            measured = (unit, plain_gradient(net, x, read))
        unit, gradient = measured
        found = erfscope.analyze(
            adapter, images=x, convention="kim", layer="output", unit=unit, measures="r50", dtype="float64"
        )
        assert found.ok, (seed, found.error)
        assert (found.unit.index, found.unit.map_shape) == (unit, tuple(out.shape[1:])), seed
        expected = gradient[0].clamp(min=0).sum(0).numpy()
        np.testing.assert_allclose(found.map.values, expected / expected.sum(), atol=1e-9, err_msg=str(seed))
        if seed % 3 == 0:
            check_tiles(net, seed)


def check_tiles(net: nn.Module, seed: int) -> None:
    """Where a plan is called possible, tiles give the whole image."""
    plan = erfscope.tile(net, 9, input_size=SPACE, image_size=(48, 36))
    if plan.possible:
        image = torch.randn(3, 48, 36, dtype=torch.float64)
        with torch.no_grad():
            whole = net(image[None])[0]
            tiled = erfscope.run_tiled(net, image, plan)
        torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-9 * float(whole.abs().max()), msg=str(seed))


def test_a_period_that_shows_on_a_larger_side_alone_is_planned_for_the_side_that_is_asked_for() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1, 2),
        nn.Conv2d(4, 4, 3, 2, 1),
        Does(convolution_in_windows, inner=conv(4)),
        resized("bilinear")(),
    )
    plan = erfscope.tile(net.eval(), 9, input_size=SPACE, image_size=(48, 36))
    assert plan.possible
    assert (plan.alignment, plan.remainder) == ((12, 12), (0, 0))


@pytest.mark.parametrize("number", DRAWS[:10])
def test_what_units_of_a_random_net_need_gives_their_maps(number: int) -> None:
    for seed in range(number * 10, number * 10 + 10):
        torch.manual_seed(seed)
        chance = random.Random(f"others {seed}")
        net = scrambled(Chain(layers_of(chance, [*TIGHT[::3], *OTHERS, *OTHERS], 4)))
        with torch.no_grad():
            space = net(torch.zeros(1, 3, *SPACE, dtype=torch.float64)).shape[2:]
        agrees(net, SPACE, "last", units=sorted({tuple(map(chance.randrange, space)), (0, space[1] // 2)}))
