"""Models of several inputs: closed forms, plain autograd, and every door that takes them."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from one_line import one_line
from oracle import sound_norms
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import erfscope
from erfscope import MeasurementError
from erfscope.core import Request
from erfscope.core.answer.comparability import swept as swept_settings
from erfscope.core.answer.maps.accumulator import error_bar
from erfscope.core.images.files import by_input, paired_files
from erfscope.show.view.report_view import report_view
from erfscope.show.view.terminal.report import ComparisonTable

#: Shapes of the inputs of :class:`Fusion`.
IMAGE, DEPTH = (3, 24, 32), (1, 12, 16)
DISPARITIES = 4


class Pair(nn.Module):
    """A function of two inputs."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor] = lambda left, right: left + right) -> None:
        super().__init__()
        self.function = function

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.function(left, right)


class Fusion(nn.Module):
    """An image and its depth of half the size, with a non-linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.colour, self.depth = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Conv2d(1, 6, 5, padding=2)
        self.norm, self.join = nn.BatchNorm2d(12), nn.Conv2d(12, 5, 3, padding=1)

    def forward(self, image: Tensor, depth: Tensor) -> Tensor:
        both = torch.cat([self.colour(image), self.depth(depth)], 1)
        return torch.tanh(self.join(torch.relu(self.norm(both))))


class Stereo(nn.Module):
    """The correlation of two feature maps over disparities of 0 to 3 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.features(left), self.features(right)
        width = b.shape[-1]
        return torch.stack([(a * F.pad(b, (d, 0))[..., :width]).mean(1) for d in range(DISPARITIES)], 1)


class Diffusion(nn.Module):
    """A denoiser with a timestep and the embeddings of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.text = nn.Embedding(10, 8), nn.Linear(6, 8)
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, text: Tensor | None = None) -> Tensor:
        shift = self.steps(timestep) + (0 if text is None else self.text(text).mean(1))
        return self.last(torch.sigmoid(self.first(sample) + shift[:, :, None, None]))


def zeros(*shape: int, count: int = 1) -> tuple[Tensor, ...]:
    """Example inputs of one shape."""
    return tuple(torch.zeros(1, *shape) for _ in range(count))


def wrapped(module: nn.Module, *shapes: tuple[int, ...], **options: Any) -> Any:
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean, part.running_var = torch.randn(12), torch.rand(12) + 0.5
    return erfscope.wrap(module.double().eval(), example_inputs=[torch.zeros(1, *each) for each in shapes], **options)


@cache
def fusion(dtype: torch.dtype = torch.float64) -> Any:
    """Recorded once."""
    torch.manual_seed(0)
    return wrapped(Fusion(), IMAGE, DEPTH).to(dtype=dtype)


def two(right: Tensor | None = None) -> Any:
    return erfscope.wrap(Stereo(), example_inputs=(*zeros(*IMAGE), torch.zeros(1, *IMAGE) if right is None else right))


def images(*shapes: tuple[int, ...], count: int = 2) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(count, *each, dtype=torch.float64) for each in shapes]


def swept(adapter: Any, *given: Tensor, **options: Any) -> list[erfscope.Result]:
    names = [name.removeprefix("input:") for name in adapter.preprocess.parts]
    return list(erfscope.sweep(adapter, images=dict(zip(names, given, strict=True)), **options))


def by_autograd(module: Callable[..., Tensor], unit: tuple[int, ...], *given: Tensor) -> list[Tensor]:
    """The magnitudes of the gradient of the sum of a unit's channels, one image at a time: (B, *space) each."""
    found: list[list[Tensor]] = [[] for _ in given]
    for image in range(len(given[0])):
        leaves = [each[image : image + 1].clone().requires_grad_(True) for each in given]
        with sound_norms():
            out = module(*leaves)[(slice(None), slice(None), *unit)].sum()
        for own, gradient in zip(found, torch.autograd.grad(out, leaves), strict=True):
            own.append(gradient.abs().sum(1)[0])
    return [torch.stack(each) for each in found]


def off(result: erfscope.Result, expected: Tensor) -> float:
    """Relative L1 difference of a map to magnitudes of images, (B, *space)."""
    wanted = (expected.mean(0) / expected.mean(0).sum()).numpy()
    return float(np.abs(result.map.values - wanted).sum())


# --- Closed forms and plain autograd --------------------------------------------------------------


@pytest.mark.parametrize(("convention", "power"), [("luo", 1), ("jacobian", 2), ("energy", 2)])
def test_shares_of_two_towers_are_those_of_their_weights(convention, power):
    adapter = wrapped(Pair(lambda left, right: 3 * left - right), (3, 8, 8), (3, 8, 8))
    rows = swept(adapter, *images((3, 8, 8), (3, 8, 8), count=5), convention=convention, draws="all", device="cpu")
    expected = [3**power / (3**power + 1), 1 / (3**power + 1)]
    assert [row["input_share"].value for row in rows] == pytest.approx(expected, rel=1e-12)
    assert [row["input_share"].se for row in rows] == pytest.approx([0, 0], abs=1e-15)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("layer", ["output", "join"])
def test_maps_and_shares_are_those_of_plain_autograd(layer, plain):
    module, given = fusion().module, images(IMAGE, DEPTH, count=5)
    rows = swept(fusion(), *given, layer=layer, convention="luo", plain=plain)
    assert [(row.wrt, row.input.size, row.unit.index) for row in rows] == [
        ("input:image", IMAGE[1:], (6, 8)),
        ("input:depth", DEPTH[1:], (6, 8)),
    ]

    def read(*leaves: Tensor) -> Tensor:
        kept: list[Tensor] = []
        handle = module.join.register_forward_hook(lambda _module, _args, out: kept.append(out))
        out = module(*leaves)
        handle.remove()
        return out if layer == "output" else kept[-1]

    expected = by_autograd(read, (6, 8), *given)
    assert [off(row, each) < 1e-12 for row, each in zip(rows, expected, strict=True)] == [True, True]
    totals = torch.tensor([float(each.sum()) for each in expected])
    assert [row["input_share"].value for row in rows] == pytest.approx((totals / totals.sum()).tolist(), rel=1e-6)
    # The error of a share is its jackknife over images.
    own, other = (each.flatten(1).sum(1).numpy() for each in expected)
    left = [1 - np.delete(other, k).sum() / (np.delete(own, k) + np.delete(other, k)).sum() for k in range(5)]
    assert rows[0]["input_share"].se == pytest.approx(error_bar(rows[0]["input_share"].value, left), rel=1e-9)


def test_each_input_has_its_own_pixels_fields_centre_and_rows():
    colour, depth = (erfscope.theoretical(fusion(), wrt=f"input:{name}") for name in ("image", "depth"))
    # 3 of stride 2, then 3: 3 + 2 x 2 pixels; 5, then 3: 5 + 2.
    assert (colour.size_px, colour.stride_px, colour.center_px) == ((7, 7), (2, 2), (12, 16))
    assert (depth.size_px, depth.stride_px, depth.center_px) == ((7, 7), (1, 1), (6, 8))
    assert colour.center_exact
    assert depth.center_exact
    table = erfscope.layers(fusion())
    found = [(row.name, row.wrt.removeprefix("input:"), row.trf.size_px[0]) for row in table.rows]
    both = [(name, wrt, size) for name, size in (("join", 7), ("output", 7)) for wrt in ("image", "depth")]
    assert found == [("colour", "image", 3), ("depth", "depth", 5), ("norm", "image", 3), ("norm", "depth", 5), *both]
    assert [row["wrt"] for row in table.to_json()["layers"]] == [row.wrt for row in table.rows]
    assert "input:image 24x32, input:depth 12x16" in str(table)
    plain = erfscope.layers(erfscope.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), input_size=16))
    assert "reference" not in str(plain)
    assert all("wrt" not in row for row in plain.to_json()["layers"])


def test_a_cost_volume_shifts_the_field_of_the_other_view():
    adapter = wrapped(Stereo(), IMAGE, IMAGE)
    left, right = (erfscope.theoretical(adapter, wrt=f"input:{name}") for name in ("left", "right"))
    assert left.box_px == ((11, 13), (15, 17))
    # A disparity of d moves the window d pixels to the left.
    assert right.box_px == ((11, 13), (15 - (DISPARITIES - 1), 17))
    assert (left.center_px, left.center_exact) == ((12, 16), True)
    assert right.center_px == (12, 16)
    assert "along the width alone" in right.center_inexact_reason
    rows = swept(adapter, *images(IMAGE, IMAGE), channels=2, convention="luo")
    # Of one disparity the map is where that is.
    seen = np.argwhere(rows[1].map.values > 0)
    assert (seen.min(0).tolist(), seen.max(0).tolist()) == ([11, 13], [13, 15])


@pytest.mark.parametrize("with_text", [False, True])
def test_what_is_no_map_is_passed_through_for_each_image(with_text):
    torch.manual_seed(0)
    module, text = Diffusion().double(), torch.randn(1, 7, 6)
    examples: dict[str, Any] = {"sample": torch.zeros(1, 4, 10, 10), "timestep": torch.tensor([3])}
    adapter = erfscope.wrap(module, inputs=examples | ({"text": text} if with_text else {}))
    assert set(adapter.passed) == {"input:timestep"} | ({"input:text"} if with_text else set())
    (given,) = images((4, 10, 10), count=3)
    row = erfscope.analyze(adapter, images=given, convention="luo")
    shown = text.double() if with_text else None
    (expected,) = by_autograd(lambda x: module(x, torch.tensor([3]), shown), (5, 5), given)
    assert (row.wrt, "input_share" in row.measures) == ("image", False)
    assert off(row, expected) < 1e-12


def test_layers_units_and_references_of_one_tower_and_of_both():
    given = images(IMAGE, DEPTH)
    (row,) = swept(fusion(), *given, layer="depth")
    assert (row.wrt, row.unit.center_px) == ("input:depth", (6, 8))
    said = "depth does not depend on input:image, which has no map and no share"
    assert said in [finding.text for finding in row.findings]
    one_line(lambda: swept(fusion(), *given, layer="depth", wrt="input:image"), "does not depend on 'input:image'")
    inner = swept(fusion(), *given, wrt="colour", layer="join")
    assert inner[0].map.values.shape == (12, 16)
    rows = swept(fusion(), *given, unit="class:2", convention="luo")
    expected = by_autograd(lambda *x: fusion().module(*x)[:, 2:3].sum((2, 3)), (), *given)
    assert [off(row, each) < 1e-12 for row, each in zip(rows, expected, strict=True)] == [True, True]
    for row in swept(fusion(), *given, unit="all", convention="luo"):
        assert row.positions.r50[tuple(row.unit.index)] == pytest.approx(row["r50"].value, rel=1e-6)


@pytest.mark.slow
def test_gradients_hold_in_float64_and_against_noise():
    rows = erfscope.sweep(fusion(torch.float32), samples=2, verify=True, trust=True)
    assert [row.verification.holds for row in rows] == [True, True]
    assert [row.trust.disagrees for row in rows] == [False, False]
    assert [row.trust.ratio[0] for row in rows] == pytest.approx([1, 1], abs=0.02)


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "smoothgrad"])
def test_methods_of_captum_attribute_to_each_input(method):
    """Of a product both inputs have the same value; the gradient of one is the other."""
    given, shape = images((1, 6, 6), (1, 6, 6), count=1), (1, 6, 6)
    adapter = wrapped(Pair(lambda left, right: left * right), shape, shape)
    rows = swept(adapter, *given, method=method, convention="luo", unit="2,2")
    assert [np.argwhere(row.map.values > 0).tolist() for row in rows] == [[[2, 2]]] * 2
    left, right = (float(each[0, 0, 2, 2].abs()) for each in given)
    expected = right / (left + right) if method == "smoothgrad" else 0.5
    assert rows[0]["input_share"].value == pytest.approx(expected, abs=0.2 if method == "smoothgrad" else 1e-6)


# --- Arguments ------------------------------------------------------------------------------------


class Anyhow(nn.Module):
    """Takes its inputs in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, batch: Any, *more: Tensor, scale: Tensor, flag: bool = False) -> Tensor:
        out = self.conv(batch["a"]) + 2 * self.conv(batch["b"][1]) + sum(self.conv(each) for each in more)
        return out * scale[:, None, None, None] * (2 if flag else 1)


def test_maps_are_found_in_containers_and_named_by_the_way_to_them():
    (x,), module = zeros(3, 8, 8), Anyhow()
    call: Callable[..., Any] = lambda m, batch, one, scale: m(batch, one, scale=scale, flag=True)  # noqa: E731
    adapter = erfscope.wrap(module, forward=call, example_inputs=({"a": x, "b": ["id", x]}, x, torch.ones(1)))
    assert [*adapter.preprocess.parts] == ["input:batch[a]", "input:batch[b][1]", "input:one"]
    rows = erfscope.sweep(adapter, samples=5, convention="luo")
    assert [row["input_share"].value for row in rows] == pytest.approx([0.25, 0.5, 0.25], rel=1e-5)


@pytest.mark.slow
def test_an_exported_program_has_the_inputs_that_it_was_exported_with():
    # One tensor given twice is one argument to torch.export (from PyTorch 2.14 on).
    module, (view, other) = Stereo().eval(), zeros(*IMAGE, count=2)
    expected = erfscope.sweep(erfscope.wrap(module, example_inputs=(view, other)), samples=2)
    for args, keywords in (((view, other), {}), ((), {"left": view, "right": other})):
        rows = erfscope.sweep(torch.export.export(module, args, keywords), samples=2)
        assert [row.wrt for row in rows] == ["input:left", "input:right"]
        for row, own in zip(rows, expected, strict=True):
            assert row.trf == own.trf
            assert row["input_share"].value == pytest.approx(own["input_share"].value, rel=1e-5)
    program = torch.export.export(module, (view,), {"right": other})
    one_line(lambda: erfscope.sweep(program), r"takes left, right; give an example of each: erfscope\.wrap\(program")
    # What an exported program does not use is said.
    x, y = zeros(3, 8, 8, count=2)
    row = erfscope.analyze(torch.export.export(Pair(lambda left, right: 2 * left), (x, y)), samples=1)
    assert row.wrt == "input:left"
    assert any("does not use right" in finding.text for finding in row.findings)


def test_one_tensor_for_two_inputs_is_two_inputs_whose_ids_name_them():
    report = erfscope.sweep(erfscope.wrap(Pair(), example_inputs=zeros(3, 8, 8) * 2), samples=1)
    assert [row.id for row in report] == ["Pair-output-u4x4-left", "Pair-output-u4x4-right"]
    assert report["Pair-output-u4x4-right"].wrt == "input:right"


def test_layers_have_the_calls_of_a_module_that_inputs_share():
    adapter = two()
    table = erfscope.layers(adapter)
    names = [("features@0", "input:left"), ("features@1", "input:right")]
    assert [(row.name, row.wrt) for row in table.rows] == [*names, ("output", "input:left"), ("output", "input:right")]
    assert "at input:left 24x32, input:right 24x32" in str(table)
    for row in table.rows:
        assert erfscope.analyze(adapter, layer=row.name, wrt=row.wrt, samples=1, measures="r50").trf == row.trf


def test_branches_that_disagree_name_the_unit_that_stands_somewhere():
    def written(left: Tensor, right: Tensor) -> Tensor:
        """A cost volume of two disparities that is written into a buffer."""
        volume = left.new_zeros(len(left), 2, *left.shape[2:])
        volume[:, 0] = (left * right).mean(1)
        volume[:, 1, :, 1:] = (left[..., 1:] * right[..., :-1]).mean(1)
        return volume

    trf = erfscope.theoretical(erfscope.wrap(Pair(written), example_inputs=zeros(*IMAGE) * 2), wrt="input:right")
    assert "puts unit 0 at 0 px" in trf.center_inexact_reason
    assert "puts unit 1 at 0 px" in trf.center_inexact_reason


def test_means_and_transforms_may_be_each_inputs_own():
    (x,) = zeros(3, 8, 8)
    mean = {"left": [0.1] * 3, "right": 0.2}
    adapter = erfscope.wrap(Pair(), inputs={"left": x, "right": x}, mean=mean, std=0.5)
    assert [part.mean for part in adapter.preprocess.parts.values()] == [(0.1,) * 3, (0.2,) * 3]
    row, _ = erfscope.sweep(adapter, samples=1)
    assert "mean 0.1, std 0.5" in row.input.transform


VIEW, SMALL = torch.zeros(1, *IMAGE), torch.zeros(1, 3, 8, 8)


def stereo(*examples: Any, **options: Any) -> Any:
    return erfscope.wrap(Stereo(), **({"example_inputs": examples} if examples else {}), **options)


def denoiser() -> Any:
    return erfscope.wrap(Diffusion(), example_inputs=(torch.zeros(1, 4, 8, 8), torch.tensor([1])))


def one(adapter: Any) -> Any:
    return erfscope.analyze(adapter, samples=1)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: stereo(SMALL), "takes (left, right)"),
    (lambda: stereo(inputs={"left": SMALL, "rihgt": 1}), "takes (left, right)"),
    (lambda: two(torch.zeros(2, *IMAGE)), "left 1, right 2"),
    (lambda: two(torch.zeros(1, 3, 4, 8, 8)), "left has 2, right has 3"),
    (lambda: stereo(torch.ones(3), 1), "none of the example inputs"),
    (lambda: stereo(inputs={}, example_inputs=()), "not both"),
    (lambda: stereo(VIEW.numpy(), VIEW), "the example input 0 of Stereo is an array: give torch.from_numpy(...)"),
    (
        lambda: wrapped(Fusion(), IMAGE, DEPTH, mean=(0.5,) * 3),
        "depth: mean has 3 values, but the input has 1 channels",
    ),
    (lambda: stereo(inputs=[torch.ones(1)]), "examples by name"),
    (lambda: stereo(VIEW, VIEW, input_size=8), "leave input_size and in_chans out"),
    (lambda: stereo(VIEW, VIEW, mean={"lef": 0.5}), "unknown input 'lef' in mean; there is: left, right"),
    (
        lambda: erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=8, std={"left": 0.5}),
        "unknown input 'left' in std; there is: image",
    ),
    (lambda: one(two(SMALL)), "fails on left of 3 channels at 24x32, right of 3 channels at 8x8: "),
    (lambda: one(two(VIEW.long())), "passed through as given: right, int64 of shape (1, 3, 24, 32)"),
    (
        lambda: erfscope.sweep(two(), samples=1, measures="r50,input_share"),
        "input_share stands beside the measures of a model of several inputs",
    ),
    (
        lambda: erfscope.sweep(denoiser(), wrt="input:timestep"),
        "is passed through, int64 of shape (1,): there is no map of it; name image",
    ),
    (lambda: erfscope.sweep(two(), wrt="input:middle"), "unknown reference 'input:middle'"),
    (lambda: one(two()), "wrt='input:left'"),
    (lambda: erfscope.sweep(two(), samples=1, method="occlusion"), "a patch of all inputs"),
    (lambda: erfscope.sweep(two(), images=VIEW), "images were given for no name"),
    (lambda: erfscope.sweep(two(), images={"left": VIEW}), "given for left"),
    (
        lambda: erfscope.sweep(two(), images={"left": VIEW, "right": torch.zeros(2, *IMAGE)}),
        "input:left 1, input:right 2",
    ),
    (lambda: erfscope.theoretical(two()), "takes several inputs, and theoretical takes one"),
    (lambda: erfscope.tile(two()), "takes several inputs, and a plan is of one"),
    (lambda: erfscope.ErfMonitor(two(), every=1, samples=1).step(0), "wrt='input:left'"),
    (lambda: erfscope.analyze(nn.Conv2d(3, 4, 3), images={"left": VIEW}), "leave NAME= out"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_what_does_not_fit_is_refused_in_one_line(call, text):
    one_line(call, re.escape(text))


# --- Images ---------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for folder, suffix in (("left", "png"), ("right", "jpg")):
        (tmp_path / folder).mkdir()
        for name in "cab":
            picture = Image.fromarray(generator.integers(0, 255, (30, 40, 3), dtype=np.uint8))
            picture.save(tmp_path / folder / f"{name}.{suffix}")
    return tmp_path


@pytest.mark.slow
def test_folders_are_paired_by_the_names_of_their_files(folders):
    asked = {name: str(folders / name) for name in ("left", "right")}
    found = paired_files(asked, samples=2, seed=0)
    assert [each.stem for each in found["left"]] == [each.stem for each in found["right"]]
    assert {each.suffix for each in found["right"]} == {".jpg"}
    rows = erfscope.sweep(two(), images=asked)
    assert [(row.input.n_images, row.input.source) for row in rows] == [(3, "image")] * 2
    assert rows[0].input.sha256 != rows[1].input.sha256
    assert not np.array_equal(rows[0].picture, rows[1].picture)
    assert all("whole" in row.input.transform for row in erfscope.sweep(two(), images=asked, squash=True))
    (folders / "right" / "b.jpg").unlink()
    one_line(lambda: erfscope.sweep(two(), images=asked), r"b\.png' of left has no partner among the images of right")


def test_paths_are_given_by_the_names_of_inputs(folders):
    left, right = folders / "left" / "a.png", folders / "right" / "a.jpg"
    assert by_input([f"left={left}", f"right={right}"]) == {"left": [str(left)], "right": [str(right)]}
    assert by_input("val/a=b.png") == "val/a=b.png"
    assert by_input(None) is None
    odd = folders / "left=a.png"
    odd.write_bytes(left.read_bytes())
    assert by_input([str(odd)]) == [str(odd)]
    one_line(lambda: by_input([f"left={left}", str(right)]), "others without NAME=")


def test_synthetic_images_differ_between_inputs():
    """A net of the difference of its inputs has a gradient at an image and itself that stands for no other."""
    rows = erfscope.sweep(two(), samples=2, seed=5)
    alone = erfscope.sweep(erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=IMAGE[1:]), samples=2, seed=5)[0]
    assert rows[0].input.sha256 == alone.input.sha256
    assert rows[0].input.sha256 != rows[1].input.sha256


# --- Doors ----------------------------------------------------------------------------------------

FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(1, 4, 5, padding=2, stride=1)

    def forward(self, image, mask, step=None):
        return torch.tanh(self.first(image) + self.second(mask))

def make():
    return Net(), {"image": torch.zeros(1, 3, 16, 16), "mask": torch.zeros(1, 1, 16, 16)}

def pair():
    return Net(), (*make()[1].values(),)

def wrapped():
    import erfscope
    return erfscope.wrap(Net(), example_inputs=pair()[1], mean={"image": 0.5})

def odd():
    return Net(), 5
"""
QUICK: dict[str, Any] = {"measures": "r50"}


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FILE)
    return tmp_path


def test_a_factory_returns_its_example_inputs(net):
    for name in ("make", "pair", "wrapped"):
        rows = erfscope.sweep(f"net.py:{name}", samples=4, **QUICK)
        assert [(row.model, row.wrt, row.weights.source) for row in rows] == [
            (f"net.py:{name}", f"input:{each}", "factory") for each in ("image", "mask")
        ]
        assert sum(row["input_share"].value for row in rows) == pytest.approx(1)
    one_line(lambda: erfscope.sweep("net.py:odd"), r"returned \(Net, int\); it must return an nn\.Module, a pair")
    one_line(lambda: erfscope.sweep("net.py:wrapped", mean=0.5), r"give mean to erfscope\.wrap")


@pytest.mark.slow
def test_shards_put_together_have_the_shares_of_the_whole(net):
    whole = erfscope.sweep("net.py:make", samples=8, **QUICK)
    for number in (1, 2):
        erfscope.sweep("net.py:make", samples=8, shard=f"{number}/2", **QUICK).save(net / f"s{number}", drawn=False)
    for row, expected in zip(erfscope.merge(["s1", "s2"]), whole, strict=True):
        assert row["input_share"].value == pytest.approx(expected["input_share"].value, rel=1e-12)
        assert row["input_share"].se == pytest.approx(expected["input_share"].se, rel=1e-9)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_shares(net):
    options = {"samples": 12, "batch_size": 4, **QUICK}
    whole = erfscope.sweep("net.py:make", **options)
    calls = iter([False, False, False, True])
    erfscope.sweep("net.py:make", **options, stop=lambda: next(calls, True)).save(net / "kept", drawn=False)
    found = erfscope.sweep("net.py:make", **options, resume=net / "kept")
    for row, expected in zip(found, whole, strict=True):
        assert np.array_equal(row.map.values, expected.map.values)
    assert sum(row["input_share"].value for row in found) == pytest.approx(1)
    found.save(net / "done", drawn=False)
    again = erfscope.sweep("net.py:make", **options, resume=net / "done")
    assert [row["input_share"].value for row in again] == [row["input_share"].value for row in found]
    # Inputs that are measured one after the other, and of different numbers of images, have no share.
    stops = iter([*[False] * 7, True])
    rows = erfscope.sweep("net.py:make", **options | {"batch_size": 2, "plain": True}, stop=lambda: next(stops, True))
    assert [row.input.n_images for row in rows] == [12, 2]
    assert all("input_share" not in row.measures for row in rows)
    first, _ = [finding.text for row in rows for finding in row.findings if finding.code == "no_share"]
    assert first.endswith("input:image 12, input:mask 2")


def test_models_of_the_same_inputs_are_compared_on_the_same_images(net):
    report = erfscope.compare({"A": "net.py:make", "B": "net.py:pair"}, samples=4, **QUICK)
    names = [(label, f"input:{name}") for label in "AB" for name in ("image", "mask")]
    assert [(row.label, row.wrt) for row in report] == names
    assert report.results[0].input.sha256 == report.results[2].input.sha256
    differences = report.differences()
    assert [bool(each) for each in differences] == [False, False, True, True]
    assert differences[3]["r50"][0] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_a_model_with_a_block_is_compared_with_its_host_by_input():
    report = erfscope.sweep(wrapped(Fusion(), IMAGE, DEPTH), insert="nonlocal@colour", samples=2, **QUICK)
    assert [row.id for row in report] == [
        f"Fusion{block}-output-u6x8-{name}" for block in ("", "_nonlocal") for name in ("image", "depth")
    ]
    assert [row.host for row in report] == [None, None, "Fusion-output-u6x8-image", "Fusion-output-u6x8-depth"]
    assert [bool(each) for each in report.differences()] == [False, False, True, True]


def test_a_model_of_one_image_beside_one_of_several_is_a_row_with_its_reason():
    one = erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=IMAGE[1:])
    report = erfscope.compare({"two": two(), "one": one}, samples=1)
    assert [row.status for row in report] == ["ok", "ok", "error"]
    assert "takes one image, but the images compared on are for input:left, input:right" in report.results[2].error


@pytest.mark.slow
def test_a_check_and_a_monitor_are_of_one_input(net):
    options: Any = {"samples": 4, "baseline": "b.json"}
    unnamed = erfscope.check("net.py:make", **options)
    assert unnamed.word == "cannot tell"
    assert "name one with --wrt" in unnamed.text
    assert erfscope.check("net.py:make", wrt="input:mask", update=True, **options).exit_code == 0
    assert erfscope.check("net.py:make", wrt="input:mask", **options).word == "pass"
    assert erfscope.check("net.py:make", wrt="input:image", **options).word != "pass"
    monitor = erfscope.ErfMonitor(two(), every=1, samples=1, wrt="input:right", quiet=True)
    assert monitor.step(0).trf.size_px == (3, 6)


def test_tiles_of_each_input_overlap_by_its_own_field():
    adapter = fusion()
    colour, depth = (
        erfscope.tile(adapter, tile=side, wrt=f"input:{name}") for name, side in (("image", 64), ("depth", 32))
    )
    assert (colour.halo, colour.alignment) == (((3, 2), (3, 2)), (2, 2))
    assert (depth.halo, depth.alignment) == (((3, 3), (3, 3)), (1, 1))
    rows = swept(adapter, *images(IMAGE, DEPTH), halo=True, **QUICK)
    assert [row.halo.px for row in rows] == [colour.halo, depth.halo]
    torch.manual_seed(2)
    image, other = torch.randn(1, 3, 96, 96).double(), torch.randn(1, 1, 48, 48).double()
    whole = adapter.module(image, other)
    # Units 20 to 27: 40 to 55 of the image, and as many before and behind as both plans say, begun at one unit.
    before, behind = max(3 / 2, 3), max(2 / 2, 3)
    first, stop = 20 - int(np.ceil(before)), 28 + int(np.ceil(behind))
    part = adapter.module(image[..., 2 * first : 2 * stop], other[..., first:stop])
    inner = part[..., 20 - first : 28 - first]
    assert float((inner - whole[..., 20:28]).detach().abs().max()) < 1e-12
    one_line(lambda: erfscope.run_tiled(adapter.module, image, colour), "one of several inputs")


@pytest.mark.slow
def test_an_explorer_shows_two_inputs_side_by_side():
    class Three(nn.Module):
        def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return a + 2 * b + 3 * c

    explorer = erfscope.explore(two(), grid=2)
    assert [model.conditions.label for model in explorer.models] == ["Stereo · left", "Stereo · right"]
    three = erfscope.wrap(Three(), example_inputs=zeros(3, 8, 8) * 3)
    one_line(lambda: erfscope.explore(three, grid=2), "name fewer models, or an input with wrt=")
    assert len(erfscope.explore(three, grid=2, wrt="input:b").models) == 1


@pytest.mark.slow
def test_figures_tables_and_pages_say_the_share_and_the_input(tmp_path):
    report = erfscope.sweep(two(), samples=4)
    report.save(tmp_path / "r")
    text = f"input share {report.results[0]['input_share']}".rstrip()
    assert text in (tmp_path / "r" / "index.html").read_text()
    assert "input_share" in str(report)
    assert "input:left" in str(report)
    assert {"input_share", "input_share_se", "wrt"} <= set(report.table(format="csv").splitlines()[0].split(","))
    again = erfscope.read(tmp_path / "r")
    assert again.results[1]["input_share"].value == report.results[1]["input_share"].value
    for conditions in (False, True):
        drawn = erfscope.Report(results=(report[1],)).figure(tmp_path / "x.svg", conditions=conditions)
        texts = [text.get_text() for text in drawn.findobj(Text)]
        assert sum("wrt input:right" in text for text in texts) == 1


def test_a_table_of_80_columns_cuts_nothing_off_and_two_sizes_are_no_sweep_of_sizes(tmp_path):
    report = erfscope.sweep(fusion(torch.float32), samples=4)
    console = Console(width=80, file=io.StringIO())
    console.print(ComparisonTable(report_view(report)))
    text = console.file.getvalue()
    assert "…" not in text
    assert all(name in text for name in ("input_share", "input:depth", "context_r50", "far_mass", "erf_trf"))
    assert [*report.results[0].input.size] != [*report.results[1].input.size]
    assert swept_settings(report.results) == ("reference",)
    assert "sizes in px of each row's input" in str(report)
    one_line(lambda: report.figure(tmp_path / "x.png", kind="strip"), "with respect to one input")


def test_one_input_keeps_its_json_and_its_request_knows_nothing_of_names():
    row = erfscope.analyze(erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=16), samples=2, shard="1/1")
    document = erfscope.Report(results=(row,)).to_json()["results"][0]
    assert "masses" not in document["shard"]
    assert "input_share" not in document["measures"]
    assert Request.parse({}).references == ("image",)


# --- Random nets ----------------------------------------------------------------------------------


def shifted(_, out, other):
    moved = torch.zeros_like(out)
    moved[..., 2:] = (out * other)[..., :-2]
    return out + moved


def warped(_, out, other):
    rows, cols = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 11), indexing="ij")
    grid = torch.stack([cols, rows], -1).to(out) + 0.1 * other[:, :2].movedim(1, -1).tanh()
    return F.grid_sample(out, grid, align_corners=True)


WAYS: dict[str, Callable[..., Tensor]] = {
    "add": lambda _, out, other: out + other,
    "mul": lambda _, out, other: out * other,
    "cat": lambda merge, out, other: merge(torch.cat([out, other], 1)),
    "shift": shifted,
    "gate": lambda _, out, other: out * other.mean((2, 3), keepdim=True).sigmoid(),
    "warp": warped,
}


class RandomNet(nn.Module):
    """Two or three towers of random layers that meet in random ways."""

    def __init__(self, number: int) -> None:
        super().__init__()
        draw = random.Random(number)
        self.count = draw.choice([2, 2, 3])
        towers = []
        for _ in range(self.count):
            layers: list[nn.Module] = [nn.Conv2d(2, 4, draw.choice([1, 3, 5]), padding="same")]
            for _ in range(draw.randint(0, 2)):
                kinds = [nn.Tanh(), nn.AvgPool2d(3, 1, 1), nn.Conv2d(4, 4, 3, padding=1, groups=2)]
                kinds += [nn.GroupNorm(2, 4), nn.MaxPool2d(3, 1, 1), nn.ReplicationPad2d((1, 0, 0, 1))]
                layers.append(draw.choice(kinds))
            towers.append(nn.Sequential(*layers))
        self.towers = nn.ModuleList(towers)
        self.ways = [draw.choice([*WAYS]) for _ in range(self.count - 1)]
        self.merge = nn.ModuleList([nn.Conv2d(8, 4, 1) for _ in self.ways])
        self.last = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, *inputs: Tensor) -> Tensor:
        out, *maps = [tower(x)[..., :9, :11] for tower, x in zip(self.towers, inputs, strict=True)]
        for way, merge, other in zip(self.ways, self.merge, maps, strict=True):
            out = WAYS[way](merge, out, other)
        return self.last(out)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_random_nets_of_several_inputs_have_the_maps_of_plain_autograd(number):
    torch.manual_seed(number)
    module = RandomNet(number).double().eval()
    shapes = [(2, 9 + number % 3 * place, 11 + place) for place in range(module.count)]
    adapter = erfscope.wrap(module, example_inputs=[torch.zeros(1, *each) for each in shapes])
    given, options = images(*shapes), {"unit": ["centre", "corner"], "layer": "output", "convention": "luo", **QUICK}
    assert [*adapter.preprocess.parts] == [f"input:inputs[{place}]" for place in range(module.count)]
    expected: dict[Any, list[Tensor]] = {}
    for plain in (False, True):
        for row in swept(adapter, *given, plain=plain, **options):
            unit, place = row.unit.index, int(row.wrt.removeprefix("input:inputs[")[:-1])
            if unit not in expected:
                expected[unit] = by_autograd(module, unit, *given)
            own, totals = expected[unit][place], [float(each.sum()) for each in expected[unit]]
            if row.map is None:
                assert (row.status, totals[place], row["input_share"].value) == ("degenerate", 0, 0)
                assert "no path leads" in row.error
                continue
            assert off(row, own) < 1e-12, (row.wrt, module.ways)
            assert row["input_share"].value == pytest.approx(totals[place] / sum(totals), rel=1e-9)
            seen = np.argwhere(row.map.values > 0)
            low, high = np.array(row.trf.clipped_box_px).T
            assert (seen >= low).all(), (row.wrt, module.ways)
            assert (seen <= high).all(), (row.wrt, module.ways)
    assert len(expected) == 2


def test_a_model_of_several_inputs_that_fails_is_a_row_with_its_own_words():
    def fails(left: Tensor, right: Tensor) -> Tensor:
        raise ValueError("the moon is full")

    adapter = erfscope.wrap(Pair(fails), example_inputs=zeros(3, 8, 8) * 2)
    (row,) = erfscope.sweep(adapter, samples=1)
    assert row.status == "error"
    assert "the moon is full" in row.error
    one_line(lambda: erfscope.analyze(adapter, samples=1), "the moon is full", MeasurementError)
