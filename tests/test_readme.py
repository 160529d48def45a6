"""The README's tables name what the code has, and so does the page on blocks. Their code runs in test_docs.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from erfscope.adapters.blocks import BLOCKS as INSERTED
from erfscope.attribution.convention import CONVENTIONS
from erfscope.measures import MEASURES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS_PAGE = (ROOT / "docs" / "blocks.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


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


def test_the_conventions_table_is_complete():
    assert re.findall(r"^\| `(\w+)`(?: \(default\))? \|", README, flags=re.MULTILINE) == list(CONVENTIONS)


def test_the_number_of_measures_is_true():
    assert f"There are {len(MEASURES)} measures" in README


def test_two_commands_are_marked_for_ci():
    assert [ast.literal_eval(f"'{name}'") for name in re.findall(r"<!-- ci:(\w+) -->", README)] == [
        "install",
        "end",
        "tests",
        "end",
    ]
