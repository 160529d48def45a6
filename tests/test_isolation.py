"""Models in processes of their own: what fails is a row, and a run that was killed goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

import erfscope
from erfscope.api import isolating
from erfscope.cli.main import _run
from erfscope.errors import ErfscopeError
from erfscope.isolation import Journal, Limits, Outcome, Processes
from erfscope.options import Options
from erfscope.result import slug

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")
MODELS = """
import os
import torch
from torch import nn

def fine(): return nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
def other(): return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
def crash(): os.abort()
def hungry(): return torch.empty(10 ** 11).sum()
"""
ASKED: Options = {"weights": "random", "input_size": 32, "samples": 5, "measures": ["r50"], "batch_size": 1}


def run(call: str, what: object, tmp_path, limits=None, **more) -> Outcome:
    with Processes(limits or Limits(), warm=("json",)) as processes:
        return processes.run(call, what, log=tmp_path / "log", **more)


def test_a_process_that_does_its_task_is_ok(tmp_path):
    done = run("os:mkdir", str(tmp_path / "made"), tmp_path)
    assert done.ok
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize(
    ("call", "what", "why"),
    [
        ("os:kill_me", 0, "no attribute 'kill_me'"),
        ("os:rmdir", "/nowhere/at/all", "FileNotFoundError"),
        ("sys:exit", 7, "exit code 7"),
        ("signal:raise_signal", 11, r"crashed \(SIGSEGV\)"),
        ("signal:raise_signal", 9, "most likely for lack of memory"),
        ("builtins:bytearray", 10**12, "MemoryError"),
    ],
)
def test_why_a_process_failed_is_said(call, what, why, tmp_path):
    outcome = run(call, what, tmp_path, Limits(bytes=2**31))
    assert not outcome.ok
    import re

    assert re.search(why, outcome.why(Limits()))


def test_a_process_that_hangs_is_killed_when_its_time_is_over(tmp_path):
    limits = Limits(seconds=0.5)
    outcome = run("time:sleep", 600, tmp_path, limits)
    assert outcome.late
    assert outcome.seconds < 60
    assert outcome.why(limits) == "no result within 0.5 s; give it longer with --time-limit"


def test_a_process_is_asked_to_stop(tmp_path):
    outcome = run("time:sleep", 600, tmp_path, stop=lambda: True)
    assert outcome.signal == signal.SIGTERM


def test_a_warm_process_that_was_killed_is_started_again(tmp_path):
    with Processes(Limits(), warm=("json",)) as processes:
        assert not processes.run("erfscope.isolation.test:x", 0, log=tmp_path / "log").ok
        processes._server.kill()
        processes._server.wait()
        assert processes.run("os:mkdir", str(tmp_path / "made"), log=tmp_path / "log").ok


def test_children_do_not_outlive_whoever_started_them(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom erfscope.isolation import Limits, Processes\n"
        "with Processes(Limits(), warm=('json',)) as p:\n"
        f"    p.run('os:system', 'echo $PPID > {tmp_path}/pid; sleep 600', log=Path('{tmp_path}/log'))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 60
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    started.kill()
    started.wait()
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the child is still there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four models, two of which fail; measured once for all tests."""
    home = tmp_path_factory.mktemp("isolated")
    (home / "made.py").write_text(MODELS)
    found = erfscope.compare_isolated(specs(home), home / "all", limits=Limits(bytes=4 * 2**30), **ASKED)
    return home, found


def specs(home) -> list[str]:
    return [f"{name}={home / 'made.py'}:{name}" for name in ("fine", "crash", "hungry", "other")]


def test_what_fails_is_a_row_and_the_rest_is_what_compare_finds(folder):
    home, found = folder
    assert [row.label for row in found] == ["fine", "crash", "hungry", "other"]
    assert [row.status for row in found] == ["ok", "error", "error", "ok"]
    assert "crashed (SIGABRT)" in found["crash"].error
    assert "allocate" in found["hungry"].error
    together = erfscope.compare([specs(home)[0], specs(home)[3]], **ASKED)
    for label in ("fine", "other"):
        np.testing.assert_allclose(found[label].map.values, together[label].map.values, rtol=0, atol=1e-7)
        assert float(found[label]["r50"]) == pytest.approx(float(together[label]["r50"]), rel=1e-6)
    assert found.differences()[3]["r50"][0] == pytest.approx(together.differences()[1]["r50"][0], rel=1e-5)


def test_the_folder_is_a_report_with_a_page_and_a_journal(folder):
    home, found = folder
    assert [row.id for row in erfscope.read(home / "all")] == [row.id for row in found]
    assert (home / "all" / "index.html").is_file()
    assert not (home / "all" / ".run").exists()
    first, *models = map(json.loads, (home / "all" / "models.jsonl").read_text().splitlines())
    assert first["schema"] == "erfscope.models/1"
    assert [entry["label"] for entry in models] == ["fine", "crash", "hungry", "other"]


def test_finished_models_are_not_measured_again_and_others_may_be_added(folder, monkeypatch):
    home, found = folder
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("measured again"))
    again = erfscope.compare_isolated(specs(home), home / "all", limits=Limits(), anew=False, **ASKED)
    assert [row.id for row in again] == [row.id for row in found]


def test_a_run_that_was_killed_goes_on_without_repeating_anything(folder, tmp_path, monkeypatch):
    home, found = folder
    journal = (home / "all" / "models.jsonl").read_bytes().splitlines(keepends=True)
    begun = tmp_path / "all"
    begun.mkdir()
    # A line that was not written to its end is not there.
    (begun / "models.jsonl").write_bytes(b"".join(journal[:3]) + journal[3][:40])
    (begun / f"{found['fine'].id}.npz").write_bytes((home / "all" / f"{found['fine'].id}.npz").read_bytes())
    measured = []
    real = Processes.run

    def counted(self, call, what, **more):
        measured.append(what["label"])
        return real(self, call, what, **more)

    monkeypatch.setattr(Processes, "run", counted)
    again = erfscope.compare_isolated(specs(home), begun, limits=Limits(bytes=4 * 2**30), anew=False, **ASKED)
    assert measured == ["hungry", "other"]
    assert [(row.id, row.status) for row in again] == [(row.id, row.status) for row in found]
    for ours, theirs in zip(again, found, strict=True):
        assert {n: m.value for n, m in ours.measures.items()} == {n: m.value for n, m in theirs.measures.items()}


def test_a_model_that_was_stopped_goes_on_with_its_pictures(folder, tmp_path, monkeypatch):
    home, found = folder
    begun = tmp_path / "all"
    calls = []

    def stopped(self, call, what, *, log, stop):
        calls.append(what["label"])
        left = iter([False, False, False, True, True])
        report = isolating.compared([(what["label"], what["spec"])], {**what["options"], "stop": lambda: next(left)})
        isolating.save_directory(
            report.to_json, list(report.results), begun / ".run" / slug(what["label"]) / "report", others=[], force=True
        )
        return Outcome(code=0)

    monkeypatch.setattr(Processes, "run", stopped)
    part = erfscope.compare_isolated(specs(home)[:1], begun, stop=lambda: bool(calls), **ASKED)
    assert len(part) == 0
    monkeypatch.undo()
    whole = erfscope.compare_isolated(specs(home)[:1], begun, anew=False, **ASKED)
    np.testing.assert_array_equal(whole[0].map.values, found["fine"].map.values)
    assert whole[0].input.n_images == 5


@pytest.mark.parametrize(("asked", "said"), [({"samples": 6}, "another settings"), ({"seed": 3}, "another settings")])
def test_a_folder_that_was_begun_with_other_settings_is_not_gone_on_with(folder, asked, said):
    home, _ = folder
    with pytest.raises(ErfscopeError, match=said):
        erfscope.compare_isolated(specs(home), home / "all", anew=False, **{**ASKED, **asked})


def test_a_folder_that_holds_something_is_left_alone(folder, tmp_path):
    home, _ = folder
    with pytest.raises(ErfscopeError, match="go on with --resume"):
        erfscope.compare_isolated(specs(home), home / "all", **ASKED)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ErfscopeError, match="holds something else"):
        erfscope.compare_isolated(specs(home), tmp_path, anew=False, **ASKED)


def test_labels_whose_files_would_be_one_are_refused(tmp_path):
    with pytest.raises(ErfscopeError, match="stored under one name"):
        erfscope.compare_isolated(["a b=test_resnet", "A_b=test_vit"], tmp_path / "x", **ASKED)


@pytest.mark.parametrize(
    "content", [b"nonsense\n", b"[1]\n", b'{"schema": "other"}\n', b'{"schema": "erfscope.models/1"}\n{"no": "label"}\n', b"\xff\xfe\n"]
)
def test_a_damaged_journal_is_said_in_one_line(content, tmp_path):
    (tmp_path / "models.jsonl").write_bytes(content)
    with pytest.raises(ErfscopeError, match="is damaged"):
        Journal(tmp_path).open({})


def test_patterns_are_timms_names(capsys):
    from erfscope.api.comparing import entries_of

    names = [label for label, _ in entries_of(["test_vit*", "resnet18"])]
    assert names[-1] == "resnet18"
    assert {"test_vit", "test_vit2"} <= set(names)
    with pytest.raises(ErfscopeError, match=r"no model of timm is called 'nothing_like_\*'"):
        entries_of(["nothing_like_*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--isolate"], "name it with -o DIR"),
        (["--time-limit", "10m"], "add --isolate"),
        (["--isolate", "--time-limit", "soon", "-o", "x/"], "is no time"),
        (["--isolate", "--memory-limit", "much", "-o", "x/"], "is no size"),
        (["--isolate", "--of", "resnet18", "-o", "x/"], "not for checkpoints"),
    ],
)
def test_what_cannot_be_isolated_is_refused(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _run(["compare", "test_resnet", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_many_models_take_little_memory_each(folder, tmp_path, monkeypatch):
    home, _ = folder
    template = json.loads((home / "all" / "report.json").read_text())
    template["results"] = template["results"][:1]

    def fake(self, call, what, *, log, stop=None):
        template["results"][0] |= {"id": slug(what["label"], "x"), "label": what["label"], "map_file": None, "map": None}
        at = log.parent / "report"
        at.mkdir()
        (at / "report.json").write_text(json.dumps(template))
        return Outcome(code=0)

    monkeypatch.setattr(Processes, "run", fake)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    peaks = []
    for count in (65, 165):
        tracemalloc.start()
        report = erfscope.compare_isolated([f"m{n}=test_resnet" for n in range(count)], tmp_path / str(count), limits=Limits(), **ASKED)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(report) == count
        assert report[0].map is None
    assert peaks[1] - peaks[0] < 100 * 50_000


def test_ranks_do_not_share_models_in_processes_of_their_own(tmp_path, monkeypatch):
    from erfscope.ranks import Team

    team = Team()
    team.size = 2
    monkeypatch.setattr(isolating, "current", lambda: team)
    with pytest.raises(ErfscopeError, match="without torchrun"):
        erfscope.compare_isolated(["test_resnet"], tmp_path / "x", **ASKED)
