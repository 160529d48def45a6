"""Runs that are stopped, and go on: nothing is lost, nothing is measured twice, and the end is that of a run in one
go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import warm
from loaded import adapter_of
from PIL import Image

import erfscope
from erfscope import ErfscopeError, MeasurementError
from erfscope.cli import interruption as interrupting
from erfscope.cli.interruption import Interruption, stoppable
from erfscope.cli.main import _run
from erfscope.core.run import executor
from erfscope.core.run.engine import batch

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"samples": 12, "batch_size": 2, "unit": "centre,corner", "measures": ["r50", "far_mass"]}
SCHEMA = json.loads(files("erfscope.core.answer.storage").joinpath("schema/report-1.json").read_text())
ANALYZE = ("analyze", "test_resnet", "--weights", "random", "--input-size", "64", "--measures", "r50")


class After:
    """Stops a run after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def whole(**more):
    return erfscope.sweep(adapter_of("test_resnet", input_size=64), **{**OPTIONS, **more})


@cache
def in_one_go(**more):
    """Measured once for all tests."""
    return whole(**more)


def stopped(batches: int = 3, **more):
    # Asked once before the first batch, too.
    return whole(stop=After(batches), **more)


@pytest.fixture(scope="module")
def begun():
    """A run that was stopped, for tests that do not change it."""
    return stopped()


def assert_alike(ours, theirs):
    assert [result.id for result in ours] == [result.id for result in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.map.values, other.map.values)
        assert one.input == other.input
        assert [w.code for w in one.findings] == [w.code for w in other.findings]
        sizes = [{name: (m.value, m.se) for name, m in each.measures.items()} for each in (one, other)]
        assert sizes[0] == sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize("shard", [None, "2/2"])
def test_a_stopped_run_goes_on_to_what_one_run_finds_bit_for_bit(shard, tmp_path):
    first = stopped(2 if shard else 3, shard=shard)
    seen = first[0].input.n_images
    assert 0 < seen < 12
    assert [w.text for w in first[0].findings if w.code == "stopped"] == [
        f"stopped after {seen} of {6 if shard else 12} images; --resume adds the others in a run with -o DIR"
    ]
    first.save(tmp_path / "run")
    jsonschema.validate(erfscope.read(tmp_path / "run").to_json(), SCHEMA)
    assert_alike(whole(shard=shard, resume=tmp_path / "run"), in_one_go(shard=shard))
    if shard:
        with pytest.raises(
            MeasurementError, match=f"shard 2/2 of test_resnet was stopped after {seen} of 6 images; run its command"
        ):
            erfscope.merge([first, in_one_go(shard="1/2")])


@pytest.mark.slow
def test_a_run_may_be_stopped_as_often_as_one_likes_and_measures_nothing_again(monkeypatch):
    report, rounds = stopped(2), 0
    while any(result.part is not None for result in report):
        report, rounds = stopped(2, resume=report), rounds + 1
    assert rounds == 2
    assert_alike(report, in_one_go())
    monkeypatch.setattr(batch, "batch_contributions", lambda *_: pytest.fail("measured again"))
    assert_alike(whole(resume=report), report)


@pytest.mark.slow
def test_layers_that_are_missing_are_added():
    report = stopped(9, layer="layer2,layer3")
    assert [result.layer for result in report] == ["layer2", "layer2", "layer3", "layer3"]
    assert [result.part is None for result in report] == [True, True, False, False]
    assert_alike(whole(layer="layer2,layer3", resume=report), in_one_go(layer="layer2,layer3"))


@pytest.mark.slow
def test_the_error_asked_for_is_reached_at_the_same_picture_however_the_run_was_stopped_or_batched():
    asked = {"samples": 100, "until_se": 0.02, "unit": "centre"}
    expected = in_one_go(**asked)
    assert_alike(whole(resume=stopped(2, **asked), **asked), expected)
    assert expected[0]["r50"].se <= 0.02 * expected[0]["r50"].value
    for size in (1, 3, 16):
        assert whole(**asked, batch_size=size)[0].input.n_images == expected[0].input.n_images


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"samples": 13}, {"seed": 1}, {"unit": "centre"}, {"measures": ["r50"]}])
def test_a_run_of_other_settings_is_not_added_to(begun, other):
    with pytest.raises(ErfscopeError, match=f"other settings: .*{next(iter(other))} .*use the same settings"):
        whole(resume=begun, **other)


def photos(folder: Path, names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        Image.fromarray(np.full((64, 64, 3), 7 * ord(name) % 256, dtype=np.uint8)).save(folder / f"{name}.png")
    return folder


@pytest.mark.slow
def test_a_run_of_other_pictures_is_not_added_to(tmp_path):
    asked = {"images": str(photos(tmp_path / "photos", "abcd")), "samples": 4, "batch_size": 1, "unit": "centre"}
    first = stopped(2, **asked)
    Image.fromarray(np.full((64, 64, 3), 1, dtype=np.uint8)).save(tmp_path / "photos" / "a.png")
    with pytest.raises(ErfscopeError, match="cannot go on where it was stopped: they differ in images"):
        whole(resume=first, **asked)


@pytest.mark.slow
def test_a_comparison_goes_on_with_the_models_that_are_missing():
    asked = {"weights": "random", "input_size": 64, "samples": 4, "batch_size": 1, "measures": ["r50"]}
    names = ["test_resnet", "test_mambaout", "test_convnext"]
    first = erfscope.compare(names, stop=After(7), **asked)
    assert [result.label for result in first] == names[:2]
    assert first[1].part.seen < 4
    assert_alike(erfscope.compare(names, resume=first, **asked), erfscope.compare(names, **asked))
    with pytest.raises(ErfscopeError, match=r"other settings: .*input_size .*use the same settings"):
        erfscope.compare(names, resume=first, **{**asked, "input_size": 96})


@pytest.mark.slow
@pytest.mark.parametrize("batches", [3, 99], ids=["stopped", "finished"])
def test_what_has_lost_its_file_is_measured_again(batches, tmp_path):
    stopped(batches).save(tmp_path / "run")
    for file in (tmp_path / "run").glob("*.npz"):
        file.unlink()
    again = whole(resume=tmp_path / "run")
    assert_alike(again, in_one_go())
    assert all(result.part is None for result in again)


@pytest.mark.slow
def test_models_may_be_added_and_results_of_others_are_not_thrown_away():
    model = adapter_of("test_resnet", input_size=64)
    before = erfscope.compare({"A": model}, **OPTIONS)
    both = erfscope.compare({"B": model, "A": model}, resume=before, **OPTIONS)
    assert [result.label for result in both] == ["B"] * 2 + ["A"] * 2
    for call in (
        lambda: erfscope.sweep(model, label="A", resume=both, **OPTIONS),
        lambda: erfscope.compare({"A": model}, resume=both, **OPTIONS),
    ):
        with pytest.raises(ErfscopeError, match="has results of B, which is not among what is asked for now"):
            call()


def test_nothing_is_left_of_a_run_that_saw_no_picture():
    assert len(whole(stop=lambda: True)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers):
    assert_alike(whole(workers=workers), in_one_go())


@pytest.mark.slow
def test_pictures_that_workers_cannot_read_are_named(tmp_path):
    (photos(tmp_path, "abc") / "b.png").write_bytes(b"no image")
    asked = {"images": str(tmp_path), "unit": "centre", "workers": 2}
    with pytest.raises(ErfscopeError, match=r"b\.png"):
        whole(**asked)
    (found,) = whole(keep_going=True, **asked)
    assert found.input.n_dead == 1
    assert found.input.dead[0].endswith("b.png")


@pytest.mark.slow
def test_a_worker_that_dies_is_told(monkeypatch):
    from erfscope.core.images.feed import PictureImages

    monkeypatch.setattr(PictureImages, "batch", lambda *_, **__: os._exit(1))
    (found,) = whole(workers=1, unit="centre")
    assert "a worker that reads images has died" in found.error


@pytest.mark.slow
def test_batches_that_do_not_fit_are_read_once(monkeypatch):
    from erfscope.core.system.environment import ran_out

    tried = []
    real = batch.batch_contributions

    def small(plan, x, images, **words):
        tried.append(len(images))
        if len(images) > 1:
            raise MemoryError
        return real(plan, x, images, **words)

    expected = in_one_go()
    monkeypatch.setattr(batch, "batch_contributions", small)
    assert ran_out(MemoryError())
    found = whole(workers=1, batch_size=4)
    assert max(tried) == 4
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.map.values, other.map.values, rtol=0, atol=1e-6 * other.map.values.max())


def test_the_first_signal_is_remembered_and_the_second_ends_everything(capsys, monkeypatch):
    Interruption().receive(signal.SIGINT, None)
    assert "stopping before anything is measured; a second signal stops at once" in capsys.readouterr().err
    # One to a process and to its group is one request.
    monkeypatch.setattr(interrupting, "TWICE_S", 60.0)
    interruption = Interruption()
    assert not interruption()
    for _ in range(2):
        interruption.receive(signal.SIGTERM, None)
    assert (interruption(), interruption.code) == (True, 143)
    assert capsys.readouterr().err.count("stopping after this batch") == 1
    with pytest.raises(KeyboardInterrupt):
        interruption.receive(signal.SIGINT, None)
    monkeypatch.setattr(interrupting, "TWICE_S", 0.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        interruption.receive(signal.SIGTERM, None)
    assert caught.value.code == 143


def test_a_signal_in_the_middle_of_a_write_is_no_error_of_whoever_writes(monkeypatch, capfd):
    def refuse(_text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    monkeypatch.setattr(interrupting, "complain", refuse)
    interruption = Interruption()
    assert not interruption()
    interruption.receive(signal.SIGINT, None)
    assert interruption()
    assert (
        capfd.readouterr().err
        == "erfscope: stopping after this batch; the report shows what is measured; a second signal stops at once\n"
    )


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


SLOW = """
import sys, time
from torch import nn

class Slow(nn.Conv2d):
    def forward(self, x):
        if not x.is_meta:
            print("running", file=sys.stderr, flush=True)
            time.sleep(0.3)
        return super().forward(x)

def slow():
    return Slow(3, 4, 3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes have no groups there")
@pytest.mark.parametrize("sent_to", ["group", "command"])
def test_a_signal_to_a_group_of_processes_is_one_request(sent_to, tmp_path):
    """As from ``timeout`` and from schedulers."""
    (tmp_path / "nets.py").write_text(SLOW)
    asked = "--input-size 24 --samples 400 -b 1 --measures r50 --plain --json -o run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "erfscope", "analyze", "nets.py:slow", *asked.split()]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with warm.WarmProcess(call, cwd=tmp_path, env=environment, start_new_session=True, **streams) as process:
        runs = 0
        while runs < 6 and (line := process.stderr.readline()):
            runs += "running" in line
        (os.killpg if sent_to == "group" else os.kill)(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM, said
    result = erfscope.read(tmp_path / "run")[0]
    assert result.part is not None, (result.status, result.error, said)
    assert 1 <= result.part.seen < 400


@pytest.mark.slow
def test_a_signal_while_results_are_written_loses_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    real = erfscope.Report.save

    def save(self, path, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        real(self, path, **more)

    monkeypatch.setattr(erfscope.Report, "save", save)
    assert _run([*ANALYZE, "--samples", "2", "-o", "run/"]) == 0
    assert "finishing the output" in capsys.readouterr().err
    assert (tmp_path / "run" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_valid_result_that_the_same_command_completes(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [*ANALYZE, "--samples", "6", "-b", "1", "--resume", "-o", "run/"]
    real, calls = executor.measure_units, []

    def measure(*given, callbacks, **more):
        def asked() -> bool:
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), number)
                time.sleep(0.05)
            return callbacks.stop()

        return real(*given, callbacks=replace(callbacks, stop=asked), **more)

    monkeypatch.setattr(executor, "measure_units", measure)
    assert _run(command) == 128 + number
    said = capsys.readouterr()
    assert "interrupted: 0 results finished, test_resnet: 3 of 6 images; run the same command with --resume" in said.err
    assert "stopped after 3 of 6 images" in said.out
    assert erfscope.read("run")[0].part.seen == 3
    assert not (tmp_path / "run" / "index.html").exists()
    assert _run(command) == 0
    assert erfscope.read("run")[0].input.n_images == 6
    assert (tmp_path / "run" / "index.html").exists()
    assert len(calls) == 6


BEGINNING = """
import asyncio, os, signal, sys, time
import erfscope.core.run.isolated
from erfscope.core.run import opening
from erfscope.cli.main import main

loop, left = asyncio.new_event_loop(), []

def signals(*_, **__):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.6)

def readers(*_, **__):
    left.append(loop.create_task(asyncio.sleep(60)))
    raise KeyboardInterrupt

opening.load_model = globals()[sys.argv[1]]
main(["analyze", "test_resnet"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["signals", "readers"])
def test_ctrl_c_before_anything_is_measured_is_one_line_also_where_tasks_of_readers_are_cut_off(what):
    done = warm.run([sys.executable, "-c", BEGINNING, what])
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "erfscope: interrupted"
    assert "Traceback" not in done.stderr
    assert "destroyed" not in done.stderr


FAILING = """
import errno
import os
from pathlib import Path
from torch import Tensor, nn

class Net(nn.Conv2d):
    def forward(self, x):
        said = Path(__file__).with_name("state").read_text()
        if type(x) is Tensor and said == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch")
        if type(x) is Tensor and said == "model":
            raise ValueError("no space, no memory, says the model")
        return super().forward(x)

def net():
    return Net(3, 4, 3, padding=1)
"""


@pytest.fixture
def failing(tmp_path):
    """A model that fails as a file beside it says; measures it, going on with what was measured before."""
    (tmp_path / "failing.py").write_text(FAILING)

    def run(state: str, **more):
        (tmp_path / "state").write_text(state)
        words = {"input_size": 16, "samples": 4, "measures": ["r50"], "plain": True}
        return erfscope.sweep(f"{tmp_path}/failing.py:net", **words, **more)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("state", "said"), [("disk", "No space left on device: scratch"), ("model", "says the model")])
def test_a_failure_is_said_in_its_own_words_and_measured_again(failing, tmp_path, state, said):
    failing(state).save(tmp_path / "run")
    report = erfscope.read(tmp_path / "run")
    assert (report[0].status, said in report[0].error) == ("error", True)
    assert ("Error" in report[0].error) is (state == "model")
    jsonschema.validate(report.to_json(), SCHEMA)
    assert failing("", resume=report)[0].ok
