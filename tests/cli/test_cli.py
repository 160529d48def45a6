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
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import timm
import torch
import warm
from PIL import Image
from releases import needs_folders
from spared import opened_once  # noqa: F401

import erfscope
from erfscope.cli.commands import OWN, import_command
from erfscope.core.answer.storage import writing
from erfscope.show.command.console import COMMON
from erfscope.show.figures.kinds import KINDS

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn", "opened_once", "plain_environment")

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

class Aside(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.aside = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    def forward(self, x):
        return self.seen(x), self.aside(torch.ones(1, 4, 9, 9, device=x.device))

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
    np.savez(folder / "image.npz", photo=np.zeros((3, 64, 64)))
    for name, samples in (("two", 2), ("three", 3)):
        erfscope.sweep("test_resnet", weights="random", samples=samples).save(folder / name)
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

#: A command, and words of its one line of error. Limits and words of every option: tests/options.
REFUSED = """
analyze resnet81 | resnet81 | did you mean 'resnet18'
analyze | no model was named | erfscope analyze resnet18
analyze '' | no model was named
analyse resnet18 | analyse | analyze
analyze test_resnet --layr x | --layr | --layer
analyze a b | b | --help
analyze test_resnet QUICK --layer layer9 | layer9 | did you mean 'layer4'
analyze test_resnet QUICK --layer , | layer is empty
analyze nets.py:tiny TINY --unit 99,99 | 99,99 | 8x8 | 7,7
analyze nets.py:tiny TINY --unit -1,0 | -1,0 | 8x8
analyze nets.py:tiny TINY --unit middel | middel | centre, corner, edge, grid:N
analyze nets.py:tiny TINY --unit 3 | '3' | 3,3
analyze nets.py:tiny TINY --unit grid:0 | grid:N
analyze nets.py:tiny TINY --image corrupt.png | corrupt.png | damaged | leave it out
analyze nets.py:tiny TINY --image empty.png | empty.png | is empty
analyze nets.py:tiny TINY --image text.png | text.png | not an image | PNG
analyze nets.py:tiny TINY --image goood.png | goood.png | does not exist
analyze nets.py:tiny TINY --image val/ | val/ | does not exist
analyze nets.py:tiny TINY --image nothing | nothing | .png
analyze nets.py:tiny TINY --image val/*.jpg | val/*.jpg | does not exist
analyze nets.py:tiny TINY --image dangling | 'dangling' is a link to 'moved', which does not exist
analyze nets.py:tiny TINY --image dangling/a.png | 'dangling' is a link to 'moved'
analyze test_resnet --checkpoint wrong.pth | wrong.pth | missing: conv1.0.weight | no key matches
analyze test_resnet --checkpoint notes.pth | notes.pth | damaged | torch.save
analyze test_resnet --checkpoint gone.pth | gone.pth | does not exist
analyze test_resnet --checkpoint evil.pth | evil.pth | runs no code | state_dict()
analyze test_resnet --checkpoint dangling | 'dangling' is a link to 'moved'
analyze model.onnx | model.onnx | no gradients | package.module:factory
analyze good.png | good.png | is an image | --image 'good.png'
analyze wrong.pth | wrong.pth | --checkpoint
analyze nets.py | nets.py | nets.py:NAME
analyze nets.py:raises | nets.py:raises failed | no weights here
analyze nets.py:number | returned int | nn.Module
analyze nets.py:tinny | tinny | did you mean 'tiny'
analyze nets.py:lazy | lazy parameters | example input
analyze test_resnet --samples 0 | samples | at least 1 | not 0
analyze test_resnet --samples many | --samples | many
analyze test_resnet --input-size -3 | -3 | at least 1
analyze test_resnet --input-size 0x64 | 0x64 | at least 1
analyze test_resnet --input-size large | large | 224 or 192x256
analyze test_resnet --draws 0 | draws | 'all'
analyze test_resnet --dtype flaot32 | flaot32 | did you mean 'float32'
analyze test_resnet QUICK --device tpu | tpu | auto, cpu, cuda, mps
analyze test_resnet QUICK --device meta | meta | auto, cpu, cuda, mps
analyze test_resnet --convention jacobain | jacobain | did you mean 'jacobian'
analyze test_resnet --convention '' | convention is empty
analyze test_resnet --convention luo,kin | kin | did you mean 'kim'
analyze test_resnet QUICK --method gradiant | gradiant | did you mean 'gradient'
analyze nets.py:tiny TINY --method guided_backprop | nn.ReLU | --method gradient
analyze test_resnet --measures r50,r51 | r51 | did you mean 'r50'
analyze test_resnet --measures , | measures is empty | r50
analyze test_resnet --format jason | jason | 'json'
analyze test_resnet QUICK --wrt layer9 | layer9 | did you mean 'layer4'
analyze test_resnet QUICK --layer layer2 --wrt layer4 | layer2 | layer4 | no path
analyze test_resnet QUICK --synthetic leafs | leafs | did you mean 'leaves'
analyze test_resnet --synthetic noise --image good.png | either images or a synthetic
analyze test_resnet --weights randm | randm | did you mean 'random'
analyze test_resnet --weights '' | weights is empty
analyze test_resnet --weights pretrained | test_resnet | HF_HUB_OFFLINE | --weights random
analyze test_resnet --model-kwargs depth | depth | NAME=VALUE
analyze test_resnet QUICK --model-kwargs wings=2 | wings=2 | unexpected keyword
analyze test_resnet --until-se 200% | until-se | between 0 and 100 %
analyze test_resnet --until-se soon | --until-se | 2%
analyze nets.py:tiny --mean nan | mean | finite
analyze test_resnet --weights random --mean 0.5,0.4 | 2 values | 3 channels
analyze nets.py:five TINY --image good.png | 5 channels | --synthetic
analyze test_resnet -o good.png/erf | the folder good.png | choose another
analyze test_resnet -o good.png | good.png exists already | --force
analyze test_resnet -o full --force | full | not an erfscope report
analyze test_resnet -o erf.docx | erf.docx | .json, .csv
analyze test_resnet -o '' | -o | empty name
analyze test_resnet -o erf.json -o ./erf.json | erf.json | twice
analyze test_resnet -o . | working directory
analyze test_resnet --resume | --resume continues the run in one folder; name it with -o DIR
analyze test_resnet --resume -o x.json | --resume continues the run in one folder; name it with -o DIR
analyze nets.py:tiny TINY --resume -o a/ -o good.png | good.png exists already | --force
analyze test_resnet --resume -o a/ -o b/ | --resume continues the run in one folder; name it with -o DIR
analyze test_resnet QUICK --shard 1/0 | cannot read the shard '1/0' | from 1/4 to 4/4
analyze test_resnet --contours a | 'a' is no list of numbers | write 50,90
analyze test_vit QUICK --prefix-tokens 1 | prefix-tokens | --layout NLC
compare | nothing to compare | compare resnet18 resnet50
compare test_resnet test_vit --layer blocks.1 | blocks.1 | LABEL=MODEL@LAYER
compare test_resnet test_vit --checkpoint wrong.pth | --checkpoint | LABEL=FILE
compare test_resnet test_vit --sort r51 | r51 | did you mean 'r50'
compare test_resnet gone.json QUICK | gone.json | does not exist
compare test_resnet resnt18 QUICK | resnt18 | did you mean 'resnet18'
compare dangling test_resnet QUICK | 'dangling' is a link to 'moved'
compare test_resnet --time-limit 10m | works only with --isolate
compare test_resnet --isolate --time-limit soon -o x/ | is no time
compare test_resnet --isolate --memory-limit much -o x/ | is no size
compare test_resnet --isolate --of resnet18 -o x/ | not for checkpoints
layers | MODEL
layers test_resnet --layer layer9 | layer9 | did you mean 'layer4'
layers test_vit --layout NCHW --prefix-tokens 1 | prefix-tokens | --layout NLC
layers test_resnet --layer layer3 --unit 10,0 | unit 10,0 lies outside layer3, whose map is 10x10
layers test_resnet --unit 70,70 | unit 70,70 lies outside | the last unit is
layers test_resnet --wrt layer1 --unit 70,70 | lies outside | the last unit is
layers test_resnet --layer layer3 --unit middel | 'middel' | grid:N
layers nets.py:Aside --layer aside --input-size 32 | 'aside' does not depend on the image
layers test_resnet --layer layer1 --wrt layer3 | 'layer1' | 'layer3' | no path
layers test_resnet --layer layer1 --wrt layr1 | there is: layer1, layer1.0 | did you mean 'layer1'
layers test_resnet --wrt layr1 | 'layr1' | did you mean 'layer1'
layers test_resnet --wrt fc | 'fc' holds no spatial map
layers test_resnet --input-size 64,96 | at one input size, not 2
3 layers test_resnet --layer fc | 'fc' holds no spatial map | (1, 1000)
3 layers nets.py:Failing --input-size 2 | fails on an input of 3 channels at 2x2
merge dangling | 'dangling' is a link to 'moved'
merge two | test_resnet is no shard with its sums | --shard i/n -o DIR
merge good.png | good.png
models resnet18x | resnet18x | did you mean 'resnet18'
tile nets.py:nothing | nothing
tile nets.py:tiny --input-size 64 --layer 9 | unknown layer '9'
tile nets.py:tiny --input-size 64 --tile big | cannot read the input size 'big'
tile nets.py:tiny --input-size 64 --memory much | is no size
tile nets.py:tiny --input-size 64 --for paint | monai
tile nets.py:tiny --input-size 64 -o plan.yaml | .json
tile nets.py:tiny --input-size 64 --run image.npz -o out.npy | image.npz is an archive of arrays; np.save
3 tile nets.py:flat --input-size 64 | returns no map
""".strip().splitlines()


def words_of(line: str) -> tuple[list[str], list[str]]:
    """The words of a command, and what it must say."""
    command, *fragments = map(str.strip, line.split("|"))
    short = {"QUICK": QUICK, "TINY": TINY}
    return [each for word in shlex.split(command) for each in short.get(word, [word])], fragments


def files_below(folder: Path) -> dict[str, int]:
    """Files, and folders without any, with the time of their last change."""
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {
        str(path.relative_to(folder)): path.lstat().st_mtime_ns
        for path in found
        if not path.is_dir() or not any(path.iterdir())
    }


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(run, scene, tmp_path, line):
    words, fragments = words_of(line)
    expected = int(words.pop(0)) if words[0].isdigit() else 2
    keeps = words[0] in ("analyze", "compare") and not {"-o", "--resume"} & {*words}
    before = files_below(scene)
    code, out, err = run(*words, *(["-o", str(tmp_path / "erf")] if keeps else []))
    assert (code, out) == (expected, "")
    assert err.startswith("erfscope: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert [each for each in fragments if each not in err] == []
    assert (list(tmp_path.iterdir()), files_below(scene)) == ([], before)


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

#: What is analyzed, and words of its one line of error.
NOT_USABLE = """
nets.py:nan TINY --format json | NaN | 0.weight | other weights
test_resnet --checkpoint nan.pth --samples 2 --input-size 64 --format rich | NaN | layer3.0.conv1.weight
nets.py:flat TINY --format csv | no layer with a spatial map | (B, C, h, w)
nets.py:Failing TINY --format json | boom | fails on an input of 3 channels at 32x32
nets.py:tiny TINY --in-chans 4 --format csv | 4 channels at 32x32 | --in-chans
nets.py:dead TINY --format json | gradient is zero | another layer
nets.py:dead TINY --format rich | gradient is zero | another layer
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("line", NOT_USABLE)
def test_what_ran_in_vain_is_a_row_and_one_line_with_code_3(run, tmp_path, line):
    words, fragments = words_of(line)
    code, out, err = run("analyze", *words, "-o", str(tmp_path / "erf"))
    assert code == 3
    assert err.startswith("erfscope: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in out + err
    assert [each for each in fragments if each not in err] == []
    status = "degenerate" if "nets.py:dead" in words else "error"
    assert erfscope.read(tmp_path / "erf")[0].status == status
    if "json" in words:
        assert results(out)[0]["status"] == status
    # The report of a failure is whole too, and nothing else is left behind.
    assert files_below(tmp_path).keys() == {"erf/index.html", "erf/report.json"}


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


@pytest.mark.slow
def test_what_cannot_be_written_is_said_and_the_row_is_still_printed(run, tmp_path, monkeypatch):
    code, out, err = run("analyze", "nets.py:nan", *TINY, "-o", str(tmp_path / "erf.png"), "--json")
    assert (code, results(out)[0]["status"]) == (3, "error")
    assert "no map to draw" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("erfscope.core.answer.storage.files.map_bytes", full)
    code, out, err = run("analyze", "nets.py:tiny", *TINY, "-o", str(tmp_path / "erf"), "--json")
    assert (code, results(out)[0]["status"]) == (3, "ok")
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
    code, out, err = run("analyze", "test_resnet", *TINY, "-o", str(target))
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
    assert "random weights (fallback)" in " ".join(text.get_text() for text in stored.figure(conditions=True).texts)
    assert "random (fallback)" in stored.table(format="csv").splitlines()[1]
    (entry,) = results((target / "report.json").read_text())
    assert (entry["weights"]["source"], entry["weights"]["fallback"], entry["weights"]["seed"]) == ("random", True, 0)
    # Those that were asked for are none.
    code, out, err = run("analyze", "test_resnet", *QUICK, "--input-size", "32", "--format", "csv")
    assert (code, err) == (0, "")
    assert [row["weights"] for row in csv.DictReader(io.StringIO(out))] == ["random"]


@pytest.mark.slow
def test_a_terminal_shows_random_weights_once_and_breaks_lines_between_words(tmp_path):
    """Results and notes in one terminal of 80 columns; the doctor's hint is not lost."""
    terminal, inside = os.openpty()
    asked = ["test_resnet", "--samples", "2", "-o", str(tmp_path / "erf.json"), "--measures", "r50,r90"]
    call = [sys.executable, "-m", "erfscope", "analyze", *asked]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
    process = warm.WarmProcess(call, stdout=inside, stderr=inside, stdin=subprocess.DEVNULL, env=environment)
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


@pytest.mark.slow
def test_a_folder_holds_a_map_and_a_figure_per_result_and_is_replaced_by_force_only(run, tmp_path):
    target = tmp_path / "erf-1.0"
    wanted = ["analyze", "nets.py:tiny", *TINY, "--unit", "grid:2", "-o", f"{target}/"]
    code, out, _ = run(*wanted)
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {target}/; look at {target / 'index.html'}"
    found = erfscope.read(target).results
    assert [result.unit.index for result in found] == [(2, 2), (2, 6), (6, 2), (6, 6)]
    assert all(result.map is not None for result in found)
    # The figures of several results together, and those of each.
    kinds = [kind.name for kind in KINDS if kind.in_folder and kind.unfit(found) is None]
    figures = [*(f"{name}{suffix}" for name in kinds for suffix in (".png", ".pdf")), "figure.tex"]
    assert {"panel.png", "profile.png", "units.png"} < set(figures)
    each = [f"{result.id}{suffix}" for result in found for suffix in (".npz", ".png", ".pdf")]
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
    for format_ in ("rich", "json", "csv"):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as unread, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", unread)
            target = tmp_path / f"{format_}.json"
            code, _, err = run("analyze", "nets.py:tiny", *TINY, "--format", format_, "-o", str(target))
        assert (code, err, target.is_file()) == (0, "", True)


HOSTILE = ("[red]bold[bold]", "\x1b[31mred", "\u202eevil", "a|b", "two\nlines", "\udcff", "$x_1$", "+1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Stored results of models with such labels."""
    models = {label: torch.nn.Conv2d(3, 4, 3) for label in HOSTILE}
    folder = tmp_path_factory.mktemp("hostile") / "report"
    erfscope.compare(models, input_size=32, samples=2, measures="r50").save(folder, drawn=False)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["rich", "plain", "json", "csv", "markdown", "latex"])
def test_labels_are_shown_as_they_are_and_steer_nothing(run, hostile, tmp_path, format_):
    target = tmp_path / "erf.png"
    labelled = [f"{label}=nets.py:tiny" for label in HOSTILE]
    compared = [*labelled, *TINY, "--measures", "r50"] if format_ == "rich" else [hostile]
    code, out, err = run("compare", *compared, "--format", format_, "-o", str(target))
    assert (code, err) == (0, "")
    assert not STEERING.search(out)
    assert target.is_file()
    for literal in ("[red]bold[bold]", "two lines", "?[31mred", "?evil"):
        # In Markdown an opening bracket is escaped, so that no link begins there.
        assert (literal.replace("[", "\\[") if format_ == "markdown" else literal) in out
    if format_ == "json":
        shown = ["[red]bold[bold]", "?[31mred", "?evil", "a|b", "two lines", "?", "$x_1$", "+1"]
        assert [entry["label"] for entry in results(out)] == shown
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
def test_quiet_is_one_line_for_each_result_and_nothing_else(run):
    few = ["--input-size", "160", "--samples", "2", "--draws", "1", "--weights", "auto", "-q", "-o", "quiet.json"]
    code, out, err = run("compare", "test_resnet", "test_vit", *few, "--force")
    assert (code, err) == (0, "")
    for row, line in zip(results(Path("quiet.json").read_text()), out.splitlines(), strict=True):
        assert re.fullmatch(
            rf"{row['label']} {row['layer']} unit \d,\d: ok, r50 [\d.]+ px, random weights \(fallback: .+\)", line
        )
    code, out, err = run("analyze", "nets.py:nan", "--input-size", "32", "-q")
    assert (code, err, len(out.splitlines())) == (3, "", 1)
    assert ": error, " in out
    code, out, err = run("analyze", "nets.py:tiny", *TINY, "--image", "good.png", "-q", "--json")
    assert (code, err, len(results(out))) == (0, "", 1)


@pytest.mark.slow
def test_fewer_images_than_samples_are_said(run):
    _, out, _ = run("analyze", "nets.py:tiny", *TINY, "--image", "good.png", "--samples", "8")
    assert "! 8 samples were asked for, and there is one image\n" in out
    _, out, _ = run("analyze", "nets.py:tiny", *TINY, "--image", "good.png", "--samples", "1")
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
    for name in ("analyze", "compare"):
        code, out, err = run(name, "--explain")
        assert (code, err, "What to use when" in out) == (0, "", True)
        assert "not a quality score" in " ".join(out.split())
    code, out, _ = run("analyze", "nets.py:tiny", *TINY, "--explain", "--measures", "r50")
    assert code == 0
    assert "sum_c e_c y_c" in out


# --- Sweeps ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_is_the_product_in_order_with_distinct_ids(run):
    lists = {
        "--input-size": ("32", "48"),
        "--weights": ("random", "random-raw"),
        "--convention": ("luo", "kim"),
        "--layer": ("layer2", "layer3"),
        "--unit": ("1x1", "0x0"),
    }
    options = [text for option, values in lists.items() for text in (option, ",".join(values))]
    code, out, _ = run("analyze", "test_resnet", "--samples", "1", "--measures", "r50", *options, "--json")
    assert code == 0
    found, ids = [], set()
    for entry in results(out):
        size, unit = str(entry["input"]["size"][0]), "x".join(map(str, entry["unit"]["index"]))
        found.append((size, entry["weights"]["source"], entry["convention"], entry["layer"], unit))
        ids.add(entry["id"])
    assert found == list(itertools.product(*lists.values()))
    assert len(ids) == 32


# --- compare --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_of_one_size_keep_it_and_others_meet_at_224(run):
    both, asked = (
        ["test_resnet", "V=test_vit"],
        ["--weights", "random", "--samples", "1", "--measures", "r50", "--json"],
    )
    for models, more, side in ((both, [], 160), ([*both, "nets.py:tiny"], [], 224), (both, ["--input-size", "96"], 96)):
        code, out, _ = run("compare", *models, *asked, *more)
        assert code == 0
        found = [(entry["label"], entry["input"]["size"]) for entry in results(out)]
        assert found == [(model.partition("=")[0], [side, side]) for model in models]


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
    names = ["nets.py:tiny", "nets.py:Failing", "nets.py:five", "nets.py:flat", "torchvision:vit_b_16", "test_resnet"]
    code, out, err = run("compare", *names, *QUICK, "--input-size", "40", "--json", "-o", str(tmp_path / "erf"))
    assert code == 3
    assert [entry["status"] for entry in results(out)] == ["ok", "error", "error", "error", "error", "ok"]
    assert {tuple(entry["input"]["size"]) for entry in results(out)} == {(40, 40)}
    said = ("boom", "takes 5 channels", "no layer with a spatial map", "image_size=40")
    assert [words in line for words, line in zip(said, err.splitlines(), strict=True)] == [True] * 4
    assert len(erfscope.read(tmp_path / "erf")) == 6
    code, out, _ = run("compare", str(tmp_path / "erf"))
    assert (code, "boom" in out) == (3, True)


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
    assert (code, len(results(out))) == (0, 2)
    # A stored result stands once in a sweep.
    code, out, _ = run("compare", "two", "test_resnet", "--weights", "random,random-raw", "--samples", "2", "--json")
    assert code == 0
    assert [entry["weights"]["source"] for entry in results(out)] == ["random", "random", "random-raw"]
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


@pytest.mark.parametrize("name", ["analyze", "compare"])
def test_help_shows_the_common_options_and_how_to_see_the_rest(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    shown = [run(name, flag) for flag in ("--help", "--help-all")]
    assert [(code, err) for code, _, err in shown] == [(0, "")] * 2
    assert len(shown[0][1].splitlines()) <= 45
    common, every = (set(re.findall(r"^│ (--[a-z0-9-]+)", text, flags=re.MULTILINE)) for _, text, _ in shown)
    assert common == {*COMMON, "--help", "--help-all"} | ({"--sort"} if name == "compare" else set())
    assert len(COMMON) == 12
    options = [option for option in import_command(OWN[name]).params if option.param_type_name == "option"]
    assert every == {"--help", *(next(text for text in option.opts if text.startswith("--")) for option in options)}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["analyze", "--help"], ["analyze", "resnet81", "--samples", "0"]])
def test_a_reader_that_goes_away_is_no_error(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = warm.run([sys.executable, "-m", "erfscope", *arguments], stdout=writing)
    os.close(writing)
    assert done.returncode == (0 if "--help" in arguments else 2)
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="file names of any bytes")
def test_the_whole_program_offline_in_a_narrow_encoding(scene, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "erfscope", "analyze", "nets.py:tiny", *TINY, "-o", str(tmp_path / "erf")]
    done = subprocess.run(command, cwd=scene, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nets.py:tiny ? output")
    assert erfscope.read(tmp_path / "erf").ok
