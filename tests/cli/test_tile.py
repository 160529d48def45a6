"""``erfscope tile``: the answer first, the reasons where there is none, and the numbers behind both."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
import zarr

import erfscope
from erfscope.apps.tile import recipes
from erfscope.apps.tile.command import TOOLS
from erfscope.apps.tile.run import TileCount

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


ARRAY = np.random.default_rng(0).random((3, 96, 96), dtype=np.float32)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    np.save(tmp_path / "image.npy", ARRAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(command: Run) -> Run:
    return lambda *arguments: command("tile", *arguments)


def test_the_halo_is_the_first_line(run: Run) -> None:
    code, out, _ = run("nets.py:stack", "--input-size", "64", "--tile", "32")
    # A unit reads one of 2 cells to each side, and each of these 3 cells further: 5 before, 5 after its own two.
    assert code == 0
    assert out.splitlines()[0] == "halo 5 px before, 5 px after, tiles begin at multiples of 2"
    assert max(map(len, out.splitlines())) <= 80
    assert "tile   side, px" in out
    assert str(erfscope.tile("nets.py:stack", 32, input_size=64)).splitlines()[0] == out.splitlines()[0]


def test_the_command_names_every_tool_that_there_are_settings_of() -> None:
    assert tuple(recipes.TOOLS) == TOOLS


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 200])
def test_every_width_shows_the_plan_and_what_stands_in_its_way(
    run: Run, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    asked = ("--input-size", "64", "--image-size", "400x600", "--memory", "2MiB", "--format", "plain")
    texts = [run(model, *asked)[1] for model in ("nets.py:stack", "nets.py:squeeze")]
    golden(f"tile-{width}", "\n".join(texts))


@pytest.mark.slow
def test_json_and_file_hold_the_plan(run: Run) -> None:
    asked = ("nets.py:stack", "--input-size", "64", "--tile", "32", "--image-size", "400x600", "--memory", "1MiB")
    code, out, err = run(*asked, "--json", "-o", "plan.json")
    assert (code, err) == (0, "erfscope: wrote plan.json\n")
    found = json.loads(out)
    assert found == json.loads(Path("plan.json").read_text())
    assert (found["schema"], found["possible"], found["halo"]) == ("erfscope-tile-1", True, [[5, 5], [5, 5]])
    plan = erfscope.tile("nets.py:stack", 32, input_size=64, image_size=(400, 600))
    assert found["tiles"][0]["tiles"] == len(plan.windows((400, 600)))
    assert all(each["memory"] <= 2**20 for each in found["tiles"][1:])
    code, _, err = run(*asked, "-o", "plan.json")
    assert code == 2
    assert "exists already" in err


def test_an_impossible_plan_names_the_operation_and_what_to_do(run: Run) -> None:
    code, out, _ = run("nets.py:squeeze", "--input-size", "32")
    assert code == 3
    first, reason, *_ = out.splitlines()
    assert first == "nets.py:squeeze cannot be run on tiles: they would differ from the whole image"
    assert reason.startswith("- global average pooling (pool)")
    assert "; compute it once on the whole image" in " ".join(out.split())
    assert "but for that: halo 1 px before, 1 px after" in out


@pytest.mark.slow
def test_a_tolerance_measures_shorter_halos(run: Run) -> None:
    asked = ("nets.py:stack", "--input-size", "64", "--weights", "random", "--samples", "4", "--tolerance")
    code, out, _ = run(*asked, "0.1")
    assert code == 0
    assert "cuts off less than 0.1 of the ERF on each side" in out
    assert re.search(r"measured over 4 synthetic images \(dead leaves\); .*weights", out)
    found = run(*asked, "0.1", "--json", "-o", "plan.png")
    assert found[2] == "erfscope: wrote plan.png\n"
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(found[1])["weights"] == "any"
    budget = json.loads(found[1])["budget"]
    assert budget["weights"]["source"] == "factory"
    shares = budget["share"][0][0]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0
    assert budget["halo"][0][0] % 2 == 0 or budget["halo"][0][0] == 5


#: Slow where a signal has to find it at work.
SLOW = """
import os, time
from torch import nn

class Slow(nn.Conv2d):
    def forward(self, x):
        if not x.is_meta:
            time.sleep(float(os.environ.get("SLOW", "0")))
        return super().forward(x)

def net(scale=1.0):
    class Scaled(nn.Sequential):
        def forward(self, x):
            return scale * super().forward(x)

    return Scaled(Slow(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
"""
SETTINGS = ("slow.py:net", "--input-size", "64", "--tile", "16", "--weights", "random", "--run", "image.npy")
ASKED = (*SETTINGS, "-o", "out.npy")
STATE = ("out.npy", "out.npy.tiles.json")


@pytest.fixture
def image() -> None:
    Path("slow.py").write_text(SLOW)


def ended(number: int, *more: str, tiles: int = 1, seconds: float = 0.05) -> tuple[int, str]:
    """Send a signal to a run on tiles once it has counted so many; its exit code, and what it said."""
    command, around = [sys.executable, "-m", "erfscope", "tile", *ASKED, *more], {**os.environ, "SLOW": str(seconds)}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with warm.WarmProcess(command, env=around, **streams) as process:
        count = Path("out.npy.tiles.json")
        while not count.exists() or json.loads(count.read_text())["done"] < tiles:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    return process.returncode, said


@pytest.fixture
def stopped(image: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A run that has ended after some tiles, which are listed, as are those that follow."""
    written: list[int] = []
    plain = TileCount.set

    def stopping(mark: TileCount, done: int, out: object) -> None:
        plain(mark, done, out)
        written.append(done)
        if len(written) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(TileCount, "set", stopping)
    assert run(*ASKED)[0] == 130
    return written


def assert_refused(found: tuple[int, str, str], *words: str) -> None:
    code, _, err = found
    assert (code, len(err.splitlines())) == (2, 1)
    assert [each for each in words if each not in err] == []


@pytest.mark.slow
def test_a_file_is_run_and_a_run_that_was_stopped_goes_on(stopped: list[int], run: Run) -> None:
    net = erfscope.adapters.load("slow.py:net", weights="random", input_size=64).module.eval()
    with torch.no_grad():
        expected = net(torch.from_numpy(ARRAY)[None])[0].numpy()
    assert not np.load("out.npy")[:, -1].any()
    assert_refused(run(*ASKED), "was stopped; add --resume")
    code, _, err = run(*ASKED, "--resume")
    assert code == 0
    assert re.search("erfscope: slow.py:net: .*weights", err)
    assert stopped[4] == stopped[3] + 1
    assert np.load("out.npy") == pytest.approx(expected, abs=1e-5)
    assert not list(Path().glob("*.tiles.json"))
    assert_refused(run(*ASKED, "--resume"), "--force", "no run for it was stopped")
    whole = Path("out.npy").read_bytes()
    assert run(*ASKED, "--force")[0] == 0
    assert Path("out.npy").read_bytes() == whole
    assert_refused(run(*SETTINGS[:-1], "nets.py", "-o", "third.npy"), "name a .npy file")
    assert_refused(run(*SETTINGS), "--run needs -o")


@pytest.mark.slow
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("number", "code", "seconds", "more"),
    [
        (signal.SIGTERM, 143, 0.05, ()),
        (signal.SIGINT, 130, 0.05, ()),
        # An output that is to be replaced stays until the new one is whole.
        (signal.SIGKILL, -signal.SIGKILL, 0.05, ("--force",)),
        # In its first tile.
        (signal.SIGKILL, -signal.SIGKILL, 0.5, ()),
    ],
)
def test_a_run_that_a_signal_ends_goes_on_to_the_output_of_one_go(
    run: Run, number: int, code: int, seconds: float, more: tuple[str, ...]
) -> None:
    assert run(*SETTINGS, "-o", "whole.npy")[0] == 0
    if more:
        np.save("out.npy", np.arange(3))
    tiles = 1 if seconds < 0.1 else 0
    found, said = ended(number, *more, tiles=tiles, seconds=seconds)
    assert found == code
    assert ("the same command with --resume goes on" in said) is (code > 0)
    assert tiles or json.loads(Path("out.npy.tiles.json").read_text())["done"] == 0
    if more:
        assert np.load("out.npy").tolist() == [0, 1, 2]
    else:
        assert_refused(run(*ASKED), "was stopped; add --resume")
    assert run(*ASKED, "--resume")[0] == 0
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert [file.name for file in Path().iterdir() if "out" in file.name] == ["out.npy"]


@pytest.mark.usefixtures("image")
def test_a_part_of_another_is_not_taken(run: Run) -> None:
    Path("out.npy.part").write_text("mine")
    assert_refused(run(*ASKED), "out.npy.part is in the way")
    assert Path("out.npy.part").read_text() == "mine"
    Path("out.npy.part").unlink()
    Path("out.npy.tiles.json").mkdir()
    for more in ((), ("--force",), ("--resume",)):
        assert_refused(run(*ASKED, *more))


@pytest.mark.slow
def test_a_run_of_something_else_or_of_a_file_that_was_cut_off_does_not_go_on(stopped: list[int], run: Run) -> None:
    np.save("again.npy", ARRAY)
    before = [Path(name).read_bytes() for name in STATE]
    others = "--model-kwargs scale=2.0, --seed 1, --tile 32, --run again.npy, --dtype float64"
    for other in others.split(", "):
        assert_refused(run(*ASKED, "--resume", *other.split()))
        assert before == [Path(name).read_bytes() for name in STATE]
    # An output with none of the tiles that are counted.
    np.save("out.npy", np.zeros_like(np.load("out.npy")))
    assert_refused(run(*ASKED, "--resume"), "the output does not hold the")
    for keeps in (0, 7, 100, 200, 5000):
        Path("out.npy").write_bytes(before[0][:keeps])
        assert_refused(run(*ASKED, "--resume"))
        assert Path("out.npy").read_bytes() == before[0][:keeps]
    Path("out.npy").unlink()
    assert_refused(run(*ASKED, "--resume"), "start again with --force")
    assert run(*ASKED, "--force")[0] == 0


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("output", ["image.npy", "./image.npy", "soft.npy", "hard.npy"])
def test_the_output_is_never_the_image(run: Run, output: str) -> None:
    Path("soft.npy").symlink_to("image.npy")
    Path("hard.npy").hardlink_to("image.npy")
    before = Path("image.npy").read_bytes()
    for more in ((), ("--force",), ("--resume",), ("--force", "--resume")):
        assert_refused(run(*SETTINGS, "-o", output, *more))
        assert Path("image.npy").read_bytes() == before


@pytest.mark.usefixtures("image")
def test_the_files_beside_an_output_are_never_the_image(run: Run) -> None:
    for beside in ("out.npy.tiles.json", "out.npy.part"):
        Path("image.npy").rename(beside)
        before = Path(beside).read_bytes()
        assert_refused(run(*ASKED, "--run", beside, "--force"))
        assert Path(beside).read_bytes() == before
        Path(beside).rename("image.npy")


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (np.zeros((0, 3, 96, 96)), "(0, 3, 96, 96), which holds no numbers"),
        (np.zeros((3, 96, 96), complex), "holds complex128"),
        (np.zeros((4, 96, 96), np.float32), "is read as 4 channels of 96x96, and slow.py:net takes 3"),
        (np.zeros((97, 99, 3), np.float32), "is read as 97 channels of 99x3, and slow.py:net takes 3"),
        (np.zeros((3, 97, 99), np.float32), "and 97x99 leave (1, 3); plan with --image-size 97x99, or pad"),
        (np.zeros(()), "x has shape ()"),
        (np.array([{}], dtype=object), "cannot read image.npy"),
        (b"", "cannot read image.npy"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "cannot read image.npy"),
        (b"no array", "cannot read image.npy"),
    ],
)
def test_what_is_no_image_is_one_line(run: Run, content: np.ndarray | bytes, words: str) -> None:
    if isinstance(content, bytes):
        Path("image.npy").write_bytes(content)
    else:
        np.save("image.npy", content)
    code, _, err = run(*ASKED)
    assert code in (2, 3)
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("out*"))


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_an_output_that_exists_says_so_whatever_its_kind(run: Run, kind: str) -> None:
    zarr.create_array("image.zarr", data=np.load("image.npy"))
    zarr.create_array("out.zarr", data=np.load("image.npy"))
    np.save("out.npy", np.load("image.npy"))
    code, _, err = run(*SETTINGS, "--run", f"image.{kind}", "-o", f"out.{kind}")
    assert (code, err) == (2, f"erfscope: out.{kind} exists already; choose another name or add --force\n")
    Path("folder.zarr").mkdir()
    assert "is a folder" in run(*SETTINGS, "--run", "image.zarr", "-o", "folder.zarr")[2]
