"""A stored report measured again: the same numbers, or what differs by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope.cli.main import _run
from erfscope.errors import ErfscopeError

ASKED = {"weights": "random", "input_size": 64, "samples": 3, "measures": ["r50", "far_mass", "coverage"]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    erfscope.sweep("Mine=test_resnet", layer="layer2,layer3", unit="centre,corner", convention="luo,jacobian", **ASKED).save(folder / "one")
    erfscope.compare(["test_resnet", "B=test_vit"], **{**ASKED, "input_size": 96}).save(folder / "two")
    return folder


@pytest.mark.parametrize("name", ["one", "two"])
def test_what_was_measured_is_measured_again(stored, name):
    before = erfscope.read(stored / name)
    again = erfscope.repeat(stored / name)
    assert again.is_same
    assert again.differences == ()
    assert [row.id for row in again.report] == [row.id for row in before]
    for row, other in zip(again.report, before, strict=True):
        np.testing.assert_allclose(row.map.values, other.map.values, rtol=0, atol=1e-7)


def test_a_number_that_was_changed_is_named(stored, tmp_path):
    document = json.loads((stored / "two" / "report.json").read_text())
    document["results"][1]["measures"]["r50"]["value"] *= 1.01
    document["environment"]["versions"]["torch"] = "1.0"
    document["environment"]["threads"] = 77
    (tmp_path / "report.json").write_text(json.dumps(document))
    again = erfscope.repeat(tmp_path / "report.json")
    assert not again.is_same
    assert again.differences[0].startswith("torch 1.0 then, ")
    assert any(text.startswith("threads 77 then") for text in again.differences)
    assert again.differences[-1].startswith(f"{document['results'][1]['id']}: r50 ")
    assert len(again.differences) == 3


def test_settings_can_be_replaced_and_the_protocol_says_so(stored):
    again = erfscope.repeat(stored / "two", seed=5)
    assert not again.is_same
    assert any("seed 0 then, 5 now" in text for text in again.differences)
    assert any(": pictures " in text for text in again.differences)


def test_pictures_that_have_changed_are_named(tmp_path):
    Image.fromarray(np.full((64, 64, 3), 90, dtype=np.uint8)).save(tmp_path / "x.png")
    erfscope.sweep("test_resnet", images=str(tmp_path / "x.png"), **ASKED).save(tmp_path / "run")
    assert erfscope.repeat(tmp_path / "run").is_same
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    assert any(": pictures " in text for text in erfscope.repeat(tmp_path / "run").differences)
    (tmp_path / "x.png").unlink()
    with pytest.raises(ErfscopeError, match=r"x\.png"):
        erfscope.repeat(tmp_path / "run")


@pytest.mark.parametrize("images", [None, torch.zeros(2, 3, 64, 64)], ids=["live module", "tensor"])
def test_what_only_a_program_has_cannot_be_had_again(images, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)) if images is None else "test_resnet"
    more = {} if images is None else {"images": images + torch.rand(images.shape)}
    asked = {name: value for name, value in ASKED.items() if name not in (("weights",) if images is None else ("samples", "input_size"))}
    erfscope.sweep(net, **asked, **more).save(tmp_path / "run")
    with pytest.raises(ErfscopeError, match="only its own program"):
        erfscope.repeat(tmp_path / "run")


@pytest.mark.parametrize("command", ["analyze", "compare"])
def test_the_command_line_says_what_differs_and_answers_with_its_exit_code(command, stored, capsys):
    assert _run([command, "--from", str(stored / "two"), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "all numbers are those of" in said.err
    assert len(said.out.splitlines()) == 3
    assert _run([command, "--from", str(stored / "two"), "--seed", "1", "--format", "csv"]) == 1
    assert "differs: " in capsys.readouterr().err
    assert _run([command, "resnet18", "--from", str(stored / "two")]) == 2
    assert "leave out 'resnet18'" in capsys.readouterr().err
