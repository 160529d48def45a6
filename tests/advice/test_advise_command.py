"""``erfscope advise``: what it prints, writes and refuses."""

from __future__ import annotations

import cProfile
import io
import json
import pstats
from pathlib import Path

import measured_once
import pytest
from rich.console import Console

import erfscope
from erfscope.apps.advise.structure import structure_of
from erfscope.cli.main import main
from erfscope.core import Request
from erfscope.core.run.models import load_structure

pytestmark = pytest.mark.usefixtures("memory_unplanned")

NETS = """
from torch import nn

def stack():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))

def deep():
    return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(8)))

def pooling():
    return nn.MaxPool2d(2)
"""
SEARCH = ("nets.py:stack", "--input-size", "24", "--samples", "2", "--target", "halo<=1")


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("erfscope.apps.advise.search.analyze", measured_once.analyze)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["advise", *arguments])
    return int(stop.value.code or 0), *capsys.readouterr()


def test_the_answer_is_the_first_line(capsys):
    code, out, err = run(capsys, "nets.py:deep", "--input-size", "8", "--format", "plain")
    assert (code, err) == (0, "")
    # Layer n of eight reads 1 + 2 n cells; those of n = 4 to 7 more than 8.
    assert out.splitlines()[0].startswith("nets.py:deep at 8x8 px: 4 of 8 layers are unproductive, with 50 % of the")
    text = " ".join(out.split())
    assert "border layer: 3, the first whose theoretical receptive field (TRF) exceeds the input" in text
    assert "unproductive: 4, 5, 6, 7; what they read covers the input already" in text
    assert "critical: 3; their own kernel" in text
    assert "no classifier follows" in text


@pytest.mark.slow
def test_every_width_shows_the_advice_and_the_search():
    advice = erfscope.advise("nets.py:stack", input_size=24, samples=2, target="halo<=1")
    for width in (80, 120):
        out = io.StringIO()
        Console(width=width, color_system=None, file=out).print(advice)
        assert max(map(len, out.getvalue().splitlines())) <= width
        words = " ".join(out.getvalue().split())
        for text in (
            "halo<=1: halo is 2 px; met with the least loss of reach by --insert '0: kernel=1', which keeps",
            "--insert '0: kernel=1'",
            "ΔGMACs",
        ):
            assert text in words


@pytest.mark.slow
@pytest.mark.usefixtures("figures_undrawn")
def test_a_folder_holds_the_search_its_figure_and_its_json_and_is_gone_on_with(capsys):
    code, out, err = run(capsys, *SEARCH, "-o", "out", "--json", "--measure")
    assert code == 0
    assert err.splitlines()[-1] == "erfscope: wrote out"
    found = json.loads(out, parse_constant=pytest.fail)
    assert found == json.loads(Path("out/advice.json").read_text())
    assert found["search"]["target"] == "halo<=1"
    names = {path.name for path in Path("out").iterdir()}
    assert {"advice.txt", "advice.json", "search.json", "front.png", "front.pdf", "report"} == names
    assert len(erfscope.read("out/report")) == len(found["depth"]["results"])
    assert Path("out/front.png").read_bytes().startswith(b"\x89PNG")
    kept = Path("out/search.json").read_bytes()
    code, _, err = run(capsys, *SEARCH, "-o", "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "out is not empty; add --force, --resume" in err
    start = Path("out/search.json").stat().st_mtime_ns
    code, out, _ = run(capsys, *SEARCH, "-o", "out", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["search"] == found["search"]
    # Nothing was measured, so nothing was written.
    assert (Path("out/search.json").read_bytes(), Path("out/search.json").stat().st_mtime_ns) == (kept, start)
    code, _, err = run(capsys, *SEARCH[:-3], "3", "--target", "halo<=1", "-o", "out", "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "was of another model or other options" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nets.py:nothing",), "nothing"),
        (("nets.py:stack", "--target", "r50"), "cannot read --target 'r50'"),
        (("nets.py:stack", "--target", "r51>=3"), "unknown name in --target 'r51'"),
        (("nets.py:stack", "--target", "halo>=3"), "a halo is to be small"),
        (("nets.py:stack", "--budget", "gmacs<=2x"), "a budget bounds a search"),
        (("nets.py:stack", "--target", "r50>=3", "--budget", "gmacs=2"), "cannot read --budget 'gmacs=2'"),
        (("nets.py:stack", "--target", "r50>=3", "--layer", "none"), "unknown layer 'none'"),
        (("nets.py:stack", "--resume"), "--resume goes on with a search"),
        (("nets.py:stack", "--target", "r50>=3", "--resume", "-o", "new"), "there is no search to go on with"),
        (("nets.py:stack", "-o", "nets.py"), "-o takes a folder"),
        (("nets.py:stack", "--time", "soon", "--target", "r50>=3"), "soon"),
        (("nets.py:pooling",), "no operation with weights"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(capsys, arguments, words):
    code, out, err = run(capsys, *arguments, "--input-size", "24")
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("erfscope: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "options", "most"),
    [
        ("nets.py:deep", {"input_size": 64}, 15_000),
        # Of channels by the thousand; half a second.
        pytest.param("torchvision.models:densenet121", {}, 900_000, marks=pytest.mark.slow),
    ],
)
def test_structure_takes_few_calls(spec, options, most):
    loaded = load_structure(spec, Request.parse(options))
    assert loaded.recording.layers
    profile = cProfile.Profile()
    profile.runcall(structure_of, loaded)
    assert pstats.Stats(profile).total_calls < most


@pytest.mark.parametrize("command", ["advise", "tile"])
def test_json_that_is_asked_for_wins_over_the_format_of_a_settings_file(command, capsys):
    Path("pyproject.toml").write_text('[tool.erfscope]\nformat = "plain"\n')
    with pytest.raises(SystemExit):
        main([command, "nets.py:stack", "--input-size", "24", "--json"])
    assert json.loads(capsys.readouterr().out)
