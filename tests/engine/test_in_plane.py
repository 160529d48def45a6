"""Of clips sizes are in-plane, and every output says so; of images none does."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import erfscope
from erfscope.apps.gate.checks import CheckRequest, check_all
from erfscope.core.answer.measures import measure_map
from erfscope.show.page import html, report_fragment, result_fragment
from erfscope.show.view.sentences import methods_sentence

pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.fixture(scope="module")
def clip() -> erfscope.Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 4, 5, 1, 2), nn.ReLU(), nn.Conv3d(4, 4, 5, 2, 2))
    return erfscope.analyze(net, input_size=(9, 24, 24), in_chans=1, samples=4, label="Clip", axes="thw")


@pytest.fixture(scope="module")
def picture() -> erfscope.Result:
    return erfscope.analyze(nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2)), input_size=24, samples=4, label="Image")


def shown(what: object) -> str:
    console = Console(width=110, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def outputs(result: erfscope.Result) -> dict[str, str]:
    report = erfscope.Report(results=(result,))
    two = erfscope.Report(results=(result, result))
    return {
        "terminal": shown(result),
        "terminal, several": shown(two),
        "page": html(report),
        "page, several": html(two),
        "result in a notebook": result_fragment(result),
        "report in a notebook": report_fragment(report),
        "markdown": report.table(format="markdown"),
        "latex": report.table(format="latex"),
        "plain": report.table(format="plain"),
        "methods": methods_sentence(report),
        "panel": texts(report.figure()),
        "profile": texts(report.figure(kind="profile")),
    }


def texts(figure) -> str:
    from matplotlib.text import Text

    return "\n".join(item.get_text() for item in figure.findobj(Text))


@pytest.mark.slow
def test_sizes_are_those_of_the_map_summed_over_its_first_axis(clip):
    """Oracle: the sum taken by hand, measured as an image's map."""
    flat = erfscope.ErfMap(
        values=clip.map.values.sum(0), center_px=clip.map.center_px[1:], stride_px=clip.map.stride_px[1:]
    )
    by_hand = measure_map(flat, ["r50", "r90", "far_mass"])
    for name, value in by_hand.items():
        assert clip[name].value == pytest.approx(value)
    assert clip["r50"].of_input == pytest.approx(by_hand["r50"] / 24)
    assert clip["r50"].of_trf == pytest.approx(by_hand["r50"] / 9)  # 5 + 4 of two convolutions, though 9 deep as well
    of_time = clip["extent50_time"]
    assert (of_time.of_input, of_time.of_trf) == (None, None), "frames are no share of a side in px"
    assert clip.is_in_plane


@pytest.mark.slow
def test_every_output_says_that_a_clips_sizes_are_in_plane_and_none_so_of_a_picture(clip, picture):
    assert {name for name, text in outputs(clip).items() if "in-plane" not in text} == set()
    assert {name for name, text in outputs(picture).items() if "in-plane" in text} == set()


def test_files_say_so_in_a_field_of_their_own(clip, picture):
    both = erfscope.Report(results=(clip, picture))
    assert [entry["in_plane"] for entry in json.loads(json.dumps(both.to_json()))["results"]] == [True, False]
    assert [row["in_plane"] for row in csv.DictReader(io.StringIO(both.table(format="csv")))] == ["true", "false"]


@pytest.mark.slow
def test_the_gate_says_so(tmp_path):
    net = nn.Sequential(nn.Conv3d(1, 4, 3, 1, 1))
    request = CheckRequest(
        name="clip", model=net, options={"input_size": (6, 16, 16), "in_chans": 1, "samples": 4, "axes": "thw"}
    )
    for _ in range(2):  # when it is written, and when it is compared
        report = check_all([request], baseline=tmp_path / "b.json")
        assert "sizes are in-plane" in report.text
        assert "sizes are in-plane" in report.markdown()


@pytest.mark.slow
def test_a_one_dimensional_reference_is_measured_along_its_length():
    result = erfscope.analyze(nn.Sequential(nn.Conv1d(2, 4, 5, 2, 2)), input_size=(40,), in_chans=2, samples=4)
    assert not result.is_in_plane
    assert result["r50"].of_input == pytest.approx(result["r50"].value / 40)
    assert result["r50"].of_trf == pytest.approx(result["r50"].value / 5)
    assert np.isfinite(result["luo_size"].value)
    assert result["erf_trf"].value == pytest.approx(result["luo_size"].value / 5)
