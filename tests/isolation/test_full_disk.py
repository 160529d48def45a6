"""A disk that fills up, a limit of a file's size, a write that takes a part only: nothing that was finished is lost or
torn."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

import erfscope
from erfscope.cli.main import _run
from erfscope.errors import EnvironmentFailure, ErfscopeError, ErfWarning
from erfscope.isolation import Journal
from erfscope.model_errors import cause_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, mounts")
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


def line(label: str, **more: object) -> dict:
    return {
        "label": label,
        "model": "m",
        "seconds": 1.0,
        "ended": "ok",
        "limits": {"seconds": None, "bytes": None},
        "results": [],
        **more,
    }


def labels(folder: Path, monkeypatch) -> list[str]:
    """Labels of the journal's lines, whose results are not looked at here."""
    monkeypatch.setattr("erfscope.isolation.journal.checked_line", lambda entry: entry)
    journal = Journal(folder)
    journal.read()
    return list(journal.models)


@pytest.fixture
def journal(tmp_path) -> Journal:
    found = Journal(tmp_path)
    found.begin({"settings": {}})
    found.add(line("first"))
    return found


@pytest.mark.parametrize("most", [1, 7, 60])
def test_a_write_that_takes_a_part_only_goes_on_with_the_rest(journal, tmp_path, monkeypatch, most):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: real(handle, bytes(content)[:most]))
    journal.add(line("second"))
    monkeypatch.undo()
    assert labels(tmp_path, monkeypatch) == ["first", "second"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("at", ["write", "fsync"])
def test_a_line_that_cannot_be_written_leaves_the_journal_as_it_was(journal, tmp_path, monkeypatch, number, at):
    before = journal.path.read_bytes()
    real, calls = os.write, []

    def short(handle, content):
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(number, os.strerror(number))
        return real(handle, bytes(content)[:20])

    def unsynced(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, at, short if at == "write" else unsynced)
    with pytest.raises(EnvironmentFailure, match=os.strerror(number)) as caught:
        journal.add(line("second"))
    monkeypatch.undo()
    assert journal.path.read_bytes() == before
    assert "Error" not in str(caught.value)
    journal.add(line("third"))
    assert labels(tmp_path, monkeypatch) == ["first", "third"]


def test_a_line_that_could_not_be_undone_costs_itself_alone(journal, tmp_path, monkeypatch):
    real = os.write

    def failing(handle, content):
        if len(content) < 40:
            raise OSError(errno.ENOSPC, "full")
        return real(handle, bytes(content)[: len(content) - 10])

    def stuck(*_):
        raise OSError(errno.EIO, "stuck")

    monkeypatch.setattr(os, "write", failing)
    monkeypatch.setattr(os, "ftruncate", stuck)
    with pytest.raises(EnvironmentFailure):
        journal.add(line("second"))
    monkeypatch.undo()
    journal.add(line("third"))
    with pytest.warns(ErfWarning, match="1 line that no run has written to the end"):
        assert labels(tmp_path, monkeypatch) == ["first", "third"]


@pytest.mark.parametrize("kept", [1, 40, 90])
@pytest.mark.parametrize(
    "then", [b"", b"\n", b"\n" + json.dumps(line("third")).encode() + b"\n", b"\x00" * 300 + b"\n"]
)
def test_every_whole_line_counts_whatever_was_torn(journal, tmp_path, monkeypatch, kept, then):
    with journal.path.open("ab") as file:
        file.write(json.dumps(line("second")).encode()[:kept] + then)
    expected = ["first", "third"] if b"third" in then else ["first"]
    if then:
        with pytest.warns(ErfWarning, match="measured again"):
            assert labels(tmp_path, monkeypatch) == expected
    else:
        assert labels(tmp_path, monkeypatch) == expected


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


def isolated(
    nets: Path, folder: Path, *more: str, names: str = "abcd", limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``compare --isolate``, with at most ``limit`` KiB in a file."""
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
        "--isolate",
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


def test_a_disk_that_is_full_loses_nothing_and_a_resumed_run_is_complete(small_disk, tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = small_disk / "run"
    assert isolated(nets, folder, names="ab").returncode == 0
    lines = (folder / "models.jsonl").read_text().splitlines()
    # Room for a few pages: an open file, a part of a map or of a line.
    free = os.statvfs(small_disk)
    left = int(free.f_bavail * free.f_frsize) - 3 * 4096
    (small_disk / "ballast").write_bytes(b"x" * left)
    full = isolated(nets, folder, "--resume")
    assert full.returncode == 3, full.stderr
    assert "No space left on device" in full.stderr
    after = (folder / "models.jsonl").read_text()
    assert after.endswith("\n")
    assert after.splitlines()[: len(lines)] == lines
    assert all(json.loads(each) for each in after.splitlines())
    (small_disk / "ballast").unlink()
    again = isolated(nets, folder, "--resume")
    assert again.returncode == 0, again.stderr
    assert_as_if_nothing_had_happened(folder, nets)


def test_a_limit_of_a_files_size_is_not_the_models_fault(tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = tmp_path / "run"
    # The maps fit, the journal soon does not.
    limited = isolated(nets, folder, limit=12)
    assert limited.returncode == 3, limited.stderr
    assert "File too large" in limited.stderr
    again = isolated(nets, folder, "--resume")
    assert again.returncode == 0, again.stderr
    assert_as_if_nothing_had_happened(folder, nets)


def test_resume_leaves_what_the_model_failed_by_until_it_is_told_otherwise(tmp_path, monkeypatch, capsys):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    folder = tmp_path / "run"
    assert isolated(nets, folder, names="a,bad").returncode == 3
    nets.write_text(NETS.replace('raise ValueError("no such width")', "return net(8)"))
    kept = isolated(nets, folder, "--resume", names="a,bad")
    assert kept.returncode == 3
    assert "no such width" in kept.stderr
    assert erfscope.read(folder)["bad"].error_cause == "model"
    again = isolated(nets, folder, "--resume", "--retry-failed", names="a,bad")
    assert again.returncode == 0, again.stderr
    assert erfscope.read(folder)["bad"].ok
    assert _run(["compare", f"{nets}:a", "--retry-failed", "-o", str(folder)]) == 2
    assert "add --resume" in capsys.readouterr().err
