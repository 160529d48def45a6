"""Runs that several real processes share: the same numbers, the same errors, and no hang where one dies."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

import erfscope

NETS = """
from torch import nn

def stack(kernel):
    return nn.Sequential(nn.Conv2d(3, 4, kernel, 2, kernel // 2), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, kernel))

def one(): return stack(3)
def two(): return stack(5)
"""
#: Everything that is asked of three ranks, and of one process to compare with: start-up takes longer than all of it.
PROGRAM = """
import sys
from pathlib import Path
import torch
import erfscope

torch.set_num_threads(1)
out, nets = Path(sys.argv[1]), Path(sys.argv[0]).with_name("nets.py")
one, two = f"{nets}:one", f"{nets}:two"
SMALL = dict(weights="random", input_size=64, dtype="float64", measures=["r50", "sigma_row", "far_mass"])

with erfscope.distributed() as process_group:
    found = {
        "many": erfscope.sweep(one, samples=13, batch_size=2, **SMALL),
        "few": erfscope.sweep(one, samples=1, **SMALL),
        "settled": erfscope.sweep(two, samples=60, until_se=0.02, **SMALL),
        "models": erfscope.compare([f"a={one}", f"b={two}", f"c={one}"], samples=4, **SMALL),
        "images": erfscope.compare([f"a={one}", f"b={two}"], samples=4, **SMALL),
        "grown": erfscope.sweep("test_resnet", samples=2, **{**SMALL, "input_size": "auto"}),
    }
    try:
        erfscope.analyze(one, images=sorted(Path(sys.argv[2]).glob("*.png")), **SMALL)
        said = "nothing"
    except erfscope.ErfscopeError as error:
        said = str(error)
for name, report in found.items():
    if process_group.rank == 0:
        report.save(out / f"{name}.json")
        report.save(out / f"{name}.npz")
(out / f"said-{process_group.rank}-of-{process_group.size}").write_text(said)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(size: int, *arguments: str) -> list[warm.WarmProcess]:
    """As torchrun would, with its variables but without what it prints."""
    shared = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    return [
        warm.WarmProcess(
            [sys.executable, *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """What one process and three ranks have written, from the same program."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "nets.py").write_text(NETS)
    (folder / "photos").mkdir()
    for name in "abcd":
        draw(folder / "photos" / f"{name}.png")
    (folder / "photos" / "c.png").write_bytes(b"no image")
    for size in (1, 3):
        (folder / str(size)).mkdir()
    program, photos = str(folder / "program.py"), str(folder / "photos")
    ranks = start(3, program, str(folder / "3"), photos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, str(folder / "1"), photos])
        threads = torch.get_num_threads()
        runpy.run_path(program)
        torch.set_num_threads(threads)
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    return folder


def draw(path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.random.default_rng(len(path.name)).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many", "few", "settled", "models", "images", "grown"])
def test_three_ranks_find_what_one_process_finds(stored, name):
    one, three = (erfscope.read(stored / size / f"{name}.json") for size in "13")
    assert [result.id for result in one] == [result.id for result in three]
    maps, theirs = (np.load(stored / size / f"{name}.npz") for size in "13")
    for mine, other in zip(one, three, strict=True):
        np.testing.assert_allclose(theirs[other.id], maps[mine.id], rtol=0, atol=1e-12)
        for measure, found in mine.measures.items():
            assert other[measure].value == pytest.approx(found.value, rel=1e-9), measure
            assert other[measure].se == (None if found.se is None else pytest.approx(found.se, rel=1e-6))
        assert other.input == mine.input
        assert [w for w in other.findings if w.code != "map_missing"] == [
            w for w in mine.findings if w.code != "map_missing"
        ]


@pytest.mark.slow
def test_the_error_asked_for_ends_the_run_of_all_ranks_at_the_same_picture(stored):
    (found,) = erfscope.read(stored / "3" / "settled.json")
    assert found.input.n_images < 60
    assert found.input.n_images % 10 == 0
    assert found["r50"].se <= 0.02 * found["r50"].value
    assert "enough for r50 ± 0.02" in found.input.text


@pytest.mark.slow
def test_what_one_rank_cannot_read_is_the_error_of_all(stored):
    said = [(stored / "3" / f"said-{rank}-of-3").read_text() for rank in range(3)]
    assert "c.png" in said[0]
    assert said[0] == said[1] == said[2] == (stored / "1" / "said-0-of-1").read_text()


@pytest.mark.slow
def test_torchrun_measures_as_one_process_does_and_prints_nothing_else(tmp_path):
    spec = f"{tmp_path / 'nets.py'}:net"
    (tmp_path / "nets.py").write_text("from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 4, 5, padding=2)\n")
    asked = ["--weights", "random", "--input-size", "64", "--samples", "5", "--dtype", "float64", "--measures", "r50"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "erfscope", "analyze"]
    # torchrun sets the number of threads if it is not set, and prints that.
    done = warm.run([sys.executable, *launch, spec, *asked, "--json"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)["results"]
    alone = erfscope.analyze(spec, weights="random", input_size=64, samples=5, dtype="float64", measures="r50")
    assert found["measures"]["r50"]["value"] == pytest.approx(float(alone["r50"]), rel=1e-9)
    assert found["input"]["n_images"] == 5


GOING = """
import os, signal
from torch import nn

class Going(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.passes = nn.Conv2d(3, 4, 3, padding=1), 0

    def forward(self, x):
        self.passes += 1
        if not x.is_meta and self.passes > 4 and os.environ.get("RANK") == os.environ["GOES"]:
            os._exit(0) if os.environ["HOW"] == "exited" else os.kill(os.getpid(), signal.SIGKILL)
        return self.conv(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("goes", "how"), [(0, "killed"), (1, "exited")])
def test_a_rank_that_goes_ends_the_other_with_one_line(goes, how, tmp_path, monkeypatch):
    (tmp_path / "going.py").write_text(GOING)
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    for name, value in {"PYTHONPATH": path, "GOES": str(goes), "HOW": how}.items():
        monkeypatch.setenv(name, value)
    asked = ["--input-size", "32", "--samples", "12", "--batch-size", "1", "--measures", "r50", "--convention", "luo"]
    asked += ["--plain"]  # the model itself runs, and goes
    output = tmp_path / "stored.json"
    ranks = start(2, "-m", "erfscope", "analyze", "going:Going", *asked, "-o", str(output))
    ranks[goes].communicate(timeout=60)
    _, said = ranks[1 - goes].communicate(timeout=60)
    assert ranks[1 - goes].returncode == 3, said
    assert "another rank of this run has died; read its output, and start again" in said
    assert "Traceback" not in said
    assert not output.exists()


@pytest.mark.parametrize("wrong", [{"MASTER_PORT": "abc"}, {"RANK": "x"}])
def test_ranks_that_could_never_meet_are_refused_at_once(wrong, monkeypatch):
    right = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**right, **wrong}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(erfscope.ErfscopeError, match=r"RANK=.* have not met .*; start all of them with torchrun"),
        erfscope.distributed(),
    ):
        pytest.fail("they met")


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_process_that_was_not_started_with_others_measures_alone(missing, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with erfscope.distributed() as process_group:
        assert (process_group.rank, process_group.size) == (0, 1)


def test_what_is_not_shared_is_done_by_rank_0_alone(monkeypatch, capsys):
    from erfscope.cli.main import _run

    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    for rank, printed in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        assert _run(["models", "test_resnet"]) == 0
        assert bool(capsys.readouterr().out) is printed
