"""``erfscope tile``: the answer first, the reasons where there is none, and the numbers behind both."""

from __future__ import annotations

import json
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
from erfscope.cli.main import main

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


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 200])
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_tolerance_measures_shorter_halos(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("nets.py:stack", "--input-size", "64", "--weights", "random", "--samples", "4", "--tolerance")
    code, out, _ = run(capsys, *asked, "0.1")
    assert code == 0
    assert "cuts off less than 0.1 of the ERF on each side" in out
    assert re.search(r"measured over 4 synthetic images \(dead leaves\); .*weights", out)
    found = run(capsys, *asked, "0.1", "--json", "-o", "plan.png")
    assert found[2] == "erfscope: wrote plan.png\n"
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(found[1])["weights"] == "any"
    budget = json.loads(found[1])["budget"]
    assert budget["weights"]["source"] == "factory"
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


@pytest.mark.slow
def test_a_file_is_run_and_a_run_that_was_stopped_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).random((3, 48, 56), dtype=np.float32)
    np.save("image.npy", image)
    asked = ("nets.py:stack", "--input-size", "64", "--tile", "16", "--weights", "random", "--run", "image.npy", "-o")
    code, _, err = run(capsys, *asked, "out.npy")
    assert code == 0
    assert re.search("erfscope: nets.py:stack: .*weights", err)
    net = erfscope.adapters.load("nets.py:stack", weights="random", input_size=64).module.eval()
    with torch.no_grad():
        whole = net(torch.from_numpy(image)[None])[0].numpy()
    assert np.load("out.npy") == pytest.approx(whole, abs=1e-5)
    written: list[int] = []

    def stopping(mark: TileCount, done: int, out: object) -> None:
        plain(mark, done, out)
        written.append(done)
        if len(written) == 4:
            raise KeyboardInterrupt

    plain = TileCount.set
    monkeypatch.setattr(TileCount, "set", stopping)
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
    assert str(plan).splitlines()[0] == "halo 5 px before, 5 px after, tiles begin at multiples of 2"


SLOW = """
import time
from torch import nn

class Slow(nn.Conv2d):
    def forward(self, x):
        if not x.is_meta:
            time.sleep(0.05)
        return super().forward(x)

def net(scale=1.0):
    class Scaled(nn.Sequential):
        def forward(self, x):
            return scale * super().forward(x)

    return Scaled(Slow(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
"""
ASKED = ("slow.py:net", "--input-size", "64", "--tile", "16", "--weights", "random", "--run", "image.npy")


@pytest.fixture
def image() -> None:
    Path("slow.py").write_text(SLOW)
    np.save("image.npy", np.random.default_rng(0).random((3, 96, 96), dtype=np.float32))


def ended(number: int, *more: str, tiles: int = 1) -> tuple[int, str]:
    """Send a signal to a run on tiles once it has counted so many; its exit code, and what it said."""
    command = [sys.executable, "-m", "erfscope", "tile", *ASKED, *more]
    with warm.WarmProcess(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        count = Path("out.npy.tiles.json")
        while not count.exists() or json.loads(count.read_text())["done"] < tiles:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_run_that_a_signal_ends_goes_on_to_the_output_of_one_go(
    capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    assert run(capsys, *ASKED, "-o", "whole.npy")[0] == 0
    found, said = ended(number, "-o", "out.npy")
    assert found == code
    assert ("the same command with --resume goes on" in said) is (code > 0)
    assert "was stopped; add --resume" in run(capsys, *ASKED, "-o", "out.npy")[2]
    assert run(capsys, *ASKED, "-o", "out.npy", "--resume")[0] == 0
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert sorted(file.name for file in Path().iterdir() if "out" in file.name) == ["out.npy"]


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_a_run_that_is_killed_in_its_first_tile_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow.py").write_text(SLOW.replace("0.05", "0.5"))
    assert ended(signal.SIGKILL, "-o", "out.npy", tiles=0)[0] == -signal.SIGKILL
    assert json.loads(Path("out.npy.tiles.json").read_text())["done"] == 0
    Path("slow.py").write_text(SLOW)
    assert run(capsys, *ASKED, "-o", "out.npy", "--resume")[0] == 0
    assert np.load("out.npy").any(0).all()
    code, _, err = run(capsys, *ASKED, "-o", "out.npy", "--resume")
    assert (code, "no run for it was stopped" in err) == (2, True)


@pytest.mark.usefixtures("image")
def test_a_part_of_another_is_not_taken(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out.npy.part").write_text("mine")
    assert "out.npy.part is in the way" in run(capsys, *ASKED, "-o", "out.npy")[2]
    assert Path("out.npy.part").read_text() == "mine"
    Path("out.npy.part").unlink()
    Path("out.npy.tiles.json").mkdir()
    for more in ((), ("--force",), ("--resume",)):
        code, _, err = run(capsys, *ASKED, "-o", "out.npy", *more)
        assert (code, len(err.splitlines())) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_an_output_that_is_to_be_replaced_stays_until_the_new_one_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("out.npy", np.arange(3))
    before = Path("out.npy").read_bytes()
    assert ended(signal.SIGKILL, "-o", "out.npy", "--force")[0] == -signal.SIGKILL
    assert Path("out.npy").read_bytes() == before
    assert run(capsys, *ASKED, "-o", "out.npy", "--resume")[0] == 0
    assert np.load("out.npy").shape == (4, 24, 24)
    assert not list(Path().glob("*out.npy?*"))


@pytest.mark.slow
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    "other",
    [
        ("--model-kwargs", "scale=2.0"),
        ("--seed", "1"),
        ("--tile", "32"),
        ("--run", "again.npy"),
        ("--dtype", "float64"),
    ],
)
def test_a_run_of_something_else_does_not_go_on(capsys: pytest.CaptureFixture[str], other: tuple[str, ...]) -> None:
    np.save("again.npy", np.load("image.npy"))
    ended(signal.SIGTERM, "-o", "out.npy")
    before = [Path(name).read_bytes() for name in ("out.npy", "out.npy.tiles.json")]
    code, _, err = run(capsys, *ASKED, "-o", "out.npy", "--resume", *other)
    assert (code, len(err.splitlines())) == (2, 1)
    assert before == [Path(name).read_bytes() for name in ("out.npy", "out.npy.tiles.json")]


@pytest.mark.slow
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("keeps", [0, 7, 100, 200, 5000])
def test_an_output_that_was_cut_off_does_not_go_on(capsys: pytest.CaptureFixture[str], keeps: int) -> None:
    ended(signal.SIGTERM, "-o", "out.npy")
    with Path("out.npy").open("r+b") as file:
        file.truncate(keeps)
    before = Path("out.npy").read_bytes()
    code, _, err = run(capsys, *ASKED, "-o", "out.npy", "--resume")
    assert (code, len(err.splitlines())) == (2, 1)
    assert Path("out.npy").read_bytes() == before
    Path("out.npy").unlink()
    assert "start again with --force" in run(capsys, *ASKED, "-o", "out.npy", "--resume")[2]
    assert run(capsys, *ASKED, "-o", "out.npy", "--force")[0] == 0


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("more", [(), ("--force",), ("--resume",), ("--force", "--resume")])
@pytest.mark.parametrize("output", ["image.npy", "./image.npy", "soft.npy", "hard.npy"])
def test_the_output_is_never_the_image(capsys: pytest.CaptureFixture[str], output: str, more: tuple[str, ...]) -> None:
    Path("soft.npy").symlink_to("image.npy")
    Path("hard.npy").hardlink_to("image.npy")
    before = Path("image.npy").read_bytes()
    code, _, err = run(capsys, *ASKED, "-o", output, *more)
    assert (code, len(err.splitlines())) == (2, 1)
    assert Path("image.npy").read_bytes() == before


@pytest.mark.usefixtures("image")
def test_the_files_beside_an_output_are_never_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    for beside in ("out.npy.tiles.json", "out.npy.part"):
        Path("image.npy").rename(beside)
        before = Path(beside).read_bytes()
        assert run(capsys, *ASKED, "--run", beside, "-o", "out.npy", "--force")[0] == 2
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
def test_what_is_no_image_is_one_line(
    capsys: pytest.CaptureFixture[str], content: np.ndarray | bytes, words: str
) -> None:
    if isinstance(content, bytes):
        Path("image.npy").write_bytes(content)
    else:
        np.save("image.npy", content)
    code, _, err = run(capsys, *ASKED, "-o", "out.npy")
    assert code in (2, 3)
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("out*"))


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_an_output_that_exists_says_so_whatever_its_kind(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    zarr.create_array("image.zarr", data=np.load("image.npy"))
    zarr.create_array("out.zarr", data=np.load("image.npy"))
    np.save("out.npy", np.load("image.npy"))
    code, _, err = run(capsys, *ASKED, "--run", f"image.{kind}", "-o", f"out.{kind}")
    assert (code, err) == (2, f"erfscope: out.{kind} exists already; choose another name or add --force\n")
    Path("folder.zarr").mkdir()
    assert "is a folder" in run(capsys, *ASKED, "--run", "image.zarr", "-o", "folder.zarr")[2]


def test_an_archive_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("image.npz", photo=np.zeros((3, 64, 64)))
    found = run(capsys, "nets.py:stack", "--input-size", "64", "--run", "image.npz", "-o", "out.npy")
    assert "image.npz is an archive of arrays; np.save" in found[2]
