"""Settings of the command line: files, environment variables, and which of them wins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import erfscope
from erfscope.cli.main import main

NETS = """
from torch import nn

def tiny(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1))
"""
MODEL = "nets.py:tiny"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty project, with no settings in the environment."""
    for name in [*os.environ]:
        if name.startswith("ERFSCOPE_") or name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Run a command in the project: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        found = capsys.readouterr()
        return stop.value.code, found.out, found.err

    return call


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
def test_flat_keys_hold_for_every_command_and_a_table_overrides_them(folder, settings):
    (folder / "erfscope.toml").write_text(
        f"{QUICK}seed = 3\nconvention = 'luo'\n[analyze]\nseed = 4\n[layers]\nall = true\n"
    )
    assert (settings()["seed"], settings()["results"][0]["convention"]) == (4, "luo")
    assert settings(command="compare")["seed"] == 3


def test_pyproject_has_the_same_tables_under_tool_erfscope(folder, settings):
    (folder / "pyproject.toml").write_text(
        f"[project]\nname = 'x'\n[tool.erfscope]\n{QUICK}seed = 3\n[tool.erfscope.analyze]\nseed = 4\n"
    )
    assert settings()["seed"] == 4
    assert settings(command="compare")["seed"] == 3


def test_a_pyproject_without_our_table_is_none_of_our_business(folder, settings):
    (folder / "pyproject.toml").write_text("[tool.other]\nseed = 3\n")
    assert settings("--samples", "2", "--input-size", "32")["seed"] == 0


def test_settings_are_found_from_a_folder_below(folder, settings, monkeypatch):
    (folder / "erfscope.toml").write_text(f"{QUICK}seed = 3\n")
    (folder / "below" / "further").mkdir(parents=True)
    (folder / "below" / "further" / "nets.py").write_text(NETS)
    monkeypatch.chdir(folder / "below" / "further")
    assert settings()["seed"] == 3


@pytest.mark.parametrize("key", ["batch-size", "batch_size"])
@pytest.mark.parametrize("size", ["input-size", "input_size", "img-size", "img_size"])
def test_keys_have_hyphens_or_underscores(folder, settings, key, size):
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
    from PIL import Image

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
    ],
)
def test_settings_that_are_wrong_are_one_line(folder, run, text, fragments):
    (folder / "erfscope.toml").write_bytes(text.encode("latin-1"))
    code, out, err = run("analyze", MODEL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Traceback" not in err
    for fragment in fragments:
        assert fragment in err


@pytest.mark.parametrize("text", ["[tool]\nerfscope = 3\n", "tool = 3\n[x\n"])
def test_a_pyproject_that_is_wrong_is_one_line(folder, run, text):
    (folder / "pyproject.toml").write_text(text)
    code, out, err = run("analyze", MODEL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pyproject.toml" in err


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
def test_every_name_of_an_option_is_a_variable(settings, monkeypatch, name):
    monkeypatch.setenv(name, "48")
    assert settings("--samples", "2")["results"][0]["input"]["size"] == [48, 48]


def test_a_variable_that_is_wrong_is_one_line_that_says_where(run, monkeypatch):
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
def test_no_variable_lets_files_run_code(run, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, out, err = run("analyze", MODEL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name}: --unsafe-load stands on the command line only" in err


def test_no_check_of_a_file_lets_files_run_code(folder, run):
    (folder / "erfscope.toml").write_text(f"[[check]]\nname = 'backbone'\nmodel = '{MODEL}'\nunsafe-load = true\n")
    code, out, err = run("check")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "unsafe-load of check 'backbone' of erfscope.toml: --unsafe-load stands on the command line only" in err


def test_the_command_line_lets_files_run_code(settings):
    assert settings("--samples", "2", "--input-size", "32", "--unsafe-load")["unsafe_load"] is True


# --- a stored report as settings ------------------------------------------------------------------

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
SMALL = {"weights": "random", "samples": 2, "measures": ["r50", "coverage"]}


def stored_with(folder, **settings):
    """A small report with other settings, as another person may have written them."""
    document = erfscope.sweep("test_resnet", input_size=32, **SMALL).to_json()
    file = folder / "theirs.json"
    file.write_text(json.dumps({**document, "settings": {**document["settings"], **settings}}))
    return str(file)


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
    before = erfscope.compare(["test_resnet", "B=test_vit"], input_size=96, **SMALL)
    before.save("two", drawn=False)
    assert run("compare", "--config", "two/report.json", "-o", "again", "-q")[0] == 0
    assert maps(erfscope.read("again")) == maps(before)
    assert run("compare", "A=test_vit", "--config", "two", "--seed", "5", "-o", "other.json", "-q")[0] == 0
    assert [(row.label, row.seed, row.input.size) for row in erfscope.read("other.json")] == [("A", 5, (96, 96))]
    code, out, err = run("analyze", "--config", "two")
    assert (code, out) == (2, "")
    assert "the report has 2 models; measure them with `erfscope compare --config`" in err


def test_a_toml_file_that_is_named_takes_the_place_of_the_one_that_is_found(folder, settings):
    (folder / "erfscope.toml").write_text(f"{QUICK}seed = 3\n")
    (folder / "other.toml").write_text(f"{QUICK}[analyze]\ndraws = 2\n")
    found = settings("--config", "other.toml")
    assert (found["seed"], found["draws"]) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["code.py:tiny", "Ours=code.py:tiny", "x:y", "x.pt2:f", ":f", "torchvision=x:f"])
def test_a_report_names_no_code_that_its_reader_does_not_name(folder, run, spec):
    (folder / "code.py").write_text(CODE)
    file = stored_with(folder)
    document = json.loads((folder / file).read_text())
    label, _, model = spec.rpartition("=")
    document["results"][0] |= {"model": model, "label": label or model}
    (folder / file).write_text(json.dumps(document))
    code, out, err = run("analyze", "--config", file, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"theirs.json asks for the model {spec}, which may run code; if you trust it, name it on the command" in err
    assert not (folder / "ran").exists()
    if "code.py" in spec:
        assert run("analyze", spec, "--config", file, "-q")[0] == 0


@pytest.mark.slow
def test_a_label_of_a_report_smuggles_no_code_in(folder, run):
    (folder / "code.py").write_text(CODE)
    document = json.loads((folder / stored_with(folder)).read_text())
    document["results"][0]["label"] = "code.py:tiny"
    (folder / "theirs.json").write_text(json.dumps(document))
    assert "which may run code" in run("analyze", "--config", "theirs.json")[2]
    assert not (folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"insert": ["code.py:Block@layer2"]}, ["--insert", "code.py:Block@layer2"]),
        ({"model_kwargs": {"scriptable": "x"}}, ["--model-kwargs", "scriptable=True"]),
    ],
)
def test_a_block_by_its_class_and_what_builds_a_model_are_named_by_the_reader(folder, run, asked, given):
    (folder / "code.py").write_text(CODE)
    file = stored_with(folder, **asked)
    code, out, err = run("analyze", "--config", file, "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "which may run code" in err
    assert not (folder / "ran").exists()
    assert run("analyze", "--config", file, *given, "-q")[0] == 0


@pytest.mark.parametrize("command", ["analyze", "compare", "layers", "tile", "check"])
@pytest.mark.parametrize("file", ["erfscope.toml", "pyproject.toml"])
def test_a_settings_file_names_no_block_by_its_class(folder, run, file, command):
    (folder / "code.py").write_text(CODE)
    head = "[tool.erfscope]\n" if file == "pyproject.toml" else ""
    (folder / file).write_text(f"{head}insert = 'code.py:Block@layer2'\n")
    code, out, err = run(command, "test_resnet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{file} asks for the insert code.py:Block@layer2, which may run code; if you trust it, name it on" in err
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("text", "given", "named"),
    [
        ("[layers]\ninsert = ['gcn@layer2', 'code:Block@layer3']\n", ["layers"], "insert code:Block@layer3"),
        (
            "insert = 'layer2: dilation=2; code:Block@layer3'\n",
            ["layers"],
            "insert layer2: dilation=2; code:Block@layer3",
        ),
        ("insert = 'gcn@layer2; code:Block@layer3'\n", ["layers"], "insert gcn@layer2; code:Block@layer3"),
        ("[analyze.model-kwargs]\nact_layer = 'code.py:Block'\n", ["analyze"], "model kwargs act_layer=code.py:Block"),
        ("model-kwargs = { a = ['b'] }\n", ["analyze"], "model kwargs a=['b']"),
        ("checkpoint = 'evil.pth'\n", ["analyze", "--unsafe-load"], "checkpoint evil.pth"),
    ],
)
def test_a_settings_file_names_no_code_anywhere(folder, run, text, given, named):
    (folder / "code.py").write_text(CODE)
    torch.save({"trap": Trap()}, "evil.pth")
    (folder / "erfscope.toml").write_text(text)
    code, out, err = run(given[0], "test_resnet", *given[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"erfscope.toml asks for the {named}, which may run code" in err
    assert not (folder / "ran").exists()


def test_a_settings_file_names_no_factory_whose_checkpoints_are_compared(folder, run):
    (folder / "code.py").write_text(CODE)
    (folder / "erfscope.toml").write_text("[compare]\nof = 'code.py:tiny'\n")
    code, out, err = run("compare", "a.pth", "b.pth")
    assert (code, out) == (2, "")
    assert "asks for the model code.py:tiny, which may run code" in err
    assert not (folder / "ran").exists()


def test_a_toml_file_that_is_named_names_no_code_either(folder, run):
    (folder / "code.py").write_text(CODE)
    (folder / "other.toml").write_text("insert = 'code.py:Block@layer2'\n")
    code, _, err = run("analyze", "test_resnet", "--config", "other.toml")
    assert code == 2
    assert "other.toml asks for the insert" in err
    assert not (folder / "ran").exists()


LAYERS = ("layers", "test_resnet", "--json")


@pytest.mark.slow
def test_the_command_line_and_variables_name_blocks_by_their_class(folder, run, monkeypatch):
    (folder / "code.py").write_text(CODE)
    (folder / "erfscope.toml").write_text("insert = 'code.py:Block@layer2'\n")
    assert '"block"' in run(*LAYERS, "--insert", "code.py:Block@layer3", "--all")[1]
    monkeypatch.setenv("ERFSCOPE_INSERT", "code.py:Block@layer3")
    assert '"block"' in run(*LAYERS, "--all")[1]


@pytest.mark.slow
def test_a_settings_file_names_edits_and_erfscopes_own_blocks(folder, run):
    (folder / "erfscope.toml").write_text("insert = 'layer3: dilation=2; gcn@layer2'\n")
    assert '"gcn"' in run(*LAYERS, "--all")[1]


def test_checks_name_a_factory_and_a_block_by_its_class(folder, run):
    (folder / "code.py").write_text(CODE)
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
    assert code == 0
    assert json.loads(out)["settings"]["model"] == "test_resnet"
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
    from PIL import Image

    (folder / "nets.py").write_text(NETS + PAIR)
    for name in ("left", "right"):
        (folder / name).mkdir()
        for number in range(2):
            Image.new("RGB", (40, 40), (90 * number, 120, 30)).save(folder / name / f"{number}.png")
    command = ["analyze", "nets.py:pair", "-q", "-o"]
    assert run(*command, "one", "--image", "left=left", "--image", "right=right")[0] == 0
    assert run(*command, "again", "--config", "one")[0] == 0
    (folder / "erfscope.toml").write_text("images = { left = 'left', right = ['right'] }\n")
    assert run(*command, "third")[0] == 0
    one, again, third = map(erfscope.read, ("one", "again", "third"))
    assert one.settings["images"] == again.settings["images"] == {"left": ["left"], "right": ["right"]}
    assert third.settings["images"] == one.settings["images"]
    for report in (again, third):
        assert [row.input.sha256 for row in report] == [row.input.sha256 for row in one]
