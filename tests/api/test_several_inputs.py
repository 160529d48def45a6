"""Models of several inputs: closed forms, plain autograd, and every door that takes them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from oracle import sound_norms
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

import erfscope
from erfscope import ErfscopeError, MeasurementError
from erfscope.core import Request
from erfscope.core.answer.comparability import swept as swept_settings
from erfscope.core.answer.maps.accumulator import error_bar
from erfscope.core.images.files import by_input, paired_files
from erfscope.show.view.report_view import report_view
from erfscope.show.view.terminal.report import ComparisonTable

#: Shapes of the inputs of :class:`Fusion`.
IMAGE, DEPTH = (3, 24, 32), (1, 12, 16)
DISPARITIES = 4


class Towers(nn.Module):
    """y = a left + b right, so that the shares are known."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.a * left + self.b * right


class Fusion(nn.Module):
    """An image and its depth of half the size, with a non-linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.colour = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.depth = nn.Conv2d(1, 6, 5, padding=2)
        self.norm = nn.BatchNorm2d(12)
        self.join = nn.Conv2d(12, 5, 3, padding=1)

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
        return torch.stack([(a * functional.pad(b, (d, 0))[..., :width]).mean(1) for d in range(DISPARITIES)], 1)


class Diffusion(nn.Module):
    """A denoiser with a timestep and the embeddings of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Embedding(10, 8)
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.text = nn.Linear(6, 8)

    def forward(self, sample: Tensor, timestep: Tensor, text: Tensor | None = None) -> Tensor:
        shift = self.steps(timestep) + (0 if text is None else self.text(text).mean(1))
        return self.last(torch.sigmoid(self.first(sample) + shift[:, :, None, None]))


def wrapped(module: nn.Module, *shapes: tuple[int, ...], **options: Any) -> Any:
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean, part.running_var = torch.randn(12), torch.rand(12) + 0.5
    return erfscope.wrap(module.double().eval(), example_inputs=[torch.zeros(1, *each) for each in shapes], **options)


def images(*shapes: tuple[int, ...], count: int = 2) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(count, *each, dtype=torch.float64) for each in shapes]


def swept(adapter: Any, *given: Tensor, **options: Any) -> list[erfscope.Result]:
    names = [name.removeprefix("input:") for name in adapter.preprocess.parts]
    return list(erfscope.sweep(adapter, images=dict(zip(names, given, strict=True)), **options))


def by_autograd(module: nn.Module, unit: tuple[int, ...], *given: Tensor) -> list[Tensor]:
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
def test_shares_of_two_towers_are_those_of_their_weights(convention: str, power: int) -> None:
    adapter = wrapped(Towers(3.0, -1.0), (3, 8, 8), (3, 8, 8))
    rows = swept(adapter, *images((3, 8, 8), (3, 8, 8), count=5), convention=convention, draws="all", device="cpu")
    expected = [3**power / (3**power + 1), 1 / (3**power + 1)]
    assert [row["input_share"].value for row in rows] == pytest.approx(expected, rel=1e-12)
    assert [row["input_share"].se for row in rows] == pytest.approx([0, 0], abs=1e-15)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("layer", ["output", "join"])
def test_maps_and_shares_are_those_of_plain_autograd(layer: str, plain: bool) -> None:
    module = Fusion()
    adapter, given = wrapped(module, IMAGE, DEPTH), images(IMAGE, DEPTH, count=4)
    rows = swept(adapter, *given, layer=layer, convention="luo", plain=plain)
    assert [(row.wrt, row.input.size, row.unit.index) for row in rows] == [
        ("input:image", IMAGE[1:], (6, 8)),
        ("input:depth", DEPTH[1:], (6, 8)),
    ]
    kept: list[Tensor] = []
    module.join.register_forward_hook(lambda _module, _args, out: kept.append(out))

    def read(*leaves: Tensor) -> Tensor:
        out = module(*leaves)
        return out if layer == "output" else kept[-1]

    expected = by_autograd(read, (6, 8), *given)
    assert [off(row, each) < 1e-12 for row, each in zip(rows, expected, strict=True)] == [True, True]
    totals = torch.tensor([float(each.sum()) for each in expected])
    assert [row["input_share"].value for row in rows] == pytest.approx((totals / totals.sum()).tolist(), rel=1e-6)


def test_the_error_of_a_share_is_its_jackknife_over_images() -> None:
    module = Fusion()
    adapter, given = wrapped(module, IMAGE, DEPTH), images(IMAGE, DEPTH, count=5)
    row = swept(adapter, *given, convention="luo")[0]
    own, other = (each.flatten(1).sum(1).numpy() for each in by_autograd(module, (6, 8), *given))
    left = [1 - np.delete(other, k).sum() / (np.delete(own, k) + np.delete(other, k)).sum() for k in range(5)]
    assert row["input_share"].se == pytest.approx(error_bar(row["input_share"].value, left), rel=1e-9)


def test_each_input_has_its_own_pixels_fields_and_centre() -> None:
    adapter = wrapped(Fusion(), IMAGE, DEPTH)
    colour, depth = (erfscope.theoretical(adapter, wrt=f"input:{name}") for name in ("image", "depth"))
    # 3 of stride 2, then 3: 3 + 2 x 2 pixels; 5, then 3: 5 + 2.
    assert (colour.size_px, colour.stride_px, colour.center_px) == ((7, 7), (2, 2), (12, 16))
    assert (depth.size_px, depth.stride_px, depth.center_px) == ((7, 7), (1, 1), (6, 8))
    assert colour.center_exact
    assert depth.center_exact


def test_a_cost_volume_shifts_the_field_of_the_other_view() -> None:
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
    assert np.argwhere(rows[1].map.values > 0).min(0).tolist() == [11, 13]
    assert np.argwhere(rows[1].map.values > 0).max(0).tolist() == [13, 15]


@pytest.mark.parametrize("with_text", [False, True])
def test_what_is_no_map_is_passed_through_for_each_image(with_text: bool) -> None:
    torch.manual_seed(0)
    module, text = Diffusion().double(), torch.randn(1, 7, 6)
    examples: dict[str, Any] = {"sample": torch.zeros(1, 4, 10, 10), "timestep": torch.tensor([3])}
    adapter = erfscope.wrap(module, inputs=examples | ({"text": text} if with_text else {}))
    assert set(adapter.passed) == {"input:timestep"} | ({"input:text"} if with_text else set())
    (given,) = images((4, 10, 10), count=3)
    row = erfscope.analyze(adapter, images=given, convention="luo")
    shown = text.double() if with_text else None
    expected = by_autograd(lambda x: module(x, torch.tensor([3]), shown), (5, 5), given)
    assert row.wrt == "image"
    assert "input_share" not in row.measures
    assert off(row, expected[0]) < 1e-12


def test_a_layer_of_one_tower_is_measured_with_respect_to_its_own_input() -> None:
    adapter = wrapped(Fusion(), IMAGE, DEPTH)
    rows = swept(adapter, *images(IMAGE, DEPTH), layer="depth")
    assert [row.wrt for row in rows] == ["input:depth"]
    assert rows[0].unit.center_px == (6, 8)
    assert "depth does not depend on input:image, which has no map and no share" in [
        finding.text for finding in rows[0].findings
    ]
    with pytest.raises(ErfscopeError, match="does not depend on 'input:image'"):
        swept(adapter, *images(IMAGE, DEPTH), layer="depth", wrt="input:image")


@pytest.mark.slow
def test_inner_references_and_units_without_a_place_work_as_ever() -> None:
    adapter, given = wrapped(Fusion(), IMAGE, DEPTH), images(IMAGE, DEPTH)
    inner = swept(adapter, *given, wrt="colour", layer="join")
    assert inner[0].map.values.shape == (12, 16)
    rows = swept(adapter, *given, unit="class:2", convention="luo")
    expected = by_autograd(lambda *x: adapter.module(*x)[:, 2:3].sum((2, 3)), (), *given)
    assert [off(row, each) < 1e-12 for row, each in zip(rows, expected, strict=True)] == [True, True]


@pytest.mark.slow
def test_gradients_hold_in_float64_and_against_noise() -> None:
    adapter = wrapped(Fusion(), IMAGE, DEPTH)
    adapter.module.float()
    rows = erfscope.sweep(adapter, samples=2, verify=True, trust=True)
    assert [row.verification.holds for row in rows] == [True, True]
    assert [row.trust.disagrees for row in rows] == [False, False]
    noise = [row.trust.ratio[0] for row in rows]
    assert noise == pytest.approx([1, 1], abs=0.02)


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "smoothgrad"])
def test_methods_of_captum_attribute_to_each_input(method: str) -> None:
    """Of a product both inputs have the same value; the gradient of one is the other."""
    given = images((1, 6, 6), (1, 6, 6), count=1)
    rows = swept(wrapped(Product(), (1, 6, 6), (1, 6, 6)), *given, method=method, convention="luo", unit="2,2")
    assert [np.argwhere(row.map.values > 0).tolist() for row in rows] == [[[2, 2]]] * 2
    left, right = (float(each[0, 0, 2, 2].abs()) for each in given)
    expected = right / (left + right) if method == "smoothgrad" else 0.5
    assert rows[0]["input_share"].value == pytest.approx(expected, abs=0.2 if method == "smoothgrad" else 1e-6)


class Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right


@pytest.mark.slow
def test_every_unit_of_each_input_has_a_size() -> None:
    rows = swept(wrapped(Fusion(), IMAGE, DEPTH), *images(IMAGE, DEPTH), unit="all", convention="luo")
    for row in rows:
        centre = tuple(row.unit.index)
        assert row.positions.r50[centre] == pytest.approx(row["r50"].value, rel=1e-6)


# --- Arguments ------------------------------------------------------------------------------------


class Anyhow(nn.Module):
    """Takes its inputs in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, batch: Any, *more: Tensor, scale: Tensor, flag: bool = False) -> Tensor:
        out = self.conv(batch["a"]) + 2 * self.conv(batch["b"][1]) + sum(self.conv(each) for each in more)
        return out * scale[:, None, None, None] * (2 if flag else 1)


def test_maps_are_found_in_containers_and_named_by_the_way_to_them() -> None:
    x = torch.zeros(1, 3, 8, 8)
    module = Anyhow()
    call: Callable[..., Any] = lambda m, batch, one, scale: m(batch, one, scale=scale, flag=True)  # noqa: E731
    adapter = erfscope.wrap(module, forward=call, example_inputs=({"a": x, "b": ["id", x]}, x, torch.ones(1)))
    assert [*adapter.preprocess.parts] == ["input:batch[a]", "input:batch[b][1]", "input:one"]
    rows = erfscope.sweep(adapter, samples=5, convention="luo")
    assert [row["input_share"].value for row in rows] == pytest.approx([0.25, 0.5, 0.25], rel=1e-5)


@pytest.mark.slow
def test_an_exported_program_has_the_inputs_that_it_was_exported_with() -> None:
    # One tensor given twice is one argument to torch.export (from PyTorch 2.14 on).
    module, view, other = Stereo().eval(), torch.zeros(1, *IMAGE), torch.zeros(1, *IMAGE)
    expected = erfscope.sweep(two_of(module), samples=2)
    for args, keywords in (((view, other), {}), ((), {"left": view, "right": other})):
        rows = erfscope.sweep(torch.export.export(module, args, keywords), samples=2)
        assert [row.wrt for row in rows] == ["input:left", "input:right"]
        for row, own in zip(rows, expected, strict=True):
            assert row.trf == own.trf
            assert row["input_share"].value == pytest.approx(own["input_share"].value, rel=1e-5)
    program = torch.export.export(module, (view,), {"right": other})
    with pytest.raises(ErfscopeError, match=r"takes left, right; give an example of each: erfscope\.wrap\(program"):
        erfscope.sweep(program)


def test_one_tensor_for_two_inputs_is_two_inputs() -> None:
    x = torch.zeros(1, 3, 8, 8)
    rows = erfscope.sweep(erfscope.wrap(Towers(1.0, 1.0), example_inputs=(x, x)), samples=4, convention="luo")
    assert [row.wrt for row in rows] == ["input:left", "input:right"]


def test_layers_have_the_calls_of_a_module_that_inputs_share() -> None:
    table = erfscope.layers(two())
    assert [(row.name, row.wrt) for row in table.rows] == [
        ("features@0", "input:left"),
        ("features@1", "input:right"),
        ("output", "input:left"),
        ("output", "input:right"),
    ]
    assert "at input:left 24x32, input:right 24x32" in str(table)
    for row in table.rows:
        assert erfscope.analyze(two(), layer=row.name, wrt=row.wrt, samples=1).trf == row.trf


class Written(nn.Module):
    """A cost volume of two disparities that is written into a buffer."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        volume = left.new_zeros(len(left), 2, *left.shape[2:])
        volume[:, 0] = (left * right).mean(1)
        volume[:, 1, :, 1:] = (left[..., 1:] * right[..., :-1]).mean(1)
        return volume


def test_branches_that_disagree_name_the_unit_that_stands_somewhere() -> None:
    trf = erfscope.theoretical(
        erfscope.wrap(Written(), example_inputs=(torch.zeros(1, *IMAGE),) * 2), wrt="input:right"
    )
    assert "puts unit 0 at 0 px" in trf.center_inexact_reason
    assert "puts unit 1 at 0 px" in trf.center_inexact_reason


def test_ids_name_the_input() -> None:
    report = erfscope.sweep(erfscope.wrap(Towers(1.0, 1.0), example_inputs=(torch.zeros(1, 3, 8, 8),) * 2), samples=1)
    assert [row.id for row in report] == ["Towers-output-u4x4-left", "Towers-output-u4x4-right"]
    assert report["Towers-output-u4x4-right"].wrt == "input:right"


def test_means_and_transforms_may_be_each_inputs_own() -> None:
    x = torch.zeros(1, 3, 8, 8)
    adapter = erfscope.wrap(
        Towers(1.0, 1.0), inputs={"left": x, "right": x}, mean={"left": [0.1] * 3, "right": 0.2}, std=0.5
    )
    assert [part.mean for part in adapter.preprocess.parts.values()] == [(0.1,) * 3, (0.2,) * 3]
    row, _ = erfscope.sweep(adapter, samples=1)
    assert "mean 0.1, std 0.5" in row.input.transform


class First(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return 2 * left


def test_what_an_exported_program_does_not_use_is_said() -> None:
    program = torch.export.export(First(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)))
    row = erfscope.analyze(program, samples=1)
    assert row.wrt == "input:left"
    assert any("does not use right" in finding.text for finding in row.findings)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "one of two": (lambda: erfscope.wrap(Stereo(), example_inputs=(torch.zeros(1, 3, 8, 8),)), "takes (left, right)"),
    "another name": (
        lambda: erfscope.wrap(Stereo(), inputs={"left": torch.zeros(1, 3, 8, 8), "rihgt": 1}),
        "takes (left, right)",
    ),
    "batches": (lambda: wrapped(Stereo(), IMAGE) if 0 else two(torch.zeros(2, *IMAGE)), "left 1, right 2"),
    "axes": (lambda: two(torch.zeros(1, 3, 4, 8, 8)), "left has 2, right has 3"),
    "no map": (lambda: erfscope.wrap(Stereo(), example_inputs=(torch.ones(3), 1)), "none of the example inputs"),
    "both": (lambda: erfscope.wrap(Stereo(), inputs={}, example_inputs=()), "not both"),
    "arrays": (
        lambda: erfscope.wrap(Stereo(), example_inputs=(np.zeros((1, *IMAGE)), torch.zeros(1, *IMAGE))),
        "the example input 0 of Stereo is an array: give torch.from_numpy(...)",
    ),
    "means": (
        lambda: wrapped(Fusion(), IMAGE, DEPTH, mean=(0.5, 0.5, 0.5)),
        "the input depth: mean has 3 values, but the input has 1 channels",
    ),
    "no names": (lambda: erfscope.wrap(Stereo(), inputs=[torch.ones(1)]), "examples by name"),
    "a size": (
        lambda: erfscope.wrap(Stereo(), example_inputs=(torch.zeros(1, *IMAGE),) * 2, input_size=8),
        "leave input_size and in_chans out",
    ),
    "a mean of another": (
        lambda: erfscope.wrap(Stereo(), example_inputs=(torch.zeros(1, *IMAGE),) * 2, mean={"lef": 0.5}),
        "unknown input 'lef' in mean; there is: left, right",
    ),
    "a std of one image": (
        lambda: erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=8, std={"left": 0.5}),
        "unknown input 'left' in std; there is: image",
    ),
    "sizes that do not go together": (
        lambda: erfscope.analyze(two(torch.zeros(1, 3, 8, 8)), samples=1),
        "fails on left of 3 channels at 24x32, right of 3 channels at 8x8: ",
    ),
    "ids in place of an image": (
        lambda: erfscope.analyze(two(torch.zeros(1, *IMAGE, dtype=torch.int64)), samples=1),
        "look at the example inputs; passed through as given: right, int64 of shape (1, 3, 24, 32)",
    ),
    "a share as a measure": (
        lambda: erfscope.sweep(two(), samples=1, measures="r50,input_share"),
        "input_share stands beside the measures of a model of several inputs",
    ),
    "no gradient": (
        lambda: erfscope.sweep(
            erfscope.wrap(Diffusion(), example_inputs=(torch.zeros(1, 4, 8, 8), torch.tensor([1]))),
            wrt="input:timestep",
        ),
        "is passed through, int64 of shape (1,): there is no map of it; name image",
    ),
    "unknown": (lambda: erfscope.sweep(two(), wrt="input:middle"), "unknown reference 'input:middle'"),
    "one result": (lambda: erfscope.analyze(two(), samples=1), "wrt='input:left'"),
    "a method": (lambda: erfscope.sweep(two(), samples=1, method="occlusion"), "a patch of all inputs"),
    "a tensor": (lambda: erfscope.sweep(two(), images=torch.zeros(1, *IMAGE)), "images were given for no name"),
    "one tensor": (lambda: erfscope.sweep(two(), images={"left": torch.zeros(1, *IMAGE)}), "given for left"),
    "numbers": (
        lambda: erfscope.sweep(two(), images={"left": torch.zeros(1, *IMAGE), "right": torch.zeros(2, *IMAGE)}),
        "input:left 1, input:right 2",
    ),
    "theoretical": (lambda: erfscope.theoretical(two()), "takes several inputs, and theoretical takes one"),
    "tile": (lambda: erfscope.tile(two()), "takes several inputs, and a plan is of one"),
    "a monitor": (lambda: erfscope.ErfMonitor(two(), every=1, samples=1).step(0), "wrt='input:left'"),
    "a map for another": (
        lambda: erfscope.analyze(nn.Conv2d(3, 4, 3), images={"left": torch.zeros(1, *IMAGE)}),
        "leave NAME= out",
    ),
}


def two_of(module: nn.Module) -> Any:
    return erfscope.wrap(module, example_inputs=(torch.zeros(1, *IMAGE),) * 2)


def two(right: Tensor | None = None) -> Any:
    return erfscope.wrap(
        Stereo(), example_inputs=(torch.zeros(1, *IMAGE), torch.zeros(1, *IMAGE) if right is None else right)
    )


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(ErfscopeError) as caught:
        make()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


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
def test_folders_are_paired_by_the_names_of_their_files(folders: Path) -> None:
    asked = {name: str(folders / name) for name in ("left", "right")}
    found = paired_files(asked, samples=2, seed=0)
    assert [each.stem for each in found["left"]] == [each.stem for each in found["right"]]
    assert {each.suffix for each in found["right"]} == {".jpg"}
    rows = erfscope.sweep(two(), images=asked)
    assert [(row.input.n_images, row.input.source) for row in rows] == [(3, "image")] * 2
    assert rows[0].input.sha256 != rows[1].input.sha256
    assert not np.array_equal(rows[0].picture, rows[1].picture)
    (folders / "right" / "b.jpg").unlink()
    with pytest.raises(ErfscopeError, match=r"b\.png' of left has no partner among the images of right"):
        erfscope.sweep(two(), images=asked)


def test_paths_are_given_by_the_names_of_inputs(folders: Path) -> None:
    left, right = folders / "left" / "a.png", folders / "right" / "a.jpg"
    assert by_input([f"left={left}", f"right={right}"]) == {"left": [str(left)], "right": [str(right)]}
    assert by_input("val/a=b.png") == "val/a=b.png"
    assert by_input(None) is None
    odd = folders / "left=a.png"
    odd.write_bytes(left.read_bytes())
    assert by_input([str(odd)]) == [str(odd)]
    with pytest.raises(ErfscopeError, match="others without NAME="):
        by_input([f"left={left}", str(right)])


def test_synthetic_images_differ_between_inputs() -> None:
    """A net of the difference of its inputs has a gradient at an image and itself that stands for no other."""
    rows = erfscope.sweep(two(), samples=2, seed=5)
    alone = erfscope.sweep(erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=IMAGE[1:]), samples=2, seed=5)[0]
    assert rows[0].input.sha256 == alone.input.sha256
    assert rows[0].input.sha256 != rows[1].input.sha256


def test_squash_resizes_each_input_whole(folders: Path) -> None:
    asked = {name: str(folders / name) for name in ("left", "right")}
    for row in erfscope.sweep(two(), images=asked, squash=True):
        assert "whole" in row.input.transform


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
    return Net(), (torch.zeros(1, 3, 16, 16), torch.zeros(1, 1, 16, 16))


def wrapped():
    import erfscope

    return erfscope.wrap(Net(), example_inputs=pair()[1], mean={"image": 0.5})


def odd():
    return Net(), 5
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize("name", ["make", "pair", "wrapped"])
def test_a_factory_returns_its_example_inputs(net: Path, name: str) -> None:
    rows = erfscope.sweep(f"net.py:{name}", samples=4)
    assert [(row.model, row.wrt, row.weights.source) for row in rows] == [
        (f"net.py:{name}", "input:image", "factory"),
        (f"net.py:{name}", "input:mask", "factory"),
    ]
    assert sum(row["input_share"].value for row in rows) == pytest.approx(1)


def test_a_factory_that_returns_something_else_is_refused(net: Path) -> None:
    with pytest.raises(ErfscopeError, match=r"returned \(Net, int\); it must return an nn\.Module, a pair"):
        erfscope.sweep("net.py:odd")
    with pytest.raises(ErfscopeError, match=r"give mean to erfscope\.wrap"):
        erfscope.sweep("net.py:wrapped", mean=0.5)


@pytest.mark.slow
def test_shards_put_together_have_the_shares_of_the_whole(net: Path, figures_undrawn: None) -> None:
    whole = erfscope.sweep("net.py:make", samples=8)
    for number in (1, 2):
        erfscope.sweep("net.py:make", samples=8, shard=f"{number}/2").save(net / f"s{number}")
    for row, expected in zip(erfscope.merge(["s1", "s2"]), whole, strict=True):
        assert row["input_share"].value == pytest.approx(expected["input_share"].value, rel=1e-12)
        assert row["input_share"].se == pytest.approx(expected["input_share"].se, rel=1e-9)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_shares(net: Path, figures_undrawn: None) -> None:
    whole = erfscope.sweep("net.py:make", samples=12, batch_size=4)
    calls = iter([False, False, False, True])
    first = erfscope.sweep("net.py:make", samples=12, batch_size=4, stop=lambda: next(calls, True))
    first.save(net / "kept")
    found = erfscope.sweep("net.py:make", samples=12, batch_size=4, resume=net / "kept")
    for row, expected in zip(found, whole, strict=True):
        assert np.array_equal(row.map.values, expected.map.values)
    assert sum(row["input_share"].value for row in found) == pytest.approx(1)
    found.save(net / "done")
    again = erfscope.sweep("net.py:make", samples=12, batch_size=4, resume=net / "done")
    assert [row["input_share"].value for row in again] == [row["input_share"].value for row in found]


@pytest.mark.slow
def test_inputs_of_different_numbers_of_images_have_no_share(net: Path) -> None:
    stops = iter([*[False] * 7, True])
    rows = erfscope.sweep("net.py:make", samples=12, batch_size=2, stop=lambda: next(stops, True))
    assert [row.input.n_images for row in rows] == [12, 2]
    assert all("input_share" not in row.measures for row in rows)
    texts = [finding.text for row in rows for finding in row.findings if finding.code == "no_share"]
    assert len(texts) == 2
    assert texts[0].endswith("input:image 12, input:mask 2")


def test_models_of_the_same_inputs_are_compared_on_the_same_images(net: Path) -> None:
    report = erfscope.compare({"A": "net.py:make", "B": "net.py:pair"}, samples=4)
    assert [(row.label, row.wrt) for row in report] == [
        ("A", "input:image"),
        ("A", "input:mask"),
        ("B", "input:image"),
        ("B", "input:mask"),
    ]
    assert report.results[0].input.sha256 == report.results[2].input.sha256
    differences = report.differences()
    assert [bool(each) for each in differences] == [False, False, True, True]
    assert differences[3]["r50"][0] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_a_model_with_a_block_is_compared_with_its_host_by_input() -> None:
    report = erfscope.sweep(wrapped(Fusion(), IMAGE, DEPTH), insert="nonlocal@colour", samples=4)
    assert [row.id for row in report] == [
        f"Fusion{block}-output-u6x8-{name}" for block in ("", "_nonlocal") for name in ("image", "depth")
    ]
    assert [row.host for row in report] == [None, None, "Fusion-output-u6x8-image", "Fusion-output-u6x8-depth"]
    assert [bool(each) for each in report.differences()] == [False, False, True, True]


def test_a_model_of_one_image_beside_one_of_several_is_a_row_with_its_reason() -> None:
    torch.manual_seed(0)
    one = erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=IMAGE[1:])
    report = erfscope.compare({"two": two(), "one": one}, samples=1)
    assert [row.status for row in report] == ["ok", "ok", "error"]
    assert "takes one image, but the images compared on are for input:left, input:right" in report.results[2].error


def test_a_check_is_of_one_input(net: Path) -> None:
    options: Any = {"samples": 4, "baseline": "b.json"}
    unnamed = erfscope.check("net.py:make", **options)
    assert unnamed.word == "cannot tell"
    assert "name one with --wrt" in unnamed.text
    assert erfscope.check("net.py:make", wrt="input:mask", update=True, **options).exit_code == 0
    assert erfscope.check("net.py:make", wrt="input:mask", **options).word == "pass"
    assert erfscope.check("net.py:make", wrt="input:image", **options).word != "pass"


def test_a_monitor_follows_one_input() -> None:
    monitor = erfscope.ErfMonitor(two(), every=1, samples=1, wrt="input:right", quiet=True)
    assert monitor.step(0).trf.size_px == (3, 6)


def test_layers_have_a_row_for_each_input_that_they_depend_on() -> None:
    table = erfscope.layers(wrapped(Fusion(), IMAGE, DEPTH))
    found = [(row.name, row.wrt, row.trf.size_px) for row in table.rows]
    assert found == [
        ("colour", "input:image", (3, 3)),
        ("depth", "input:depth", (5, 5)),
        ("norm", "input:image", (3, 3)),
        ("norm", "input:depth", (5, 5)),
        ("join", "input:image", (7, 7)),
        ("join", "input:depth", (7, 7)),
        ("output", "input:image", (7, 7)),
        ("output", "input:depth", (7, 7)),
    ]
    assert [row["wrt"] for row in table.to_json()["layers"]] == [wrt for _, wrt, _ in found]
    assert "input:image 24x32, input:depth 12x16" in str(table)
    plain = erfscope.layers(erfscope.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), input_size=16))
    assert "reference" not in str(plain)
    assert all("wrt" not in row for row in plain.to_json()["layers"])


def test_tiles_of_each_input_overlap_by_its_own_field() -> None:
    adapter = wrapped(Fusion(), IMAGE, DEPTH)
    colour, depth = (
        erfscope.tile(adapter, tile=side, wrt=f"input:{name}") for name, side in (("image", 64), ("depth", 32))
    )
    assert (colour.halo, colour.alignment) == (((3, 2), (3, 2)), (2, 2))
    assert (depth.halo, depth.alignment) == (((3, 3), (3, 3)), (1, 1))
    torch.manual_seed(2)
    image, other = torch.randn(1, 3, 96, 96).double(), torch.randn(1, 1, 48, 48).double()
    whole = adapter.module(image, other)
    # Units 20 to 27: 40 to 55 of the image, and as many before and behind as both plans say, begun at one unit.
    before, behind = max(3 / 2, 3), max(2 / 2, 3)
    first, stop = 20 - int(np.ceil(before)), 28 + int(np.ceil(behind))
    part = adapter.module(image[..., 2 * first : 2 * stop], other[..., first:stop])
    inner = part[..., 20 - first : 28 - first]
    assert float((inner - whole[..., 20:28]).detach().abs().max()) < 1e-12
    with pytest.raises(ErfscopeError, match="one of several inputs"):
        erfscope.run_tiled(adapter.module, image, colour)


def test_halos_of_results_are_each_inputs_own() -> None:
    rows = swept(wrapped(Fusion(), IMAGE, DEPTH), *images(IMAGE, DEPTH), halo=True)
    assert [row.halo.px for row in rows] == [((3, 2), (3, 2)), ((3, 3), (3, 3))]


@pytest.mark.slow
def test_an_explorer_shows_two_inputs_side_by_side() -> None:
    explorer = erfscope.explore(two(), grid=2)
    assert [model.conditions.label for model in explorer.models] == ["Stereo · left", "Stereo · right"]
    three = erfscope.wrap(Three(), example_inputs=(torch.zeros(1, 3, 8, 8),) * 3)
    with pytest.raises(ErfscopeError, match="name fewer models, or an input with wrt="):
        erfscope.explore(three, grid=2)
    assert len(erfscope.explore(three, grid=2, wrt="input:b").models) == 1


class Three(nn.Module):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a + 2 * b + 3 * c


@pytest.mark.slow
def test_figures_tables_and_pages_say_the_share(tmp_path: Path) -> None:
    report = erfscope.sweep(two(), samples=4)
    share = report.results[0]["input_share"]
    report.save(tmp_path / "r")
    page = (tmp_path / "r" / "index.html").read_text()
    text = f"input share {share}".rstrip()
    assert text in page
    assert "input_share" in str(report)
    assert "input:left" in str(report)
    header = report.table(format="csv").splitlines()[0].split(",")
    assert {"input_share", "input_share_se", "wrt"} <= set(header)
    again = erfscope.read(tmp_path / "r")
    assert again.results[1]["input_share"].value == report.results[1]["input_share"].value


def test_a_table_of_80_columns_cuts_nothing_off() -> None:
    report = erfscope.sweep(wrapped(Fusion(), IMAGE, DEPTH).to(dtype=torch.float32), samples=4)
    console = Console(width=80, file=io.StringIO())
    console.print(ComparisonTable(report_view(report)))
    text = console.file.getvalue()
    assert "…" not in text
    assert all(name in text for name in ("input_share", "input:depth", "context_r50", "far_mass", "erf_trf"))


@pytest.mark.slow
def test_a_picture_of_one_input_names_it(tmp_path: Path) -> None:
    row = erfscope.analyze(two(), wrt="input:right", samples=1)
    for conditions in (False, True):
        drawn = erfscope.Report(results=(row,)).figure(tmp_path / "x.svg", conditions=conditions)
        texts = [text.get_text() for text in drawn.findobj(Text)]
        assert sum("wrt input:right" in text for text in texts) == 1


def test_inputs_of_two_sizes_are_no_sweep_of_sizes(tmp_path: Path) -> None:
    report = erfscope.sweep(wrapped(Fusion(), IMAGE, DEPTH).to(dtype=torch.float32), samples=2)
    assert [*report.results[0].input.size] != [*report.results[1].input.size]
    assert swept_settings(report.results) == ("reference",)
    assert "sizes in px of each row's input" in str(report)
    with pytest.raises(ErfscopeError, match="with respect to one input"):
        report.figure(tmp_path / "x.png", kind="strip")


def test_one_input_keeps_its_json() -> None:
    row = erfscope.analyze(erfscope.wrap(nn.Conv2d(3, 4, 3), input_size=16), samples=2, shard="1/1")
    document = erfscope.Report(results=(row,)).to_json()["results"][0]
    assert "masses" not in document["shard"]
    assert "input_share" not in document["measures"]


def test_a_request_for_one_image_knows_nothing_of_names() -> None:
    assert Request.parse({}).references == ("image",)


# --- Random nets ----------------------------------------------------------------------------------


class RandomNet(nn.Module):
    """Two or three towers of random layers that meet in random ways."""

    def __init__(self, number: int) -> None:
        super().__init__()
        draw = random.Random(number)
        self.count, self.ways = draw.choice([2, 2, 3]), []
        towers = []
        for _ in range(self.count):
            layers: list[nn.Module] = [nn.Conv2d(2, 4, draw.choice([1, 3, 5]), padding="same")]
            for _ in range(draw.randint(0, 2)):
                layers.append(
                    draw.choice(
                        [
                            nn.Tanh(),
                            nn.AvgPool2d(3, 1, 1),
                            nn.Conv2d(4, 4, 3, padding=1, groups=2),
                            nn.GroupNorm(2, 4),
                            nn.MaxPool2d(3, 1, 1),
                            nn.ReplicationPad2d((1, 0, 0, 1)),
                        ]
                    )
                )
            towers.append(nn.Sequential(*layers))
        self.towers = nn.ModuleList(towers)
        self.ways = [draw.choice(["add", "mul", "cat", "shift", "gate", "warp"]) for _ in range(self.count - 1)]
        self.merge = nn.ModuleList([nn.Conv2d(8, 4, 1) for _ in self.ways])
        self.last = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, *inputs: Tensor) -> Tensor:
        maps = [tower(x)[..., :9, :11] for tower, x in zip(self.towers, inputs, strict=True)]
        out = maps[0]
        for way, merge, other in zip(self.ways, self.merge, maps[1:], strict=True):
            if way == "add":
                out = out + other
            elif way == "mul":
                out = out * other
            elif way == "cat":
                out = merge(torch.cat([out, other], 1))
            elif way == "shift":
                moved = torch.zeros_like(out)
                moved[..., 2:] = (out * other)[..., :-2]
                out = out + moved
            elif way == "gate":
                out = out * other.mean((2, 3), keepdim=True).sigmoid()
            else:
                rows, cols = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 11), indexing="ij")
                grid = torch.stack([cols, rows], -1).to(out) + 0.1 * other[:, :2].movedim(1, -1).tanh()
                out = functional.grid_sample(out, grid, align_corners=True)
        return self.last(out)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize("plain", [False, True])
def test_random_nets_of_several_inputs_have_the_maps_of_plain_autograd(number: int, plain: bool) -> None:
    torch.manual_seed(number)
    module = RandomNet(number).double().eval()
    shapes = [(2, 9 + number % 3 * place, 11 + place) for place in range(module.count)]
    adapter = erfscope.wrap(module, example_inputs=[torch.zeros(1, *each) for each in shapes])
    given = images(*shapes)
    assert [*adapter.preprocess.parts] == [f"input:inputs[{place}]" for place in range(module.count)]
    for unit in ("centre", "corner"):
        rows = swept(adapter, *given, unit=unit, layer="output", convention="luo", plain=plain)
        expected = by_autograd(module, rows[0].unit.index, *given)
        totals = torch.tensor([float(each.sum()) for each in expected], dtype=torch.float64)
        for row, own, total in zip(rows, expected, totals, strict=True):
            if row.map is None:
                assert (row.status, float(total), row["input_share"].value) == ("degenerate", 0, 0)
                assert "no path leads" in row.error
                continue
            assert off(row, own) < 1e-12, (row.wrt, module.ways)
            assert row["input_share"].value == pytest.approx(float(total / totals.sum()), rel=1e-9)
            seen = np.argwhere(row.map.values > 0)
            low, high = np.array(row.trf.clipped_box_px).T
            assert (seen >= low).all(), (row.wrt, module.ways)
            assert (seen <= high).all(), (row.wrt, module.ways)


def test_a_model_of_several_inputs_that_fails_is_a_row_with_its_own_words() -> None:
    class Broken(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            raise ValueError("the moon is full")

    adapter = erfscope.wrap(Broken(), example_inputs=(torch.zeros(1, 3, 8, 8),) * 2)
    (row,) = erfscope.sweep(adapter, samples=1)
    assert row.status == "error"
    assert "the moon is full" in row.error
    with pytest.raises(MeasurementError, match="the moon is full"):
        erfscope.analyze(adapter, samples=1)
