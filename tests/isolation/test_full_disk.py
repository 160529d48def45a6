"""A disk that fills up, a limit of a file's size: nothing that was finished is lost or torn."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

import erfscope
from erfscope.cli.main import _run
from erfscope.errors import ErfscopeError
from erfscope.model_errors import cause_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts")
NETS = """
import os
from torch import nn

def net(width):
    return nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1))

def a(): return net(4)
def b(): return net(5)
def c(): return net(6)
def d(): return net(7)
def bad(): raise ValueError("no such width")
"""
ASKED = ("--weights", "random", "--input-size", "32", "--samples", "4", "--measures", "r50", "--device", "cpu")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "x"), "environment"),
        (OSError(errno.EFBIG, "x"), "environment"),
        (OSError(errno.EIO, "x"), "environment"),
        (OSError(errno.EDQUOT, "x"), "environment"),
        (MemoryError(), "environment"),
        (ConnectionResetError(), "environment"),
        (TimeoutError("x"), "environment"),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: you tried"), "environment"),
        (FileNotFoundError(errno.ENOENT, "x"), "model"),
        (ValueError("No space left on device, and memory is short"), "model"),
        (KeyError("ENOSPC"), "model"),
    ],
)
def test_an_exception_itself_says_whose_fault_it_was(error, cause):
    assert cause_of(error) == cause
    wrapped = ErfscopeError("in erfscope's own words")
    wrapped.__cause__ = error
    assert cause_of(wrapped) == cause
    while_handling = ErfscopeError("in erfscope's own words")
    while_handling.__context__ = error
    assert cause_of(while_handling) == cause
    while_handling.__suppress_context__ = True
    assert cause_of(while_handling) == "model"


# --- End to end -----------------------------------------------------------------------------------


def compared(
    nets: Path, folder: Path, *more: str, names: str = "abcd", limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``compare``, with at most ``limit`` KiB in a file."""
    models = (
        [f"{name}={nets}:{name}" for name in names.split(",")]
        if "," in names
        else [f"{name}={nets}:{name}" for name in names]
    )
    command = [
        sys.executable,
        "-m",
        "erfscope",
        "compare",
        *models,
        *ASKED,
        "-q",
        "--format",
        "csv",
        "-o",
        str(folder),
        *more,
    ]
    if limit is None:
        done = warm.run(command)
    else:
        before = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-"]
        done = subprocess.run([*before, *command], capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stderr
    assert "OSError" not in done.stderr
    assert "ErfscopeError" not in done.stderr
    assert "internal error" not in done.stderr
    return done


def assert_as_if_nothing_had_happened(folder: Path, nets: Path, names: str = "abcd") -> None:
    whole = erfscope.compare(
        {name: f"{nets}:{name}" for name in names},
        weights="random",
        input_size=32,
        samples=4,
        measures=["r50"],
        device="cpu",
    )
    found = erfscope.read(folder)
    assert [(row.label, row.status) for row in found] == [(name, "ok") for name in names]
    for ours, theirs in zip(found, whole, strict=True):
        assert ours.map is not None
        assert float(ours["r50"]) == pytest.approx(float(theirs["r50"]), rel=1e-6)


@pytest.mark.parametrize("more", [(), ("--isolate",)], ids=["together", "isolated"])
def test_a_disk_that_is_full_loses_nothing_and_a_resumed_run_is_complete(more, small_disk, tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = small_disk / "run"
    assert compared(nets, folder, *more, names="ab").returncode == 0
    # Room for a few pages: an open file, a part of a map.
    free = os.statvfs(small_disk)
    left = int(free.f_bavail * free.f_frsize) - 3 * 4096
    (small_disk / "ballast").write_bytes(b"x" * left)
    full = compared(nets, folder, "--resume", *more)
    assert full.returncode == 3, full.stderr
    assert "No space left on device" in full.stderr
    assert [row.label for row in erfscope.read(folder)][:2] == ["a", "b"]
    (small_disk / "ballast").unlink()
    again = compared(nets, folder, "--resume", *more)
    assert again.returncode == 0, again.stderr
    assert_as_if_nothing_had_happened(folder, nets)


def test_a_limit_of_a_files_size_is_not_the_models_fault(tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = tmp_path / "run"
    # The maps and reports of rows fit, the report of all does not.
    limited = compared(nets, folder, limit=12)
    assert limited.returncode == 3, limited.stderr
    assert "File too large" in limited.stderr
    again = compared(nets, folder, "--resume")
    assert again.returncode == 0, again.stderr
    assert_as_if_nothing_had_happened(folder, nets)


def test_a_folder_that_is_taken_away_is_made_again(tmp_path, monkeypatch):
    nets = tmp_path / "taking.py"
    nets.write_text(
        NETS.replace("return net(6)", f"import shutil; shutil.rmtree({str(tmp_path / 'run')!r}); return net(6)")
    )
    monkeypatch.chdir(tmp_path)
    done = compared(nets, tmp_path / "run", "--isolate")
    assert done.returncode == 0, done.stderr
    nets.write_text(NETS)
    assert_as_if_nothing_had_happened(tmp_path / "run", nets)


def test_resume_leaves_what_the_model_failed_by_until_it_is_told_otherwise(tmp_path, monkeypatch, capsys):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = tmp_path / "run"
    assert compared(nets, folder, "--isolate", names="a,bad").returncode == 3
    nets.write_text(NETS.replace('raise ValueError("no such width")', "return net(8)"))
    kept = compared(nets, folder, "--isolate", "--resume", names="a,bad")
    assert kept.returncode == 3
    assert "no such width" in kept.stderr
    assert erfscope.read(folder)["bad"].error_cause == "model"
    again = compared(nets, folder, "--isolate", "--resume", "--retry-failed", names="a,bad")
    assert again.returncode == 0, again.stderr
    assert erfscope.read(folder)["bad"].ok
    assert _run(["compare", f"{nets}:a", "--retry-failed", "-o", str(folder)]) == 2
    assert "add --resume" in capsys.readouterr().err
