"""Models in processes of their own: what fails is a row, and a run that was killed goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import erfscope
from erfscope.api import isolated
from erfscope.api.isolated_setup import note_size
from erfscope.cli.main import _run
from erfscope.errors import ErfscopeError
from erfscope.isolation import Journal, Limits, Outcome, Processes
from erfscope.isolation.entry import is_worth_another_try, journal_line
from erfscope.isolation.order import comparable, groups_of, settings_in_order
from erfscope.options.keywords import SEVERAL, Options
from erfscope.results.comparability import CONDITIONS
from erfscope.results.result import slug

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
    pytest.mark.usefixtures("memory_unplanned", "figures_undrawn"),
]
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
        ("os:rmdir", "/nowhere/at/all", "No such file or directory: /nowhere/at/all"),
        ("sys:exit", 7, "exit code 7"),
        ("signal:raise_signal", 11, r"crashed \(SIGSEGV\)"),
        ("signal:raise_signal", 9, "most likely for lack of memory"),
        ("builtins:bytearray", 10**12, "there is not enough memory"),
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


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # What nobody has collected yet does nothing any more.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("warm_process", ["ends", "is killed"])
def test_children_do_not_outlive_whoever_started_them(warm_process, tmp_path):
    noted = tmp_path / "pids"
    child = f"import os, time; open('{noted}', 'w').write(f'{{os.getppid()}} {{os.getpid()}}.'); time.sleep(600)"
    code = (
        "from pathlib import Path\nfrom erfscope.isolation import Limits, Processes\n"
        "with Processes(Limits(), warm=('json',)) as p:\n"
        f"    p.run('builtins:exec', {child!r}, log=Path('{tmp_path}/log'))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: noted.is_file() and noted.read_text().endswith("."))
    server, pid = map(int, noted.read_text().rstrip(".").split())
    if warm_process == "is killed":
        # Before it can see that nobody waits for it.
        os.kill(server, signal.SIGSTOP)
    started.kill()
    started.wait()
    if warm_process == "is killed":
        os.kill(server, signal.SIGKILL)
    until(lambda: not is_there(pid))


def test_a_hang_ends_with_the_warm_process(tmp_path):
    """Neither waits for the other: the child goes with what it was forked from, and whoever waits sees that."""
    code = (
        f"echo $PPID > {tmp_path}/pids; echo $$ >> {tmp_path}/pids; kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat);"
        " sleep 600"
    )
    began = time.monotonic()
    outcome = run("os:system", code, tmp_path, Limits(seconds=300))
    assert time.monotonic() - began < 60
    assert (outcome.ended, outcome.signal) == ("killed", signal.SIGKILL)
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        until(lambda pid=pid: not is_there(pid))


@pytest.mark.parametrize(("after", "ended"), [("sleep 600", "late"), ("exit 0", "ok")])
def test_what_a_model_has_started_ends_with_it(after, ended, tmp_path):
    outcome = run("os:system", f"sleep 600 & echo $! > {tmp_path}/pid; {after}", tmp_path, Limits(seconds=2))
    assert outcome.ended == ended
    until(lambda: not is_there(int((tmp_path / "pid").read_text())))


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
    measured = []

    def noted(self, call, what, **more):
        measured.append(what["label"])
        return Outcome(code=0, signal=6)

    monkeypatch.setattr(Processes, "run", noted)
    before = (home / "all" / "models.jsonl").read_bytes()
    again = erfscope.compare_isolated(specs(home), home / "all", limits=Limits(bytes=4 * 2**30), anew=False, **ASKED)
    assert [row.id for row in again] == [row.id for row in found]
    # A signal and a lack of memory are not the model's.
    assert measured == ["crash", "hungry"]
    (home / "all" / "models.jsonl").write_bytes(before)


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
    assert measured == ["crash", "hungry", "other"]
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
        report = isolated.compared([(what["label"], what["spec"])], {**what["options"], "stop": lambda: next(left)})
        isolated.save_directory(
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


HEAD = b'{"schema": "erfscope.models/1"}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense\n",
        b"[1]\n",
        b'{"schema": "other"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        HEAD + b"[" * 100_000 + b"\n",
        HEAD + b"7\n",
        HEAD + b'{"no": "label"}\n',
        HEAD + b'{"label": "a"}\n',
        HEAD + b'{"label": NaN}\n',
    ],
)
def test_a_damaged_journal_is_said_in_one_line(content, tmp_path):
    (tmp_path / "models.jsonl").write_bytes(content)
    with pytest.raises(ErfscopeError, match="is damaged") as caught:
        Journal(tmp_path).read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        {"results": 5},
        {"results": []},
        {"results": [{"id": "x"}]},
        {"results": [7]},
        {"label": ["fine"]},
        {"ended": "well"},
        {"limits": {"seconds": "long", "bytes": None}},
        {"limits": None},
        {"map_file": "../../etc/passwd"},
        {"map_file": "other.npz"},
        {"map_file": 7},
    ],
)
def test_a_damaged_line_is_said_before_anything_is_measured(damage, folder, tmp_path, monkeypatch):
    home, _ = folder
    lines = (home / "all" / "models.jsonl").read_text().splitlines()
    entry = json.loads(lines[1])
    if "map_file" in damage:
        entry["results"][0] |= damage
    else:
        entry |= damage
    (tmp_path / "models.jsonl").write_text(f"{lines[0]}\n{json.dumps(entry)}\n")
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(ErfscopeError, match="is damaged"):
        erfscope.compare_isolated(specs(home), tmp_path, anew=False, **ASKED)


def test_one_folder_is_filled_by_one_run(folder):
    home, _ = folder
    with Journal(home / "all").locked(), pytest.raises(ErfscopeError, match="another run is filling"):
        erfscope.compare_isolated(specs(home), home / "all", anew=False, **ASKED)
    with Journal(home / "all").locked():
        pass


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (Outcome(code=0, signal=9, late=True), True),
        (Outcome(code=0, signal=9), True),
        (Outcome(code=0, signal=6), True),
        (Outcome(code=0, signal=34), True),
        (Outcome(code=70, text="No space left on device: x", cause="environment"), True),
        (Outcome(code=70, text="no spatial map", cause="model"), False),
        (Outcome(code=7), False),
        (Outcome(code=1, last_line="out of memory, says the model in its own words"), False),
        (Outcome(code=0), False),
    ],
)
def test_what_the_environment_ended_is_worth_another_try_and_what_the_model_did_is_not(outcome, again):
    results = [{"status": "ok" if outcome.ok else "error", "error_cause": None if outcome.ok else outcome.error_cause}]
    line = journal_line("a", "m", outcome, results, Limits())
    assert is_worth_another_try(line) == again
    assert is_worth_another_try(line, retry_failed=True) == (not outcome.ok)


def test_what_the_environment_ended_is_tried_again_until_the_model_is_to_blame(folder, tmp_path, monkeypatch):
    home, _ = folder
    outcomes = [
        Outcome(code=0, signal=9, late=True),
        Outcome(code=70, text="No space left on device", cause="environment"),
        Outcome(code=70, text="not this model", cause="model"),
        Outcome(code=70, text="still not", cause="model"),
    ]
    monkeypatch.setattr(Processes, "run", lambda *_, **__: outcomes.pop(0))
    for more, error, cause, left in (
        ({}, "no result within 10 s", "environment", 3),
        ({}, "No space left", "environment", 2),
        ({}, "not this model", "model", 1),
        ({}, "not this model", "model", 1),
        ({"retry_failed": True}, "still not", "model", 0),
        ({}, "still not", "model", 0),
    ):
        found = erfscope.compare_isolated(
            specs(home)[:1], tmp_path / "all", limits=Limits(seconds=10), anew=False, **ASKED, **more
        )
        assert error in found[0].error
        assert (found[0].error_cause, len(outcomes)) == (cause, left)
        assert erfscope.read(tmp_path / "all")[0].error_cause == cause


def test_a_model_whose_map_has_gone_is_measured_again(folder, tmp_path, monkeypatch):
    home, found = folder
    (tmp_path / "models.jsonl").write_bytes((home / "all" / "models.jsonl").read_bytes())
    (tmp_path / f"{found['fine'].id}.npz").write_bytes((home / "all" / f"{found['fine'].id}.npz").read_bytes())
    measured = []

    def noted(self, call, what, **more):
        measured.append(what["label"])
        return Outcome(code=1, last_line="not this time")

    monkeypatch.setattr(Processes, "run", noted)
    again = erfscope.compare_isolated(specs(home), tmp_path, limits=Limits(bytes=4 * 2**30), anew=False, **ASKED)
    assert measured == ["crash", "hungry", "other"]
    assert [row.status for row in again] == ["ok", "error", "error", "error"]


def test_a_sweep_stands_in_the_order_of_compare_and_is_compared_setting_by_setting(folder, tmp_path, monkeypatch):
    """Measured in this process: what a process of its own gives is tested above."""
    home, _ = folder

    def here(self, call, what, *, log, stop=None):
        isolated.work(what)
        return Outcome(code=0)

    monkeypatch.setattr(Processes, "run", here)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("erfscope.figures.folder_figures", lambda *_, **__: [])
    cv2.imwrite(str(tmp_path / "x.png"), np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8))
    models = [specs(home)[0], specs(home)[3], "net=test_resnet"]
    sweep = {
        "input_size": [(32, 32), (40, 40)],
        "convention": ["jacobian", "luo"],
        "images": str(tmp_path / "x.png"),
        "samples": None,
    }
    alone = erfscope.compare_isolated(models, tmp_path / "x", **{**ASKED, **sweep})
    together = erfscope.compare(models, **{**ASKED, **sweep})
    assert len(together) == 12
    assert [(row.id, row.status) for row in alone] == [(row.id, row.status) for row in together]
    assert all(row.ok for row in alone)
    assert [d.get("r50") for d in alone.differences()] == [d.get("r50") for d in together.differences()]


def test_rows_shown_something_else_are_no_rows_of_their_group(folder):
    _, found = folder
    fine, other = found["fine"], found["other"]
    larger = replace(other, input=replace(other.input, size=(40, 40)))
    rows = comparable([fine, other, larger, larger], [0, 0, 0, 1])
    assert [row.status for row in rows] == ["ok", "ok", "error", "ok"]
    assert "input size (32x32 against 40x40)" in rows[2].error


def test_every_option_with_several_values_is_a_condition_of_results():
    assert {condition.option for condition in CONDITIONS if condition.option} == {*SEVERAL}


def test_rows_are_of_the_settings_in_their_order(folder):
    """Also where weights fell back, and the reference of a host has another name."""
    _, found = folder
    asked = settings_in_order({"input_size": "32,40", "weights": "auto,random", "convention": "jacobian,luo"})
    assert asked[1] == ((32,), "auto", "luo", "image")
    assert len(asked) == 8
    fell = replace(found["fine"], weights=replace(found["fine"].weights, source="pretrained"))
    luo = replace(fell, convention="luo")
    again = [replace(row, weights=replace(row.weights, source="random")) for row in (fell, luo)]
    rows = [fell, fell, luo, *again, replace(again[1], wrt="layer1")]
    assert groups_of(rows, asked) == [0, 0, 1, 2, 3, 3]
    larger = replace(again[1], input=replace(again[1].input, size=(40, 40)))
    assert groups_of([larger], asked) == [7]


def test_the_common_size_is_the_models_own(tmp_path, monkeypatch):
    monkeypatch.setattr(isolated, "_measure_all", lambda *_: None)
    asked = {name: value for name, value in ASKED.items() if name != "input_size"}
    sizes = {"a": [64, 64], "b": [64, 64], "broken": None}
    opened = []

    def run(self, call, what, *, log, stop=None):
        opened.append(what["spec"])
        size = sizes[what["spec"]]
        if size is None:
            return Outcome(code=1)
        Path(what["file"]).write_text(json.dumps(size))
        return Outcome(code=0)

    monkeypatch.setattr(Processes, "run", run)
    for place, models, size in (
        ("own", ["a", "b", "broken", "again=a"], [64, 64]),
        ("mixed", ["a", "resnet18"], [224, 224]),
    ):
        opened.clear()
        erfscope.compare_isolated(models, tmp_path / place, **asked)
        assert opened == [name for name in models if name in sizes]
        assert json.loads((tmp_path / place / "models.jsonl").read_text())["input_size"] == size
    opened.clear()
    erfscope.compare_isolated(["a", "resnet18", "b"], tmp_path / "mixed", anew=False, **asked)
    assert opened == []
    with pytest.raises(ErfscopeError, match="another settings"):
        erfscope.compare_isolated(["a"], tmp_path / "mixed", anew=False, **ASKED)


def test_a_model_is_asked_for_its_size_in_its_process(folder, tmp_path):
    home, _ = folder
    what = {"spec": specs(home)[0].partition("=")[2], "options": {}, "file": str(tmp_path / "size")}
    note_size(what)
    assert json.loads((tmp_path / "size").read_text()) == [224, 224]
    with pytest.raises(ErfscopeError, match="nothing_like_it"):
        note_size({**what, "spec": "nothing_like_it"})


def test_a_folder_may_have_a_dot_and_a_final_slash(folder, tmp_path, monkeypatch):
    home, _ = folder
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []
    monkeypatch.setattr(
        "erfscope.api.compare_isolated", lambda models, folder, **_: asked.append(folder) or erfscope.read(home / "all")
    )
    _run(["compare", "test_resnet", "--isolate", "-o", "vits.v1/", "-q"])
    assert asked == [Path("vits.v1")]
    assert _run(["compare", "test_resnet", "--isolate", "-o", "vits.v1", "-q"]) == 2
    assert _run(["compare", "test_resnet", "--isolate", "-o", "vits.json/", "-q"]) == 2


def test_a_stored_report_is_refused_before_anything_is_measured(folder, tmp_path, monkeypatch):
    home, _ = folder
    monkeypatch.setattr(Processes, "run", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(ErfscopeError, match="stored results are compared without --isolate"):
        erfscope.compare_isolated([specs(home)[0], str(home / "all")], tmp_path / "x", **ASKED)
    assert not (tmp_path / "x").exists()


def test_a_model_may_change_the_working_directory(folder, tmp_path, monkeypatch):
    home, _ = folder
    monkeypatch.chdir(tmp_path)
    logs = []

    def moved(self, call, what, *, log, stop=None):
        logs.extend([log, Path(what["folder"])])
        return Outcome(code=1, last_line="moved")

    monkeypatch.setattr(Processes, "run", moved)
    erfscope.compare_isolated(specs(home)[:1], "here", **ASKED)
    assert all(path.is_absolute() for path in logs)


def test_patterns_are_timms_names(capsys):
    from erfscope.api.comparison import entries_of

    names = [label for label, _ in entries_of(["test_vit*", "resnet18"])]
    assert names[-1] == "resnet18"
    assert {"test_vit", "test_vit2"} <= set(names)
    with pytest.raises(ErfscopeError, match=r"no model of timm is called 'nothing_like_\*'"):
        entries_of(["nothing_like_*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--isolate"], "name it with -o DIR"),
        (["--time-limit", "10m"], "works only with --isolate"),
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
        template["results"][0] |= {
            "id": slug(what["label"], "x"),
            "label": what["label"],
            "map_file": None,
            "map": None,
        }
        at = log.parent / "report"
        at.mkdir()
        (at / "report.json").write_text(json.dumps(template))
        return Outcome(code=0)

    monkeypatch.setattr(Processes, "run", fake)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    peaks = []
    for count in (65, 165):
        tracemalloc.start()
        report = erfscope.compare_isolated(
            [f"m{n}=test_resnet" for n in range(count)], tmp_path / str(count), limits=Limits(), **ASKED
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(report) == count
        assert report[0].map is None
    assert peaks[1] - peaks[0] < 100 * 50_000


def test_ranks_do_not_share_models_in_processes_of_their_own(tmp_path, monkeypatch):
    from erfscope.parallel import ProcessGroup

    process_group = ProcessGroup()
    process_group.size = 2
    monkeypatch.setattr(isolated, "current", lambda: process_group)
    with pytest.raises(ErfscopeError, match="without torchrun"):
        erfscope.compare_isolated(["test_resnet"], tmp_path / "x", **ASKED)
