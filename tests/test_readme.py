"""The README's tables name what the code has, and so does the page on blocks. Their code runs in test_docs.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from erfscope.adapters.blocks import BLOCKS as INSERTED

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS_PAGE = (ROOT / "docs" / "blocks.md").read_text(encoding="utf-8")


def test_the_page_on_blocks_names_every_block_and_options_that_exist():
    rows = [line.split("|")[1:4] for line in BLOCKS_PAGE.splitlines() if line.startswith("| `")]
    named = {name: options for names, _, options in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(named) == set(INSERTED)
    for names, _, options in rows:
        known = {option for name in re.findall(r"`(\w+)`", names) for option in INSERTED[name].options}
        assert set(re.findall(r"`(\w+)`", options)) <= known, names


def test_two_commands_are_marked_for_ci():
    assert [ast.literal_eval(f"'{name}'") for name in re.findall(r"<!-- ci:(\w+) -->", README)] == [
        "install",
        "end",
        "tests",
        "end",
    ]
