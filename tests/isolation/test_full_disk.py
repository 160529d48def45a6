"""A disk that fills up: nothing that was finished is lost or torn."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import erfscope
from erfscope.cli.main import _run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("memory_unplanned", "figures_undrawn"),
    pytest.mark.skipif(sys.platform != "linux", reason="mounts"),
]
NETS = """
import os
from torch import nn

def net(width):
    return nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1))

def a(): return net(4)
def b(): return net(5)
def c(): return net(6)
def d(): return net(7)
"""
ASKED = ("--weights", "random", "--input-size", "32", "--samples", "4", "--measures", "r50", "--device", "cpu")


def assert_as_if_nothing_had_happened(folder: Path, nets: Path) -> None:
    whole = erfscope.compare(
        {name: f"{nets}:{name}" for name in "abcd"},
        weights="random",
        input_size=32,
        samples=4,
        measures=["r50"],
        device="cpu",
    )
    found = erfscope.read(folder)
    assert [(row.label, row.status) for row in found] == [(name, "ok") for name in "abcd"]
    for ours, theirs in zip(found, whole, strict=True):
        assert ours.map is not None
        assert float(ours["r50"]) == pytest.approx(float(theirs["r50"]), rel=1e-6)


def test_a_disk_that_is_full_loses_nothing_and_a_resumed_run_is_complete(small_disk, tmp_path, capsys):
    nets, folder = tmp_path / "nets.py", small_disk / "run"
    nets.write_text(NETS)

    def compare(names: str, *more: str) -> tuple[int, str]:
        models = [f"{name}={nets}:{name}" for name in names]
        code = _run(["compare", *models, *ASKED, "-q", "--format", "csv", "-o", str(folder), *more])
        said = capsys.readouterr().err
        assert not re.search("Traceback|OSError|ErfscopeError|internal error", said)
        return code, said

    assert compare("ab")[0] == 0
    # Room for a few pages: an open file, a part of a map.
    free = os.statvfs(small_disk)
    left = int(free.f_bavail * free.f_frsize) - 3 * 4096
    (small_disk / "ballast").write_bytes(b"x" * left)
    code, said = compare("abcd", "--resume")
    assert code == 3, said
    assert "No space left on device" in said
    assert [row.label for row in erfscope.read(folder)][:2] == ["a", "b"]
    (small_disk / "ballast").unlink()
    assert compare("abcd", "--resume")[0] == 0
    assert_as_if_nothing_had_happened(folder, nets)
