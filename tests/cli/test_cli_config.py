"""Settings of the command line: files, environment variables, and which of them wins."""

from __future__ import annotations

import json
import os

import pytest

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


def test_a_list_of_pictures_is_several_pictures(folder, settings):
    from PIL import Image

    for name in ("a, b.png", "c.png"):
        Image.new("RGB", (40, 40), (90, 120, 30)).save(folder / name)
    (folder / "erfscope.toml").write_text(f"{QUICK}image = ['a, b.png', 'c.png']\n")
    assert settings()["images"] == ["a, b.png", "c.png"]
    (folder / "erfscope.toml").write_text(f"{QUICK}images = 'c.png'\n")
    assert settings()["images"] == ["c.png"]


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
    assert "no such image: 'gone.png'" in err


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
