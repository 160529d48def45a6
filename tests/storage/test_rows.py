"""Rows that are stored as they end: whatever moment a run is killed at, what was finished is there."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import warm

import erfscope
from erfscope import ErfscopeError, ErfWarning
from erfscope.cli.main import _run
from erfscope.core.answer.storage import writing
from erfscope.core.answer.storage.files import begin_rows, is_report, read_begun, store_rows
from erfscope.core.answer.storage.writing import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")]
ASKED = {"weights": "random", "input_size": 32, "samples": 3, "measures": ["r50"], "batch_size": 1}


#: What Python tells audit hooks of when files and folders are made, renamed and removed.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


@pytest.fixture(scope="module")
def report():
    """Three rows of one report."""
    return erfscope.compare(["a=test_resnet", "b=test_resnet", "c=test_resnet"], **ASKED)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names at once")
def test_a_folder_with_rows_is_exchanged_whole_where_the_system_can(tmp_path):
    new, path = tmp_path / "new", tmp_path / "run"
    for folder in (new, path):
        (folder / ROWS).mkdir(parents=True)
    whole = new.stat().st_ino
    writing.take_place(new, path)
    assert path.stat().st_ino == whole
    assert not new.exists()


def rows(report, *labels):
    return replace(report, results=tuple(report[label] for label in labels))


def numbers(report):
    return {row.label: (float(row["r50"]), row.map.values.tobytes()) for row in report}


def test_rows_are_read_as_a_report_until_that_is_there(report, tmp_path):
    folder = tmp_path / "run"
    store_rows(folder, rows(report, "a"), earlier=None)
    store_rows(folder, rows(report, "b"), earlier=None)
    assert [row.label for row in erfscope.read(folder)] == ["a", "b"]
    assert [row.label for row in erfscope.compare([folder])] == ["a", "b"]
    with pytest.raises(ErfscopeError, match="exists already"):
        report.save(folder, drawn=False)
    report.save(folder, drawn=False, force=True)
    assert numbers(erfscope.read(folder)) == numbers(report)
    assert not (folder / ROWS).exists()


def test_a_row_that_was_measured_again_stands_once(report, tmp_path):
    again = replace(report["a"], seconds=1234.5)
    store_rows(tmp_path, rows(report, "a"), earlier=None)
    store_rows(tmp_path, rows(report, "b"), earlier=None)
    store_rows(tmp_path, replace(report, results=(again,)), earlier=None)
    found = erfscope.read(tmp_path)
    assert [row.label for row in found] == ["a", "b"]
    assert found["a"].seconds == 1234.5


def killed_at_any_moment(folder: Path, write: Callable[[Path], None]) -> list[Path]:
    """Write into a folder, in a process of its own; copies of it as ``kill -9`` would have left it at each moment of
    writing in or beside it, and as it is at the end."""
    moments = folder.parent.with_name("moments")
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        return [moments / str(number) / folder.name for number in range(len([*moments.iterdir()]))]
    is_copying = False

    def copy(event, arguments):
        nonlocal is_copying
        if not is_copying and (
            event == "ctypes.dlsym" or (event in EVENTS and str(folder.parent) in str(arguments[0]))
        ):
            is_copying = True
            count = len([*moments.iterdir()]) if moments.exists() else 0
            shutil.copytree(folder.parent, moments / str(count), symlinks=True)
            is_copying = False

    sys.addaudithook(copy)
    try:
        write(folder)
        copy("ctypes.dlsym", ())
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_run_that_is_killed_at_any_moment_of_writing_loses_nothing_that_was_finished(report, tmp_path):
    folder = tmp_path / "run" / "out"
    folder.parent.mkdir()
    rows(report, "a", "b").save(folder, drawn=False)

    def write(folder):
        store_rows(folder, rows(report, "c"), earlier=erfscope.read(folder))
        report.save(folder, drawn=False, force=True)

    expected, found = numbers(report), [numbers(erfscope.read(each)) for each in killed_at_any_moment(folder, write)]
    for moment, rest in enumerate(found):
        assert {"a", "b"} <= {*rest}, moment
        assert all(rest[label] == expected[label] for label in rest), moment
    assert found[-1] == expected
    assert len(found) > 21


@pytest.mark.skipif(sys.platform != "linux", reason="exchanges two names at once")
@pytest.mark.parametrize(("has_rows", "exchanges"), [(True, True), (False, True), (True, False)])
def test_a_report_that_is_to_be_replaced_is_there_until_the_new_one_is_whole(report, tmp_path, has_rows, exchanges):
    old, new, folder = rows(report, "a", "b"), rows(report, "a", "b", "c"), tmp_path / "run" / "out"
    folder.parent.mkdir()
    old.save(folder, drawn=False)

    def write(folder):
        if not exchanges:
            writing._exchanged = lambda *_: False
        for label in "abc" if has_rows else "":
            store_rows(folder, rows(new, label), earlier=None)
        new.save(folder, drawn=False, force=True)

    found = [numbers(erfscope.read(each)) for each in killed_at_any_moment(folder, write)]
    for moment, rest in enumerate(found):
        assert rest in (numbers(old), numbers(new)), moment
    assert {len(rest) for rest in found} == {2, 3}
    assert len(found[-1]) == 3
    assert len(found) > 11
    assert [file.name for file in folder.parent.iterdir()] == ["out"]


def test_a_forced_run_that_was_killed_goes_on_beside_the_report_that_it_replaces(report, tmp_path):
    rows(report, "a", "b").save(tmp_path / "run", drawn=False)
    begin_rows(tmp_path / "run")
    store_rows(tmp_path / "run", rows(report, "c"), earlier=None)
    assert [row.label for row in erfscope.read(tmp_path / "run")] == ["a", "b"]
    assert [row.label for row in read_begun(tmp_path / "run")] == ["c"]
    with pytest.raises(ErfscopeError, match="with a run that has not ended; add --resume"):
        report.save(tmp_path / "run", drawn=False)
    found = erfscope.compare(
        ["a=test_resnet", "c=test_resnet"], **ASKED, keep_in=tmp_path / "run", resume=read_begun(tmp_path / "run")
    )
    assert [row.label for row in erfscope.read(tmp_path / "run")] == ["a", "b"]
    found.save(tmp_path / "run", drawn=False, force=True)
    assert numbers(erfscope.read(tmp_path / "run")) == numbers(rows(report, "a", "c"))
    assert not (tmp_path / "run" / ROWS).exists()


def test_rows_that_cannot_be_stored_are_a_warning_and_the_run_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(ErfWarning, match="cannot write a into"):
        assert erfscope.compare(["a=test_resnet"], keep_in=tmp_path / "file" / "run", **ASKED)["a"].ok


def test_a_new_run_forgets_the_rows_of_another(report, tmp_path):
    store_rows(tmp_path, rows(report, "c"), earlier=None)
    erfscope.compare(["a=test_resnet"], keep_in=tmp_path, **ASKED)
    assert [row.label for row in erfscope.read(tmp_path)] == ["a"]
    assert is_report(tmp_path)


NETS = """
import os
from torch import nn

class Net(nn.Conv2d):
    def forward(self, x):
        # A pass of a batch of all images, which is recorded once the model is measured.
        if len(x) == 3 and self.out_channels == 5 and os.path.exists(__file__ + ".kill"):
            os.kill(os.getpid(), 9)
        return super().forward(x)

def a(): return Net(3, 4, 3)
def b(): return Net(3, 5, 3)
"""


def test_a_run_that_is_killed_keeps_the_rows_that_were_finished(tmp_path, monkeypatch, capsys):
    nets = tmp_path / "nets.py"
    nets.write_text(NETS)
    (tmp_path / "nets.py.kill").touch()
    words = ["compare", f"a={nets}:a", f"b={nets}:b", "--weights", "random", "--input-size", "16", "--samples", "3"]
    words += ["--measures", "r50", "--device", "cpu", "-q"]
    command = [sys.executable, "-m", "erfscope", *words, "-o", "run"]
    assert warm.run(command, cwd=tmp_path).returncode == -signal.SIGKILL
    kept = erfscope.read(tmp_path / "run")
    assert [row.label for row in kept] == ["a"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py.kill").unlink()
    assert _run([*words, "-o", "run"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert _run([*words, "-o", "run", "--resume"]) == 0
    assert _run([*words, "-o", "whole"]) == 0
    found, whole = erfscope.read("run"), erfscope.read("whole")
    assert [row.label for row in found] == ["a", "b"]
    assert found["a"].seconds == kept["a"].seconds, "it is not measured again"
    for ours, theirs in zip(found, whole, strict=True):
        np.testing.assert_array_equal(ours.map.values, theirs.map.values)


def test_a_run_that_has_not_ended_is_no_source_of_settings_and_not_replaced_unasked(report, tmp_path, capsys):
    store_rows(tmp_path / "run", rows(report, "a"), earlier=None)
    assert _run(["compare", "--config", str(tmp_path / "run")]) == 2
    assert "holds a run that has not ended" in capsys.readouterr().err
    assert _run(["analyze", "test_resnet", "-o", str(tmp_path / "run")]) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
