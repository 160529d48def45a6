"""Commands that other packages add: they run as erfscope's own do, and cost and break nothing until they are called."""

from __future__ import annotations

import sys

import pytest

from erfscope.cli import commands, doctor
from erfscope.cli.commands import OWN, import_command
from erfscope.cli.main import cli

TOOL = '''
import sys
import click

@click.command()
@click.argument("model")
@click.option("--count", default=1, help="Rows of a page.")
@click.option("--insert", multiple=True)
@click.option("--folder", envvar="MYTOOL_FOLDER")
def rows(model, count, insert, folder):
    """Rows of MODEL."""
    print(model, count, *insert, folder)
    if model == "none":
        sys.exit("no such model")
    if model == "fails":
        raise ZeroDivisionError("count")
    return count

@click.group()
def pages():
    """Pages."""

@pages.command()
def first():
    print("page 1")

def function():
    pass
'''
COMMANDS = {"my-rows": "mytool:rows", "pages": "mytool:pages", "broken": "mytool_broken:rows"}


@pytest.fixture
def project(tmp_path, monkeypatch, install):
    """A working directory; the package with the commands is installed beside it."""
    site, project = tmp_path / "site", tmp_path / "project"
    install(site, COMMANDS)
    (site / "mytool.py").write_text(TOOL)
    (site / "mytool_broken.py").write_text("import nowhere")
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def test_a_command_of_another_package_runs_and_keeps_its_stdout_and_its_exit_code(project, command):
    assert command("my-rows", "net", "--count", "0") == (0, "net 0 None\n", "")
    assert command("my-rows", "net", "--count", "7") == (7, "net 7 None\n", "")
    assert command("my-rows", "none") == (1, "none 1 None\n", "erfscope: no such model\n")
    assert command("pages", "first") == (0, "page 1\n", "")


def test_a_command_that_is_imported_twice_writes_results_on_stdout(command, monkeypatch):
    for _ in range(2):
        monkeypatch.setattr(cli, "commands", {})
        code, out, err = command("analyze", "--explain")
        assert (code, err) == (0, "")
        assert "What to use when" in out


def test_its_errors_are_one_line_and_v_shows_the_traceback(project, command):
    line = "erfscope: internal error, ZeroDivisionError: count; run again with -v and report the traceback\n"
    assert command("my-rows", "fails") == (3, "fails 1 None\n", line)
    code, _, err = command("my-rows", "fails", "-v")
    assert (code, err.endswith(line), "mytool.py" in err) == (3, True, True)
    code, _, err = command("my-rows", "net", "--cuont", "2")
    assert code == 2
    # Click quotes the option since its release 8.2.
    assert "Did you mean --count? `erfscope my-rows --help`" in err.replace("'", "")
    assert "Did you mean 'my-rows'?" in command("my-row")[2]


def test_help_names_it_and_its_package_and_imports_nothing(project, command):
    code, out, err = command("--help")
    panel = out.partition("Other packages")[2]
    assert (code, err) == (0, "")
    assert [line.split()[1:5] for line in panel.splitlines() if line.startswith("│")] == [
        [name, "from", "mytool", "1.2"] for name in COMMANDS
    ]
    assert {"mytool", "mytool_broken"}.isdisjoint(sys.modules)
    out = command("my-rows", "--help")[1]
    assert "Rows of MODEL." in out
    assert "Rows of a page." in out


def test_one_that_cannot_be_imported_is_one_line_with_its_package_when_it_is_called(project, command, install):
    line = "erfscope: cannot import the command broken of mytool 1.2: ModuleNotFoundError: No module named 'nowhere'"
    for words in (["broken"], ["broken", "--help"], ["broken", "net", "--count", "2"]):
        assert command(*words) == (2, "", f"{line}; update or uninstall that package\n")
    assert "Traceback" in command("broken", "-v")[2]
    install(project / "more", {"function": "mytool:function"}, "more")
    assert "TypeError: mytool:function is no click command" in command("function")[2]


def test_the_doctor_lists_them_with_their_packages(project, install):
    install(project / "more", {"gone": "mytool:gone"}, "more")
    found = {line.subject: (line.text, line.fix, line.is_optional) for line in doctor._others()}
    assert found["erfscope my-rows"] == ("from mytool 1.2, works", "", True)
    text = "from mytool 1.2, fails: ModuleNotFoundError: No module named 'nowhere'"
    assert found["erfscope broken"] == (text, "update or uninstall mytool 1.2", True)
    text = "from more 1.2, fails: AttributeError: module 'mytool' has no attribute 'gone'"
    assert found["erfscope gone"] == (text, "update or uninstall more 1.2", True)


def test_a_name_that_is_taken_stays_with_its_owner_and_that_is_said(project, command, install, tmp_path):
    install(tmp_path / "site2", {"models": "mytool:rows"}, "second")
    install(tmp_path / "site3", {"pages": "mytool:rows"}, "zero")
    code, out, err = command("pages", "net", "--count", "0")
    assert (code, out) == (0, "net 0 None\n")
    assert err == (
        "erfscope: the command models of second 1.2 is ignored: erfscope has one of that name\n"
        "erfscope: the command pages of mytool 1.2 is ignored: zero 1.2 has one of that name\n"
    )
    assert "List timm's models" in command("models", "--help")[1]


def test_settings_and_variables_hold_for_it(project, command, monkeypatch):
    (project / "erfscope.toml").write_text("seed = 1\n[my-rows]\ncount = 0\n[broken]\nany = 3\n")
    assert command("my-rows", "net") == (0, "net 0 None\n", "")
    monkeypatch.setenv("ERFSCOPE_MY_ROWS_COUNT", "2")
    monkeypatch.setenv("MYTOOL_FOLDER", "here")
    assert command("my-rows", "net") == (2, "net 2 here\n", "")


def test_its_table_is_checked_where_it_is_called(project, command):
    (project / "erfscope.toml").write_text("[my-rows]\ncuont = 0\n")
    assert command("merge", "--help")[0] == 0
    assert "'cuont' in [my-rows] of erfscope.toml; there is: count" in command("my-rows", "net")[2]
    (project / "erfscope.toml").write_text("[nobodys]\ncount = 0\n")
    assert "unknown setting 'nobodys' in erfscope.toml" in command("my-rows", "net")[2]


def test_a_settings_file_names_no_code_for_it(project, command):
    (project / "erfscope.toml").write_text("[my-rows]\ncount = 0\ninsert = 'file.py:Block@layer2'\n")
    code, out, err = command("my-rows", "net")
    assert (code, out) == (2, "")
    assert "which may run code; if you trust it, name it on the command line too" in err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("my", "plain,my-rows"),
        ("my-rows --c", "plain,--count"),
        ("broken --c", ""),
        ("pages f", "plain,first"),
        ("nobodys x", ""),
    ],
)
def test_a_shell_completes_it(project, command, install, tmp_path, monkeypatch, words, offered):
    install(tmp_path / "site2", {"models": "mytool:rows"}, "second")
    monkeypatch.setenv("_ERFSCOPE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"erfscope {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert command() == (0, f"{offered}\n", "")


def test_the_commands_of_erfscope_are_there_whatever_is_known_of_its_installation(command, monkeypatch):
    assert {name: import_command(entry).name for name, entry in OWN.items()} == {name: name for name in OWN}
    monkeypatch.setattr(commands, "entry_points", lambda group: ())
    commands.others.cache_clear()
    out = command("--help")[1]
    assert [name for name in OWN if f"│ {name} " not in out] == []
    assert "Other packages" not in out
