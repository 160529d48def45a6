"""A stored report measured again: the same numbers, or what differs by name."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope.adapters.sources import sources
from erfscope.api import repetition
from erfscope.cli.main import _run
from erfscope.errors import ErfscopeError
from erfscope.options.keywords import ALIASES

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

ASKED = {"weights": "random", "input_size": 64, "samples": 3, "measures": ["r50", "far_mass", "coverage"]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("again")
    erfscope.sweep(
        "Mine=test_resnet", layer="layer2,layer3", unit="centre,corner", convention="luo,jacobian", **ASKED
    ).save(folder / "one")
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
    assert any(": images " in text for text in again.differences)


def test_pictures_that_have_changed_are_named(tmp_path):
    Image.fromarray(np.full((64, 64, 3), 90, dtype=np.uint8)).save(tmp_path / "x.png")
    erfscope.sweep("test_resnet", images=str(tmp_path / "x.png"), **ASKED).save(tmp_path / "run")
    assert erfscope.repeat(tmp_path / "run").is_same
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    assert any(": images " in text for text in erfscope.repeat(tmp_path / "run").differences)
    (tmp_path / "x.png").unlink()
    with pytest.raises(ErfscopeError, match=r"x\.png"):
        erfscope.repeat(tmp_path / "run")


@pytest.mark.parametrize("images", [None, torch.zeros(2, 3, 64, 64)], ids=["live module", "tensor"])
def test_what_only_a_program_has_cannot_be_had_again(images, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)) if images is None else "test_resnet"
    more = {} if images is None else {"images": images + torch.rand(images.shape)}
    asked = {
        name: value
        for name, value in ASKED.items()
        if name not in (("weights",) if images is None else ("samples", "input_size"))
    }
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
    assert "is not of 'resnet18' but of test_resnet, test_vit; leave 'resnet18' out" in capsys.readouterr().err


# --- reports of other people ----------------------------------------------------------------------

NETS = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "ran").touch()

def tiny(width=4, name=""):
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1))

class Block(nn.Conv2d):
    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1)
"""
TINY = {"input_size": 32, "samples": 2, "measures": ["r50"]}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with code in it that leaves a mark when it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """A small report as JSON."""
    return erfscope.sweep("test_resnet", weights="random", **TINY).to_json()


def with_settings(document, file, **settings):
    """The report with other settings, stored."""
    file.write_text(json.dumps({**document, "settings": {**document["settings"], **settings}}))
    return file


class Trap:
    """What a pickle can hold: unpickling it runs code."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize("spec", ["nets.py:tiny", "Ours=nets.py:tiny", "nets:tiny"])
def test_a_factory_that_a_report_names_runs_only_where_its_reader_names_it_too(project, capsys, spec):
    erfscope.sweep(spec, **TINY).save("run")
    sys.modules.pop("nets", None)
    (project / "ran").unlink()
    plain = spec.removeprefix("Ours=")
    with pytest.raises(ErfscopeError, match=f"may run code.*erfscope analyze {plain} --from run, or models="):
        erfscope.repeat("run")
    with pytest.raises(ErfscopeError, match=f"run is not of 'other.py:f' but of {plain}"):
        erfscope.repeat("run", models="other.py:f")
    assert _run(["analyze", "--from", "run", "--format", "csv"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (project / "ran").exists()
    assert erfscope.repeat("run", models=[spec]).is_same
    assert _run(["analyze", plain, "--from", "run", "--format", "csv"]) == 0
    assert capsys.readouterr().err.startswith(f"erfscope: --from run builds {spec}\n")
    sys.modules.pop("nets", None)


def test_every_factory_of_a_comparison_is_to_be_named(project):
    erfscope.compare(["nets.py:tiny", "A=nets.py:tiny", "test_resnet"], weights="random", **TINY).save("run")
    (project / "ran").unlink()
    with pytest.raises(ErfscopeError, match=r"nets\.py:tiny"):
        erfscope.repeat("run", models="test_resnet")
    assert not (project / "ran").exists()
    assert erfscope.repeat("run", models="nets.py:tiny").is_same


def test_a_block_by_its_class_is_to_be_named(project, capsys):
    insert = "nets.py:Block@layer2"
    erfscope.sweep("test_resnet", weights="random", insert=insert, **TINY).save("run")
    (project / "ran").unlink()
    with pytest.raises(ErfscopeError, match=f"inserts '{insert}', which may run code"):
        erfscope.repeat("run")
    assert not (project / "ran").exists()
    assert _run(["analyze", "--from", "run", "--insert", insert, "--format", "csv"]) == 0
    assert capsys.readouterr().err.startswith(f"erfscope: --from run builds test_resnet + {insert}\n")


def test_words_for_what_builds_a_model_are_to_be_given_again_and_numbers_are_not(project):
    erfscope.sweep("nets.py:tiny", model_kwargs={"width": 6}, **TINY).save("numbers")
    assert erfscope.repeat("numbers", models="nets.py:tiny").is_same
    erfscope.sweep("nets.py:tiny", model_kwargs={"name": "x"}, **TINY).save("words")
    with pytest.raises(ErfscopeError, match=r"builds its model with name = x.*--model-kwargs name=x"):
        erfscope.repeat("words", models="nets.py:tiny")
    assert erfscope.repeat("words", models="nets.py:tiny", model_kwargs={"name": "x"}).is_same


@pytest.mark.parametrize(
    "spec",
    ["a:b", "A=b.c:d", "x.py:f", "A=B=x.py:f", "torchvision=x:f", "hf-hubs:x/y", "x.pt2:f", "x.pt2=y:f", "C:/x.py:f"],
)
def test_what_begins_with_no_known_word_is_taken_for_code(document, tmp_path, spec):
    with pytest.raises(ErfscopeError, match="may run code"):
        erfscope.repeat(with_settings(document, tmp_path / "report.json", model=spec))


@pytest.mark.parametrize(
    "spec", ["hf-hub:owner/name", "torchvision:nothing", "transformers:owner/name", "local-dir:nowhere", "nowhere.pt2"]
)
def test_what_is_only_read_need_not_be_named(document, tmp_path, spec):
    with pytest.raises(ErfscopeError) as caught:
        erfscope.repeat(with_settings(document, tmp_path / "report.json", model=spec))
    assert "may run code" not in str(caught.value)


def test_whatever_would_be_built_as_a_factory_is_taken_for_code():
    pieces = [
        "",
        "A=",
        "hf-hub:",
        "torchvision:",
        "TIMM:",
        "transformers",
        "x.pt2",
        "x.py:",
        ":f",
        "=",
        "/",
        "b.c",
        " ",
    ]
    specs = {"".join(parts) for parts in itertools.product(pieces, repeat=3)}
    factories = [
        spec
        for spec in specs
        if sources._kind(sources.split_label(sources.split_label(spec)[1])[1]) is sources._factory
    ]
    assert len(factories) > 500
    assert [spec for spec in factories if not repetition._is_code(sources.split_label(spec)[1], unsafe=False)] == []


def test_a_report_does_not_say_that_pickles_may_run(document, project, capsys):
    torch.save(Trap(), project / "evil.pth")
    file = with_settings(document, project / "report.json", unsafe_load=True, checkpoint="evil.pth")
    with pytest.raises(ErfscopeError, match="code in it is never run unasked"):
        erfscope.repeat(file)
    assert _run(["analyze", "--from", str(file), "--format", "csv"]) == 2
    assert f"--from {file} builds test_resnet, weights of evil.pth\n" in capsys.readouterr().err
    with pytest.raises(ErfscopeError, match=r"name it as well beside --unsafe-load: --checkpoint evil\.pth"):
        erfscope.repeat(file, unsafe_load=True)
    with pytest.raises(ErfscopeError, match=r"builds 'hf-hub:a/b', which may run code"):
        erfscope.repeat(with_settings(document, file, model="hf-hub:a/b"), unsafe_load=True)
    assert not (project / "ran").exists()


def test_a_report_that_was_made_with_unsafe_load_takes_it_from_its_reader(project):
    torch.save({"state_dict": timm.create_model("test_resnet").state_dict(), "trap": Trap()}, "mine.pth")
    erfscope.sweep("test_resnet", checkpoint="mine.pth", unsafe_load=True, **TINY).save("run")
    with pytest.raises(ErfscopeError, match="code in it is never run unasked"):
        erfscope.repeat("run")
    assert erfscope.repeat("run", unsafe_load=True, checkpoint="mine.pth").is_same


def test_what_a_transform_did_is_not_done_without_it(tmp_path):
    def half(picture):
        return torch.zeros(3, 32, 32) + torch.linspace(0, 1, 32)

    erfscope.sweep("test_resnet", weights="random", transform=half, **TINY).save(tmp_path / "run")
    with pytest.raises(ErfscopeError, match="transform of its own program's"):
        erfscope.repeat(tmp_path / "run")
    assert erfscope.repeat(tmp_path / "run", transform=half).is_same


ODD = (5, -1.5, True, "x", [], [[]], [{}], {}, {"a": 1}, [None])
#: Of these values, those that an option may have: wrong ones among them are refused later, for what they are.
FIT = {
    "channels": (5, "x", []),
    **dict.fromkeys(("layer", "wrt", "convention", "measures", "weights", "images"), ("x",)),
    **dict.fromkeys(
        ("method", "dtype", "amp_dtype", "device", "synthetic", "shard", "layout", "label", "checkpoint", "accept"),
        ("x",),
    ),
    **dict.fromkeys(("samples", "seed", "batch_size", "workers", "in_chans", "prefix_tokens"), (5,)),
    **dict.fromkeys(("cone", "verify", "trust", "keep_going", "unsafe_load"), (True,)),
    **dict.fromkeys(("mean", "std", "until_se"), (5, -1.5)),
    "model": ("x",),
    "transform": ("x",),
    "draws": (5,),
    "input_size": (5, "x"),
    "insert": ("x", []),
    "model_kwargs": ({}, {"a": 1}),
    "alpha": (5, -1.5, "x", [None]),
    "unit": ("x", [[]], [{}], [None]),
}


@pytest.mark.parametrize("name", sorted(FIT))
def test_settings_of_another_type_are_damage_and_are_named(document, tmp_path, name):
    for value in ODD:
        file = with_settings(document, tmp_path / "report.json", **{name: value})
        if any(value == fit and type(value) is type(fit) for fit in FIT[name]):
            continue
        with pytest.raises(ErfscopeError, match="the settings of .*report.json are damaged: " + name):
            erfscope.repeat(file)


def test_every_option_that_a_report_can_have_is_looked_at():
    called = {"progress", "stop", "tell", "resume", "retry_failed"}
    # Options are stored by their own names.
    assert set(erfscope.Options.__annotations__) - called - set(ALIASES) == set(FIT) - {"model"}


def test_another_name_of_an_option_is_not_taken_from_a_report(document, tmp_path):
    assert (
        "image"
        not in repetition.plan_of(
            with_settings(document, tmp_path / "report.json", image="elsewhere.png"), (), {}
        ).options
    )


def test_settings_that_python_takes_are_no_damage(document, tmp_path):
    given = {"mean": 0.5, "std": [0.2, 0.2, 0.2], "unit": [0, 0], "input_size": [32, 32], "insert": []}
    again = erfscope.repeat(with_settings(document, tmp_path / "report.json", **given))
    assert again.report[0].ok


def test_a_part_of_a_run_is_not_compared_with_the_whole(tmp_path, capsys):
    stops = iter([False, True])
    asked = {"weights": "random", "batch_size": 1, **TINY, "samples": 13}
    erfscope.sweep("test_resnet", stop=lambda: next(stops, True), **asked).save(tmp_path / "run")
    with pytest.raises(
        ErfscopeError, match=r"test_resnet in .*run was stopped after 1 of 13 images; complete it first.*--resume"
    ):
        erfscope.repeat(tmp_path / "run")
    erfscope.sweep("test_resnet", resume=tmp_path / "run", **asked).save(tmp_path / "run", force=True)
    assert erfscope.repeat(tmp_path / "run").is_same
    erfscope.sweep("test_resnet", shard="1/2", **asked).save(tmp_path / "shard")
    assert _run(["analyze", "--from", str(tmp_path / "shard")]) == 2
    assert "is one shard of a run; put its shards together first" in capsys.readouterr().err


def test_models_with_blocks_are_each_measured_once(tmp_path):
    before = erfscope.compare(["A=test_resnet"], weights="random", insert="gcn@layer2", **TINY)
    before.save(tmp_path / "run")
    again = erfscope.repeat(tmp_path / "run")
    assert again.is_same
    assert [row.id for row in again.report] == [row.id for row in before]
