"""``erfscope tile``: the answer first, the reasons where there is none, and the numbers behind both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import erfscope
from erfscope.cli.main import main
from erfscope.cli.tile import TOOLS
from erfscope.tiling import recipes
from erfscope.tiling.run import Mark

NETS = """
from torch import nn

def stack():
    return nn.Sequential(nn.Conv2d(3, 4, 7, padding=3), nn.MaxPool2d(2), nn.Conv2d(4, 1, 3, padding=1))

class Squeeze(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)
    def forward(self, x):
        y = self.conv(x)
        return y * self.pool(y).sigmoid()

squeeze = Squeeze

def classifier():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["tile", *arguments])
    return int(stop.value.code or 0), *capsys.readouterr()


def test_the_halo_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "nets.py:stack", "--input-size", "64", "--tile", "32")
    # A unit reads one of 2 cells to each side, and each of these 3 cells further: 5 before, 5 after its own two.
    assert code == 0
    assert out.splitlines()[0] == "halo 5 px before, 5 px after, tiles begin at multiples of 2"
    assert max(map(len, out.splitlines())) <= 80
    assert "tile   side, px" in out


def test_the_command_names_every_tool_that_there_are_settings_of() -> None:
    assert tuple(recipes.TOOLS) == TOOLS


@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_width_shows_the_plan_and_what_stands_in_its_way(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    asked = ("--input-size", "64", "--image-size", "400x600", "--memory", "2MiB", "--format", "plain")
    texts = [run(capsys, model, *asked)[1] for model in ("nets.py:stack", "nets.py:squeeze")]
    golden(f"tile-{width}", "\n".join(texts))


def test_json_and_file_hold_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("nets.py:stack", "--input-size", "64", "--tile", "32", "--image-size", "400x600", "--memory", "1MiB")
    code, out, err = run(capsys, *asked, "--json", "-o", "plan.json")
    assert (code, err) == (0, "erfscope: wrote plan.json\n")
    found = json.loads(out)
    assert found == json.loads(Path("plan.json").read_text())
    assert (found["schema"], found["possible"], found["halo"]) == ("erfscope-tile-1", True, [[5, 5], [5, 5]])
    plan = erfscope.tile("nets.py:stack", 32, input_size=64, image_size=(400, 600))
    assert found["tiles"][0]["tiles"] == len(plan.windows((400, 600)))
    assert all(each["memory"] <= 2**20 for each in found["tiles"][1:])
    code, _, err = run(capsys, *asked, "-o", "plan.json")
    assert code == 2
    assert "exists already" in err


def test_an_impossible_plan_names_the_operation_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "nets.py:squeeze", "--input-size", "32")
    assert code == 3
    first, reason, *_ = out.splitlines()
    assert first == "nets.py:squeeze cannot be run on tiles: they would differ from the whole image"
    assert reason.startswith("- global average pooling (pool)")
    assert "; compute it once on the whole image" in " ".join(out.split())
    assert "but for that: halo 1 px before, 1 px after" in out


def test_a_tolerance_measures_shorter_halos(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("nets.py:stack", "--input-size", "64", "--weights", "random", "--samples", "4", "--tolerance")
    code, out, _ = run(capsys, *asked, "0.1")
    assert code == 0
    assert "cuts off less than 0.1 of the ERF on each side" in out
    found = run(capsys, *asked, "0.1", "--json", "-o", "plan.png")
    assert found[2] == "erfscope: wrote plan.png\n"
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    budget = json.loads(found[1])["budget"]
    shares = budget["share"][0][0]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0
    assert budget["halo"][0][0] % 2 == 0 or budget["halo"][0][0] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nets.py:nothing",), 2, "nothing"),
        (("nets.py:stack", "--input-size", "64", "--layer", "9"), 2, "unknown layer '9'"),
        (("nets.py:stack", "--input-size", "64", "--tile", "big"), 2, "cannot read the input size 'big'"),
        (("nets.py:stack", "--input-size", "64", "--memory", "much"), 2, "is no size"),
        (("nets.py:stack", "--input-size", "64", "--for", "paint"), 2, "monai"),
        (("nets.py:stack", "--input-size", "64", "-o", "plan.yaml"), 2, ".json"),
        (("nets.py:classifier", "--input-size", "64"), 3, "returns no map"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_file_is_run_and_a_run_that_was_stopped_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).random((3, 48, 56), dtype=np.float32)
    np.save("image.npy", image)
    asked = ("nets.py:stack", "--input-size", "64", "--tile", "16", "--weights", "random", "--run", "image.npy", "-o")
    assert run(capsys, *asked, "out.npy")[0] == 0
    net = erfscope.adapters.load("nets.py:stack", weights="random", input_size=64).module.eval()
    with torch.no_grad():
        whole = net(torch.from_numpy(image)[None])[0].numpy()
    assert np.load("out.npy") == pytest.approx(whole, abs=1e-5)
    written: list[int] = []

    def stopping(mark: Mark, done: int, out: object) -> None:
        plain(mark, done, out)
        written.append(done)
        if len(written) == 4:
            raise KeyboardInterrupt

    plain = Mark.set
    monkeypatch.setattr(Mark, "set", stopping)
    assert run(capsys, *asked, "again.npy")[0] == 130
    assert not np.load("again.npy")[:, -1].any()
    assert run(capsys, *asked, "again.npy", "--resume")[0] == 0
    assert written[4] == written[3] + 1
    assert np.load("again.npy") == pytest.approx(whole, abs=1e-5)
    assert not list(Path().glob("*.tiles.json"))
    assert "--force" in run(capsys, *asked, "again.npy", "--resume")[2]
    assert "name a .npy file" in run(capsys, *asked[:-2], "nets.py", "-o", "third.npy")[2]
    assert "--run needs -o" in run(capsys, *asked[:-1])[2]


def test_a_plan_prints_its_answer() -> None:
    plan = erfscope.tile("nets.py:stack", 32, input_size=64)
    assert str(plan) == "halo 5 px before, 5 px after, tiles begin at multiples of 2"
