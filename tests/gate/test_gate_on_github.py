"""The composite action and the pre-commit hooks: what they run exists, and nothing that is handed in can run anything
else."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from erfscope.cli.commands import OWN, import_command

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


def known(command: str) -> set[str]:
    parameters = import_command(OWN[command]).params
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_action_is_composite_and_its_steps_have_a_shell():
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" and step["run"] for step in ACTION["runs"]["steps"])
    assert all({"description", "default"} <= set(each) for each in ACTION["inputs"].values())


def test_inputs_reach_scripts_through_the_environment_only():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        known = r"\$\{\{ (inputs\.[a-z-]+|github\.action_path) \}\}"
        assert all(re.fullmatch(known, value) for value in step["env"].values())


CHECKED = ["-m", "erfscope", "check", "--format", "github"]


@pytest.mark.parametrize(
    ("step", "given", "expected"),
    [
        (0, {"INSTALL": "action"}, ["-m", "pip", "install", "--quiet", "/the action"]),
        (0, {"INSTALL": ". -r a.txt"}, ["-m", "pip", "install", "--quiet", ".", "-r", "a.txt"]),
        (1, {}, CHECKED),
        (1, {"ARGUMENTS": "--only backbone --trf-only"}, [*CHECKED, "--only", "backbone", "--trf-only"]),
        (1, {"ARGUMENTS": "--json", "ARTIFACTS": "erf maps"}, [*CHECKED, "--json", "--artifacts", "erf maps"]),
        (1, {"ARGUMENTS": "$(touch stolen) ; touch stolen"}, [*CHECKED, "$(touch", "stolen)", ";", "touch", "stolen"]),
    ],
)
def test_the_action_hands_its_arguments_on_and_runs_nothing_else(tmp_path, step, given, expected):
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "$0.said"\n')
    python.chmod(0o755)
    known = {"ARGUMENTS": "", "ARTIFACTS": "", "ACTION": "/the action", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = ["bash", "-eo", "pipefail", "-c", ACTION["runs"]["steps"][step]["run"]]
    subprocess.run(script, env={**known, **given}, cwd=tmp_path, check=True)
    assert (tmp_path / "python.said").read_text().splitlines() == expected
    assert not (tmp_path / "stolen").exists()


#: A python that runs what is in a folder of its own, and never hands an installation on: it writes down what is asked.
OFFLINE_PYTHON = """#!/usr/bin/env bash
export PYTHONPATH="{site}"
if [ "$1 $2" = "-m pip" ]; then printf "%s\\n" "$@" > "{site}.asked"; exit; fi
exec "{python}" "$@"
"""
#: Put what is in a folder where that python finds it, without a network and out of the tests' environment.
INSTALL = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target")
NET = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3))
"""
CHECKS = '[[check]]\nname = "net"\nmodel = "nets.py:net"\ninput-size = 32\nsamples = 4\n'


@pytest.mark.more
def test_the_action_installs_itself_and_checks_a_project_in_a_clean_directory(tmp_path):
    action, project, site = (tmp_path / name for name in ("the action", "project", "site"))
    for name in ("adapters", "cli", "erfscope"):
        shutil.copytree(ROOT / name, action / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, action)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(OFFLINE_PYTHON.format(site=site, python=sys.executable))
    python.chmod(0o755)
    project.mkdir()
    (project / "nets.py").write_text(NET)
    (project / "erfscope.toml").write_text(CHECKS)
    values = {f"inputs.{name}": each["default"] for name, each in ACTION["inputs"].items()}
    values["github.action_path"] = str(action)
    around = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "HF_HUB_OFFLINE": "1"}
    around |= {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(step) -> subprocess.CompletedProcess[str]:
        own = {name: values[value.strip("${} ")] for name, value in step["env"].items()}
        script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(script, env={**around, **own}, cwd=project, capture_output=True, text=True, check=False)

    install, check = ACTION["runs"]["steps"]
    done = run(install)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site.asked").read_text().splitlines() == ["-m", "pip", "install", "--quiet", str(action)]
    subprocess.run([sys.executable, *INSTALL, str(site), str(action)], cwd=tmp_path, check=True, capture_output=True)
    first = run(check)
    assert (first.returncode, "BASELINE CREATED net" in first.stdout) == (3, True), first.stderr
    assert "::error file=erf-baseline.json,title=erfscope check%3A net%3A baseline created::" in first.stderr
    assert (project / "erf-baseline.json").is_file()
    again = run(check)
    assert (again.returncode, "PASS net" in again.stdout) == (0, True), again.stderr
    assert "### erfscope check: 1 pass (erf-baseline.json)" in (tmp_path / "summary.md").read_text()
    where = {**around, "PYTHONPATH": str(site)}
    found = [sys.executable, "-c", "import erfscope; print(erfscope.__file__)"]
    done = subprocess.run(found, env=where, cwd=project, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == site / "erfscope" / "__init__.py"


def test_hooks_run_commands_that_exist():
    for hook in HOOKS:
        program, command, *options = shlex.split(hook["entry"])
        assert program == "erfscope"
        assert set(options) <= known(command)
        assert not hook["pass_filenames"]
    assert {hook["id"]: hook["stages"] for hook in HOOKS}["erfscope-check"] == ["pre-push", "manual"]


def test_the_page_names_options_and_hooks_that_exist():
    lines = [
        line
        for block in re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:1] != ["erfscope"] or {word for word in words if word.startswith("-")} <= known(words[1]), line
    assert set(re.findall(r"- id: (\S+)", PAGE)) == {hook["id"] for hook in HOOKS}
    assert set(re.findall(r"with: \{ (\w+): erf \}", PAGE)) <= set(ACTION["inputs"])
