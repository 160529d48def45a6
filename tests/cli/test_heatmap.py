"""Claims about the map in the terminal: its colours, its shades, and what is shown where OpenCV cannot be loaded."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import cv2
import matplotlib
import numpy as np
import pytest
from rich.console import Console
from torch import nn

import erfscope
from erfscope.cli.main import main
from erfscope.cli.views.gallery import Gallery
from erfscope.cli.views.heatmap import HeatMap, inferno
from erfscope.cli.views.terminal import result_view

LIBGL = "libGL.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture(scope="module")
def result() -> erfscope.Result:
    return erfscope.analyze(nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2), nn.Conv2d(4, 4, 5, 2, 2)), input_size=(40, 52), samples=2, draws=1)


class NoCv2:
    """A finder that fails as the import of OpenCV does on a machine without libGL."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "cv2":
            raise ImportError(LIBGL)


@pytest.fixture
def no_cv2(monkeypatch):
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoCv2(), *sys.meta_path])


def shown(renderable: object, color: str | None = "truecolor") -> str:
    console = Console(file=io.StringIO(), width=110, force_terminal=color is not None, color_system=color)
    console.print(renderable)
    return console.file.getvalue()


def test_the_colours_are_matplotlibs_inferno_in_rgb():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = matplotlib.colormaps["inferno"](levels, bytes=True)[..., :3].astype(int)
    found = inferno(levels)
    assert np.abs(found - expected).max() <= 2  # the two tables are rounded differently
    assert found[-1, -1, 0] > 240 > 200 > found[-1, -1, 2]  # bright yellow: much red, little blue


def test_the_strongest_pixel_is_bright_yellow(result):
    view = HeatMap(result)
    view.ring = lambda name: np.zeros(view.shape, dtype=bool)
    view.unit = lambda: (-1, -1)
    np.testing.assert_allclose(view.picture()[view.levels() == 1][0].astype(int), (252, 255, 164), atol=2)


@pytest.mark.parametrize(("space", "columns"), [((40, 52), 26), ((41, 53), 26), ((30, 30), 7), ((97, 64), 36)])
def test_the_levels_are_opencvs_area_means_where_the_map_shrinks(result, space, columns):
    view = HeatMap(result, columns)
    view.erf = erfscope.ErfMap(values=np.random.default_rng(0).random(space), center_px=(3.0, 3.0), stride_px=(4.0, 4.0))
    expected = cv2.resize(np.ascontiguousarray(view.erf.magnitude), view.shape[::-1], interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(view.levels(), np.sqrt(expected / expected.max()), atol=1e-6)


@pytest.mark.parametrize("space", [(3, 5), (1, 64), (100, 2)])
def test_a_flat_map_is_flat_at_any_size(result, space):
    view = HeatMap(result)
    view.erf = erfscope.ErfMap(values=np.ones(space), center_px=(0.0, 0.0), stride_px=(1.0, 1.0))
    np.testing.assert_allclose(view.levels(), 1, rtol=1e-12)


def test_a_map_smaller_than_its_picture_keeps_its_cells(result):
    view = HeatMap(result)
    view.shape, values = (6, 8), np.arange(1.0, 13).reshape(3, 4)
    view.erf = erfscope.ErfMap(values=values, center_px=(0.0, 0.0), stride_px=(1.0, 1.0))
    np.testing.assert_allclose(view.levels(), np.sqrt(np.kron(values / 12, np.ones((2, 2)))), rtol=1e-12)


def test_without_opencv_the_report_has_the_ramp_and_says_what_to_install(result, no_cv2):
    whole, alone = shown(result_view(result)), shown(HeatMap(result))
    assert "▄" not in whole
    for line in HeatMap(result).ramp():
        assert line.rstrip() in whole
    for part in ("Half of the ERF", "far_mass", "opencv-python-headless"):
        assert part in whole
    for part in ("no colours, since cv2", "libGL.so.1", "apt install libgl1 libxcb1", "opencv-python-headless"):
        assert part in alone.replace("\n", " ")


def test_half_an_installation_of_opencv_is_one_without_it(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))
    assert "opencv-python-headless" in shown(HeatMap(result))


def test_a_terminal_without_colours_needs_no_opencv_and_is_told_nothing_of_it(result, no_cv2):
    text = shown(HeatMap(result), color=None)
    assert text.splitlines() == HeatMap(result).ramp()


def test_maps_side_by_side_are_in_colour_and_a_missing_opencv_is_said_once(result, no_cv2):
    text = shown(Gallery([result, result, result]))
    assert "▄" not in text
    assert text.count("no colours, since cv2") == 1
    assert HeatMap(result, 32).ramp()[3].strip() in text


def test_maps_side_by_side_stand_on_the_same_lines(result):
    lines = shown(Gallery([result, result])).splitlines()
    blocks = [line.count("▄") for line in lines if "▄" in line]
    assert blocks == [2 * HeatMap(result, 32).shape[1]] * (HeatMap(result, 32).shape[0] // 2)


def test_with_opencv_nothing_is_said(result):
    text = shown(HeatMap(result))
    assert "▄" in text
    assert "cv2" not in text


def test_the_command_ends_well_without_opencv(no_cv2, monkeypatch, capsys, tmp_path):
    (tmp_path / "nets.py").write_text("from torch import nn\n\ndef tiny():\n    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["analyze", "nets.py:tiny", "--input-size", "32", "--samples", "2", "-q"])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert "Half of the ERF" in out
    assert "opencv-python-headless" in out
