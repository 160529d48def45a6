"""Models in processes of their own: what fails is a row, and a run that was killed goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
import warm

import erfscope
from erfscope import ErfscopeError, Options
from erfscope.core.run import isolated
from erfscope.core.run.processes import Limits, Outcome, run_alone

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="has no fork server"),
    pytest.mark.usefixtures("memory_unplanned", "figures_undrawn"),
]
MODELS = """
import os
import time
import torch
from torch import nn

class Hanging(nn.Conv2d):
    def forward(self, x):
        if not x.is_meta:
            time.sleep(600)
        return super().forward(x)

class Noting(nn.Conv2d):
    def forward(self, x):
        if not x.is_meta:
            with open(__file__ + ".passes", "a") as file:
                file.write(".")
        return super().forward(x)

def noting(): return Noting(3, 4, 3)
def fine(): return nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
def other(): return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
def crash(): os.abort()
def leave(): os._exit(3)
def killed(): os.kill(os.getpid(), 9)
def hungry(): return torch.ones(10 ** 9, dtype=torch.float64).sum()
def hang(): return Hanging(3, 4, 3)
"""
NAMES = ["fine", "crash", "leave", "killed", "hungry", "hang", "other"]
ASKED: Options = {"weights": "random", "input_size": 32, "samples": 5, "measures": ["r50"], "batch_size": 1}
LIMITS = {"time_limit": 10, "memory_limit": 4 * 2**30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, most of which fail; measured once for all tests."""
    home = tmp_path_factory.mktemp("isolated")
    (home / "made.py").write_text(MODELS)
    found = erfscope.compare_isolated(specs(home), **LIMITS, keep_in=home / "all", **ASKED)
    return home, found


def specs(home, names=NAMES) -> list[str]:
    return [f"{name}={home / 'made.py'}:{name}" for name in names]


@pytest.fixture
def called(monkeypatch):
    """The labels of models that are measured, each of which fails."""
    labels: list[str] = []

    def fail(call, label, *_, **__):
        labels.extend([label] if call is isolated.measure_alone else [])
        return Outcome(error="not this time")

    monkeypatch.setattr(isolated, "run_alone", fail)
    return labels


@pytest.mark.slow
def test_what_fails_is_a_row_and_the_rest_is_what_compare_finds(folder):
    home, found = folder
    assert [row.label for row in found] == NAMES
    assert [row.label for row in found if row.ok] == ["fine", "other"]
    for label, said in (
        ("crash", "crashed (SIGABRT)"),
        ("leave", "exit code 3"),
        ("killed", "most likely for lack of memory"),
        ("hungry", "can't allocate memory"),
        ("hang", f"no result within {LIMITS['time_limit']} s; give it longer with --time-limit"),
    ):
        assert said in found[label].error
    together = erfscope.compare(specs(home, ["fine", "other"]), **ASKED)
    for label in ("fine", "other"):
        np.testing.assert_allclose(found[label].map.values, together[label].map.values, rtol=0, atol=1e-7)
        assert float(found[label]["r50"]) == pytest.approx(float(together[label]["r50"]), rel=1e-6)
    assert found.differences()[-1]["r50"][0] == pytest.approx(together.differences()[1]["r50"][0], rel=1e-5)
    assert isolated.own_size(specs(home)[0].partition("=")[2], {}) == (224, 224)


@pytest.mark.slow
def test_each_row_is_there_before_the_report_is_and_is_not_measured_again(folder, called):
    home, found = folder
    assert not (home / "all" / "report.json").exists()
    assert [(row.id, row.status) for row in erfscope.read(home / "all")] == [(row.id, row.status) for row in found]
    again = erfscope.compare_isolated(specs(home), resume=home / "all", **ASKED)
    assert [row.id for row in again] == [row.id for row in found]
    assert called == NAMES[1:-1]


@pytest.mark.slow
def test_a_model_that_was_stopped_goes_on_with_its_images(folder):
    home, found = folder
    left = iter([False, False, False, True])
    part = erfscope.compare(specs(home, ["fine"]), stop=lambda: next(left), **ASKED)
    assert 0 < part[0].part.seen < 5
    whole = erfscope.compare_isolated(specs(home, ["fine"]), resume=part, **ASKED)
    np.testing.assert_array_equal(whole[0].map.values, found["fine"].map.values)


@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_gives_what_it_has(folder):
    home, _ = folder
    passes = home / "made.py.passes"
    rows = erfscope.compare_isolated(
        specs(home, ["noting", "other"]),
        stop=lambda: passes.is_file() and passes.stat().st_size > 2,
        **{**ASKED, "samples": 100_000, "plain": True},
    )
    assert [row.label for row in rows] == ["noting"]
    assert 0 < rows[0].part.seen < 100_000


@pytest.mark.slow
def test_a_folder_that_was_begun_with_other_settings_is_not_gone_on_with(folder, called):
    home, found = folder
    for asked in ({"samples": 6}, {"seed": 3}):
        with pytest.raises(ErfscopeError, match="other settings"):
            erfscope.compare_isolated(specs(home), resume=home / "all", **{**ASKED, **asked})
    with pytest.raises(ErfscopeError, match="has results of crash"):
        erfscope.compare_isolated(specs(home, ["fine"]), resume=found, **ASKED)
    assert called == []


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_what_a_model_has_started_ends_with_it(ends, tmp_path):
    code = f"import subprocess; p = subprocess.Popen(['sleep', '600']); open('{tmp_path}/pid', 'w').write(str(p.pid))"
    run_alone(exec, code if ends == "by itself" else f"{code}; import os; os._exit(3)", limits=Limits())
    until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_processes_do_not_outlive_whoever_started_them(tmp_path):
    child = f"import os, time; open('{tmp_path}/pid', 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    code = f"from erfscope.core.run.processes import *\nrun_alone(exec, {child!r}, limits=Limits())"
    started = subprocess.Popen([sys.executable, "-c", code])
    noted = tmp_path / "pid"
    end = time.monotonic() + 60
    while not (noted.is_file() and noted.read_text().endswith(".")):
        assert time.monotonic() < end
        time.sleep(0.05)
    started.kill()
    started.wait()
    until_gone(int(noted.read_text().rstrip(".")))


def until_gone(pid: int) -> None:
    end = time.monotonic() + 60
    while subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout[:1] not in "Z":
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_sweep_stands_in_the_order_of_compare_and_is_compared_setting_by_setting(folder, tmp_path, monkeypatch):
    """Measured in this process: what a process of its own gives is tested above."""
    home, _ = folder
    monkeypatch.setattr(isolated, "run_alone", lambda call, *given, **_: Outcome(value=call(*given)))
    monkeypatch.setattr(isolated.signal, "signal", lambda *_: None)
    cv2.imwrite(str(tmp_path / "x.png"), np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8))
    models = [*specs(home, ["fine", "other"]), "net=test_resnet"]
    sweep = {"input_size": [(32, 32), (40, 40)], "convention": ["jacobian", "luo"]}
    asked = {**ASKED, **sweep, "images": str(tmp_path / "x.png"), "samples": None}
    alone, together = erfscope.compare_isolated(models, **asked), erfscope.compare(models, **asked)
    assert len(together) == 12
    assert [(row.id, row.status) for row in alone] == [(row.id, row.status) for row in together]
    assert all(row.ok for row in alone)
    for ours, theirs in zip(alone.differences(), together.differences(), strict=True):
        assert [*map(str, ours)] == [*map(str, theirs)]
        assert ours.get("r50", [0])[0] == pytest.approx(theirs.get("r50", [0])[0], rel=1e-5)


def test_the_common_size_is_the_models_own(monkeypatch):
    own, measured = {"a": (64, 64), "b": (64, 64), "broken": None}, []

    def run(call, *given, **_):
        if call is isolated.own_size:
            return Outcome(value=own[given[0]])
        if call is isolated.measure_alone:
            measured.append(given[-1]["input_size"])
        return Outcome(error="no")

    monkeypatch.setattr(isolated, "run_alone", run)
    asked = {name: value for name, value in ASKED.items() if name != "input_size"}
    for models, size in ((["a", "b", "broken", "again=a"], (64, 64)), (["a", "resnet18"], (224, 224))):
        measured.clear()
        erfscope.compare_isolated(models, **asked)
        assert measured == [size] * len(models)


@pytest.mark.slow
def test_what_cannot_be_handed_to_a_process_is_refused(folder, called):
    stored, by_program = [str(folder[0] / "all")], {"transform": lambda image: image}
    for models, more, said in (
        (stored, {}, "stored results are compared without --isolate"),
        ([3], {}, "named by a spec, not int"),
        (["test_resnet"], by_program, "transform cannot be handed to a process"),
    ):
        with pytest.raises(ErfscopeError, match=said):
            erfscope.compare_isolated(models, **ASKED, **more)
    assert called == []


def test_patterns_are_timms_names():
    from erfscope.core.run.entries import entries_of

    names = [label for label, _ in entries_of(["test_vit*", "resnet18"])]
    assert names[-1] == "resnet18"
    assert {"test_vit", "test_vit2"} <= set(names)
    with pytest.raises(ErfscopeError, match=r"no model of timm is called 'nothing_like_\*'"):
        entries_of(["nothing_like_*"])


@pytest.mark.slow
@pytest.mark.parametrize(("start", "delay_s"), [(subprocess.Popen, 2.0), (warm.WarmProcess, 1.0)])
def test_ctrl_c_while_the_processes_start_is_no_traceback(tmp_path, start, delay_s):
    (tmp_path / "nets.py").write_text("from torch import nn\n\ndef a():\n    return nn.Conv2d(3, 4, 3)\n")
    words = ["compare", "nets.py:a", "b=nets.py:a", "--isolate", "--input-size", "16", "--samples", "2", "-q"]
    command = [sys.executable, "-m", "erfscope", *words, "--weights", "random", "--device", "cpu"]
    with start(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        time.sleep(delay_s)
        # As a terminal sends it: to the run, and to the processes that it has started.
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[0]
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said
