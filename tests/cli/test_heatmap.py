"""Claims about the map in the terminal: its colours, its shades, and what is shown where OpenCV cannot be loaded."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import cv2
import made_up
import matplotlib
import numpy as np
import pytest
from loaded import adapter_of
from matplotlib.text import Text
from rich.console import Console
from torch import nn

import erfscope
from erfscope.show.drawn import averaged, close_up, needed_side
from erfscope.show.view.terminal.heatmap import (
    COLOUR_KEY,
    GLYPH_KEY,
    MARKS,
    RAMP,
    Gallery,
    HeatMap,
    half_blocks,
    inferno,
    input_image,
)
from erfscope.show.view.terminal.report import draw_result
from erfscope.show.view.windows import windows

LIBGL = "libGL.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture(scope="module")
def result() -> erfscope.Result:
    return erfscope.analyze(
        nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2), nn.Conv2d(4, 4, 5, 2, 2)), input_size=(40, 52), samples=2, draws=1
    )


class NoCv2:
    """A finder that fails as the import of OpenCV does on a machine without libGL."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "cv2":
            raise ImportError(LIBGL)


@pytest.fixture
def no_cv2(monkeypatch):
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoCv2(), *sys.meta_path])


def shown(renderable: object, color: str | None = "truecolor", width: int = 110, file: type = io.StringIO) -> str:
    console = Console(file=file(), width=width, force_terminal=color is not None, color_system=color)
    console.print(renderable)
    return console.file.getvalue()


def heat(values: np.ndarray, columns: int) -> HeatMap:
    """A map of these values, without marks."""
    view = HeatMap(made_up.result(), columns)
    view.erf = erfscope.ErfMap(values=values, center_px=(0.0, 0.0), stride_px=(1.0, 1.0))
    view.marked = lambda name: np.zeros(view.shape, dtype=bool)
    return view


def test_the_colours_are_matplotlibs_inferno_in_rgb():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = matplotlib.colormaps["inferno"](levels, bytes=True)[..., :3].astype(int)
    found = inferno(levels)
    assert np.abs(found - expected).max() <= 2  # the two tables are rounded differently
    assert found[-1, -1, 0] > 240 > 200 > found[-1, -1, 2]  # bright yellow: much red, little blue


@pytest.mark.parametrize(("space", "columns"), [((40, 52), 26), ((41, 53), 26), ((30, 30), 7), ((97, 64), 36)])
def test_a_map_that_shrinks_is_opencvs_area_means(result, space, columns):
    values, shape = np.random.default_rng(0).random(space), HeatMap(result, columns).shape
    np.testing.assert_allclose(
        averaged(values, shape), cv2.resize(values, shape[::-1], interpolation=cv2.INTER_AREA), atol=1e-6
    )


@pytest.mark.parametrize("shape", [(6, 8), (3, 8)])
def test_the_brightness_is_by_the_share_in_stronger_cells_of_those_that_are_drawn(shape):
    values = np.random.default_rng(0).random((12, 16)) ** 8
    cells = values.reshape(shape[0], 12 // shape[0], shape[1], 2).mean(axis=(1, 3)).ravel()
    stronger = [(cells[cells > cell].sum() + cell / 2) / cells.sum() for cell in cells]
    # The legend: all of the first 10 % is brightest, all beyond 99 % is black.
    expected = np.interp(stronger, (0.1, 0.5, 0.9, 0.99), (1, 0.48 / 0.76, 0.2 / 0.76, 0))
    np.testing.assert_allclose(heat(values, 8).levels(shape).ravel(), expected, rtol=1e-9)


@pytest.mark.parametrize("space", [(3, 5), (1, 64), (100, 2)])
def test_a_flat_map_is_flat_at_any_size(space):
    view = heat(np.ones(space), 36)
    np.testing.assert_allclose(view.levels(view.shape), 0.48 / 0.76, rtol=1e-12)


@pytest.mark.parametrize("color", [True, False])
def test_the_legend_is_true(color):
    """Of a bell whose cells are small: the brightest ones hold the first 10 % of it, and what is black less than the
    last 1 %."""
    distance = np.hypot(*np.meshgrid(*[np.arange(64.0) - 31.5] * 2))
    view = heat(np.exp(-(distance**2) / 200), 64)
    view.shape = (64, 64) if color else (128, 64)
    if color:
        drawn = view.pixels().astype(int)
        brightest = (drawn == inferno(np.array([[255]], dtype=np.uint8))[0, 0]).all(axis=2)
        black = (drawn <= (0, 0, 4)).all(axis=2)
    else:
        drawn = view.glyphs()
        brightest, black = drawn == "@", drawn == " "
    mass = view.erf.magnitude
    assert mass[brightest].sum() == pytest.approx(0.1, abs=0.02)
    assert mass[black].sum() == pytest.approx(0.01, abs=0.002)
    assert mass[brightest].min() > mass[~brightest].max()


def test_a_map_smaller_than_its_picture_keeps_its_cells(result):
    values = np.arange(1.0, 13).reshape(3, 4)
    np.testing.assert_allclose(averaged(values, (6, 8)), np.kron(values, np.ones((2, 2))), rtol=1e-12)


def test_without_opencv_the_report_has_the_ramp_and_says_what_to_install(result, no_cv2):
    whole = shown(draw_result(result))
    assert "▀" not in whole
    for line in HeatMap(result, 36).glyphs():
        assert "".join(line).rstrip() in whole
    said = ("no colours, since cv2", "libGL.so.1", "apt install libgl1 libxcb1", "opencv-python-headless")
    for part in ("Half of the ERF", "far_mass", *said, GLYPH_KEY[:20]):
        assert part in whole.replace("\n", " ")
    # A terminal without colours needs none, and maps side by side say it once.
    assert "cv2" not in shown(draw_result(result), color=None)
    text = shown(Gallery([result, result, result]))
    assert ("▀" in text, text.count("no colours, since cv2")) == (False, 1)
    assert "".join(HeatMap(result, 32).glyphs()[3]).strip() in text


def test_half_an_installation_of_opencv_is_one_without_it(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))
    assert "opencv-python-headless" in shown(draw_result(result))


def test_with_opencv_nothing_is_said_and_maps_stand_on_the_same_lines(result):
    text = shown(draw_result(result))
    assert ("▀" in text, "cv2" in text) == (True, False)
    blocks = [line.count("▀") for line in shown(Gallery([result, result])).splitlines() if "▀" in line]
    assert blocks == [2 * HeatMap(result, 32).shape[1]] * (HeatMap(result, 32).shape[0] // 2)


@pytest.mark.slow
def test_the_command_ends_well_without_opencv(no_cv2, command, monkeypatch, tmp_path):
    made = "from torch import nn\n\ndef tiny():\n    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1))\n"
    (tmp_path / "nets.py").write_text(made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, err = command("analyze", "nets.py:tiny", "--input-size", "32", "--samples", "2", "-q", "--explain")
    assert (code, err) == (0, "")
    assert "Half of the ERF" in out
    assert "opencv-python-headless" in out


# --- Glyphs, colours and the terminals that show them ---------------------------------------------


def test_no_mark_is_a_shade_and_the_key_names_each(result):
    glyphs = [glyph for glyph, _ in MARKS.values()]
    assert not set(glyphs) & set(RAMP)
    assert len({*glyphs}) == len(glyphs) == 3
    assert all((*RAMP, *glyphs)[i].isascii() for i in range(len(RAMP) + 3))
    assert "+ unit · 5 ring r50 · 9 ring r90" in shown(draw_result(result), color=None)
    assert COLOUR_KEY[:40] in shown(draw_result(result))


class Ascii(io.StringIO):
    encoding = "ascii"


@pytest.mark.parametrize(
    ("system", "file"),
    [("truecolor", io.StringIO), ("256", io.StringIO), ("standard", io.StringIO), ("truecolor", Ascii)],
)
def test_half_blocks_are_for_terminals_with_colours_enough_and_utf_8(result, system, file):
    text = shown(draw_result(result), system, 200, file)
    blocks = system != "standard" and file is not Ascii
    assert ("▀" in text) == blocks
    assert ("\x1b[38;2;" in text) == (blocks and system == "truecolor")
    assert ("\x1b[38;5;" in text) == (system == "256")


def test_a_half_block_is_the_upper_pixel_over_the_lower_one():
    text = shown(half_blocks(np.array([[[1, 2, 3]], [[4, 5, 6]]], dtype=np.uint8)), width=10)
    assert text == "\x1b[38;2;1;2;3;48;2;4;5;6m▀\x1b[0m\n"


@pytest.mark.parametrize("space", [(40, 52, 3), (40, 52, 1), (4, 40, 52, 3), (52, 3)])
@pytest.mark.parametrize("color", ["truecolor", None])
def test_pictures_of_every_shape_are_shown(space, color):
    console = Console(file=io.StringIO(), width=100, force_terminal=color is not None, color_system=color)
    text = input_image(np.full(space, 255, dtype=np.uint8), (20, 26), console)
    assert text.plain == "\n".join([("▀" if color else "@") * 26] * 10)
    assert not color or str(text.spans[0].style) == "#ffffff on #ffffff"


# --- Close-ups ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dot_is_shown_zoomed_in_the_terminal_in_figures_and_on_the_page(tmp_path):
    """A field of 13 pixels of 160: the unit and the scale are where the map says, in all three."""
    model, asked = adapter_of("test_resnet"), {"samples": 1, "measures": "r50,r90"}
    result, other = (erfscope.analyze(model, layer=layer, **asked) for layer in ("layer1", "layer4"))
    assert result.map is not None
    (each,) = windows([result])
    heat = HeatMap(result, 40, each.part)
    side = heat.erf.values.shape[0]
    assert side <= 160 / 4
    ((row, _),) = np.argwhere(heat.marked("unit"))
    rows = heat.shape[0]
    first, last = heat.close_up.window[0]
    assert 160 * (first + (last - first) * (row + 0.5) / rows) - 0.5 == pytest.approx(result.map.center_px[0], abs=1)
    words = f"window {side} px"
    assert words in shown(draw_result(result))
    # Beside a map that needs its whole input this one has the whole input too.
    assert words not in shown(Gallery([result, other]))
    assert shown(Gallery([result, result])).count(words) == 2
    report = erfscope.Report(results=(result,))
    figure = report.figure()
    ax = figure.axes[0]
    assert abs(np.diff(ax.get_xlim()))[0] == pytest.approx(side)
    assert any(words in text.get_text() for text in figure.findobj(Text))
    report.save(tmp_path / "erf.html")
    page = (tmp_path / "erf.html").read_text()
    assert words in page
    assert f'viewBox="-0.5 -0.5 {side} {side}"' in page


def test_a_close_up_keeps_density_and_places(result):
    values = np.zeros((100, 160))
    values[10:13, 60:63] = 1 / 9
    erf = erfscope.ErfMap(values=values, center_px=(11.0, 61.0), stride_px=(1.0, 1.0))
    # Three cells across, and at least nine are shown.
    assert needed_side(erf) == 9
    found = close_up(erf, 20)
    assert (found.side_text, found.erf.values.shape) == ("20 px", (20, 20))
    assert found.erf.values.max() * found.erf.values.size == pytest.approx(values.max() * values.size)
    row, col = (int(place) for place in found.erf.center_px)
    assert found.erf.values[row - 1 : row + 2, col - 1 : col + 2].min() > 0
    np.testing.assert_array_equal(found.of(values) > 0, found.erf.values > 0)
    wide = erfscope.ErfMap(values=np.full((100, 160), 1 / 16000), center_px=(11.0, 61.0), stride_px=(1.0, 1.0))
    assert close_up(wide).erf is wide
    # The farthest of 100 x 160 cells from column 61 is 98 columns away, one of a thousand may be left out, and a fifth
    # stands around it.
    assert 1.2 * 190 < needed_side(wide) <= 1.2 * 98 * 2 + 2
