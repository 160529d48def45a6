"""Tiles give the output of the whole image, with halos that are exact: one cell less changes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import Permute

import erfscope
from erfscope import ErfscopeError, MeasurementError, TilePlan


class UNet(nn.Module):
    """Two convolutions on each level, max-pooling, transposed convolutions; without padding, skips are cropped."""

    def __init__(self, levels: int, pad: int, width: int = 1) -> None:
        super().__init__()

        def double(given: int) -> nn.Sequential:
            pair = nn.Conv2d(given, width, 3, padding=pad), nn.Conv2d(width, width, 3, padding=pad)
            return nn.Sequential(pair[0], nn.ReLU(), pair[1], nn.ReLU())

        self.down = nn.ModuleList([double(1 if level == 0 else width) for level in range(levels + 1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(width, width, 2, stride=2) for _ in range(levels)])
        self.merge = nn.ModuleList([double(2 * width) for _ in range(levels)])

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x, skip = up(x), skips.pop()
            rows, columns = ((a - b) // 2 for a, b in zip(skip.shape[2:], x.shape[2:], strict=True))
            skip = skip[:, :, rows : rows + x.shape[2], columns : columns + x.shape[3]]
            x = merge(torch.cat([skip, x], 1))
        return x


class Between(nn.Module):
    """A function, or a module, between two convolutions 3x3 with padding."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean((2, 3), keepdim=True).sigmoid()


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return (tokens + F.scaled_dot_product_attention(tokens, tokens, tokens)).transpose(1, 2).reshape(x.shape)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 2, 24, 24))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.interpolate(self.table, size=x.shape[2:], mode="bilinear")


def numbered(x: Tensor) -> Tensor:
    """The map with a number added to each position, behind a class token, as transformers add them."""
    tokens = torch.cat([x.new_zeros(len(x), 1, 2), x.flatten(2).transpose(1, 2)], 1)
    tokens = tokens + torch.arange(tokens.shape[1], dtype=x.dtype)[None, :, None]
    return tokens[:, 1:].transpose(1, 2).reshape(x.shape)


def conv(given: int, made: int, kernel: int, **more: object) -> nn.Conv2d:
    return nn.Conv2d(given, made, kernel, **more)  # type: ignore[arg-type]


def positive(net: nn.Module) -> nn.Module:
    """The net in float64, with weights that hide no input: no two cancel and no ReLU closes."""
    generator = torch.Generator().manual_seed(0)
    for tensor in net.parameters():
        values = torch.rand(tensor.shape, generator=generator) + 0.5
        tensor.data = values / values.numel() ** 0.5
    return net.eval().double()


def plan_of(net: nn.Module, size: tuple[int, ...], tile: int, channels: int = 1, **more: str) -> TilePlan:
    return erfscope.tile(net, tile, in_chans=channels, input_size=size, image_size=size, **more)


def assert_exact(net: nn.Module, size: tuple[int, ...], tile: int, channels: int = 1) -> TilePlan:
    """Tiled equals whole."""
    plan = plan_of(net, size, tile, channels)
    assert plan.possible, plan.blockers
    x = torch.rand(1, channels, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        whole = net(x)
    assert len(plan.windows(size)) > 1
    assert whole.shape[2:] == plan.output_size(size)
    torch.testing.assert_close(erfscope.run_tiled(net, x, plan, batch_size=3), whole, rtol=1e-12, atol=1e-12)
    return plan


def assert_minimal(net: nn.Module, plan: TilePlan, size: tuple[int, ...], channels: int = 1) -> None:
    """The last line of the halo changes a tile's output, and the next one does not."""
    ends = [axis.units_of(side) for axis, side in zip(plan.axes, size, strict=True)]
    targets = [window.target for window in plan.windows(size)]
    inner = [t for t in targets if all(s.start > 0 and s.stop < end for s, end in zip(t, ends, strict=True))]
    target = min(inner, key=lambda t: sum(abs(s.start + s.stop - end) for s, end in zip(t, ends, strict=True)))
    x = torch.rand(1, channels, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        plain = net(x)[(..., *target)]
        for axis, (part, units) in enumerate(zip(plan.axes, target, strict=True)):
            first = math.floor(units.start * part.stride) + part.offset - part.halo[0]
            last = math.ceil(units.stop * part.stride) + part.offset + part.halo[1] - 1
            lines = {first - 1: False, last + 1: False}
            # A tile without a halo may see less than itself.
            lines |= {line: True for line, halo in zip((first, last), part.halo, strict=True) if halo}
            for line, changes in lines.items():
                assert 0 <= line < size[axis], "choose a larger image"
                other = x.clone()
                other.select(2 + axis, line).add_(100)
                assert (not torch.equal(net(other)[(..., *target)], plain)) == changes, (axis, line)


S = nn.Sequential
#: Net, its halo along each of two axes (closed form), size of an image, tile.
EXACT: dict[str, tuple[Callable[[], nn.Module], tuple[int, int], tuple[int, ...], int]] = {
    "stack": (lambda: S(conv(1, 2, 3, padding=1), conv(2, 1, 5, padding=2)), (3, 3), (30, 33), 8),
    "valid stack": (lambda: S(conv(1, 2, 3), conv(2, 1, 5)), (3, 3), (34, 33), 8),
    "causal": (lambda: S(nn.ZeroPad2d((2, 0, 2, 0)), conv(1, 1, 3)), (2, 0), (30, 33), 8),
    "dilated": (
        lambda: S(conv(1, 2, 3, padding=4, dilation=4), conv(2, 1, 3, padding=2, dilation=2)),
        (6, 6),
        (40, 41),
        8,
    ),
    "stride": (lambda: S(conv(1, 2, 3, padding=1, stride=2), conv(2, 1, 3, padding=1)), (3, 2), (41, 40), 8),
    "valid stride": (lambda: S(conv(1, 2, 7, stride=2), conv(2, 1, 3, padding=1)), (4, 5), (51, 50), 8),
    "shuffle": (lambda: S(conv(1, 8, 3, padding=1), nn.PixelShuffle(2), conv(2, 1, 3, padding=1)), (2, 2), (30, 33), 8),
    "transposed": (lambda: S(conv(1, 2, 3, padding=1), nn.ConvTranspose2d(2, 1, 4, 2, padding=1)), (2, 2), (30, 33), 8),
    "longer transposed": (lambda: S(conv(1, 2, 3, padding=1), nn.ConvTranspose2d(2, 1, 3, 2)), (2, 1), (30, 33), 8),
    "bilinear": (
        lambda: S(
            conv(1, 2, 3, padding=1, stride=2), nn.Upsample(scale_factor=2, mode="bilinear"), conv(2, 1, 3, padding=1)
        ),
        (3, 2),
        (32, 40),
        8,
    ),
    "two thirds": (lambda: S(conv(1, 1, 5, padding=2, stride=3), nn.Upsample(scale_factor=2)), (2, 0), (36, 45), 9),
    "reflected": (
        lambda: S(nn.ReflectionPad2d(3), conv(1, 2, 7), conv(2, 1, 3, padding=1, padding_mode="reflect")),
        (4, 4),
        (33, 34),
        8,
    ),
    "reflected on one side": (lambda: S(nn.ReflectionPad2d((0, 3, 0, 3)), conv(1, 2, 4)), (0, 3), (20, 21), 2),
    "line": (
        lambda: S(nn.Conv1d(1, 2, 5, padding=2), nn.MaxPool1d(2), nn.Conv1d(2, 1, 3, padding=1)),
        (4, 4),
        (60,),
        12,
    ),
    "U-Net": (lambda: UNet(2, pad=1), (22, 22), (76, 80), 16),
    "valid U-Net": (lambda: UNet(2, pad=0), (20, 20), (100, 104), 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_tiled_equals_whole_with_the_halo_of_the_closed_form_and_no_smaller_one(name: str) -> None:
    make, halo, size, tile = EXACT[name]
    net = positive(make())
    plan = assert_exact(net, size, tile)
    assert plan.halo == (halo,) * len(size)
    assert_minimal(net, plan, size)


@pytest.mark.slow
def test_volumes_have_a_halo_along_every_axis() -> None:
    net = positive(
        S(nn.Conv3d(1, 1, (1, 3, 5), padding=(0, 1, 2)), nn.MaxPool3d(2), nn.ConvTranspose3d(1, 1, 2, stride=2))
    )
    plan = assert_exact(net, (12, 16, 20), 4)
    assert plan.halo == ((0, 0), (1, 1), (2, 2))
    assert_minimal(net, plan, (12, 16, 20))


@pytest.mark.slow
def test_a_unet_of_four_levels_needs_94_cells_on_aligned_tiles_and_107_on_others() -> None:
    plan = erfscope.tile(UNet(4, pad=1).eval(), in_chans=1)
    assert plan.possible
    assert plan.halo == ((94, 94), (94, 94))
    assert plan.halo_any_phase == ((107, 107), (107, 107))
    assert plan.alignment == (16, 16)
    assert (plan.tile, plan.step, plan.crop) == ((256, 256), (256, 256), (448, 448))  # 94 rounded up to 96
    assert plan.wasted == pytest.approx(1 - 256**2 / 448**2)


@pytest.mark.slow
def test_a_valid_unet_keeps_its_own_tile_of_388_of_a_crop_of_572() -> None:
    plan = erfscope.tile(UNet(4, pad=0).eval(), 388, in_chans=1, input_size=572)
    assert plan.halo == ((92, 92), (92, 92))
    assert (plan.tile, plan.step, plan.crop) == ((388, 388), (384, 384), (572, 572))
    assert plan.lost == (184, 184)
    assert [window.target[0] for window in plan.windows(956)][::2] == [slice(0, 388), slice(384, 772)]


def test_a_halo_of_one_cell_less_shows_in_the_output() -> None:
    net = positive(S(conv(1, 2, 3, padding=1), conv(2, 1, 5, padding=2)))
    x = torch.rand(1, 1, 30, 33, dtype=torch.float64)
    with torch.no_grad():
        whole = net(x)
        for halo, same in ((3, True), (2, False)):
            part = net(x[:, :, 10 - halo : 18 + halo, 10 - halo : 18 + halo])[:, :, halo : halo + 8, halo : halo + 8]
            assert torch.allclose(part, whole[:, :, 10:18, 10:18], rtol=1e-12) == same


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_stacks_are_exact_and_minimal(seed: int) -> None:
    draw = np.random.default_rng(seed)
    layers: list[nn.Module] = []
    for _ in range(draw.integers(2, 5)):
        kind = draw.integers(4)
        kernel, dilation = int(draw.integers(1, 4)), int(draw.integers(1, 3))
        if kind == 0:
            layers += [nn.MaxPool1d(2), nn.ReLU()]
        elif kind == 1:
            layers += [nn.ConvTranspose1d(1, 1, 2 + kernel, stride=2, padding=1)]
        else:
            pads = [int(each) for each in draw.integers(0, 3, 2)]
            layers += [nn.ConstantPad1d(pads, 0.0), nn.Conv1d(1, 1, kernel, dilation=dilation, stride=1 + (kind == 2))]
    net = positive(S(*layers))
    plan = assert_exact(net, (240,), 16)
    if any(window.target[0].start > 0 for window in plan.windows(240)[:-1]):
        assert_minimal(net, plan, (240,))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), "upsample_bilinear2d (function)"),
        (nn.AdaptiveAvgPool2d(8), "adaptive_avg_pool2d (function)"),
        (lambda x: x + F.adaptive_avg_pool2d(x, 1), "global average pooling"),
        (nn.InstanceNorm2d(2), "(function) takes its statistics from the map"),
        (nn.GroupNorm(1, 2), "group norm (function)"),
        (nn.BatchNorm2d(2, track_running_stats=False), "(function) takes its statistics from the map"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "pad (function) reads across the border"),
        (lambda x: x.roll(2, 2), "roll (the model itself) reads across the border"),
        (lambda x: torch.cat([x[:, :, -2:], x, x[:, :, :2]], 2), "cat (the model itself) reads across the border"),
        (Gate(), "global average pooling (function)"),
        (Attention(), "attention (function)"),
        (Table(), "add (function) holds a number for every position"),
        (numbered, "add (the model itself) holds a number for every position"),
        (lambda x: x.cumsum(2), "cumsum"),
        (lambda x: x + F.interpolate(F.max_pool2d(x, 2, ceil_mode=True), size=x.shape[2:]), "upsample_nearest2d"),
        (lambda x: F.dropout(x), "draws random numbers"),
        (lambda x: x if x.mean() > 0 else 2 * x, "depends on the numbers of the image"),
        (lambda x: F.interpolate(x, size=(33, 35)), "on a crop of"),
    ],
)  # fmt: skip
def test_what_reads_more_than_a_tile_is_named(function: Callable[[Tensor], Tensor], words: str) -> None:
    plan = plan_of(Between(function).eval(), (33, 35), 8, channels=2)
    assert not plan.possible
    assert any(words in sentence for sentence in plan.blockers), plan.blockers
    with pytest.raises(ErfscopeError, match="cannot be run on tiles"):
        plan.windows((33, 35))


@pytest.mark.parametrize("function", [nn.GroupNorm(1, 2), Gate(), Attention(), Table()])
def test_the_halo_is_exact_but_for_the_operation_that_is_named(function: nn.Module) -> None:
    assert plan_of(Between(function).eval(), (32, 32), 8, channels=2).halo == ((2, 2), (2, 2))


def test_a_factor_that_depends_on_the_size_leaves_no_halo() -> None:
    upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    assert plan_of(Between(upsample).eval(), (32, 32), 8, channels=2).halo == ()


def test_a_fresh_module_is_planned_in_evaluation_mode_as_it_is_measured_and_never_run_in_training_mode() -> None:
    net = Between(nn.BatchNorm2d(2))
    assert net.training
    plan = erfscope.tile(net, 8, in_chans=2, input_size=32)
    assert plan.possible
    assert net.training
    assert net.function.training
    assert plan == erfscope.tile(net.eval(), 8, in_chans=2, input_size=32)
    result = erfscope.analyze(net.train(), in_chans=2, input_size=32, samples=4, halo=True)
    assert (result.halo.px, result.halo.blockers) == (plan.halo, ())
    x = torch.randn(1, 2, 32, 32)
    with pytest.raises(ErfscopeError, match=r"the model is in training mode.*call model.eval\(\) first"):
        erfscope.run_tiled(net, x, plan)
    net.eval().function.train()
    with pytest.raises(ErfscopeError, match=r"function is in training mode.*call model.eval\(\) first"):
        erfscope.run_tiled(net, x, plan)
    assert torch.allclose(erfscope.run_tiled(net.eval(), x, plan), net(x), atol=1e-6)


def test_a_plan_holds_for_sides_of_its_remainder_and_says_so_of_others() -> None:
    net = positive(S(conv(1, 1, 3, padding=1, stride=4)))
    plan = plan_of(net, (33, 32), 8)
    assert plan.remainder == (1, 0)
    assert plan.output_size((65, 64)) == (17, 16)
    with pytest.raises(ErfscopeError, match=r"leave \(1, 0\) when divided by \(4, 4\).*image_size=\(64, 64\)"):
        plan.windows((64, 64))


def test_a_classifier_has_no_map_and_its_layers_have() -> None:
    net = S(conv(1, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)).double().eval()
    with pytest.raises(MeasurementError, match="returns no map"):
        plan_of(net, (32, 32), 8)
    plan = plan_of(net, (32, 32), 8, layer="0")
    x = torch.rand(1, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(erfscope.run_tiled(net, x, plan), net[0](x), rtol=1e-12, atol=1e-12)


def test_a_dictionary_of_outputs_is_read_where_the_plan_says() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": self.conv(x)}

    net = Named().double().eval()
    plan, x = plan_of(net, (20, 20), 8), torch.rand(2, 1, 20, 20, dtype=torch.float64)
    assert plan.path == ("out",)
    with torch.no_grad():
        torch.testing.assert_close(erfscope.run_tiled(net, x, plan, batch_size=5), net(x)["out"])


def test_channels_that_come_last_are_put_first_and_another_map_is_refused() -> None:
    net = S(conv(1, 3, 3, padding=1), nn.Conv2d(3, 1, 1)).double().eval()
    plan, x = plan_of(net, (20, 20), 8, layer="0"), torch.rand(1, 20, 20, dtype=torch.float64)
    with torch.no_grad():
        whole = net[0](x)
        other = S(S(net[0], Permute([0, 2, 3, 1])), nn.Flatten()).eval()
        torch.testing.assert_close(erfscope.run_tiled(other, x, plan), whole, rtol=1e-12, atol=1e-12)
        other = S(S(net[0], nn.MaxPool2d(2)), nn.Flatten()).eval()
        with pytest.raises(ErfscopeError, match=r"map \(B, C, \*\(10, 10\)\), and the model gave \(1, 3, 5, 5\)"):
            erfscope.run_tiled(other, x, plan)


class Sources(nn.Module):
    """Two sources of one channel, as Demucs returns them: (B, 1, T) -> (B, 2, 1, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(1, 4, 8, 4, 2), nn.ConvTranspose1d(4, 2, 8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x).relu()).unflatten(1, (2, 1))


def test_sources_of_sound_are_put_together_from_chunks(tmp_path: Path) -> None:
    """Sample 0 of a chunk reads down to code -1, whose first sample is -6; sample 3 up to code 1, whose last is 9."""
    torch.manual_seed(0)
    net = Sources().double().eval()
    plan = erfscope.tile(net, 16, in_chans=1, input_size=(64,))
    assert (plan.halo, plan.alignment) == (((6, 6),), (4,))
    x = torch.randn(2, 1, 64, dtype=torch.float64)
    with torch.no_grad():
        whole = net(x)
    out = np.zeros(whole.shape)
    erfscope.run_tiled(net, x, plan, out=out, resume=tmp_path / "run.json")
    assert np.abs(out - whole.numpy()).max() < 1e-12
    short = replace(plan, axes=(replace(plan.axes[0], halo=(4, 6)),))
    assert (erfscope.run_tiled(net, x[0], short) - whole[0]).abs().max() > 1e-6


def test_several_images_of_whole_numbers_give_arrays() -> None:
    net = positive(UNet(1, pad=1)).float()
    plan = erfscope.tile(erfscope.wrap(net, in_chans=1, input_size=(32, 32)), (16, 8), image_size="48x64")
    images = np.random.default_rng(0).integers(0, 255, (2, 1, 48, 64), dtype=np.uint8)
    found = erfscope.run_tiled(net, images, plan, batch_size=5)
    assert (type(found), found.dtype, plan.tile) == (np.ndarray, np.float32, (16, 8))
    with torch.no_grad():
        np.testing.assert_allclose(found, net(torch.from_numpy(images).float()).numpy(), rtol=1e-5)


def test_a_size_that_the_model_does_not_take_is_named() -> None:
    def skip(x: Tensor) -> Tensor:
        return x + F.interpolate(F.max_pool2d(x, 4), scale_factor=4)

    net = Between(skip).eval()
    assert plan_of(net, (64, 64), 8, channels=2).possible
    plan = erfscope.tile(net, 8, in_chans=2, input_size=64, image_size=(66, 64))
    assert "does not run on 66x64" in plan.blockers[0]
    assert plan.halo == ((5, 5), (5, 5))


def test_what_cannot_be_run_is_refused() -> None:
    net = positive(S(conv(1, 1, 3, padding=1)))
    plan = plan_of(net, (20, 20), 8)
    with pytest.raises(ErfscopeError, match="resume needs out"):
        erfscope.run_tiled(net, torch.zeros(1, 20, 20), plan, resume="run.json")
    with pytest.raises(ErfscopeError, match="training mode"):
        erfscope.run_tiled(net.train(), torch.zeros(1, 20, 20), plan)
    net.eval()
    with pytest.raises(ErfscopeError, match="2 axes; x has shape"):
        erfscope.run_tiled(net, torch.zeros(20), plan)


@pytest.mark.slow
def test_a_segmentation_net_of_torchvision_needs_229_before_and_222_after() -> None:
    plan = erfscope.tile("torchvision:fcn_resnet50")
    assert plan.halo == ((229, 222), (229, 222))
    assert (plan.alignment, plan.path, plan.possible) == ((8, 8), ("out",), True)
