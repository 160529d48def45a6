"""The command line as users and their CI meet it: bad input is one line, results are on stdout, nothing steers the
terminal."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import warnings
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from releases import needs_folders

import erfscope
from erfscope.cli import doctor as doctor_module
from erfscope.cli.commands import OWN, import_command
from erfscope.core.answer.storage import writing
from erfscope.show.command.console import COMMON
from erfscope.show.figures.kinds import KINDS

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn", "plain_environment")

NETS = """
import torch
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 8, 3, 2, 1))

def nudged():
    net = tiny()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + 0.02 * torch.randn_like(p))
    return net

def nan():
    net = tiny()
    net[0].weight.data[0, 0, 0, 0] = float("nan")
    return net

def dead():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
    net[0].bias.data.fill_(-1e3)
    return net

def flat():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))

def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3))

def five():
    return nn.Sequential(nn.Conv2d(5, 8, 3, 2, 1))

def raises():
    raise ValueError("no weights here\\nand a second line")

def number():
    return 3

class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        self.conv(x)
        raise RuntimeError("boom\\nand a second line")

class Leaving(Failing):
    def forward(self, x):
        raise SystemExit(7)
"""
QUICK = ["--weights", "random", "--samples", "2"]
TINY = ["--input-size", "32", "--samples", "2"]
#: Control characters, direction marks and lone surrogates; line breaks and tabs may stay.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Evil:
    """A pickle that leaves a file behind when it is executed."""

    def __reduce__(self):
        return (os.mkdir, (str(Path.cwd() / "executed"),))


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    """A working directory with everything that can be wrong with a file."""
    folder = tmp_path_factory.mktemp("scene")
    (folder / "nets.py").write_text(NETS)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    picture.save(folder / "good.png")
    (folder / "corrupt.png").write_bytes((folder / "good.png").read_bytes()[:300])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("this is no image")
    (folder / "nothing").mkdir()
    (folder / "dangling").symlink_to("moved")
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("years of work")
    (folder / "model.onnx").write_bytes(b"onnx")
    torch.save({"other.weight": torch.zeros(3)}, folder / "wrong.pth")
    (folder / "notes.pth").write_text("no checkpoint")
    here = Path.cwd()
    os.chdir(folder)
    torch.save({"state_dict": Evil()}, folder / "evil.pth")
    os.chdir(here)
    state = timm.create_model("test_resnet").state_dict()
    state["layer3.0.conv1.weight"][:] = math.nan
    torch.save(state, folder / "nan.pth")
    erfscope.sweep("test_resnet", weights="random", samples=2).save(folder / "two")
    erfscope.sweep("test_resnet", weights="random", samples=3).save(folder / "three")
    return folder


@pytest.fixture
def run(scene, monkeypatch, command):
    """Run a command in the scene."""
    monkeypatch.chdir(scene)
    return command


def schema() -> dict:
    return json.loads((files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text())


def results(out: str) -> list[dict]:
    """The results of a --json run; stdout must be that and nothing else."""
    document = json.loads(out)
    jsonschema.validate(document, schema())
    return document["results"]


# --- Bad input: nothing could be started (2) ------------------------------------------------------

#: Limits and words of every option: tests/options.
NOT_STARTED = {
    "unknown model": (["analyze", "resnet81"], "resnet81", "did you mean 'resnet18'"),
    "no model": (["analyze"], "no model was named", "erfscope analyze resnet18"),
    "empty model": (["analyze", ""], "no model was named"),
    "unknown command": (["analyse", "resnet18"], "analyse", "analyze"),
    "unknown option": (["analyze", "test_resnet", "--layr", "x"], "--layr", "--layer"),
    "two models": (["analyze", "a", "b"], "b", "--help"),
    "unknown layer": (["analyze", "test_resnet", *QUICK, "--layer", "layer9"], "layer9", "did you mean 'layer4'"),
    "empty layer": (["analyze", "test_resnet", *QUICK, "--layer", ","], "layer is empty"),
    "unit outside": (["analyze", "test_resnet", *QUICK, "--unit", "99,99"], "99,99", "5x5", "4,4"),
    "negative unit": (["analyze", "test_resnet", *QUICK, "--unit", "-1,0"], "-1,0", "5x5"),
    "unit word": (["analyze", "test_resnet", *QUICK, "--unit", "middel"], "middel", "centre, corner, edge, grid:N"),
    "half a unit": (["analyze", "test_resnet", *QUICK, "--unit", "3"], "'3'", "3,3"),
    "empty grid": (["analyze", "test_resnet", *QUICK, "--unit", "grid:0"], "grid:N"),
    "corrupt image": (
        ["analyze", "test_resnet", *QUICK, "--image", "corrupt.png"],
        "corrupt.png",
        "damaged",
        "leave it out",
    ),
    "empty image": (["analyze", "test_resnet", *QUICK, "--image", "empty.png"], "empty.png", "is empty"),
    "no image": (["analyze", "test_resnet", *QUICK, "--image", "text.png"], "text.png", "not an image", "PNG"),
    "missing file": (["analyze", "test_resnet", *QUICK, "--image", "goood.png"], "goood.png", "does not exist"),
    "missing folder": (["analyze", "test_resnet", *QUICK, "--image", "val/"], "val/", "does not exist"),
    "empty folder": (["analyze", "test_resnet", *QUICK, "--image", "nothing"], "nothing", ".png"),
    "empty pattern": (["analyze", "test_resnet", *QUICK, "--image", "val/*.jpg"], "val/*.jpg", "does not exist"),
    "wrong checkpoint": (
        ["analyze", "test_resnet", "--checkpoint", "wrong.pth"],
        "wrong.pth",
        "missing: conv1.0.weight",
        "no key matches",
    ),
    "no checkpoint": (["analyze", "test_resnet", "--checkpoint", "notes.pth"], "notes.pth", "damaged", "torch.save"),
    "missing checkpoint": (["analyze", "test_resnet", "--checkpoint", "gone.pth"], "gone.pth", "does not exist"),
    "code in a checkpoint": (
        ["analyze", "test_resnet", "--checkpoint", "evil.pth"],
        "evil.pth",
        "runs no code",
        "state_dict()",
    ),
    "onnx": (["analyze", "model.onnx"], "model.onnx", "no gradients", "package.module:factory"),
    "image as model": (["analyze", "good.png"], "good.png", "is an image", "--image 'good.png'"),
    "checkpoint as model": (["analyze", "wrong.pth"], "wrong.pth", "--checkpoint"),
    "python file as model": (["analyze", "nets.py"], "nets.py", "nets.py:NAME"),
    "factory that raises": (["analyze", "nets.py:raises"], "nets.py:raises failed", "no weights here"),
    "factory of a number": (["analyze", "nets.py:number"], "returned int", "nn.Module"),
    "unknown factory": (["analyze", "nets.py:tinny"], "tinny", "did you mean 'tiny'"),
    "lazy layers": (["analyze", "nets.py:lazy"], "lazy parameters", "example input"),
    "zero samples": (["analyze", "test_resnet", "--samples", "0"], "samples", "at least 1", "not 0"),
    "samples in words": (["analyze", "test_resnet", "--samples", "many"], "--samples", "many"),
    "negative size": (["analyze", "test_resnet", "--input-size", "-3"], "-3", "at least 1"),
    "zero size": (["analyze", "test_resnet", "--input-size", "0x64"], "0x64", "at least 1"),
    "size in words": (["analyze", "test_resnet", "--input-size", "large"], "large", "224 or 192x256"),
    "draws": (["analyze", "test_resnet", "--draws", "0"], "draws", "'all'"),
    "dtype": (["analyze", "test_resnet", "--dtype", "flaot32"], "flaot32", "did you mean 'float32'"),
    "device": (["analyze", "test_resnet", *QUICK, "--device", "tpu"], "tpu", "auto, cpu, cuda, mps"),
    "meta device": (["analyze", "test_resnet", *QUICK, "--device", "meta"], "meta", "auto, cpu, cuda, mps"),
    "convention": (["analyze", "test_resnet", "--convention", "jacobain"], "jacobain", "did you mean 'jacobian'"),
    "no convention": (["analyze", "test_resnet", "--convention", ""], "convention is empty"),
    "one bad convention": (["analyze", "test_resnet", "--convention", "luo,kin"], "kin", "did you mean 'kim'"),
    "method": (["analyze", "test_resnet", *QUICK, "--method", "gradiant"], "gradiant", "did you mean 'gradient'"),
    "guided backprop": (
        ["analyze", "nets.py:tiny", *TINY, "--method", "guided_backprop"],
        "nn.ReLU",
        "--method gradient",
    ),
    "measures": (["analyze", "test_resnet", "--measures", "r50,r51"], "r51", "did you mean 'r50'"),
    "no measures": (["analyze", "test_resnet", "--measures", ","], "measures is empty", "r50"),
    "format": (["analyze", "test_resnet", "--format", "jason"], "jason", "'json'"),
    "wrt": (["analyze", "test_resnet", *QUICK, "--wrt", "layer9"], "layer9", "did you mean 'layer4'"),
    "wrt after the layer": (
        ["analyze", "test_resnet", *QUICK, "--layer", "layer2", "--wrt", "layer4"],
        "layer2",
        "layer4",
        "no path",
    ),
    "synthetic": (["analyze", "test_resnet", *QUICK, "--synthetic", "leafs"], "leafs", "did you mean 'leaves'"),
    "both images": (
        ["analyze", "test_resnet", "--synthetic", "noise", "--image", "good.png"],
        "either images or a synthetic",
    ),
    "weights": (["analyze", "test_resnet", "--weights", "randm"], "randm", "did you mean 'random'"),
    "no weights": (["analyze", "test_resnet", "--weights", ""], "weights is empty"),
    "pretrained offline": (
        ["analyze", "test_resnet", "--weights", "pretrained"],
        "test_resnet",
        "HF_HUB_OFFLINE",
        "--weights random",
    ),
    "model kwargs": (["analyze", "test_resnet", "--model-kwargs", "depth"], "depth", "NAME=VALUE"),
    "refused kwargs": (
        ["analyze", "test_resnet", *QUICK, "--model-kwargs", "wings=2"],
        "wings=2",
        "unexpected keyword",
    ),
    "until-se": (["analyze", "test_resnet", "--until-se", "200%"], "until-se", "between 0 and 100 %"),
    "until-se in words": (["analyze", "test_resnet", "--until-se", "soon"], "--until-se", "2%"),
    "endless mean": (["analyze", "nets.py:tiny", "--mean", "nan"], "mean", "finite"),
    "two means": (["analyze", "test_resnet", "--weights", "random", "--mean", "0.5,0.4"], "2 values", "3 channels"),
    "image for five channels": (["analyze", "nets.py:five", *TINY, "--image", "good.png"], "5 channels", "--synthetic"),
    "no folder above -o": (["analyze", "test_resnet", "-o", "good.png/erf"], "the folder good.png", "choose another"),
    "existing -o": (["analyze", "test_resnet", "-o", "good.png"], "good.png exists already", "--force"),
    "foreign folder": (["analyze", "test_resnet", "-o", "full", "--force"], "full", "not an erfscope report"),
    "suffix of -o": (["analyze", "test_resnet", "-o", "erf.docx"], "erf.docx", ".json, .csv"),
    "empty -o": (["analyze", "test_resnet", "-o", ""], "-o", "empty name"),
    "-o twice": (["analyze", "test_resnet", "-o", "erf.json", "-o", "./erf.json"], "erf.json", "twice"),
    "-o is here": (["analyze", "test_resnet", "-o", "."], "working directory"),
    "nothing to compare": (["compare"], "nothing to compare", "compare resnet18 resnet50"),
    "layer of several": (
        ["compare", "test_resnet", "test_vit", "--layer", "blocks.1"],
        "blocks.1",
        "LABEL=MODEL@LAYER",
    ),
    "checkpoint of several": (
        ["compare", "test_resnet", "test_vit", "--checkpoint", "wrong.pth"],
        "--checkpoint",
        "LABEL=FILE",
    ),
    "sort": (["compare", "test_resnet", "test_vit", "--sort", "r51"], "r51", "did you mean 'r50'"),
    "missing report": (["compare", "test_resnet", "gone.json", *QUICK], "gone.json", "does not exist"),
    "one bad name": (["compare", "test_resnet", "resnt18", *QUICK], "resnt18", "did you mean 'resnet18'"),
    "layers of nothing": (["layers"], "MODEL"),
    "layers of no layer": (["layers", "test_resnet", "--layer", "layer9"], "layer9", "did you mean 'layer4'"),
    "shard of none": (
        ["analyze", "test_resnet", *QUICK, "--shard", "1/0"],
        "cannot read the shard '1/0'",
        "from 1/4 to 4/4",
    ),
    "contours in words": (["analyze", "test_resnet", "--contours", "a"], "'a' is no list of numbers", "write 50,90"),
    "tokens of no layout": (["analyze", "test_vit", *QUICK, "--prefix-tokens", "1"], "prefix-tokens", "--layout NLC"),
    "tokens of a map": (
        ["layers", "test_vit", "--layout", "NCHW", "--prefix-tokens", "1"],
        "prefix-tokens",
        "--layout NLC",
    ),
    "link to no image": (
        ["analyze", "test_resnet", *QUICK, "--image", "dangling"],
        "'dangling' is a link to 'moved', which does not exist",
    ),
    "link to no folder": (
        ["analyze", "test_resnet", *QUICK, "--image", "dangling/a.png"],
        "'dangling' is a link to 'moved'",
    ),
    "link to no weights": (["analyze", "test_resnet", "--checkpoint", "dangling"], "'dangling' is a link to 'moved'"),
    "link to no report": (["compare", "dangling", "test_resnet", *QUICK], "'dangling' is a link to 'moved'"),
    "link to no shard": (["merge", "dangling"], "'dangling' is a link to 'moved'"),
    "merge of no shard": (["merge", "two"], "test_resnet is no shard with its sums", "--shard i/n -o DIR"),
    "merge of no report": (["merge", "good.png"], "good.png"),
    "models like nothing": (["models", "resnet18x"], "resnet18x", "did you mean 'resnet18'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NOT_STARTED)
def test_what_cannot_be_started_is_one_line_with_code_2(run, scene, tmp_path, case):
    arguments, *fragments = NOT_STARTED[case]
    before = sorted(scene.rglob("*"))
    keeps = arguments[:1] in (["analyze"], ["compare"]) and "-o" not in arguments
    code, out, err = run(*arguments, *(["-o", str(tmp_path / "erf")] if keeps else []))
    assert (code, out) == (2, "")
    assert err.startswith("erfscope: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "internal error" not in err
    for fragment in fragments:
        assert fragment in err
    assert list(tmp_path.iterdir()) == []
    assert sorted(path for path in scene.rglob("*") if "__pycache__" not in path.parts) == [
        path for path in before if "__pycache__" not in path.parts
    ]


def test_code_in_a_checkpoint_is_never_executed(run, scene):
    run("analyze", "test_resnet", "--checkpoint", "evil.pth")
    assert not (scene / "executed").exists()
    torch.load(scene / "evil.pth", weights_only=False)  # The trap is sharp: it does spring where code is allowed.
    assert (scene / "executed").is_dir()
    (scene / "executed").rmdir()


@pytest.mark.parametrize("flag", ["-v", "--verbose", "-qv"])
def test_v_shows_the_traceback_before_the_line(run, flag):
    code, out, err = run("analyze", "nets.py:raises", flag)
    assert (code, out) == (2, "")
    assert "Traceback (most recent call last)" in err
    assert "ValueError: no weights here" in err
    assert err.splitlines()[-1].startswith("erfscope: nets.py:raises failed")


# --- Bad input: it ran, but a result cannot be used (3) -------------------------------------------

NOT_USABLE = {
    "NaN weights": (["nets.py:nan", *TINY], "NaN", "0.weight", "other weights"),
    "NaN checkpoint": (["test_resnet", "--checkpoint", "nan.pth", "--samples", "2"], "NaN", "layer3.0.conv1.weight"),
    "no spatial map": (["nets.py:flat", *TINY], "no layer with a spatial map", "(B, C, h, w)"),
    "failing forward": (["nets.py:Failing", *TINY], "boom", "fails on an input of 3 channels at 32x32"),
    "wrong channels": (["nets.py:tiny", *TINY, "--in-chans", "4"], "4 channels at 32x32", "--in-chans"),
    "no gradient": (["nets.py:dead", *TINY], "gradient is zero", "another layer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["rich", "json", "csv"])
@pytest.mark.parametrize("case", NOT_USABLE)
def test_what_ran_in_vain_is_a_row_and_one_line_with_code_3(run, tmp_path, case, format_):
    arguments, *fragments = NOT_USABLE[case]
    code, out, err = run("analyze", *arguments, "--format", format_, "-o", str(tmp_path / "erf"))
    assert code == 3
    assert err.startswith("erfscope: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in out + err
    for fragment in fragments:
        assert fragment in err
    if format_ == "json":
        assert results(out)[0]["status"] == ("degenerate" if case == "no gradient" else "error")
    # The report of a failure is whole too, and nothing else is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["erf"]
    assert sorted(path.name for path in (tmp_path / "erf").iterdir()) == ["index.html", "report.json"]
    assert not erfscope.read(tmp_path / "erf").ok


def test_a_model_that_leaves_the_program_is_one_line(run):
    code, out, err = run("analyze", "nets.py:Leaving", *TINY)
    assert (code, err.count("\n")) == (3, 1)
    # A row like that of any model that fails.
    assert out.startswith("nets.py:Leaving")
    assert "sys.exit(7)" in err


def test_an_input_beyond_memory_is_one_line(run, monkeypatch):
    def greedy(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr("erfscope.core.run.opening.feed_of", greedy)
    code, out, err = run("analyze", "nets.py:tiny", *TINY)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "--input-size" in err


def test_a_figure_of_nothing_is_said_and_the_row_is_still_printed(run, tmp_path):
    code, out, err = run("analyze", "nets.py:nan", *TINY, "-o", str(tmp_path / "erf.png"), "--json")
    assert code == 3
    assert results(out)[0]["status"] == "error"
    assert "no map to draw" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_is_said_and_the_results_are_still_printed(run, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("erfscope.core.answer.storage.files.map_bytes", full)
    code, out, err = run("analyze", "nets.py:tiny", *TINY, "-o", str(tmp_path / "erf"), "--json")
    assert code == 3
    assert results(out)[0]["status"] == "ok"
    assert err.startswith("erfscope: cannot write ")
    assert "No space left on device" in err
    assert list((tmp_path / "erf").iterdir()) == []


@pytest.mark.slow
def test_one_broken_picture_stops_the_run_unless_it_may_go_on(run):
    both = ["analyze", "nets.py:tiny", *TINY, "--image", "good.png", "--image", "corrupt.png", "--json"]
    code, out, err = run(*both)
    assert (code, out) == (2, "")
    assert "corrupt.png" in err
    code, out, err = run(*both, "--keep-going")
    (entry,) = results(out)
    assert (code, entry["status"], entry["input"]["n_dead"], entry["input"]["dead"]) == (0, "ok", 1, ["corrupt.png"])


# --- Output ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_fallback_to_random_weights_is_said_everywhere(run, tmp_path):
    target = tmp_path / "erf"
    code, out, err = run("analyze", "test_resnet", "--samples", "2", "-o", str(target))
    assert code == 0
    identity, _, rest = out.partition("\nRANDOM WEIGHTS (")
    assert identity.startswith("test_resnet · layer4")
    assert " ".join(identity.split()).endswith(
        "2 synthetic images (dead leaves) · jacobian (amplitude) · computed by its graph"
    ), "then the weights"
    assert rest.startswith("HF_HUB_OFFLINE is set): this describes the architecture only, not a trained model")
    text = "no pretrained weights (HF_HUB_OFFLINE is set); measured with random ones (seed 0)"
    assert err == f"erfscope: test_resnet: {text}; erfscope doctor --fix-hint test_resnet says how to get them\n"
    stored = erfscope.read(target)
    assert stored[0].weights.fallback
    assert "random weights (fallback)" in " ".join(text.get_text() for text in stored.figure(conditions=True).texts)
    for format_, pick in (("csv", 1), ("markdown", 2)):
        code, out, err = run("analyze", "test_resnet", "--samples", "2", "--format", format_, "--measures", "r50")
        assert code == 0
        assert "random (fallback)" in out.splitlines()[pick]
        assert "no pretrained weights" in err
    code, out, err = run("analyze", "test_resnet", "--samples", "2", "--json")
    (entry,) = results(out)
    assert code == 0
    assert (entry["weights"]["source"], entry["weights"]["fallback"], entry["weights"]["seed"]) == ("random", True, 0)
    assert "no pretrained weights" in err


@pytest.mark.slow
def test_a_terminal_shows_random_weights_once_and_breaks_lines_between_words(tmp_path):
    """Results and notes in one terminal of 80 columns; the doctor's hint is not lost."""
    terminal, inside = os.openpty()
    asked = ["test_resnet", "--samples", "2", "-o", str(tmp_path / "erf.json"), "--measures", "r50,r90"]
    call = [sys.executable, "-m", "erfscope", "analyze", *asked]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(call, stdout=inside, stderr=inside, stdin=subprocess.DEVNULL, env=environment)
    os.close(inside)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other side is closed
        while block := os.read(terminal, 1 << 16):
            shown += block
    os.close(terminal)
    assert process.wait() == 0
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    text = " ".join(" ".join(lines).split())
    assert len(re.findall("random weights|random ones|no pretrained weights", text, flags=re.IGNORECASE)) == 1
    assert "erfscope doctor --fix-hint test_resnet says how to get pretrained weights" in text
    assert all(len(line) <= 80 or " " not in line.removeprefix("wrote ") for line in lines)


@pytest.mark.slow
def test_random_weights_that_were_asked_for_are_no_fallback(run):
    code, out, err = run("analyze", "test_resnet", *QUICK, "--format", "csv", "--measures", "r50")
    assert (code, err) == (0, "")
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["weights"] == "random"


@pytest.mark.slow
def test_every_format_gives_the_same_number(run):
    by_format = {}
    for format_ in ("rich", "plain", "json", "csv", "markdown", "latex"):
        code, out, err = run(
            "analyze", "nets.py:tiny", *TINY, "--measures", "r50,r90", "--draws", "1", "--format", format_
        )
        assert (code, err) == (0, "")
        by_format[format_] = out
    (entry,) = results(by_format["json"])
    value = entry["measures"]["r50"]["value"]
    assert set(entry["measures"]) == {"r50", "r90"}
    (row,) = csv.DictReader(io.StringIO(by_format["csv"]))
    assert float(row["r50"]) == value
    assert row["r50_se"] == ""  # One draw of two pictures is too little for an error, and an empty cell is empty.
    for format_ in ("rich", "plain", "markdown", "latex"):
        assert f"{value:.2f}" in by_format[format_]
    assert by_format["markdown"].startswith("| model ")
    assert "\\toprule" in by_format["latex"]


def kinds_in_folder(results):
    """The figures of several results together that a report's folder holds."""
    return [kind.name for kind in KINDS if kind.in_folder and kind.unfit(results) is None]


@pytest.mark.slow
def test_a_folder_holds_a_map_and_a_figure_per_result_and_is_replaced_by_force_only(run, tmp_path):
    target = tmp_path / "erf-1.0"
    wanted = ["analyze", "nets.py:tiny", *TINY, "--unit", "centre,0x0", "-o", f"{target}/"]
    code, out, _ = run(*wanted)
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {target}/; look at {target / 'index.html'}"
    results = erfscope.read(target).results
    ids = [result.id for result in results]
    figures = [*(f"{name}{suffix}" for name in kinds_in_folder(results) for suffix in (".png", ".pdf")), "figure.tex"]
    assert {"panel.png", "profile.png", "units.png"} < set(figures)
    each = [f"{i}{s}" for i in ids for s in (".npz", ".png", ".pdf")]
    assert sorted(path.name for path in target.iterdir()) == sorted(["index.html", "report.json", *figures, *each])
    code, out, err = run(*wanted)
    assert (code, out) == (2, "")
    assert "--force" in err
    code, _, _ = run(*wanted, "--force", "--seed", "5")
    assert code == 0
    assert erfscope.read(target)[0].seed == 5
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.slow
def test_a_folder_that_cannot_take_its_name_leaves_the_old_report(run, tmp_path, monkeypatch):
    assert run("analyze", "nets.py:tiny", *TINY, "-o", str(tmp_path / "erf"))[0] == 0
    report, moved = erfscope.read(tmp_path / "erf"), Path.replace

    def stuck(self, target):
        if Path(target) == tmp_path / "erf":
            raise OSError(16, "Device or resource busy")
        return moved(self, target)

    monkeypatch.setattr(Path, "replace", stuck)
    monkeypatch.setattr(writing, "_exchanged", lambda *_: False)
    with pytest.raises(erfscope.ErfscopeError, match="resource busy"):
        report.save(tmp_path / "erf", force=True, drawn=False)
    assert erfscope.read(tmp_path / "erf")[0].id == report[0].id
    assert [path.name for path in tmp_path.iterdir()] == ["erf"]


@pytest.mark.slow
def test_files_are_written_even_if_nobody_reads_the_report(run, tmp_path, monkeypatch):
    for number, format_ in enumerate(("rich", "json", "csv")):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as unread, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", unread)
            code, _, err = run(
                "analyze", "nets.py:tiny", *TINY, "--format", format_, "-o", str(tmp_path / f"{number}.json")
            )
        assert (code, err) == (0, "")
    assert len(list(tmp_path.iterdir())) == 3


HOSTILE = ("[red]bold[bold]", "\x1b[31mred", "\u202eevil", "a|b", "two\nlines", "\udcff", "$x_1$", "+1")


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["rich", "plain", "json", "csv", "markdown", "latex"])
def test_labels_are_shown_as_they_are_and_steer_nothing(run, tmp_path, format_):
    labelled = [f"{label}=nets.py:tiny" for label in HOSTILE]
    target = tmp_path / "erf.png"
    code, out, err = run("compare", *labelled, *TINY, "--measures", "r50", "--format", format_, "-o", str(target))
    assert (code, err) == (0, "")
    assert not STEERING.search(out)
    assert target.is_file()
    for literal in ("[red]bold[bold]", "two lines", "?[31mred", "?evil"):
        # In Markdown an opening bracket is escaped, so that no link begins there.
        assert (literal.replace("[", "\\[") if format_ == "markdown" else literal) in out
    if format_ == "json":
        assert [entry["label"] for entry in results(out)] == [
            *("[red]bold[bold]", "?[31mred", "?evil", "a|b", "two lines", "?", "$x_1$", "+1")
        ]
    if format_ == "csv":
        assert [row["label"] for row in csv.DictReader(io.StringIO(out))][-1] == "'+1"


@pytest.mark.slow
def test_names_of_files_and_models_steer_nothing(run, scene):
    name = "x\x1b]0;title\x07[red].png"
    (scene / name).write_bytes((scene / "good.png").read_bytes())
    broken = os.fsdecode(b"b\xff\x1b.png")
    (scene / broken).write_bytes(b"")
    for arguments in (
        ["analyze", "nets.py:tiny", *TINY, "--image", name],
        ["analyze", "nets.py:tiny", *TINY, "--image", broken],
        ["analyze", "nets.py:tiny", *TINY, "--image", broken, "--keep-going"],
        ["analyze", "nets.py:tiny", *TINY, "-o", "erf\x1b[31m"],
        ["analyze", "resnet\x1b[31m18"],
        ["analyze", "resnet\x1b[31m18", "-v"],
        ["analyze", "\x1b[31m/x.py:tiny"],
        ["layers", "nets.py:tiny", "--layer", "\x1b[31m"],
        ["models", "\x1b[31m"],
        ["compare", "nets.py:tiny", "\x1b[31m.json", *TINY],
    ):
        _, out, err = run(*arguments)
        assert not STEERING.search(out + err)
        assert out + err
    for path in [scene / name, scene / broken, *(scene / "erf\x1b[31m").iterdir()]:
        path.unlink()
    (scene / "erf\x1b[31m").rmdir()


def test_markup_in_names_is_shown_literally(run, tmp_path):
    target = f"{tmp_path}/[red]erf[/red]:smile:.json"
    (tmp_path / "[red]erf[").mkdir()
    code, out, _ = run("analyze", "nets.py:tiny", *TINY, "-o", target)
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {target}"


@pytest.mark.slow
def test_quiet_leaves_only_the_results(run):
    code, out, err = run("analyze", "test_resnet", "--samples", "2", "--measures", "r50", "-q", "--json")
    assert (code, err) == (0, "")
    assert results(out)[0]["weights"]["fallback"]


@pytest.mark.slow
def test_quiet_is_one_line_for_each_result(run):
    few = ["--samples", "2", "--draws", "1", "--weights", "auto", "-q", "-o", "quiet.json"]
    code, out, err = run("compare", "test_resnet", "test_vit", *few)
    assert (code, err) == (0, "")
    for row, line in zip(results(Path("quiet.json").read_text()), out.splitlines(), strict=True):
        assert re.fullmatch(
            rf"{row['label']} {row['layer']} unit \d,\d: ok, r50 [\d.]+ px, random weights \(fallback: .+\)", line
        )
    code, out, err = run("analyze", "nets.py:nan", "--input-size", "32", "-q")
    assert (code, err, len(out.splitlines())) == (3, "", 1)
    assert ": error, " in out


@pytest.mark.slow
def test_fewer_images_than_samples_are_said(run):
    _, out, _ = run("analyze", "test_resnet", *QUICK, "--image", "good.png", "--samples", "8")
    assert "! 8 samples were asked for, and there is one image\n" in out
    _, out, _ = run("analyze", "test_resnet", *QUICK, "--image", "good.png", "--samples", "1")
    assert "samples were asked for" not in out


@pytest.mark.slow
def test_no_color_means_no_colour(run, monkeypatch):
    colour = re.compile("\x1b\\[[0-9;]*(3[0-9]|4[0-9]|9[0-9])[0-9;]*m")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    _, coloured, _ = run("analyze", "nets.py:tiny", *TINY)
    assert colour.search(coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    _, plain, _ = run("analyze", "nets.py:tiny", *TINY)
    assert not colour.search(plain)
    assert "▀" not in plain
    monkeypatch.delenv("NO_COLOR")
    for form in ("plain", "markdown", "csv", "latex"):
        assert "\x1b" not in run("analyze", "nets.py:tiny", *TINY, "--format", form)[1]
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("COLUMNS", "200")
    _, piped, _ = run("analyze", "nets.py:tiny", *TINY)
    assert "input image" in piped
    assert "\x1b" not in piped
    _, out, _ = run("analyze", "nets.py:tiny", *TINY, "--json")
    assert results(out)


def test_explain_prints_formulas_with_a_model_and_without(run):
    code, out, _ = run("analyze", "--explain")
    assert code == 0
    assert "not a quality score" in " ".join(out.split())
    code, out, _ = run("analyze", "nets.py:tiny", *TINY, "--explain", "--measures", "r50")
    assert code == 0
    assert "sum_c e_c y_c" in out


# --- Sweeps ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_is_the_product_in_order_with_distinct_ids(run, tmp_path):
    lists = {
        "--input-size": ("64", "96"),
        "--weights": ("random", "random-raw"),
        "--convention": ("luo", "kim"),
        "--layer": ("layer2", "layer3"),
        "--unit": ("1x1", "0x0"),
    }
    options = [text for option, values in lists.items() for text in (option, ",".join(values))]
    code, out, _ = run("analyze", "test_resnet", "--samples", "2", "--measures", "r50", *options, "--json")
    assert code == 0
    entries = results(out)
    found = [
        (
            str(entry["input"]["size"][0]),
            entry["weights"]["source"],
            entry["convention"],
            entry["layer"],
            "x".join(str(i) for i in entry["unit"]["index"]),
        )
        for entry in entries
    ]
    assert found == list(itertools.product(*lists.values()))
    assert len({entry["id"] for entry in entries}) == len(entries) == 32


@pytest.mark.slow
def test_a_stored_sweep_has_one_map_and_one_figure_per_result(run, tmp_path):
    target = tmp_path / "erf"
    code, _, _ = run("analyze", "nets.py:tiny", *TINY, "--convention", "luo,kim", "--unit", "grid:2", "-o", str(target))
    assert code == 0
    report = erfscope.read(target)
    assert [result.unit.index for result in report] == [(2, 2), (2, 6), (6, 2), (6, 6)] * 2
    for suffix, more in ((".npz", []), (".png", kinds_in_folder(report.results))):
        assert sorted(path.stem for path in target.glob(f"*{suffix}")) == sorted(
            [*(result.id for result in report), *more]
        )
    assert all(result.map is not None for result in report)


@pytest.mark.slow
def test_stages_are_all_stages(run):
    code, out, _ = run("analyze", "test_resnet", *QUICK, "--layer", "stages", "--measures", "r50", "--format", "csv")
    assert code == 0
    layers = [row["layer"] for row in csv.DictReader(io.StringIO(out))]
    assert layers == ["act1", "layer1", "layer2", "layer3", "layer4"]


# --- compare --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_of_one_size_keep_it_and_others_meet_at_224(run):
    code, out, _ = run("compare", "test_resnet", "V=test_vit", *QUICK, "--measures", "r50", "--json")
    assert code == 0
    assert [(e["label"], e["input"]["size"]) for e in results(out)] == [("test_resnet", [160, 160]), ("V", [160, 160])]
    code, out, _ = run("compare", "test_resnet", "test_vit", "nets.py:tiny", *QUICK, "--measures", "r50", "--json")
    assert code == 0
    assert [e["input"]["size"] for e in results(out)] == [[224, 224]] * 3
    code, out, _ = run(
        "compare", "test_resnet", "test_vit", *QUICK, "--input-size", "96", "--measures", "r50", "--json"
    )
    assert [e["input"]["size"] for e in results(out)] == [[96, 96]] * 2


@pytest.mark.slow
def test_compared_models_see_the_same_pixels(scene, monkeypatch):
    monkeypatch.chdir(scene)
    ours, theirs = erfscope.compare(
        ["test_resnet", "nets.py:tiny"], weights="random", images="good.png", input_size=64, measures="r50"
    )
    assert (ours.input.sha256, ours.picture.shape) == (theirs.input.sha256, (64, 64, 3))
    np.testing.assert_array_equal(ours.picture, theirs.picture)


def test_a_paired_difference_is_surer_than_an_unpaired_one(scene, monkeypatch):
    monkeypatch.chdir(scene)
    report = erfscope.compare(["nets.py:tiny", "nets.py:nudged"], input_size=32, samples=8, measures="r50")
    difference, se = report.differences(["r50"])[1]["r50"]
    assert difference == pytest.approx(report[1]["r50"].value - report[0]["r50"].value)
    assert 0 < se < 0.5 * math.hypot(report[0]["r50"].se, report[1]["r50"].se)


@pytest.mark.slow
def test_the_table_shows_differences_and_sorts_by_a_measure(run):
    models = ["small=nets.py:tiny", "large=test_resnet"]
    code, out, _ = run("compare", *models, *QUICK, "--input-size", "64")
    assert code == 0
    assert "Δ vs first" in out
    code, out, _ = run("compare", *models, *QUICK, "--input-size", "64", "--sort", "r50", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["label"] for row in rows] == ["large", "small"]
    assert float(rows[0]["r50"]) > float(rows[1]["r50"])


@pytest.mark.slow
def test_a_model_that_fails_is_a_row_and_the_others_are_measured(run, tmp_path):
    models = ["nets.py:tiny", "nets.py:Failing", "nets.py:five", "nets.py:flat", "test_resnet"]
    code, out, err = run("compare", *models, *QUICK, "--input-size", "32", "--json", "-o", str(tmp_path / "erf"))
    assert code == 3
    assert [entry["status"] for entry in results(out)] == ["ok", "error", "error", "error", "ok"]
    reasons = err.splitlines()
    assert len(reasons) == 3
    assert "boom" in reasons[0]
    assert "takes 5 channels" in reasons[1]
    assert "no layer with a spatial map" in reasons[2]
    assert len(erfscope.read(tmp_path / "erf")) == 5
    code, out, _ = run("compare", *models, *QUICK, "--input-size", "32")
    assert code == 3
    assert "boom" in out


@pytest.mark.slow
def test_a_model_that_cannot_take_the_common_size_is_a_row(run):
    code, out, err = run(
        "compare", "nets.py:tiny", "torchvision:vit_b_16", *QUICK, "--input-size", "40", "--measures", "r50", "--json"
    )
    assert code == 3
    assert [(e["status"], e["input"]["size"]) for e in results(out)] == [("ok", [40, 40]), ("error", [40, 40])]
    assert "image_size=40" in err


@pytest.mark.slow
def test_stored_results_are_rows_under_their_label(run):
    code, out, err = run("compare", "Stored=two", "test_resnet", *QUICK, "--json")
    assert (code, err) == (0, "")
    stored, fresh = results(out)
    assert (stored["label"], fresh["label"]) == ("Stored", "test_resnet")
    # The same seed, model and machine: the very same numbers.
    assert stored["measures"]["r50"]["value"] == pytest.approx(fresh["measures"]["r50"]["value"], rel=1e-6)
    assert len({stored["id"], fresh["id"]}) == 2
    code, out, _ = run("compare", "two/report.json", "two", "--json")
    assert code == 0
    assert len(results(out)) == 2


@pytest.mark.slow
def test_a_stored_result_stands_once_in_a_sweep(run):
    code, out, _ = run("compare", "two", "test_resnet", "--weights", "random,random-raw", "--samples", "2", "--json")
    assert code == 0
    assert [entry["weights"]["source"] for entry in results(out)] == ["random", "random", "random-raw"]


def test_results_of_differing_settings_are_refused_by_name(run):
    code, out, err = run("compare", "two", "three")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "number of images (2 against 3)" in err
    assert "same settings" in err


@pytest.mark.slow
@needs_folders
def test_trained_and_random_models_are_not_mixed(run, scene):
    saved = scene / "saved"
    timm.models.save_for_hf(timm.create_model("test_resnet"), saved, safe_serialization=True)
    code, out, err = run("compare", "Ours=local-dir:saved", "test_vit", "--samples", "2")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "test_vit" in err
    assert "Ours" not in err
    assert "--weights random" in err
    code, _, err = run("compare", "Ours=local-dir:saved", "test_vit", *QUICK, "--measures", "r50")
    assert (code, err) == (0, "")


# --- Help, doctor, and the program as a process ---------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("subcommand", ["", "analyze", "compare", "layers", "models", "doctor"])
def test_help_fits_the_terminal_and_names_every_option(run, monkeypatch, subcommand, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run(*subcommand.split(), "--help-all" if subcommand in ("analyze", "compare") else "--help")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= width
    assert "…" not in out
    assert "..." not in out.replace("[ARGS]...", "").replace("RESULT ...", "").replace("NAME,...", "")
    if subcommand in ("analyze", "compare"):
        for name in ["layer", "unit", "wrt", "image", "synthetic", "weights", "checkpoint", "seed", "json", "output"]:
            assert f"--{name}" in out
        assert "--sort" in out if subcommand == "compare" else "--sort" not in out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["analyze", "compare"])
def test_help_shows_the_common_options_and_how_to_see_the_rest(command):
    shown = {}
    for flag in ("--help", "--help-all"):
        call = [sys.executable, "-m", "erfscope", command, flag]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"})
        assert (done.returncode, done.stderr) == (0, "")
        shown[flag] = done.stdout
    assert len(shown["--help"].splitlines()) <= 45
    common, every = (set(re.findall(r"^│ (--[a-z0-9-]+)", text, flags=re.MULTILINE)) for text in shown.values())
    assert common == {*COMMON, "--help", "--help-all"} | ({"--sort"} if command == "compare" else set())
    assert len(COMMON) == 12
    options = [option for option in import_command(OWN[command]).params if option.param_type_name == "option"]
    assert every == {"--help", *(next(text for text in option.opts if text.startswith("--")) for option in options)}


@pytest.mark.slow
def test_help_imports_no_torch_and_starts_as_a_module():
    code = (
        "import sys\nfrom erfscope.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'timm', 'captum', 'numpy', 'scipy', 'cv2', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([sys.executable, "-m", "erfscope", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "analyze" in done.stdout


@pytest.mark.slow
def test_a_measurement_imports_nothing_that_draws_or_that_it_does_not_use():
    code = (
        "import sys\nfrom erfscope.cli.main import main\ntry:\n    main(['analyze', 'test_resnet', '--samples', '2',"
        " '--weights', 'random', '--json'])\nexcept SystemExit as stop:\n    assert stop.code == 0\nunused = {'captum',"
        " 'matplotlib', 'jinja2', 'transformers', 'cv2'} & {name.partition('.')[0] for name in sys.modules}\nassert not"
        " unused, unused\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["analyze", "--help"], ["analyze", "resnet81", "--samples", "0"]])
def test_a_reader_that_goes_away_is_no_error(arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "erfscope", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == (0 if "--help" in arguments else 2)
    assert "BrokenPipe" not in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="file names of any bytes")
def test_the_whole_program_offline_in_a_narrow_encoding(scene, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "erfscope", "analyze", "nets.py:tiny", *TINY, "-o", str(tmp_path / "erf")]
    done = subprocess.run(command, cwd=scene, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nets.py:tiny ? output")
    assert erfscope.read(tmp_path / "erf").ok


def doctored(monkeypatch, *, versions=None, broken=None, models: int = 1) -> None:
    """Make the doctor see a sound installation with so many models in the hub's cache, except for some versions and one
    module that raises."""
    known = {each.name.lower(): each.version for each in metadata.distributions()}
    known |= {"erfscope": "0.1.0", **dict.fromkeys(doctor_module.OPENCV), "opencv-python": "4.11.0.86"}
    known |= versions or {}

    def load(name: str) -> object:
        if broken and name in broken:
            raise broken[name]
        return object()

    monkeypatch.setattr(doctor_module, "_version", known.get)
    monkeypatch.setattr(doctor_module, "_models_in_cache", lambda: models)
    monkeypatch.setattr(doctor_module.importlib, "import_module", load)


@pytest.mark.parametrize(
    ("model", "fetched", "name"),
    [
        ("test_resnet", "timm.create_model('test_resnet', pretrained=True)", "hub/models--timm--test_resnet.r160_in1k"),
        ("hf-hub:owner/name@v1", "hf download owner/name --revision v1", "hub/models--owner--name"),
        (
            "torchvision:squeezenet1_1",
            "get_model('squeezenet1_1', weights='DEFAULT')",
            "torch/checkpoints/squeezenet1_1-b8a52dc0.pth",
        ),
    ],
)
def test_the_doctor_says_how_weights_of_a_model_are_brought_here(run, monkeypatch, tmp_path, model, fetched, name):
    import torch
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr("erfscope.adapters.weights.weights.unreachable_reason", lambda host: "asked nobody")
    code, out, err = run("doctor", "--fix-hint", model)
    assert (code, err) == (2, "")
    line = out.splitlines()[-1]
    folder, _, last = name.rpartition("/")
    assert line.startswith(f"fix: weights of {model}: cannot be had: asked nobody; ")
    assert fetched in line
    assert f"copy {last} from its cache into {tmp_path / folder}, " in line
    assert "--checkpoint FILE" in line
    assert "local-dir:PATH" in line


@needs_folders
def test_the_doctor_has_nothing_to_fix_where_weights_are_the_models_own(run, tmp_path):
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path / "saved", safe_serialization=True)
    _, out, _ = run("doctor", "--fix-hint", f"local-dir:{tmp_path / 'saved'}")
    assert not [line for line in out.splitlines() if line.startswith("fix: weights")]
    code, out, _ = run("doctor", "--fix-hint", "test_mambaout")
    assert (code, "no pretrained weights exist for test_mambaout; use --checkpoint FILE" in out) == (2, True)


def test_the_doctor_names_each_fix_in_a_line_of_its_own(run, monkeypatch):
    doctored(monkeypatch, versions={"captum": None, "opencv-python": None})
    code, out, _ = run("doctor", "--fix-hint")
    assert code == 2
    assert [line.rpartition("; ")[2] for line in out.splitlines()] == [
        "pip install 'captum>=0.7'",
        "pip install opencv-python",
    ]
    assert all(line.startswith("fix: ") for line in out.splitlines())


def test_doctor_finds_nothing_wrong_with_a_sound_installation(run, monkeypatch):
    doctored(monkeypatch)
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert "everything erfscope needs is in place" in out
    assert "!!" not in out


def test_doctor_has_a_row_for_erfscope_the_hub_the_gpu_and_tf32(run, monkeypatch):
    doctored(monkeypatch)
    rows = {tuple(line.split()[:2]): " ".join(line.split()[2:]) for line in run("doctor")[1].splitlines()[:-1]}
    assert rows["ok", "erfscope"] == f"0.1.0, runs from {Path(doctor_module.__file__).resolve().parents[1]}"
    assert rows["ok", "hub"] == "offline by HF_HUB_OFFLINE, and the cache has 1 model"
    assert ("ok", "TF32") in rows
    assert ("ok", "GPU") in rows or ("ok", "cuda:0") in rows or ("ok", "mps") in rows


@pytest.mark.parametrize("replies", [True, False])
def test_doctor_asks_the_hub_where_it_is_not_offline(run, monkeypatch, replies):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("erfscope.adapters.weights.weights._replies", lambda host, is_hub: replies)
    monkeypatch.setattr("erfscope.adapters.weights.weights._SILENT", {})
    doctored(monkeypatch)
    code, out, _ = run("doctor")
    words = " ".join(out.split())
    assert code == 0
    assert f"{'ok' if replies else '--'} hub http://hub.invalid is {'reachable' if replies else 'unreachable'}" in words
    assert ("everything erfscope needs is in place" in words) is replies
    assert ("connect to it, or set HF_HUB_OFFLINE=1" in words) is not replies
    assert words.endswith("erfscope works, without: hub") is not replies


def test_doctor_calls_all_in_place_only_where_pretrained_weights_are(run, monkeypatch):
    doctored(monkeypatch, models=0)
    code, out, _ = run("doctor")
    words = " ".join(out.split())
    assert (code, words.endswith("erfscope works, without: hub")) == (0, True)
    assert (
        "-- hub offline by HF_HUB_OFFLINE, and the cache is empty: no pretrained weights → unset HF_HUB_OFFLINE"
        in words
    )
    assert "in place" not in words
    code, out, _ = run("doctor", "--fix-hint")
    assert (code, out.startswith("fix: hub: offline by HF_HUB_OFFLINE")) == (0, True)


def without_driver() -> bool:
    warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
    return False


def test_doctor_computes_on_each_gpu(run, monkeypatch):
    said = {"is_available": True, "device_count": 1, "get_device_name": "H1", "get_device_capability": (9, 0)}
    for name, value in said.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, value=value: value)
    compute = torch.ones
    monkeypatch.setattr("torch.ones", lambda *size, device: compute(*size))
    doctored(monkeypatch)
    code, out, _ = run("doctor")
    words = " ".join(out.split())
    assert (code, "ok cuda:0 H1 " in words) == (0, True)
    assert "TF32 off while erfscope measures; --tf32 allows it" in words

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image\nis there")

    monkeypatch.setattr(torch, "ones", fail)
    code, out, _ = run("doctor")
    assert (code, "!! cuda:0 H1, fails: CUDA error: no kernel image → install a build" in " ".join(out.split())) == (
        2,
        True,
    )


def test_doctor_says_why_pytorch_cannot_use_a_gpu(run, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", without_driver)
    doctored(monkeypatch)
    code, out, err = run("doctor")
    words = " ".join(out.split())
    assert (code, err) == (2, "")
    assert "can use: CUDA initialization: the driver is too old → install a driver" in words
    assert "1 problem found" in words


@pytest.mark.parametrize(
    ("fault", "found", "fix"),
    [
        (
            {"versions": {"opencv-python-headless": "2.0"}},
            "exactly one must be installed",
            "pip uninstall opencv-python-headless",
        ),
        ({"versions": {"opencv-python": None}}, "none: exactly one must be installed", "pip install opencv-python"),
        ({"versions": {"captum": None}}, "captum not installed", "pip install 'captum>=0.7'"),
        ({"versions": {"numpy": "1.20"}}, "1.20, not numpy>=1.26", "pip install 'numpy>=1.26'"),
        ({"versions": {"msgspec": None}}, "msgspec not installed", "pip install 'msgspec>=0.18.5'"),
        ({"versions": {"erfscope": None}}, "not installed, runs from", "pip install . in its checkout"),
        (
            {"broken": {"timm": RuntimeError("operator torchvision::nms does not exist")}},
            "torchvision::nms",
            "torch torchvision",
        ),
        ({"broken": {"huggingface_hub": ImportError("no httpx")}}, "no httpx", "--force-reinstall huggingface-hub"),
        ({"broken": {"timm": RuntimeError("")}}, "fails: RuntimeError", "torch torchvision"),
        ({"broken": {"cv2": ImportError("libGL.so.1: cannot open")}}, "libGL.so.1", "opencv-python-headless"),
    ],
)
def test_doctor_finds_a_broken_installation_and_names_the_fix(run, monkeypatch, fault, found, fix):
    doctored(monkeypatch, **fault)
    code, out, _ = run("doctor")
    words = " ".join(out.split())
    assert code == 2
    assert "1 problem found" in words
    assert found in words
    assert fix in words
