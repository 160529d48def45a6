"""Measures of volumes, clips and sequences: closed forms, and what their axes are called."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest
import torch
from nets import Does
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import nn

import erfscope
from erfscope import ErfMap
from erfscope.core import Axes
from erfscope.core.answer.measures import measure_map
from erfscope.core.answer.storage import files
from erfscope.core.values.axes import NAMES, asked_axes
from erfscope.show import sides_text
from erfscope.show.view.sentences import methods_sentence

VOLUME = Axes.named(("depth", "row", "col"))
SPACED = asked_axes(VOLUME, spacing=(2.5, 1.0, 1.5), unit_name="mm")


def gaussian(shape, center, sigma) -> np.ndarray:
    lines = [np.exp(-((np.arange(n) - c) ** 2) / 2 / s**2) for n, c, s in zip(shape, center, sigma, strict=True)]
    return np.einsum("i,j,k->ijk", *lines)


def volume(sigma, axes=VOLUME, center=(20.0, 30.3, 29.8)) -> ErfMap:
    return ErfMap(values=gaussian((41, 61, 61), center, sigma), center_px=center, stride_px=(1.0,) * 3, axes=axes)


def radius_of_ellipsoid(sigma, share: float) -> float:
    """The radius that holds a share of a Gaussian with another sigma along the first axis, by integration over it."""
    first, other = sigma

    def held(r: float) -> float:
        inside = lambda z: math.exp(-(z**2) / 2 / first**2) * (1 - math.exp(-(r**2 - z**2) / 2 / other**2))  # noqa: E731
        return quad(inside, -r, r)[0] / (first * math.sqrt(2 * math.pi))

    return brentq(lambda r: held(r) - share, 1e-3, 20 * max(sigma))


def test_a_gaussian_in_a_volume_has_the_radii_of_three_dimensions():
    found = measure_map(volume((5.0, 5.0, 5.0)))
    # The chi distribution of three degrees of freedom.
    assert found["r50"] == pytest.approx(1.53817 * 5, rel=5e-3)
    assert found["r90"] == pytest.approx(2.50028 * 5, rel=5e-3)
    for axis in VOLUME.names:
        assert found[f"sigma_{axis}"] == pytest.approx(5, rel=5e-3)
        assert found[f"gaussian_sigma_{axis}"] == pytest.approx(5, rel=1e-4)
        assert found[f"extent50_{axis}"] == pytest.approx(2 * 0.67449 * 5, rel=5e-3)
        assert found[f"extent90_{axis}"] == pytest.approx(2 * 1.64485 * 5, rel=5e-3)
    # A cube holds the cube of what its sides do: the half-normal quantile at 0.5^(1/3).
    assert found["side50"] == pytest.approx(2 * 1.26464 * 5, rel=5e-3)
    assert found["participation_area"] == pytest.approx((2 * 5 * math.sqrt(math.pi)) ** 3, rel=5e-3)
    assert found["luo_size"] == pytest.approx(
        (4 / 3 * math.pi) ** (1 / 3) * math.sqrt(-2 * math.log(0.0455)) * 5, rel=1e-2
    )
    assert found["angle_deg"] is None
    assert found["best_shape"] == "gaussian"


@pytest.mark.parametrize(("deep", "wide"), [(10.0, 10.0), (12.0, 8.0)])
def test_spacing_turns_voxels_into_millimetres(deep, wide):
    """The same Gaussian in mm, on voxels of 2.5 x 1 x 1.5 mm."""
    center = (20.2, 45.0, 30.4)
    values = gaussian((41, 91, 61), center, (deep / 2.5, wide, wide / 1.5))
    found = measure_map(ErfMap(values=values, center_px=center, stride_px=(1.0,) * 3, axes=SPACED))
    for share in (0.5, 0.9):
        expected = radius_of_ellipsoid((deep, wide), share)
        assert found[f"r{round(100 * share)}"] == pytest.approx(expected, rel=5e-3)
    for axis, sigma in {"depth": deep, "row": wide, "col": wide}.items():
        assert found[f"sigma_{axis}"] == pytest.approx(sigma, rel=5e-3)
        assert found[f"gaussian_sigma_{axis}"] == pytest.approx(sigma, rel=1e-3)
        assert found[f"extent50_{axis}"] == pytest.approx(2 * 0.67449 * sigma, rel=5e-3)
    assert found["sigma_major"] == pytest.approx(deep, rel=5e-3)
    assert found["anisotropy"] == pytest.approx(deep / wide, rel=5e-3)
    cells = math.prod(2 * sigma * math.sqrt(math.pi) for sigma in (deep, wide, wide))
    assert found["participation_area"] == pytest.approx(cells, rel=5e-3)


def test_an_equal_spacing_multiplies_lengths_and_leaves_shares():
    plain = measure_map(volume((3.0, 5.0, 4.0)))
    scaled = measure_map(volume((3.0, 5.0, 4.0), asked_axes(VOLUME, spacing=(2.0, 2.0, 2.0))))
    for name, value in plain.items():
        entry, factor = erfscope.MEASURES[name], 1
        if entry.unit in ("px", "px2"):
            factor = 2 if entry.unit == "px" else 8
        if isinstance(value, float):
            assert scaled[name] == pytest.approx(factor * value, rel=1e-9, abs=1e-12), name


def test_pixels_that_are_not_square_are_measured_in_their_unit():
    values = np.einsum("i,j->ij", *(np.exp(-((np.arange(81) - 40.0) ** 2) / 2 / s**2) for s in (5.0, 10.0)))
    axes = asked_axes(Axes.of_rank(2), spacing=(0.5, 0.25), unit_name="um")
    found = measure_map(ErfMap(values=values, center_px=(40.0, 40.0), stride_px=(1.0, 1.0), axes=axes))
    # Both sigmas are 2.5 um.
    assert found["r50"] == pytest.approx(1.17741 * 2.5, rel=5e-3)
    assert found["side50"] == pytest.approx(2 * 1.05181 * 2.5, rel=5e-3)


def random_stack(seed: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv3d(3, 2, 3, (1, 2, 2), 1)).double()
    return net, torch.randn(4, 1, 9, 16, 14, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_a_net_of_one_channel_is_a_volume_and_of_three_a_clip(seed):
    """Distances by hand, over all three axes of the same map and over two."""
    net, x = random_stack(seed)
    result = erfscope.analyze(net, images=x, draws="all", spacing=(3.0, 1.0, 1.0), unit_name="mm")
    assert (result.axes.text, result["r50"].unit) == ("depth 3 mm, row 1 mm, col 1 mm", "mm")
    steps = [
        step * (np.arange(n) - c)
        for n, c, step in zip(result.map.values.shape, result.map.center_px, (3, 1, 1), strict=True)
    ]
    distance = np.sqrt(sum(np.meshgrid(*(step**2 for step in steps), indexing="ij")))
    width = 3 ** (1 / 3)
    held = (result.map.values * np.clip((float(result["r50"]) - distance) / width + 0.5, 0, 1)).sum()
    assert held == pytest.approx(0.5, abs=1e-9)
    clip = erfscope.analyze(net, images=x, draws="all", axes="thw", fps=40)
    np.testing.assert_array_equal(clip.map.values, result.map.values)
    assert (clip["r50"].unit, clip["extent50_time"].unit) == ("px", "ms")
    distance = np.hypot(*np.meshgrid(*steps[1:], indexing="ij"))
    held = (clip.map.values.sum(0) * np.clip(float(clip["r50"]) - distance + 0.5, 0, 1)).sum()
    assert held == pytest.approx(0.5, abs=1e-9)


class Causal(nn.Module):
    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(1 if not i else 3, 3, 3, dilation=2**i) for i in range(depth))

    def forward(self, x):
        for i, convolution in enumerate(self.convolutions):
            x = torch.tanh(convolution(nn.functional.pad(x, (2 * 2**i, 0))))
        return x


def test_a_causal_stack_has_all_mass_in_the_past_exactly():
    torch.manual_seed(0)
    x = torch.randn(3, 1, 200, dtype=torch.float64)
    result = erfscope.analyze(Causal().double(), images=x, unit=150, sample_rate=1000.0, draws="all", measures="all")
    shares = {name: result[f"{name}_share"].value for name in ("past", "present", "future")}
    assert shares["future"] == 0
    assert shares["present"] == pytest.approx(result.map.values[150], abs=1e-12)
    assert sum(shares.values()) == pytest.approx(1)
    timing = result.timing
    assert (timing.step, timing.look_ahead, timing.latency) == ((150, 150), 0, 0)
    assert timing.causal_by_trf
    assert timing.causal_by_map
    # 1 + 2 (2^5 - 1) samples, of which as many as hold 0.9 of the mass count back from the end of sample 150.
    assert result.trf.size_px == (63,)
    back = float(result["lookback90"])
    ends = 151 - back - np.arange(200)
    assert (result.map.values * np.clip(1 - ends, 0, 1)).sum() == pytest.approx(0.9, abs=1e-9)
    assert result["r50"].unit == "ms"
    stored = erfscope.Report(results=(result,)).to_json()["results"][0]
    assert stored["timing"] == {
        "step": [150, 150], "look_ahead": 0, "latency": 0, "causal_by_trf": True, "causal_by_map": True
    }  # fmt: skip


@pytest.mark.parametrize(("own", "end"), [((4, 6), 6.5), ((8, 12), 9.5)])
def test_a_lookback_counts_from_the_end_of_the_units_own_step_and_not_from_beyond_the_input(own, end):
    """Of ten steps alike nine tenths of those before the end."""
    erf = ErfMap(
        values=np.full(10, 0.1), center_px=(sum(own) / 2,), stride_px=(4.0,), axes=Axes.named(("time",)), own_time=own
    )
    assert measure_map(erf, ["lookback90"])["lookback90"] == pytest.approx(0.9 * (end + 0.5))


def test_strides_without_padding_stand_at_their_centres_and_with_it_at_their_steps():
    """Wav2Vec2's seven convolutions: 400 samples, 320 apart, the first centred on 199.5."""
    kernels, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
    torch.manual_seed(0)
    parts = [nn.Conv1d(1 if not i else 4, 4, k, s) for i, (k, s) in enumerate(zip(kernels, strides, strict=True))]
    x = torch.randn(1, 1, 4000, dtype=torch.float64)
    result = erfscope.analyze(nn.Sequential(*parts).double(), images=x, unit=5, sample_rate=16000)
    assert (result.trf.size_px, result.trf.stride_px, result.trf.offset_px) == ((400,), (320.0,), (199.5,))
    center = 199.5 + 5 * 320
    assert result.timing.step == (center - 159.5, center + 159.5)
    assert result.timing.look_ahead == 40
    assert not result.timing.causal_by_trf
    padded = nn.Sequential(nn.Conv1d(1, 4, 3, 2, 1), nn.Conv1d(4, 4, 3, 2, 1)).double()
    timing = erfscope.analyze(padded, images=x, unit=7).timing
    # Samples 25 to 31 are read, and the step is 28 to 31.
    assert (timing.step, timing.look_ahead, timing.latency, timing.causal_by_trf) == ((28, 31), 0, 3, True)


@pytest.mark.parametrize("unit", [0, 31, 63])
def test_a_net_that_pads_behind_looks_ahead_of_its_own_sample(unit):
    net = nn.Sequential(nn.ConstantPad1d((0, 2), 0.0), nn.Conv1d(1, 4, 3))
    result = erfscope.analyze(net, images=torch.randn(2, 1, 64), unit=unit)
    assert (result.timing.step, result.timing.look_ahead) == ((unit, unit), 2)
    assert result["past_share"].value == 0


@pytest.mark.parametrize("spacing", [0.5, (0.5,), [0.5]])
@pytest.mark.parametrize("own", [VOLUME, Axes.of_rank(2), Axes.of_rank(1), Axes.named(NAMES["thw"])])
def test_one_number_is_the_spacing_along_every_axis(own, spacing):
    assert asked_axes(own, spacing=spacing) == asked_axes(own, spacing=(0.5,) * len(own.measured))


def test_one_number_of_spacing_does_not_say_what_three_axes_are():
    net = nn.Conv3d(3, 2, 3, padding=1)
    assumed = [
        [finding.code for finding in erfscope.analyze(net, input_size=(4, 6, 6), samples=1, spacing=spacing).findings]
        for spacing in (0.5, (0.5, 0.5))
    ]
    assert [codes.count("assumed") for codes in assumed] == [2, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spacing": (1.0, 2.0)}, "spacing is one positive number, or one for each of depth, row, col, not 1, 2"),
        ({"spacing": (1.0, 0.0, 1.0)}, "spacing is one positive number"),
        ({"axes": "t"}, "axes t are 1, and the input has 3: choose thw or dhw or btchw"),
        ({"fps": 25.0}, "fps is for clips, axes thw; this input has depth, row, col"),
        ({"sample_rate": 100.0}, "sample-rate is for sequences"),
        ({"fps": 0.0, "axes": "thw"}, "fps must be positive, not 0"),
        ({"unit_name": "mm"}, "unit-name is the unit of a spacing"),
        ({"axes": "xyz"}, "axes"),
    ],
)
def test_what_does_not_fit_the_axes_is_refused_in_one_line(options, text):
    with pytest.raises(erfscope.ErfscopeError, match=text) as error:
        erfscope.analyze(nn.Conv3d(1, 2, 3), input_size=(8, 8, 8), in_chans=1, samples=1, **options)
    assert "\n" not in str(error.value)


def test_frames_before_channels_are_asked_about_and_measured():
    def frames_first(m, x):
        if x.shape[2] != 3:
            raise ValueError(f"frames of {x.shape[2]} channels")
        return m.inner(x.transpose(1, 2))

    model = Does(frames_first, inner=nn.Conv3d(3, 2, 3, padding=1))
    with pytest.raises(erfscope.ErfscopeError, match=r"\(B, T, C, H, W\), frames before channels: axes='btchw'"):
        erfscope.analyze(model, input_size=(6, 10, 10), samples=1)
    result = erfscope.analyze(model, input_size=(6, 10, 10), samples=1, axes="btchw")
    alone = erfscope.analyze(model.inner, input_size=(6, 10, 10), samples=1, axes="thw")
    np.testing.assert_allclose(result.map.values, alone.map.values, atol=1e-7)


def test_reports_keep_their_axes(tmp_path):
    net, x = random_stack(0)
    result = erfscope.analyze(net, images=x, spacing=(2.5, 1.0, 1.0), unit_name="mm")
    erfscope.Report(results=(result,)).save(tmp_path / "report", drawn=False)
    again = files.read(tmp_path / "report").results[0]
    assert again.axes == result.axes
    assert again["r90"].value == pytest.approx(result["r90"].value)
    assert measure_map(again.map, ["extent90_depth"]) == measure_map(result.map, ["extent90_depth"])
    assert "mm" in str(again)


def test_tiles_are_planned_in_millimetres_and_milliseconds():
    net = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Conv3d(2, 2, 3, 2, 1))
    plan = erfscope.tile(net, input_size=(16, 16, 16), in_chans=1, spacing=(2.5, 1.0, 1.0), unit_name="mm")
    assert plan.halo == ((2, 1),) * 3
    assert "5 mm x 2 mm x 2 mm before, 2.5 mm x 1 mm x 1 mm after, multiples of 5 mm x 2 mm x 2 mm" in " ".join(
        str(plan).split()
    )


def test_sizes_are_in_the_units_that_files_state(tmp_path):
    nibabel, soundfile = pytest.importorskip("nibabel"), pytest.importorskip("soundfile")
    values = np.random.default_rng(0).normal(size=(20, 18, 16)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([1.5, 1, 2.5, 1])), tmp_path / "v.nii")
    soundfile.write(tmp_path / "s.wav", values.ravel()[:600] / 10, 8000)
    net, _ = random_stack(0)
    volume = erfscope.analyze(net, images=str(tmp_path / "v.nii"), input_size=(12, 12, 12), in_chans=1)
    assert volume.axes.text == volume.options["axes"] == "depth 2.5 mm, row 1 mm, col 1.5 mm"
    by_hand = measure_map(ErfMap(
        values=volume.map.values, center_px=volume.map.center_px, stride_px=volume.map.stride_px,
        axes=asked_axes(VOLUME, spacing=(2.5, 1.0, 1.5)),
    ))  # fmt: skip
    assert volume["r90"].value == pytest.approx(by_hand["r90"])
    asked = {"images": str(tmp_path / "s.wav"), "input_size": (300,), "in_chans": 1}
    net = Causal()
    sound = erfscope.analyze(net, **asked)
    assert sound.axes.text == "time 0.125 ms"
    assert erfscope.analyze(net, **asked, sample_rate=8000)["r50"].value == pytest.approx(sound["r50"].value)
    with pytest.raises(erfscope.ErfscopeError, match=r"has 8000 samples per second, .*16000 samples.*resample"):
        erfscope.analyze(net, **asked, sample_rate=16000)


def test_csv_says_what_lengths_are_in():
    net, x = random_stack(0)
    asked = [{"spacing": (2.5, 1.0, 1.0), "unit_name": "mm"}, {}, {"axes": "thw"}]
    report = erfscope.Report(results=tuple(erfscope.analyze(net, images=x, **options) for options in asked))
    rows = list(csv.DictReader(io.StringIO(report.table(format="csv"))))
    assert [(row["length_unit"], row["in_plane"]) for row in rows] == [
        ("mm", "false"),
        ("voxels", "false"),
        ("px", "true"),
    ]


class VolumeUNet(nn.Module):
    """Three levels of two convolutions each way, as of Cicek et al. 2016, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(self.two(2 if level else 1) for level in range(4))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2, 2, 2, 2) for _ in range(3))
        self.join = nn.ModuleList(self.two(4) for _ in range(3))

    @staticmethod
    def two(channels: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv3d(channels, 2, 3, 1, 1), nn.ReLU(), nn.Conv3d(2, 2, 3, 1, 1), nn.ReLU())

    def forward(self, x):
        beside = []
        for level, block in enumerate(self.down):
            x = block(x)
            if level < 3:
                beside.append(x)
                x = nn.functional.max_pool3d(x, 2)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), beside.pop()], 1))
        return x


@pytest.mark.slow
def test_a_unet_of_volumes_has_its_published_field_and_halo():
    """From unit x, a multiple of 8, to the left: two convolutions to x - 2, which lies in cell x / 2 - 1 of the level
    below; from there to x / 2 - 3, in cell x / 4 - 2; to x / 4 - 4, in x / 8 - 2; at the bottom to x / 8 - 4, which
    begins at x / 4 - 8; to x / 4 - 10, x / 2 - 22 and x - 46."""
    options = {"input_size": (96, 96, 96), "in_chans": 1}
    plan = erfscope.tile(VolumeUNet(), **options, tile=48)
    assert (plan.possible, plan.halo, plan.alignment) == (True, ((46, 46),) * 3, (8, 8, 8))
    assert erfscope.theoretical(VolumeUNet(), **options).size_px == (92, 92, 92)


@pytest.mark.parametrize(
    ("name", "noun", "cell", "cells", "sides"),
    [
        ("hw", "image", "pixel", "px", "9 px"),
        ("t", "sequence", "sample", "samples", "1 sample"),
        ("thw", "clip", "pixel", "frames, px", "1 frame x 9 px"),
        ("dhw", "volume", "voxel", "voxels", "1x9x9 voxels"),
    ],
)
def test_an_input_and_its_cells_have_one_name_each(name, noun, cell, cells, sides):
    axes = Axes.named(NAMES[name])
    assert (axes.noun, axes.one_cell, axes.cells) == (noun, cell, cells)
    shape = {1: (1,), 2: (9, 9), 3: (1, 9, 9)}[len(axes.names)]
    assert sides_text(axes, shape, square=True) == sides
    assert Axes.of_recorded(axes.recorded.get("axes", ""), len(axes.names)) == axes


def test_what_is_printed_of_a_volume_speaks_of_no_picture():
    net = nn.Conv3d(1, 2, 3, padding=1)
    report = erfscope.compare([net], input_size=(5, 8, 8), in_chans=1, samples=2, spacing=(2, 1, 1), unit_name="mm")
    plan = erfscope.tile(net, 16, input_size=(5, 8, 8), in_chans=1, axes="dhw")
    texts = [str(report), methods_sentence(report), str(plan)]
    assert not [word for text in texts for word in re.findall(r"(?i)\b(?:images?|pixels?|px)\b", text)]


def test_of_a_clip_rows_and_columns_have_the_spacing_of_a_file():
    clip = Axes.named(NAMES["thw"])
    assert clip.stated((3.0, 2.0, 1.0), "mm").text == "time, row 2 mm, col 1 mm"
    assert asked_axes(clip, fps=25).stated((3.0, 2.0, 1.0), "mm").text == "time 40 ms, row 2 mm, col 1 mm"
    own = asked_axes(clip, spacing=(4, 4), unit_name="mm")
    assert own.stated((3.0, 2.0, 1.0), "mm") == own
