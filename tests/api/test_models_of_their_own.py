"""Each of several models with its own layer and checkpoint, and weights of which nobody knows that they are trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from one_line import one_line
from torch import nn

import erfscope
from erfscope import MeasurementError
from erfscope.adapters.sources.sources import split_layer
from erfscope.show.page import html

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.bottleneck = nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1))
        self.dec1 = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 3, 1, 1))
        self.dec2 = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3, 1, 1))

    def forward(self, x):
        return self.dec2(self.dec1(self.bottleneck(self.enc(x))))

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential()
        self.net.inner = Net()

    def forward(self, x):
        return self.net(x)

def small():
    net = nn.Sequential(nn.Conv2d(3, 4, 5, 4, 2), nn.Conv2d(4, 4, 3, 1, 1))
    net.bottleneck = nn.Conv2d(4, 4, 1)
    return net
"""
SIZE = {"input_size": 32, "samples": 1, "measures": "r50"}
MADE = "weights as the factory made them; no checkpoint was given"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Nets of a user, and a checkpoint of one."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    torch.save(erfscope.adapters.load("nets.py:Net", seed=5).module.state_dict(), "best.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("resnet18@layer3", ("resnet18", "layer3")),
        ("net.py:make@dec1", ("net.py:make", "dec1")),
        ("net.py:make@dec1@1", ("net.py:make", "dec1@1")),
        ("my@net.py:make", ("my@net.py:make", None)),
        ("a@b/net.py:make@dec1", ("a@b/net.py:make", "dec1")),
        ("hf-hub:owner/name@main", ("hf-hub:owner/name@main", None)),
        ("hf-hub:owner/name@main@layer3", ("hf-hub:owner/name@main", "layer3")),
        ("resnet18.a1_in1k", ("resnet18.a1_in1k", None)),
    ],
)
def test_a_layer_stands_behind_the_spec_and_a_revision_stays_one(spec, parts):
    assert split_layer(spec) == parts


@pytest.mark.slow
def test_a_layer_that_all_models_have_is_measured_of_each(folder):
    found = erfscope.compare(["nets.py:Net", "nets.py:small"], layer="bottleneck", **SIZE)
    assert [row.layer for row in found] == ["bottleneck", "bottleneck"]
    alone = erfscope.analyze("nets.py:Net", layer="bottleneck", **SIZE)
    assert float(found[0]["r50"]) == float(alone["r50"])


@pytest.mark.slow
def test_each_model_has_its_own_layer_and_checkpoint(folder):
    specs = erfscope.compare(["ours=nets.py:Net@dec1", "nets.py:small@bottleneck"], **SIZE)
    nets = {"ours": "nets.py:Net", "nets.py:small": "nets.py:small"}
    assert erfscope.analyze("nets.py:Net@dec1", layer="dec2", **SIZE).layer == "dec1"
    assert [row.layer for row in erfscope.compare(["nets.py:Net@dec1"], layer="dec2", **SIZE)] == ["dec1"]
    named = erfscope.compare(nets, layer={"ours": "dec1", "nets.py:small": "bottleneck"}, **SIZE)
    assert [(row.label, row.layer, float(row["r50"])) for row in specs] == [
        (row.label, row.layer, float(row["r50"])) for row in named
    ]
    files = dict.fromkeys("ab", "best.pt")
    trained = erfscope.compare(dict.fromkeys("ab", "nets.py:Net"), checkpoint=files, **SIZE)
    assert [(row.weights.source, row.weights.origin) for row in trained] == [("checkpoint", "best.pt")] * 2
    assert trained[0].weights.sha256 != named[0].weights.sha256


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"layer": "dec1"}, r"unknown layer 'dec1' in nets.py:small.*LABEL=MODEL@LAYER"),
        ({"layer": {"other": "dec1"}}, "unknown model 'other' in the layer of each; there is: nets.py:Net"),
        ({"checkpoint": "best.pt"}, r"write checkpoint=\{'LABEL': 'FILE'\}"),
        ({"checkpoint": Path("best.pt")}, r"write checkpoint=\{'LABEL': 'FILE'\}"),
        ({"checkpoint": ["nets.py:Net=a.pt", "nets.py:Net=b.pt"]}, "the checkpoint of nets.py:Net stands twice"),
        ({"weights": {"nets.py:Net": "random"}}, "weights takes no mapping"),
    ],
)
def test_what_a_model_lacks_is_refused_with_the_way_on(asked, text, folder):
    one_line(lambda: erfscope.compare(["nets.py:Net", "nets.py:small"], **SIZE, **asked), text)


@pytest.mark.slow
def test_one_model_that_is_explored_has_its_checkpoint_by_label_or_without(folder):
    for given in ("net=best.pt", "best.pt", ["best.pt"], {"net": "best.pt"}):
        (found,) = erfscope.explore("net=nets.py:Net@dec1", grid=1, input_size=32, checkpoint=given).models
        assert (found.conditions.label, found.stages[0].name) == ("net", "dec1")
        assert found.conditions.weights.origin == "best.pt"
    several = ["best.pt", "best.pt"]
    words = r"write checkpoint=\{'LABEL': 'FILE'\}"
    one_line(lambda: erfscope.explore("net=nets.py:Net", grid=1, input_size=32, checkpoint=several), words)


def test_one_model_takes_no_mapping(folder):
    words = r"layer takes no mapping.*erfscope\.compare"
    one_line(lambda: erfscope.analyze("nets.py:Net", layer={"a": "dec1"}, **SIZE), words)
    one_line(lambda: erfscope.tile("nets.py:Net@dec1"), "names a layer")


@pytest.mark.slow
def test_weights_of_a_factory_are_named_and_not_mixed_with_trained_ones(folder, command):
    result = erfscope.analyze("nets.py:Net", **SIZE)
    assert MADE in str(result)
    assert MADE in html(erfscope.sweep("nets.py:Net", **SIZE))
    pair = {"made": "nets.py:Net", "trained": "nets.py:Net"}
    trained = {"checkpoint": {"trained": "best.pt"}, **SIZE}
    words = f"made: {MADE}, and trained models, such as trained"
    one_line(lambda: erfscope.compare(pair, **trained), words, MeasurementError)
    asked = erfscope.compare(pair, weights="random", **trained)
    assert [row.weights.source for row in asked] == ["factory", "checkpoint"]
    # A module that is handed over has the weights that its owner wants.
    given = erfscope.compare([nn.Conv2d(3, 4, 3), erfscope.adapters.load("nets.py:Net", checkpoint="best.pt")], **SIZE)
    assert [row.weights.source for row in given] == ["given", "checkpoint"]
    beside = erfscope.compare({"made": "nets.py:Net", "given": nn.Conv2d(3, 4, 3)}, **SIZE)
    assert [row.weights.source for row in beside] == ["factory", "given"]
    options = ("--input-size", "32", "--samples", "2", "-q")
    code, out, _ = command("compare", "nets.py:Net", "nets.py:small", *options)
    assert (code, out.count(MADE)) == (0, 2)


@pytest.mark.slow
def test_a_check_does_not_pass_a_checkpoint_for_what_a_factory_made(folder):
    asked = {"baseline": "base.json", **SIZE}
    erfscope.check("nets.py:Net", missing="accept", **asked)
    same = erfscope.check("nets.py:Net", **asked)
    assert same.word == "pass"
    assert MADE in same.text
    other = erfscope.check("nets.py:Net", checkpoint="best.pt", **asked)
    assert (other.word, other.cause) == ("cannot tell", "settings changed")
    # A baseline names its weights' source, so that one of an earlier version holds.
    assert json.loads((folder / "base.json").read_text())["entries"]["nets.py:Net"]["protocol"]["weights"] == "own"


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "inside"), [("nets.py:Net", ""), ("nets.py:Wrapped", "net.inner.")])
def test_the_stages_of_a_net_are_its_outermost_modules_with_weights(spec, inside, folder):
    parts = [f"{inside}{name}" for name in ("enc", "bottleneck", "dec1", "dec2")]
    assert [row.layer for row in erfscope.sweep(spec, layer="stages", **SIZE)] == parts
    assert [row.layer for row in erfscope.sweep(spec, layer=f"{inside}dec*", **SIZE)] == parts[2:]
    table = erfscope.layers(spec, input_size=32)
    assert [row.name for row in table.rows if row.part] == parts
    assert all(f"\n{name} " in str(table) for name in parts)
    explorer = erfscope.explore(spec, grid=1, input_size=32)
    assert [stage.name for stage in explorer.models[0].stages] == parts

    if not inside:
        # A pattern stands for letters of one name, and must fit.
        assert [row.layer for row in erfscope.sweep(spec, layer="dec?.1", **SIZE)] == ["dec1.1", "dec2.1"]
        one_line(lambda: erfscope.sweep(spec, layer="x*", **SIZE), "unknown layer 'x\\*'")
