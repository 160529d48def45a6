"""The command without a command, and TAB in a shell: what is offered, quickly, and in place of what was begun."""

from __future__ import annotations

import importlib.util
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from erfscope.adapters.sources import catalogue
from erfscope.show.command.known_names import names_in_timm

#: How a shell is started without anybody's settings, and how completion is switched on in it, as docs/cli.md
#: says.
SHELLS = {
    "bash": ("bash --norc --noprofile -i", 'eval "$(_ERFSCOPE_COMPLETE=bash_source erfscope)"'),
    "zsh": ("zsh -f -i", 'autoload -Uz compinit && compinit -u; eval "$(_ERFSCOPE_COMPLETE=zsh_source erfscope)"'),
    "fish": ("fish --no-config -i", "_ERFSCOPE_COMPLETE=fish_source erfscope | source"),
}


@pytest.fixture
def ask(command, monkeypatch):
    """What bash's function asks for the last of some words: the values that are offered."""

    def call(words: str) -> list[str]:
        asked = words.split(" ")
        monkeypatch.setenv("_ERFSCOPE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("erfscope", *asked)))
        monkeypatch.setenv("COMP_CWORD", str(len(asked)))
        code, out, err = command()
        assert (code, err) == (0, "")
        return out.split()

    return call


def test_no_command_is_answered_with_the_help_and_a_model_in_its_place_with_the_command(command):
    code, out, err = command()
    assert (code, err) == (2, "")
    assert "Usage: erfscope [OPTIONS] COMMAND" in out
    line = "erfscope: No such command 'resnet18'; did you mean `erfscope analyze resnet18`?\n"
    assert command("resnet18") == (2, "", line)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_given_a_script_and_nothing_else(shell, command, monkeypatch):
    monkeypatch.setenv("_ERFSCOPE_COMPLETE", f"{shell}_source")
    code, out, err = command()
    assert (code, err) == (0, "")
    assert "_erfscope_completion" in out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("mod", "plain,models"),
        ("analyze --until", "plain,--until-se"),
        ("analyze --format ", "plain,rich plain,plain plain,json plain,csv plain,markdown plain,latex"),
        ("check --format ", "plain,rich plain,plain plain,json plain,markdown plain,github"),
        ("compare resnet18 --convention j", "plain,jacobian"),
        ("layers wide_resnet50", "plain,wide_resnet50_2"),
        ("analyze nets.p", "file,nets.p"),
        ("analyze x --image photos/a", "file,photos/a"),
        ("study theo", "plain,theorems"),
    ],
)
def test_commands_options_words_and_names_are_offered(ask, words, offered):
    assert ask(words) == offered.split()


def test_the_names_that_are_offered_are_those_that_timm_lists(ask, monkeypatch):
    assert {"plain,test_vit", "plain,test_vit2"} <= {*ask("compare resnet18 test_vi")}
    assert sorted(names_in_timm()) == sorted(catalogue.model_names())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert names_in_timm() == []


@pytest.mark.slow
def test_nothing_heavy_is_imported_at_tab():
    code = (
        "import sys\nfrom erfscope.cli.main import main\ntry:\n    main()\nexcept SystemExit as stop:\n    assert"
        " stop.code == 0\nheavy = {'torch', 'timm', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    asked = {"_ERFSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "erfscope analyze wide_resnet50", "COMP_CWORD": "2"}
    call, around = [sys.executable, "-c", code], {**os.environ, **asked}
    ran = subprocess.run(call, env=around, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "plain,wide_resnet50_2\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_a_real_shell(shell, tmp_path):
    """The line is what a program of erfscope's name receives that answers TABs as erfscope does."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    program, written = tmp_path / "programs" / "erfscope", tmp_path / "written"
    program.parent.mkdir()
    answers = f'exec {shlex.quote(sys.executable)} -m erfscope "$@"'
    program.write_text(f'#!/bin/sh\n[ "$_ERFSCOPE_COMPLETE" ] || {{ echo "$@" > {written}; exit; }}\n{answers}\n')
    program.chmod(0o755)
    around = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    command, setup = SHELLS[shell]
    number, terminal = pty.fork()
    if number == 0:
        os.execvpe(shell, command.split(), {**os.environ, **around})
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
