"""The composite action and the pre-commit hooks: what they run exists, and nothing that is handed in can run anything
else."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from erfscope.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


def known(command: str) -> set[str]:
    return {name for parameter in cli.commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_action_is_composite_and_its_steps_have_a_shell():
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" and step["run"] for step in ACTION["runs"]["steps"])
    assert all({"description", "default"} <= set(each) for each in ACTION["inputs"].values())


def test_inputs_reach_scripts_through_the_environment_only():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert all(re.fullmatch(r"\$\{\{ inputs\.[a-z-]+ \}\}", value) for value in step["env"].values())


@pytest.mark.parametrize(
    ("arguments", "artifacts", "expected"),
    [
        ("", "", []),
        ("--only backbone --trf-only", "", ["--only", "backbone", "--trf-only"]),
        ("--baseline a.json", "erf maps", ["--baseline", "a.json", "--artifacts", "erf maps"]),
        ("$(touch stolen) ; touch stolen", "", ["$(touch", "stolen)", ";", "touch", "stolen"]),
    ],
)
def test_the_action_hands_its_arguments_on_and_runs_nothing_else(tmp_path, arguments, artifacts, expected):
    script = next(step["run"] for step in ACTION["runs"]["steps"] if "check" in step["run"])
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "$0.said"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ARGUMENTS": arguments, "ARTIFACTS": artifacts}
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], env=environment, cwd=tmp_path, check=True)
    said = (tmp_path / "python.said").read_text().splitlines()
    assert said == ["-m", "erfscope", "check", "--format", "github", *expected]
    assert not (tmp_path / "stolen").exists()


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
        assert not words or {word for word in words if word.startswith("-")} <= known(words[1]), line
    assert set(re.findall(r"- id: (\S+)", PAGE)) == {hook["id"] for hook in HOOKS}
    assert set(re.findall(r"with: \{ (\w+): erf \}", PAGE)) <= set(ACTION["inputs"])
