"""Progress from the first second, and images that are read before a model is loaded."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nets import conv
from one_line import one_line
from PIL import Image
from torch import nn

import erfscope
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.core.run import models
from erfscope.core.system import progress
from erfscope.core.system.progress import progress_lines

ASKED = {"input_size": 16, "batch_size": 1}


def net() -> nn.Module:
    return nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4))


@pytest.fixture
def pictures(tmp_path):
    """A folder with three images, the last of which is broken."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.full((16, 16, 3), 99, np.uint8)).save(folder / f"{name}.png")
    (folder / "c.png").write_bytes((folder / "a.png").read_bytes()[:60])
    return folder


@pytest.fixture
def loads(monkeypatch):
    """The weights of the models that are loaded."""
    found, load = [], models.open_adapter

    def counted(model, *given, weights, **options):
        found.append(weights)
        return load(model, *given, weights=weights, **options)

    monkeypatch.setattr(models, "open_adapter", counted)
    return found


def test_a_run_says_what_it_does_from_the_beginning():
    said = []
    erfscope.analyze(net(), samples=3, progress=lambda *said_now: said.append(said_now), **ASKED)
    assert said[:4] == [("loading Sequential", n, 1) for n in (0, 1)] + [("recording Sequential", n, 1) for n in (0, 1)]
    assert said[4:] == [("Sequential", n, 3) for n in range(4)]


@pytest.mark.parametrize("call", [erfscope.analyze, erfscope.sweep, lambda net, **o: erfscope.compare([net], **o)])
def test_a_script_asks_for_lines_about_the_progress(call, capfd):
    call(net(), samples=3, progress=True, **ASKED)
    out, err = capfd.readouterr()
    first, second, *others = err.splitlines()
    assert (first, second) == ("erfscope: loading Sequential", "erfscope: recording Sequential")
    assert others[-1] == "erfscope: Sequential: 3 of 3"
    assert out == ""
    call(net(), samples=3, progress=False, **ASKED)
    assert capfd.readouterr().err == ""


def test_lines_say_the_time_that_is_left_and_come_once_a_second(capfd, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    show = progress_lines()
    for at, done in ((0, 0), (0.5, 1), (10, 2), (10.5, 3), (95, 19), (100, 20)):
        now[0] = at
        show("net", done, 20)
    expected = ["net: 0 of 20", "net: 2 of 20, 0:01:30 left", "net: 19 of 20, 0:00:05 left", "net: 20 of 20"]
    assert capfd.readouterr().err.splitlines() == [f"erfscope: {line}" for line in expected]


CALLS = {
    "analyze": lambda where, folder: erfscope.analyze("test_resnet", image=where),
    "sweep": lambda where, folder: erfscope.sweep("test_resnet", image=where),
    "compare": lambda where, folder: erfscope.compare(["test_resnet", "test_vit"], image=where),
    "explore": lambda where, folder: erfscope.explore("test_resnet", where),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "explore")) for name in CALLS])
def test_a_broken_image_costs_no_model_and_its_line_names_the_way_out(name, pictures, loads, tmp_path):
    where = pictures / "c.png" if name == "explore" else pictures
    words = r"cannot read '.*c\.png'.*; keep_going=True passes over"
    one_line(lambda: CALLS[name](where, tmp_path), words)
    one_line(lambda: erfscope.analyze("test_resnet", image="nowhere.png"), "does not exist")
    assert loads == []


def test_a_broken_image_is_a_verdict_on_the_structure_alone_which_needs_no_weights(pictures, loads, tmp_path):
    asked = {"weights": "random", "missing": "accept", "baseline": tmp_path / "b.json"}
    verdict = erfscope.check("test_resnet", image=pictures, **asked)
    assert verdict.word == "cannot tell"
    assert re.search(r"cannot read '.*c\.png'.*; keep_going=True passes over", verdict.reason)
    assert verdict.obtained.structure is not None
    assert set(loads) == {NO_NUMBERS}


def test_the_command_says_so_in_one_line(pictures, loads, command):
    code, _, err = command("analyze", "test_resnet", "--weights", "random", "--image", str(pictures))
    assert code == 2
    assert re.fullmatch(r"erfscope: cannot read '.*c\.png'.*; --keep-going passes over images that .*\n", err)
    assert loads == []


def test_broken_images_that_are_passed_over_are_not_read_first(pictures, loads):
    found = erfscope.analyze(net(), image=pictures, keep_going=True, **ASKED)
    assert (found.input.n_images, found.input.n_dead) == (3, 1)
    assert len(loads) == 1
