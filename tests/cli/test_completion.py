"""The command without a command, and TAB in a shell: what is offered, quickly, and in place of what was begun."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: How a shell is started without anybody's settings, and how completion is switched on in it, as docs/cli.md
#: says.
SHELLS = {
    "bash": ("bash --norc --noprofile -i", 'eval "$(_ERFSCOPE_COMPLETE=bash_source erfscope)"'),
    "zsh": ("zsh -f -i", 'autoload -Uz compinit && compinit -u; eval "$(_ERFSCOPE_COMPLETE=zsh_source erfscope)"'),
    "fish": ("fish --no-config -i", "_ERFSCOPE_COMPLETE=fish_source erfscope | source"),
}


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """That of a user with ``erfscope`` in the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "erfscope"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m erfscope "$@"\n')
    program.chmod(0o755)
    more = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    return {**os.environ, **more}


def ask(environment: dict[str, str], *words: str) -> list[str]:
    """What bash's function asks for the last of some words: the values that are offered."""
    asked = {
        "_ERFSCOPE_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(("erfscope", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ran = subprocess.run(
        ["erfscope"], env={**environment, **asked}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_no_command_is_answered_with_the_help_and_the_code_of_click(environment, tmp_path):
    ran = subprocess.run(
        ["erfscope"], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (2, "")
    assert "Usage: erfscope [OPTIONS] COMMAND" in ran.stdout


def test_a_model_in_place_of_a_command_is_answered_with_the_command(environment, tmp_path):
    ran = subprocess.run(
        ["erfscope", "resnet18"], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "erfscope: No such command 'resnet18'; did you mean `erfscope analyze resnet18`?\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_given_a_script_and_nothing_else(shell, environment):
    environment["_ERFSCOPE_COMPLETE"] = f"{shell}_source"
    ran = subprocess.run(["erfscope"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "_erfscope_completion" in ran.stdout


def test_commands_options_words_and_names_are_offered(environment):
    assert ask(environment, "mod") == ["plain,models"]
    assert ask(environment, "analyze", "--until") == ["plain,--until-se"]
    assert ask(environment, "analyze", "--format", "") == [
        "plain,rich",
        "plain,plain",
        "plain,json",
        "plain,csv",
        "plain,markdown",
        "plain,latex",
    ]
    formats = ("rich", "plain", "json", "markdown", "github")
    assert ask(environment, "check", "--format", "") == [f"plain,{name}" for name in formats]
    assert ask(environment, "compare", "resnet18", "--convention", "j") == ["plain,jacobian"]
    assert {"plain,test_vit", "plain,test_vit2"} <= {*ask(environment, "compare", "resnet18", "test_vi")}
    assert ask(environment, "layers", "wide_resnet50") == ["plain,wide_resnet50_2"]
    assert ask(environment, "analyze", "nets.p") == ["file,nets.p"]
    assert ask(environment, "analyze", "x", "--image", "photos/a") == ["file,photos/a"]
    assert ask(environment, "study", "theo") == ["plain,theorems"]


def test_nothing_heavy_is_imported_at_tab():
    code = (
        "import sys\nfrom erfscope.cli.main import main\ntry:\n    main()\nexcept SystemExit as stop:\n    assert"
        " stop.code == 0\nheavy = {'torch', 'timm', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    asked = {"_ERFSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "erfscope analyze wide_resnet50", "COMP_CWORD": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "plain,wide_resnet50_2\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_a_real_shell(shell, environment, tmp_path):
    """The line is what a program of erfscope's name receives that answers TABs as erfscope does."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    program, written = shutil.which("erfscope", path=environment["PATH"]), tmp_path / "written"
    content = (
        Path(program)
        .read_text()
        .replace("exec", f'[ "$_ERFSCOPE_COMPLETE" ] || {{ echo "$@" > {written}; exit; }}\nexec')
    )
    Path(program).write_text(content)
    command, setup = SHELLS[shell]
    number, terminal = pty.fork()
    if number == 0:
        os.execvpe(shell, command.split(), environment)
    seen = ""
    try:
        os.write(terminal, f"{setup}; echo re''ady\n".encode())
        while "ready\r\n" not in seen:
            seen += read(terminal)
        os.write(terminal, b"erfscope ana\twide_resnet50\t--form\tjs\t; echo do''ne\r")
        while "done\r\n" not in seen:
            seen += read(terminal)
    finally:
        os.kill(number, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(number, 0)
    assert written.read_text() == "analyze wide_resnet50_2 --format json\n", seen


def read(terminal: int) -> str:
    assert select.select([terminal], [], [], 60)[0], "the shell says nothing"
    return os.read(terminal, 65536).decode(errors="replace")
