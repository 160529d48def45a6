"""What the terminal shows: the order of its lines, nothing cut, and marks where they belong."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

import erfscope
from erfscope.cli.comparison import ComparisonTable
from erfscope.cli.heatmap import HeatMap
from erfscope.cli.terminal import report_view
from erfscope.report import Report


@pytest.fixture(scope="module")
def single() -> Report:
    return erfscope.sweep("test_resnet", weights="random", samples=5)


@pytest.fixture(scope="module")
def several() -> Report:
    return erfscope.compare({"A": "test_resnet", "a model with quite a long name indeed": "test_vit"}, weights="random", samples=5)


def shown(renderable: object, width: int) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_lines_come_in_the_order_of_importance(single, width):
    text = " ".join(" ".join(shown(report_view(single), width)).split())
    parts = ["test_resnet · layer4 · unit", "RANDOM WEIGHTS", "Half of the ERF lies within", "radius that holds half", "+ unit · rings"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_cut(single, several, width):
    for view in (report_view(single), report_view(several)):
        assert "…" not in "\n".join(line for line in shown(view, width) if "quite a long" not in line)


def test_what_does_not_fit_is_said_in_words(several):
    narrow, wide = "\n".join(shown(ComparisonTable(several), 80)), "\n".join(shown(ComparisonTable(several), 200))
    assert "no room for" in narrow
    assert "layer: A layer4" in narrow
    assert "no room for" not in wide
    for column in ("stride", "TRF", "r50", "erf_trf", "params M", "GMACs"):
        assert column in wide


def test_differences_stand_below_the_rows_they_belong_to(several):
    lines = shown(ComparisonTable(several), 200)
    (row,) = [i for i, line in enumerate(lines) if "minus first" in line]
    assert lines[row - 1].strip().startswith("a model with")
    r50 = several.differences(["r50"])[1]["r50"][0]
    assert r50 is not None
    assert ("+" if r50 > 0 else "-") in lines[row]


def test_the_unit_and_its_rings_are_where_the_map_says(single):
    heat = HeatMap(single[0])
    erf = single[0].map
    assert erf is not None
    rows, columns = heat.shape
    row, col = heat.unit()
    assert (row / rows * 160, col / columns * 160) == pytest.approx(erf.center_px, abs=160 / rows)
    ring = np.argwhere(heat.ring("r50"))
    radius = float(single[0]["r50"]) * rows / 160
    centre = [(c + 0.5) * rows / 160 for c in erf.center_px]
    distances = np.hypot(ring[:, 0] + 0.5 - centre[0], ring[:, 1] + 0.5 - centre[1])
    assert np.abs(distances - radius).max() <= 0.75
    assert heat.ramp()[row // 2][col] == "+"


def test_a_wide_map_keeps_its_shape():
    result = erfscope.analyze("test_resnet", weights="random", samples=2, input_size=(64, 192), measures="r50,r90")
    heat = HeatMap(result)
    assert heat.shape[1] / heat.shape[0] == pytest.approx(3, rel=0.1)
