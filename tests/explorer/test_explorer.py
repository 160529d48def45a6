"""The explorer: every unit on its page is the one that ``analyze`` measures, in 8 bits."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope.apps.explore.page import Explorer
from erfscope.apps.explore.planes import block_sums, levels
from erfscope.apps.explore.stages import ENCLOSED, MEASURED
from erfscope.core import ErfscopeError
from erfscope.show import drawn

BRIGHTNESS, SHARES = drawn.BRIGHTNESS, drawn.SHARES
pytestmark = pytest.mark.usefixtures("memory_unplanned")

SIZE = (24, 32)
#: The largest share that one of the 254 steps of brightness stands for.
STEP = float(np.max(np.diff(SHARES) / -np.diff(BRIGHTNESS))) / 254


class Net(nn.Module):
    """Three stages: a narrow one, one whose units overlap, and one that looks everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh())
        self.far = nn.Sequential(nn.Conv2d(6, 5, 4, stride=4), nn.Tanh(), nn.Conv2d(5, 5, 3, padding=1))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(5, 5, 1), nn.Sigmoid())

    def forward(self, x):
        y = self.far(self.near(x))
        self.last = None
        return y * self.gate(y)


LAYERS = ["near", "far", "output"]
OPTIONS = {"layer": LAYERS, "input_size": SIZE, "dtype": "float64", "draws": 2, "seed": 3}


def net() -> Net:
    """Weights as PyTorch draws them, not by its global generator, which the server puts back in its own thread."""
    found, generator = Net().eval(), torch.Generator().manual_seed(0)
    for convolution in (part for part in found.modules() if isinstance(part, nn.Conv2d)):
        bound = convolution.weight[0].numel() ** -0.5
        for parameter in convolution.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return found


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def explorer(picture) -> Explorer:
    return erfscope.explore(net(), picture, grid=5, **OPTIONS)


def decoded(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mass of each block that levels stand for, by the rule of :func:`levels` read backwards; its brightness."""
    held = np.interp((np.arange(256) - 1) / 254, BRIGHTNESS[::-1], SHARES[::-1])
    there = [level for level in range(255, 0, -1) if (found == level).any()]
    ends = [*(held[level] for level in there[:-1]), 1.0]
    mass, bright, before = np.zeros(found.shape), np.zeros(found.shape), 0.0
    for level, end in zip(there, ends, strict=True):
        mass[found == level] = (end - before) / np.count_nonzero(found == level)
        bright[found == level] = np.interp((before + end) / 2, SHARES, BRIGHTNESS)
        before = end
    return mass, bright


def masses(found: np.ndarray) -> np.ndarray:
    return decoded(found)[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_every_unit_is_the_one_that_is_measured_alone(explorer, picture, number):
    stage = explorer.models[0].stages[number]
    assert stage.name == LAYERS[number]
    assert stage.grid == tuple(min(5, side) for side in stage.space)
    for unit in (stage.units[0], stage.units[len(stage.units) // 2 + 1], stage.units[-1]):
        alone = erfscope.analyze(net(), images=picture, unit=unit.index, **{**OPTIONS, "layer": stage.name})
        assert unit.center_px == alone.unit.center_px
        for name in MEASURED:
            assert unit.measures[name] == pytest.approx(alone.measures[name].value, abs=1e-9)
        assert np.interp(alone["r50"].value, unit.radii_px, ENCLOSED) == pytest.approx(0.5, abs=1e-6)
        blocks = block_sums(alone.map.values, stage.block)
        rows, cols = (slice(first // stage.block, last // stage.block + 1) for first, last in unit.field_px)
        assert blocks[rows, cols].sum() == pytest.approx(1)
        (plane,) = unit.planes
        assert np.abs(plane.levels.astype(int) - levels(blocks[rows, cols])).max() <= 1
        mass, bright = decoded(plane.levels)
        assert np.abs(mass - blocks[rows, cols]).max() <= STEP
        # Blocks of one level lie within a step, and each end of it is rounded by half of one.
        assert np.abs(bright - drawn.brightness(blocks[rows, cols])).max() <= 1.5 / 254


def test_levels_stand_for_the_share_of_what_is_at_least_as_strong():
    weights = np.array([[0.0, 1.0, 3.0], [0.0, 4.0, 2.0]])
    found = levels(weights)
    assert found[0, 0] == found[1, 0] == 0
    held = np.interp((found[weights > 0] - 1.0) / 254, BRIGHTNESS[::-1], SHARES[::-1])
    np.testing.assert_allclose(held, [1.0, 0.7, 0.4, 0.9], atol=0.005)
    np.testing.assert_allclose(masses(found), weights / 10, atol=0.01)
    assert levels(np.array([[0.0, 5.0]])).tolist() == [[0, 1]]
    # Equal blocks have one level and share their mass.
    found = levels(np.ones((4, 4)))
    assert len(np.unique(found)) == 1
    np.testing.assert_allclose(masses(found), 1 / 16)


@pytest.mark.parametrize("block", [1, 3, 5, 40])
def test_blocks_begin_at_the_first_pixel_and_lose_nothing(block):
    values = np.random.default_rng(1).random((11, 17))
    found = block_sums(values, block)
    assert found.shape == (-(-11 // block), -(-17 // block))
    assert found[-1, -1] == pytest.approx(values[(found.shape[0] - 1) * block :, (found.shape[1] - 1) * block :].sum())
    assert found.sum() == pytest.approx(values.sum())


@pytest.mark.slow
def test_the_page_is_as_small_as_asked_and_holds_the_numbers_in_full(explorer, picture):
    text = explorer.to_html()
    document = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    (model,) = document["models"]
    for stage, kept in zip(explorer.models[0].stages, model["stages"], strict=True):
        assert [each["numbers"] for each in kept["units"]] == [[*unit.measures.values()] for unit in stage.units]
        levels_kept = [base64.b64decode(each["planes"][0]["levels"]) for each in kept["units"]]
        assert levels_kept == [unit.planes[0].levels.tobytes() for unit in stage.units]
    assert "default-src 'none'" in text
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    found = erfscope.explore({"Ours": net()}, picture, grid=5, page_bytes=187_000, **OPTIONS)
    assert found.models[0].conditions.label == "Ours"
    stages = found.models[0].stages
    assert stages[0].block == 1 < stages[2].block
    assert len(found.to_html()) < 187_000
    stages = erfscope.explore(net(), picture, grid=5, page_bytes=0, **OPTIONS).models[0].stages
    assert 1 < np.mean([unit.planes[0].levels.size for stage in stages for unit in stage.units]) <= 16


@pytest.mark.slow
def test_the_cost_is_told_first_and_units_with_disjoint_fields_share_a_backward_pass(picture, monkeypatch):
    said: list[str] = []
    erfscope.explore(net(), picture, grid=4, **{**OPTIONS, "layer": "near"}, tell=said.append)
    assert "16 units of 1 layer in 2 backward passes" in said[0]
    erfscope.explore(net(), picture, grid=1, **{**OPTIONS, "layer": "near", "draws": 1}, tell=said.append)
    assert said[-1] == "Net: 1 unit of 1 layer in 1 backward pass"
    monkeypatch.setattr("erfscope.apps.explore.stages.MANY", 0)
    said: list[str] = []
    asked = {**OPTIONS, "tell": said.append, "progress": lambda text, *_: " · " in text and said.append("done")}
    erfscope.explore(net(), picture, grid=4, **asked)
    assert re.fullmatch(r"Net: 48 units of 3 layers in \d+ backward passes", said[0])
    assert "--grid 2" in said[1]
    assert "--draws 1" in said[1]
    assert said[2:].count("done") == len(said) - 2 > 0


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"unit": "corner"}, "explore takes no unit"),
        ({"grid": 0}, "from 1 to 256, not 0"),
        ({"convention": "jacobian,luo"}, "one input size and one convention"),
        ({"layer": "nowhere"}, "unknown layer 'nowhere'"),
        ({"models": 3}, "one model or two, not 3"),
    ],
)
def test_what_cannot_be_shown_is_refused(picture, wanted, text):
    wanted = dict(wanted)
    with pytest.raises(ErfscopeError, match=re.escape(text)):
        erfscope.explore([net()] * wanted.pop("models", 1), picture, **OPTIONS | wanted)


SPACES = {
    "sequence": (nn.Conv1d, (40,), {"sample_rate": 8000}, (6,)),
    "volume": (nn.Conv3d, (6, 9, 8), {"spacing": (2.5, 1, 1), "unit_name": "mm"}, (2, 4, 4)),
    "clip": (nn.Conv3d, (9, 8, 10), {"axes": "thw", "fps": 25}, (4, 3, 5)),
}


def spatial(kind: str) -> tuple[nn.Module, dict[str, object], tuple[int, ...]]:
    """Two convolutions over the axes of a kind of input, the options that describe it, and one of its units."""
    conv, size, described, index = SPACES[kind]
    torch.manual_seed(0)
    module = nn.Sequential(conv(1, 3, 3, padding=1), nn.Tanh(), conv(3, 3, 3, padding=1)).eval()
    return module, {"input_size": size, "in_chans": 1, "layer": "2", "draws": 1, "dtype": "float64", **described}, index


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPACES)
def test_planes_of_other_inputs_are_those_of_the_map_that_is_measured_alone(kind):
    module, options, index = spatial(kind)
    given = torch.rand(1, 1, *SPACES[kind][1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = erfscope.explore(module, given, grid=9 if kind == "volume" else 10, **options)
    (stage,) = found.models[0].stages
    (unit,) = (unit for unit in stage.units if unit.index == index)
    alone = erfscope.analyze(module, images=given, unit=index, **options)
    for name, value in unit.measures.items():
        assert value == pytest.approx(alone.measures[name].value, abs=1e-9)
    values = alone.map.values
    ranked = levels(values)
    field = tuple(slice(first, last + 1) for first, last in unit.field_px)
    if kind == "sequence":
        (plane,) = unit.planes
        np.testing.assert_array_equal(plane.levels[0], ranked[field])
        assert np.abs(unit.curve / 255 - values[field] / values.max()).max() <= 0.5 / 255
    elif kind == "volume":
        expected = [ranked[2][field[1:]], ranked[:, :, 4][field[:2]].T, ranked[:, 4][field[::2]]]
        assert [(plane.axes, plane.cell) for plane in unit.planes] == [((1, 2), 2), ((1, 0), 4), ((0, 2), 4)]
        for plane, slice_ in zip(unit.planes, expected, strict=True):
            np.testing.assert_array_equal(plane.levels, slice_)
    else:
        assert [plane.cell for plane in unit.planes] == [2, 3, 4, 5, 6]
        for plane in unit.planes:
            np.testing.assert_array_equal(plane.levels, ranked[plane.cell][field[1:]])
            assert plane.share == pytest.approx(alone.frame_mass[plane.cell])


@pytest.mark.slow
def test_the_command_writes_two_models_into_one_page_and_over_nothing(tmp_path, command):
    Image.new("RGB", (80, 80), "teal").save(tmp_path / "x.png")
    target = tmp_path / "explorer.html"
    asked = ["explore", "test_resnet", "A=test_vit", "--image", str(tmp_path / "x.png"), "--weights", "random"]
    asked += ["--input-size", "32", "--grid", "2", "--draws", "1", "-o", str(target)]
    assert command(*asked, "--layer", "nowhere")[0] == 2
    code, out, err = command(*asked)
    assert (code, "wrote" in out) == (0, True), err
    assert "How far do test_<wbr>resnet and A look?" in target.read_text(encoding="utf-8")
    code, _, err = command(*asked)
    assert (code, "exists already" in err) == (2, True)
