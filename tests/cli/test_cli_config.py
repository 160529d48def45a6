"""Settings of the command line: files, environment variables, and which of them wins."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from loaded import adapter_of
from PIL import Image
from spared import opened_once  # noqa: F401

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn", "opened_once")

NETS = """
from torch import nn

def tiny(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1))
"""
CODE = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "ran").touch()

def tiny(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1))

class Block(nn.Conv2d):
    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1)
"""
MODEL = "nets.py:tiny"


@pytest.fixture
def folder(tmp_path, monkeypatch, plain_environment):
    """A project whose code leaves a file behind when it runs, with no settings in the environment."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, command):
    """Run a command in the project: (exit code, stdout, stderr)."""
    return command


@pytest.fixture
def settings(run):
    """What a measurement was asked for, in the end."""

    def call(*arguments: str, command: str = "analyze") -> dict:
        code, out, err = run(command, MODEL, *arguments, "--json")
        assert code == 0, err
        document = json.loads(out)
        return {**document["settings"], "results": document["results"]}

    return call


QUICK = "samples = 2\ninput-size = 32\nmeasures = 'r50'\n"


@pytest.mark.slow
@pytest.mark.parametrize(("file", "head"), [("erfscope.toml", ""), ("pyproject.toml", "tool.erfscope")])
def test_flat_keys_hold_for_every_command_and_a_table_overrides_them(folder, settings, monkeypatch, file, head):
    flat, dot = (f"[project]\nname = 'x'\n[{head}]\n", f"{head}.") if head else ("", "")
    tables = f"[{dot}analyze]\nseed = 4\n[{dot}layers]\nall = true\n"
    (folder / file).write_text(f"{flat}{QUICK}seed = 3\nconvention = 'luo'\n{tables}")
    assert (settings()["seed"], settings()["results"][0]["convention"]) == (4, "luo")
    assert settings(command="compare")["seed"] == 3
    # Found from a folder below, too.
    (folder / "below" / "further").mkdir(parents=True)
    (folder / "below" / "further" / "nets.py").write_text(NETS)
    monkeypatch.chdir(folder / "below" / "further")
    assert settings()["seed"] == 4
    # A pyproject without our table is none of our business.
    (folder / "below" / "further" / "pyproject.toml").write_text("[tool.other]\nseed = 3\n")
    assert settings("--samples", "2", "--input-size", "32")["seed"] == 4


def test_keys_have_hyphens_or_underscores(folder, settings):
    for size, key in (("input-size", "batch-size"), ("input_size", "batch_size"), ("img-size", "batch_size")):
        (folder / "erfscope.toml").write_text(f"samples = 2\n{size} = 48\n{key} = 1\n")
        found = settings()
        assert (found["batch_size"], found["results"][0]["input"]["size"]) == (1, [48, 48])


def test_values_are_what_toml_makes_of_them(folder, settings):
    (folder / "erfscope.toml").write_text(
        f"{QUICK}unit = [1, 2]\nmean = [0.5, 0.4, 0.3]\nstd = 0.2\ndraws = 'all'\nuntil-se = '50%'\nconvention ="
        " ['luo', 'jacobian']\nquiet = true\nkeep-going = false\n[analyze.model-kwargs]\nwidth = 6\n"
    )
    found = settings()
    assert [(r["convention"], r["unit"]["index"]) for r in found["results"]] == [("luo", [1, 2]), ("jacobian", [1, 2])]
    assert (found["mean"], found["draws"], found["until_se"]) == ([0.5, 0.4, 0.3], "all", 0.5)
    assert found["model_kwargs"] == {"width": 6}
    assert found["results"][0]["unit"]["map_shape"][0] == 6


@pytest.mark.slow
def test_a_list_of_pictures_is_several_pictures(folder, settings):
    for name in ("a, b.png", "c.png"):
        Image.new("RGB", (40, 40), (90, 120, 30)).save(folder / name)
    (folder / "erfscope.toml").write_text(f"{QUICK}image = ['a, b.png', 'c.png']\n")
    assert settings()["images"] == ["a, b.png", "c.png"]
    (folder / "erfscope.toml").write_text(f"{QUICK}images = 'c.png'\n")
    assert settings()["images"] == ["c.png"]


@pytest.mark.slow
def test_the_list_of_checks_is_left_alone(folder, settings):
    (folder / "erfscope.toml").write_text(f"{QUICK}[[check]]\nname = 'backbone'\nmodel = 'resnet18'\nfrobnicate = 3\n")
    assert settings()["seed"] == 0
    (folder / "erfscope.toml").unlink()
    (folder / "pyproject.toml").write_text(
        "[tool.erfscope]\nsamples = 2\ninput-size = 32\n[[tool.erfscope.check]]\nname = 'backbone'\nmodel ="
        " 'resnet18'\n"
    )
    assert settings()["samples"] == 2


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("sed = 3\n", ["sed", "erfscope.toml", "did you mean 'seed'"]),
        ("[analyze]\nsampels = 3\n", ["sampels", "[analyze] of erfscope.toml", "did you mean 'samples'"]),
        ("[analyse]\nsamples = 3\n", ["analyse", "did you mean 'analyze'"]),
        ("[layers]\nsamples = 3\n", ["samples", "[layers] of erfscope.toml"]),
        ("[tool.erfscope]\nseed = 3\n", ["tool", "erfscope.toml"]),
        ("force = true\n", ["force", "erfscope.toml"]),
        ("model = 'nets.py:tiny'\n", ["model", "erfscope.toml"]),
        ("unsafe-load = true\n", ["unsafe_load in erfscope.toml: --unsafe-load stands on the command line only"]),
        ("unsafe_load = false\n", ["unsafe_load in erfscope.toml: --unsafe-load stands on the command line only"]),
        ("[layers]\nunsafe-load = true\n", ["--unsafe-load stands on the command line only"]),
        ("seed = \n", ["cannot read the settings in erfscope.toml", "line 1"]),
        ("\xff", ["cannot read the settings in erfscope.toml"]),
        ("seed = 'three'\n", ["--seed", "three", "set in erfscope.toml"]),
        ("format = 'jason'\n", ["--format", "jason", "set in erfscope.toml"]),
        ("samples = true\n", ["samples in erfscope.toml is True"]),
        ("json = 'yes'\n", ["json in erfscope.toml is 'yes'", "true or false"]),
        ("samples = 2024-01-01\n", ["samples in erfscope.toml is the date or time 2024-01-01", "a number"]),
        ("[analyze]\nseed = 12:30:00\n", ["seed in erfscope.toml is the date or time 12:30:00"]),
        ("seed = { a = 1 }\n", ["seed in erfscope.toml is {'a': 1}"]),
        ("dtype = 'float23'\n", ["float23", "did you mean 'float32'"]),
        ("[tool]\nerfscope = 3\n", ["pyproject.toml"]),
        ("tool = 3\n[x\n", ["pyproject.toml"]),
    ],
)
def test_settings_that_are_wrong_are_one_line(folder, run, text, fragments):
    name = "pyproject.toml" if "pyproject.toml" in fragments else "erfscope.toml"
    (folder / name).write_bytes(text.encode("latin-1"))
    code, out, err = run("analyze", MODEL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Traceback" not in err
    assert [each for each in fragments if each not in err] == []


@pytest.mark.slow
def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(folder, settings, monkeypatch):
    quick = ["--samples", "2", "--input-size", "32"]
    assert settings(*quick)["seed"] == 0
    (folder / "erfscope.toml").write_text(f"{QUICK}seed = 1\n[analyze]\nseed = 2\n")
    assert settings()["seed"] == 2
    monkeypatch.setenv("ERFSCOPE_SEED", "3")
    assert settings()["seed"] == 3
    assert settings(command="compare")["seed"] == 3
    monkeypatch.setenv("ERFSCOPE_ANALYZE_SEED", "4")
    assert settings()["seed"] == 4
    assert settings(command="compare")["seed"] == 3
    assert settings("--seed", "5")["seed"] == 5


@pytest.mark.parametrize("name", ["ERFSCOPE_INPUT_SIZE", "ERFSCOPE_IMG_SIZE", "ERFSCOPE_ANALYZE_INPUT_SIZE"])
def test_every_name_of_an_option_is_a_variable(settings, run, monkeypatch, name):
    monkeypatch.setenv(name, "48")
    assert settings("--samples", "2")["results"][0]["input"]["size"] == [48, 48]
    monkeypatch.setenv("ERFSCOPE_SEED", "three")
    code, out, err = run("analyze", MODEL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--seed" in err
    assert "set in the environment" in err


@pytest.mark.slow
def test_a_better_source_wins_between_options_that_exclude_each_other(folder, settings, run, monkeypatch):
    (folder / "erfscope.toml").write_text(f"{QUICK}image = 'val/'\njson = true\n")
    assert settings("--synthetic", "noise")["results"][0]["input"]["source"] == "noise"
    code, out, _ = run("analyze", MODEL, "--synthetic", "noise", "--format", "csv")
    assert code == 0
    assert out.startswith("label,")
    code, out, _ = run("analyze", MODEL, "--synthetic", "noise")
    assert code == 0
    assert json.loads(out)["results"]
    monkeypatch.setenv("ERFSCOPE_JSON", "1")
    assert run("analyze", MODEL, "--synthetic", "noise", "--format", "csv")[1].startswith("label,")
    monkeypatch.setenv("ERFSCOPE_SYNTHETIC", "noise")
    assert settings()["results"][0]["input"]["source"] == "noise"
    (folder / "erfscope.toml").write_text(f"{QUICK}synthetic = 'noise'\n")
    monkeypatch.delenv("ERFSCOPE_SYNTHETIC")
    code, _, err = run("analyze", MODEL, "--image", "gone.png")
    assert code == 2
    assert "'gone.png' does not exist" in err


def test_a_commands_own_format_beats_a_flat_json(folder, run):
    (folder / "erfscope.toml").write_text(f"{QUICK}json = true\n[compare]\nformat = 'csv'\n")
    assert json.loads(run("analyze", MODEL)[1])["results"]
    assert run("compare", MODEL)[1].startswith("label,")
    assert json.loads(run("layers", MODEL)[1])["schema"] == "erfscope.layers/1"


@pytest.mark.parametrize("name", ["ERFSCOPE_UNSAFE_LOAD", "ERFSCOPE_ANALYZE_UNSAFE_LOAD"])
@pytest.mark.parametrize("value", ["1", "0"])
def test_the_command_line_alone_lets_files_run_code(folder, run, settings, monkeypatch, name, value):
    assert settings("--samples", "2", "--input-size", "32", "--unsafe-load")["unsafe_load"] is True
    where = "unsafe-load of check 'backbone' of erfscope.toml"
    (folder / "erfscope.toml").write_text(f"[[check]]\nname = 'backbone'\nmodel = '{MODEL}'\nunsafe-load = true\n")
    said = [(where, run("check"))]
    (folder / "erfscope.toml").unlink()
    monkeypatch.setenv(name, value)
    for place, (code, out, err) in [*said, (name, run("analyze", MODEL))]:
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{place}: --unsafe-load stands on the command line only" in err


# --- a stored report as settings ------------------------------------------------------------------

SMALL = {"weights": "random", "samples": 2, "measures": ["r50", "coverage"]}


@cache
def document() -> dict:
    """A small report."""
    return erfscope.sweep(adapter_of("test_resnet", input_size=32), samples=2, measures=SMALL["measures"]).to_json()


def stored_with(folder, *, result=None, **settings):
    """A small report with other settings and another first result, as another person may have written them."""
    (first, *others), given = document()["results"], {**document()["settings"], "weights": "random", "input_size": 32}
    theirs = {**document(), "settings": {**given, **settings}, "results": [{**first, **(result or {})}, *others]}
    (folder / "theirs.json").write_text(json.dumps(theirs))
    return "theirs.json"


def maps(report):
    return [(row.id, row.map.values.tolist()) for row in report]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"layer": "layer2,layer3", "unit": ["centre", (0, 1)], "convention": "luo,jacobian", "input_size": (32, 48)},
        {"input_size": [32, (32, 48)], "mean": 0.5, "std": [0.2, 0.3, 0.2], "until_se": 0.5, "draws": 3, "seed": 2},
        {
            "insert": "gcn@layer2",
            "alpha": [0.5, 1],
            "unit": (1, 0),
            "input_size": 48,
            "plain": True,
            "channels": (0, 2),
        },
    ],
)
def test_a_report_measured_by_its_own_settings_is_that_report(folder, run, asked):
    before = erfscope.sweep("Mine=test_resnet", **asked, **SMALL)
    before.save("one", drawn=False)
    (folder / "erfscope.toml").write_text("seed = 7\nsynthetic = 'noise'\n")
    assert run("analyze", "--config", "one", "-o", "again", "-q")[0] == 0
    assert maps(erfscope.read("again")) == maps(before)
    assert {**erfscope.read("again").settings, "model": ""}.keys() == {**before.settings, "model": ""}.keys()


@pytest.mark.slow
def test_the_models_of_a_comparison_are_its_reports_unless_they_are_named(folder, run):
    before = erfscope.compare(["test_resnet", "B=test_convnext"], input_size=64, **SMALL)
    before.save("two", drawn=False)
    assert run("compare", "--config", "two/report.json", "-o", "again", "-q")[0] == 0
    assert maps(erfscope.read("again")) == maps(before)
    assert run("compare", "A=test_convnext", "--config", "two", "--seed", "5", "-o", "other.json", "-q")[0] == 0
    assert [(row.label, row.seed, row.input.size) for row in erfscope.read("other.json")] == [("A", 5, (64, 64))]
    code, out, err = run("analyze", "--config", "two")
    assert (code, out) == (2, "")
    assert "the report has 2 models; measure them with `erfscope compare --config`" in err


def test_a_toml_file_that_is_named_takes_the_place_of_the_one_that_is_found(folder, settings):
    (folder / "erfscope.toml").write_text(f"{QUICK}seed = 3\n")
    (folder / "other.toml").write_text(f"{QUICK}[analyze]\ndraws = 2\n")
    found = settings("--config", "other.toml")
    assert (found["seed"], found["draws"]) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["code.py:tiny", "Ours=code.py:tiny", "x:y", "x.pt2:f", ":f", "torchvision=x:f", ""])
def test_a_report_names_no_code_that_its_reader_does_not_name(folder, run, spec):
    label, _, model = spec.rpartition("=")
    # Without a spec: a label that smuggles code in.
    result = {"model": model, "label": label or model} if spec else {"label": "code.py:tiny"}
    file = stored_with(folder, result=result)
    code, out, err = run("analyze", "--config", file, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"theirs.json asks for the model {spec}" in err
    assert "which may run code; if you trust it, name it on the command" in err
    assert not (folder / "ran").exists()
    if "code.py" in spec:
        assert run("analyze", spec, "--config", file, "-q")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"insert": ["code.py:Block@layer2"]}, ["--insert", "code.py:Block@layer2"]),
        ({"model_kwargs": {"scriptable": "x"}}, ["--model-kwargs", "scriptable=True"]),
    ],
)
def test_a_block_by_its_class_and_what_builds_a_model_are_named_by_the_reader(folder, run, asked, given):
    file = stored_with(folder, **asked)
    code, out, err = run("analyze", "--config", file, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "which may run code" in err
    assert not (folder / "ran").exists()
    assert run("analyze", "--config", file, *given, "-q")[0] == 0


NAMED = "insert code.py:Block@layer2"
NAMED = "insert code.py:Block@layer2"
BLOCK = "insert = 'code.py:Block@layer2'\n"
COMMANDS = ("analyze", "compare", "layers", "tile", "check")
#: A file with settings, a command, and what it asks for that may run code.
CODE_IN_SETTINGS = [
    *(("erfscope.toml", BLOCK, f"{name} test_resnet", NAMED) for name in COMMANDS),
    ("pyproject.toml", f"[tool.erfscope]\n{BLOCK}", "analyze test_resnet", NAMED),
    ("other.toml", BLOCK, "analyze test_resnet --config other.toml", NAMED),
    (
        "erfscope.toml",
        "[layers]\ninsert = ['gcn@layer2', 'code:Block@layer3']\n",
        "layers test_resnet",
        "insert code:Block@layer3",
    ),
    *(
        ("erfscope.toml", f"insert = '{edit}; code:Block@layer3'\n", "layers test_resnet", f"insert {edit}; code:Block")
        for edit in ("layer2: dilation=2", "gcn@layer2")
    ),
    (
        "erfscope.toml",
        "[analyze.model-kwargs]\nact_layer = 'code.py:Block'\n",
        "analyze test_resnet",
        "model kwargs act_layer=code.py:Block",
    ),
    ("erfscope.toml", "model-kwargs = { a = ['b'] }\n", "analyze test_resnet", "model kwargs a=['b']"),
    ("erfscope.toml", "checkpoint = 'evil.pth'\n", "analyze test_resnet --unsafe-load", "checkpoint evil.pth"),
    ("erfscope.toml", "[compare]\nof = 'code.py:tiny'\n", "compare a.pth b.pth", "model code.py:tiny"),
]


@pytest.mark.parametrize(("file", "text", "words", "named"), CODE_IN_SETTINGS)
def test_a_settings_file_names_no_code_anywhere(folder, run, file, text, words, named):
    torch.save({"trap": Trap()}, "evil.pth")
    (folder / file).write_text(text)
    code, out, err = run(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{file} asks for the {named}" in err
    assert ", which may run code; if you trust it, name it on" in err
    assert not (folder / "ran").exists()


LAYERS = ("layers", "test_resnet", "--json")


@pytest.mark.slow
def test_the_command_line_and_variables_name_blocks_by_their_class_and_a_file_erfscopes_own(folder, run, monkeypatch):
    (folder / "erfscope.toml").write_text("insert = 'layer3: dilation=2; gcn@layer2'\n")
    assert '"gcn"' in run(*LAYERS, "--all")[1]
    (folder / "erfscope.toml").write_text(BLOCK)
    assert '"block"' in run(*LAYERS, "--insert", "code.py:Block@layer3", "--all")[1]
    monkeypatch.setenv("ERFSCOPE_INSERT", "code.py:Block@layer3")
    assert '"block"' in run(*LAYERS, "--all")[1]


def test_checks_name_a_factory_and_a_block_by_its_class(folder, run):
    (folder / "erfscope.toml").write_text(
        "input-size = 32\n[[check]]\nname = 'a'\nmodel = 'code.py:tiny'\nmodel-kwargs = { width = 6 }\ninsert ="
        " ['code.py:Block@0']\n"
    )
    assert run("check", "--trf-only", "--allow-new", "--quiet")[::2] == (0, "")
    assert (folder / "ran").exists()


@pytest.mark.slow
def test_a_report_asks_for_no_unsafe_load_and_for_no_file_beside_it(folder, run):
    torch.save({"trap": Trap()}, "evil.pth")
    file = stored_with(folder, unsafe_load=True, checkpoint="evil.pth")
    assert "erfscope runs no code in it" in run("analyze", "--config", file)[2]
    assert "asks for the model test_resnet" in run("analyze", "--config", file, "--unsafe-load")[2]
    text = run("analyze", "test_resnet", "--config", file, "--unsafe-load")[2]
    assert "asks for the checkpoint evil.pth, which may run code" in text
    assert not (folder / "ran").exists()


class Trap:
    """What a pickle can hold: unpickling it runs code."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"transform": "half"}, "went through a Python program's transform, which is no setting"),
        ({"images": "Tensor"}, "'Tensor' does not exist"),
        ({"seed": "three"}, "(set in theirs.json)"),
        ({"samples": {"a": 1}}, "samples in theirs.json is {'a': 1}"),
        ({"verify": "yes"}, "verify in theirs.json is 'yes'; it must be true or false"),
        ({"layer": [["a"], {}]}, "unknown layer 'a'"),
        ({"input_size": [[]]}, "cannot read the input size ''"),
        ({"dtype": 3}, "Invalid value for '--dtype': unknown value '3'"),
    ],
)
def test_settings_of_a_report_that_are_none_are_one_line(folder, run, asked, words):
    code, out, err = run("analyze", "--config", stored_with(folder, **asked))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.slow
def test_a_report_has_no_say_in_what_is_written(folder, run):
    file = stored_with(folder, output="evil", force=True, format="csv", quiet=True, model="code.py:tiny", label="x")
    code, out, _ = run("analyze", "--config", file, "--json")
    assert (code, json.loads(out)["settings"]["model"]) == (0, "test_resnet")
    assert not (folder / "evil").exists()


PAIR = """
import torch

class Pair(nn.Module):
    def forward(self, left, right):
        return left + 2 * right

def pair():
    return Pair(), (torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16))
"""


@pytest.mark.slow
def test_images_of_several_inputs_are_a_table_or_those_of_a_report(folder, run):
    (folder / "nets.py").write_text(NETS + PAIR)
    for name in ("left", "right"):
        (folder / name).mkdir()
        for number in range(2):
            Image.new("RGB", (40, 40), (90 * number, 120, 30)).save(folder / name / f"{number}.png")
    command = ["analyze", "nets.py:pair", "-q", "-o"]
    assert run(*command, "one.json", "--image", "left=left", "--image", "right=right")[0] == 0
    assert run(*command, "again.json", "--config", "one.json")[0] == 0
    (folder / "erfscope.toml").write_text("images = { left = 'left', right = ['right'] }\n")
    assert run(*command, "third.json")[0] == 0
    one, *others = (erfscope.read(f"{name}.json") for name in ("one", "again", "third"))
    assert one.settings["images"] == {"left": ["left"], "right": ["right"]}
    for report in others:
        assert report.settings["images"] == one.settings["images"]
        assert [row.input.sha256 for row in report] == [row.input.sha256 for row in one]
