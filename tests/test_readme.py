"""The README is true: its Python runs, its commands exist, and its tables name what the code has."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

from erfscope.adapters.blocks import BLOCKS as INSERTED
from erfscope.cli import options as cli_options
from erfscope.cli.main import cli
from erfscope.convention import CONVENTIONS
from erfscope.measures import MEASURES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS_PAGE = (ROOT / "docs" / "blocks.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "erf" / "report.json").is_file()


def test_the_python_of_the_page_on_blocks_runs_and_says_true(capsys):
    for block in blocks("python", BLOCKS_PAGE):
        exec(compile(block, "blocks.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["torch.Size([2, 64, 14, 14])", "(5, 5)", "True"]


def test_the_page_on_blocks_names_every_block_and_options_that_exist():
    rows = [line.split("|")[1:4] for line in BLOCKS_PAGE.splitlines() if line.startswith("| `")]
    named = {name: options for names, _, options in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(named) == set(INSERTED)
    for names, _, options in rows:
        known = {option for name in re.findall(r"`(\w+)`", names) for option in INSERTED[name].options}
        assert set(re.findall(r"`(\w+)`", options)) <= known, names


def test_the_command_line_names_every_block():
    assert cli_options.BLOCKS.split(", ") == list(INSERTED)


def test_every_command_and_option_exists():
    lines = [line for text in (README, BLOCKS_PAGE) for block in blocks("bash", text) for line in block.splitlines()]
    found = [shlex.split(part, comments=True) for line in lines for part in line.split("&&") if part.strip().startswith("erfscope ")]
    assert len(found) >= 7
    for words in found:
        command = cli.commands[words[1]]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words[2:] if word.startswith("-")} <= known, words


def test_the_conventions_table_is_complete():
    assert re.findall(r"^\| `(\w+)`(?: \(default\))? \|", README, flags=re.MULTILINE) == list(CONVENTIONS)


def test_the_number_of_measures_is_true():
    assert f"There are {len(MEASURES)} measures" in README


def test_two_commands_are_marked_for_ci():
    assert [ast.literal_eval(f"'{name}'") for name in re.findall(r"<!-- ci:(\w+) -->", README)] == ["install", "end", "tests", "end"]
