"""Local attribution maps against their definition, and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError, MeasurementError
from erfscope.apps.lam.attribution import blurred
from erfscope.apps.lam.sizes import gini
from erfscope.apps.lam.sizes import sizes as sizes_on
from erfscope.core import Axes


class Residual(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class ChannelAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x)


class WindowAttention(nn.Module):
    """Attention inside windows of 4 x 4, moved by ``shift``."""

    def __init__(self, channels: int, shift: int) -> None:
        super().__init__()
        self.qkv, self.norm, self.shift = nn.Linear(channels, 3 * channels), nn.LayerNorm(channels), shift

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.roll((-self.shift, -self.shift), (2, 3)).reshape(batch, channels, height // 4, 4, width // 4, 4)
        tokens = tokens.permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, channels)
        query, key, value = self.qkv(self.norm(tokens)).chunk(3, -1)
        seen = torch.softmax(query @ key.transpose(1, 2) / channels**0.5, -1) @ value
        seen = seen.reshape(batch, height // 4, width // 4, 4, 4, channels).permute(0, 5, 1, 3, 2, 4)
        return seen.reshape(batch, channels, height, width).roll((self.shift, self.shift), (2, 3))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.GELU())
        self.low = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(6, 6, 3, padding=1), nn.GELU(), nn.ConvTranspose2d(6, 6, 2, 2)
        )
        self.up = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        return x + self.up(torch.cat([fine, self.low(fine)], 1))


def conv(inputs: int, outputs: int, side: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, padding=side // 2)


def twice_as_large(*body: nn.Module, width: int = 6) -> nn.Sequential:
    return nn.Sequential(conv(3, width), *body, conv(width, 12), nn.PixelShuffle(2))


def block(width: int = 6) -> list[nn.Module]:
    return [conv(width, width), nn.ReLU(), conv(width, width)]


NETS: dict[str, Callable[[], nn.Module]] = {
    "srcnn": lambda: nn.Sequential(conv(3, 8, 9), nn.ReLU(), conv(8, 4, 1), nn.ReLU(), conv(4, 3, 5)),
    "edsr": lambda: twice_as_large(Residual(*block()), Residual(*block())),
    "rcan": lambda: twice_as_large(Residual(*block(), ChannelAttention(6)), Residual(*block(), ChannelAttention(6))),
    "swinir": lambda: twice_as_large(Residual(WindowAttention(6, 0)), Residual(WindowAttention(6, 2)), conv(6, 6)),
    "hat": lambda: twice_as_large(Residual(WindowAttention(6, 2), ChannelAttention(6)), Residual(*block())),
    "unet": UNet,
}


def sizes(values: np.ndarray, centre: tuple[float, ...]) -> dict[str, Any]:
    return sizes_on(values, centre, Axes.of_rank(2))


def picture(channels: int = 3, height: int = 20, width: int = 24) -> Tensor:
    """Smooth waves with some noise, from 0 to 1."""
    generator = torch.Generator().manual_seed(3)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = [torch.sin(rows / (2 + band) + columns / 3) * torch.cos(columns / (3 + band)) for band in range(channels)]
    noise = torch.rand(channels, height, width, generator=generator, dtype=torch.float64)
    return 0.5 + 0.3 * torch.stack(waves).double() + 0.2 * (noise - 0.5)


def by_definition(net: nn.Module, x: Tensor, row: int, col: int, size: int, *, steps: int = 50) -> np.ndarray:
    """The signed attribution (C, H, W), one step after the other, from the definition alone."""
    net.eval()
    dtype = next(net.parameters(), torch.zeros((), dtype=torch.float64)).dtype

    def image(number: int) -> np.ndarray:
        sigma = 1.2 * (1 - number / steps) + 1e-5
        axis = np.arange(-4, 5)
        kernel = np.exp(-(axis[:, None] ** 2 + axis[None] ** 2) / (2 * sigma**2))
        kernel /= kernel.sum()
        padded = np.pad(x.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
        height, width = x.shape[1:]
        return sum(kernel[r, c] * padded[:, r : r + height, c : c + width] for r in range(9) for c in range(9))

    total, before = np.zeros(x.shape), image(0)
    for number in range(1, steps + 1):
        now = image(number)
        leaf = torch.tensor(now[None], dtype=dtype, requires_grad=True)
        output = net(leaf)
        objective = torch.zeros((), dtype=dtype)
        for r in range(row, row + size):
            down = output[0, :, r, col : col + size] - output[0, :, r + 1, col : col + size]
            right = output[0, :, r, col : col + size] - output[0, :, r, col + 1 : col + size + 1]
            squares = down**2 + right**2
            objective = objective + squares[squares > 0].sqrt().sum()
        (gradient,) = torch.autograd.grad(objective, leaf)
        total += gradient[0].double().numpy() * (now - before)
        before = now
    return total


def is_near(obtained: Any, expected: Any, relative: float) -> bool:
    obtained, expected = np.asarray(obtained), np.asarray(expected)
    return bool(np.linalg.norm(obtained - expected) <= relative * np.linalg.norm(expected))


@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.slow
def test_the_map_is_that_of_the_definition(name: str, dtype: str, relative: float) -> None:
    torch.manual_seed(0)
    net, x = NETS[name]().to(getattr(torch, dtype)), picture()
    # In float32 a convolution of a batch is rounded otherwise than that of one image.
    one_by_one = 1 if dtype == "float32" else None
    found = erfscope.lam(net, x, [(5, 4, 6), "7,9,5"], dtype=dtype, batch_size=one_by_one)
    for each in found.maps:
        expected = by_definition(net, x, *each.window)
        assert is_near(each.values, np.abs(expected.sum(0)), relative)
        assert each.completeness == pytest.approx(1, abs=0.1)
    signed = by_definition(net, x, 5, 4, 6)
    separate = erfscope.lam(net, x, (5, 4, 6), dtype=dtype, path={"map_of": "channels"})
    assert is_near(separate.maps[0].values, np.abs(signed).sum(0), 5 * relative)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", ["HAT", "SwinIR"])
def test_the_map_of_a_public_model_is_that_of_the_definition(name: str) -> None:
    architectures = pytest.importorskip("spandrel.architectures")
    torch.manual_seed(0)
    small = {"embed_dim": 12, "depths": (2,), "num_heads": (2,), "window_size": 4, "upscale": 2, "img_size": 16}
    small |= {"upsampler": "pixelshuffle"} | ({"squeeze_factor": 4} if name == "HAT" else {})
    module = __import__(f"{architectures.__name__}.{name}", fromlist=[name])
    net, x = getattr(module, name)(**small).double(), picture(height=16, width=16)
    found = erfscope.lam(net, x, (5, 4, 6), dtype="float64")
    assert is_near(found.maps[0].values, np.abs(by_definition(net, x, 5, 4, 6).sum(0)), 1e-10)


# --- closed forms ---------------------------------------------------------------------------------


def test_gini_is_the_double_sum_over_all_pairs() -> None:
    values = np.random.default_rng(0).gamma(0.3, size=(7, 9))
    pairs = np.abs(values.ravel()[:, None] - values.ravel()[None]).sum()
    assert gini(values) == pytest.approx(pairs / (2 * values.size**2 * values.mean()), rel=1e-12)


def test_a_flat_map_has_a_diffusion_index_of_100_and_one_pixel_100_over_n() -> None:
    flat = sizes(np.ones((5, 8)), (2, 3.5))
    assert (flat["di"], flat["area_px"]) == (pytest.approx(100), pytest.approx(40))
    one = np.zeros((5, 8))
    one[2, 3] = 7.0
    assert sizes(one, (2, 3)) == {"di": pytest.approx(100 / 40), "r50_px": 0, "r90_px": 0, "area_px": pytest.approx(1)}


def test_only_the_diffusion_index_depends_on_the_canvas() -> None:
    values = np.random.default_rng(1).random((6, 6))
    small, large = sizes(values, (2.5, 2.5)), sizes(np.pad(values, 20), (22.5, 22.5))
    assert large["di"] < small["di"] / 10
    assert {name: large[name] for name in large if name != "di"} == pytest.approx(
        {name: small[name] for name in small if name != "di"}
    )


def test_radii_around_the_window_hold_half_and_nine_tenths() -> None:
    rows, columns = np.mgrid[-30:31, -30:31]
    gaussian = np.exp(-(rows**2 + columns**2) / (2 * 5.0**2))
    found = sizes(gaussian, (30, 30))
    assert found["r50_px"] == pytest.approx(5 * math.sqrt(2 * math.log(2)), abs=0.02)
    assert found["r90_px"] == pytest.approx(5 * math.sqrt(2 * math.log(10)), abs=0.02)
    assert found["area_px"] == pytest.approx(2 * math.pi * math.e * 5**2, rel=0.01)  # the entropy of a Gaussian


def test_the_map_of_one_kernel_is_its_footprint_around_the_window() -> None:
    net = nn.Conv2d(1, 1, (3, 5), padding=(1, 2), bias=False).double()
    values = erfscope.lam(net, picture(1), (8, 9, 4), dtype="float64").maps[0]
    expected = np.zeros((20, 24), dtype=bool)
    expected[8 - 1 : 8 + 5 + 1, 9 - 2 : 9 + 5 + 2] = True  # the window, the next row and column, and the kernel
    # The objective reads the row below and the column to the right, and not the corner between them.
    expected[8 + 5, 9 + 4 + 2] = False
    assert np.array_equal(values.values > 0, expected)
    assert values.place.field == ((7, 13), (7, 15))
    assert values.trf == "7x9"


@pytest.mark.parametrize("gradient_at", ["end", "start", "middle"])
def test_attributions_of_a_copied_wave_sum_to_the_change_exactly(gradient_at: str) -> None:
    # Between mirrors a cosine stays itself under any blur, but for its height; the objective of a copy is proportional
    # to that, so its gradient is one along the whole path.
    height, width = 17, 13
    wave = torch.cos(math.pi * 3 * torch.arange(height).double() / (height - 1))[:, None]
    x = 0.5 + 0.4 * (wave * torch.cos(math.pi * 2 * torch.arange(width).double() / (width - 1)))[None]
    found = erfscope.lam(
        nn.Conv2d(1, 1, 1).requires_grad_(False),
        x,
        (3, 2, 6),
        path={"gradient_at": gradient_at},
        in_chans=1,
        dtype="float64",
    ).maps[0]
    assert found.completeness == pytest.approx(1, abs=1e-10)


@pytest.mark.slow
def test_more_steps_come_nearer_to_completeness_and_the_middle_of_each_faster() -> None:
    torch.manual_seed(0)
    net, x = NETS["srcnn"](), picture()

    def gap(**path: Any) -> float:
        return abs(erfscope.lam(net, x, (5, 4, 8), dtype="float64", path=path).maps[0].completeness - 1)

    assert gap(steps=100) < 0.6 * gap(steps=50)
    assert gap(gradient_at="middle") < 0.1 * gap()


def test_a_blur_keeps_the_mean_between_mirrors_and_the_last_one_is_none() -> None:
    x = picture()
    assert torch.equal(blurred(x, 1e-5, 4), x)
    assert torch.allclose(blurred(torch.full((1, 3, 4), 0.7).double(), 1.2, 4), torch.full((1, 3, 4), 0.7).double())


def test_batches_do_not_change_the_map() -> None:
    net, x = NETS["edsr"]().double(), picture()
    one, many = (erfscope.lam(net, x, (5, 4, 6), dtype="float64", batch_size=size).maps[0].values for size in (1, 51))
    assert is_near(many, one, 1e-12)


def test_flat_pixels_have_no_gradient_and_a_window_without_edges_is_named() -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(0.9, 1)

    net = nn.Sequential(nn.Conv2d(1, 1, 1), Flat()).requires_grad_(False)
    found = erfscope.lam(net, 0.1 * picture(1), (2, 2, 4))
    assert found.maps[0].di is None
    assert "without edges, nothing is attributed" in str(found)
    assert found.to_json()["maps"][0]["di"] is None


# --- models, images, windows ----------------------------------------------------------------------


@pytest.mark.slow
def test_volumes_and_several_channels_have_maps_too() -> None:
    volume = nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv3d(3, 1, 3, padding=1))
    x = torch.rand(1, 2, 9, 10, 11)
    found = erfscope.lam(volume, x, "3,3,3,3")
    assert found.maps[0].values.shape == (9, 10, 11)
    assert found.maps[0].trf == "8x8x8"
    assert found.figure().axes
    bands = erfscope.lam(nn.Conv2d(7, 7, 3, padding=1), torch.rand(2, 7, 12, 12), (3, 3, 4))
    assert [each.image for each in bands.maps] == ["array[0]", "array[1]"]


@pytest.mark.slow
def test_models_are_compared_on_the_same_windows_with_their_paired_differences() -> None:
    torch.manual_seed(0)
    found = erfscope.lam({"a": NETS["edsr"](), "b": NETS["swinir"]()}, picture(), "grid:2", window_size=6, null=True)
    assert found.models == ["a", "a, shuffled", "b", "b, shuffled"]
    assert found.error_over == "windows"
    ours, theirs = (np.array([each.di for each in found.of(name)]) for name in ("b", "a"))
    value, error = found.mean("b", "di", "a")
    assert value == pytest.approx((ours - theirs).mean())
    # Of four windows Student's quantile is 1.43 times the normal distribution's, as behind every ±.
    assert error == pytest.approx((ours - theirs).std(ddof=1) / 2 * 2.3534 / 1.6449, rel=1e-4)
    assert len(found.windows().rows) == 16


def test_the_models_are_handed_back_as_found() -> None:
    net = NETS["edsr"]().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    erfscope.lam(net, picture(), (5, 4, 6), null=True, path={"steps": 2})
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(each.grad is None for each in net.parameters())


@pytest.mark.slow
def test_pictures_go_in_at_their_size_from_0_to_1(tmp_path: Path) -> None:
    pixels = np.moveaxis((255 * picture().numpy()).astype(np.uint8), 0, -1)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    net = NETS["srcnn"]()
    found, same = (
        erfscope.lam(net, each, (5, 4, 6))
        for each in (str(tmp_path / "a.png"), torch.tensor(pixels).double().movedim(-1, 0) / 255)
    )
    assert np.allclose(found.maps[0].picture, same.maps[0].picture, atol=1e-12)
    stated = erfscope.lam(net, str(tmp_path / "a.png"), (5, 4, 6), mean=0.5, std=0.25).maps[0]
    assert np.allclose(stated.picture, (same.maps[0].picture - 0.5) / 0.25)


@pytest.mark.slow
def test_pictures_of_high_resolution_are_made_smaller(tmp_path: Path) -> None:
    pixels = np.moveaxis((255 * picture(height=41, width=48).numpy()).astype(np.uint8), 0, -1)
    Image.fromarray(pixels).save(tmp_path / "hr.png")
    found = erfscope.lam(NETS["edsr"](), None, "texture:2", window_size=6, hr=tmp_path / "hr.png", scale=2)
    small = Image.fromarray(pixels[:40]).resize((24, 20), Image.Resampling.BICUBIC)
    assert np.allclose(found.maps[0].picture, np.moveaxis(np.asarray(small), -1, 0) / 255)
    assert found.maps[0].target is not None
    assert found.maps[0].target.shape == (3, 6, 6)


def test_windows_of_largest_texture_are_where_the_input_has_edges() -> None:
    x = torch.full((3, 24, 24), 0.5).double()
    x[:, 13:18, 4:7] += torch.rand(3, 5, 3)
    found = erfscope.lam(NETS["srcnn"](), x, "texture:1", window_size=6, path={"steps": 1})
    assert found.maps[0].window == (12, 0, 6)


class Padded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, 4, 0, 4), mode="reflect") * 2


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize(
    ("net", "window", "says"),
    [
        (
            Classifier,
            (2, 2, 4),
            "Classifier returns no image: layer 'output' holds no spatial map; name an output with",
        ),
        (
            lambda: nn.Sequential(conv(3, 3), Padded()),
            (2, 2, 4),
            "pads its input and returns the padding: 24x28 pixels",
        ),
        (NETS["edsr"], (2, 45, 4), "window 2,45,4 lies outside the output, 40x48 pixels"),
        (NETS["edsr"], (-1, 2, 4), "begins at 35,43 at the latest"),
        (NETS["edsr"], "somewhere", "cannot read the window 'somewhere'; write 110,150,16"),
    ],
)
def test_what_has_no_map_is_refused_in_one_line(net: Callable[[], nn.Module], window: Any, says: str) -> None:
    with pytest.raises((ErfscopeError, MeasurementError)) as error:
        erfscope.lam(net(), picture(), window)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"unit": "centre"}, "unknown option 'unit' in lam"),
        ({"path": {"gradient_at": "begin"}}, "unknown image of a step 'begin'"),
        ({"path": {"map_of": "max"}}, "unknown kind of map 'max'"),
        ({"path": {"kernel": 4}}, "a kernel of 3, 5, 7, ..., not steps=50, sigma=1.2, kernel=4"),
    ],
)
def test_options_that_do_not_exist_are_refused_before_anything_runs(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ErfscopeError, match=says.replace("(", r"\(")):
        erfscope.lam(NETS["edsr"](), picture(), (2, 2, 4), **options)


@pytest.mark.slow
def test_grey_and_16_bit_files_say_so(tmp_path: Path) -> None:
    values = (65535 * picture(1)[0].numpy()).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    found = erfscope.lam(NETS["srcnn"](), tmp_path / "deep.png", (2, 2, 4), path={"steps": 1})
    assert len(found.notes()) >= 1
    assert "16 bit, of which the upper 8 are read: give a .npy file for all, grey, repeated" in found.notes()[0]
    np.save(tmp_path / "deep.npy", values[None])
    exact = erfscope.lam(nn.Conv2d(1, 1, 3, padding=1), str(tmp_path / "deep.npy"), (2, 2, 4), path={"steps": 1})
    assert np.allclose(exact.maps[0].picture, values[None] / 65535)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2))
    grey = erfscope.lam(net, None, (2, 2, 4), hr=tmp_path / "deep.png", scale=2, path={"steps": 1})
    eight_bits = values[::2, ::2].astype(float) / 65535
    assert grey.maps[0].picture.shape == (1, 10, 12)
    assert np.abs(grey.maps[0].picture[0] - eight_bits).mean() < 0.1
    assert grey.maps[0].target.shape == (1, 4, 4)
    with pytest.raises(ErfscopeError, match="takes 4 channels, and a picture has 3: give a tensor"):
        erfscope.lam(nn.Conv2d(4, 4, 3, padding=1), tmp_path / "deep.png", (2, 2, 4))
