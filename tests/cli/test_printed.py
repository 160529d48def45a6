"""Claims about results and reports as ``print`` and ``repr`` show them, which rich has no part in choosing."""

from __future__ import annotations

import ast
import glob
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made_up
import pytest

import erfscope
from erfscope import Report
from erfscope.core import Finding

NOTE = Finding(code="clipped", text="the field is clipped")
WARNED = replace(made_up.result(), findings=(NOTE, Finding(code="own_cell_dominated", text="it is its own cell")))
DEGENERATE = replace(made_up.result(), status="degenerate", error="the gradient is zero", map=None, measures={})


def test_a_result_prints_what_was_measured_its_sizes_and_findings_and_no_map():
    text = str(WARNED)
    parts = (
        "resnet18 · layer4 · unit row 3, column 3",
        "r50 62.0 ± 0.6 px",
        "r90 105.2 ± 0.4 px",
        "theoretical receptive field (TRF) is 435",
        NOTE.text,
    )
    assert [part for part in (*parts, "! it is its own cell") if part not in " ".join(text.split())] == []
    assert "@@" not in text
    assert "\x1b" not in text
    assert len(text.splitlines()) <= 25
    assert len(text) < 2000


def test_a_report_prints_its_table_and_no_maps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = str(made_up.four())
    assert "105.2±0.4" in text
    assert "swin_base: Input height (224)" in text
    assert "@@" not in text
    assert str(made_up.report(WARNED)) == str(WARNED)
    assert str(Report(results=())) == "no results"


def test_a_result_without_a_map_prints_its_status_and_why():
    for result, parts in (
        (made_up.broken(), ("broken: error", "Input height (224) doesn't match")),
        (DEGENERATE, ("resnet18: degenerate", "the gradient is zero")),
        (replace(made_up.result(), map=None), ("62.0 ± 0.6 px",)),
    ):
        assert all(part in str(result) for part in parts)


def test_the_text_is_as_wide_as_the_terminal_and_colourless_wherever_colours_are_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (60, 80, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        text = str(made_up.four())
        assert "\x1b" not in text
        assert 0.7 * width < max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (made_up.result(), "<Result resnet18 layer4 unit 3,3: ok, r50 62.0 ± 0.6 px>"),
        (made_up.inner()[0], "<Result resnet18 layer4 unit 3,3: ok, r50 15.5 ± 0.2 cells>"),
        (made_up.result(measures={}), "<Result resnet18 layer4 unit 3,3: ok>"),
        (made_up.broken(), "<Result broken: error, Input height (224) doesn't match model (256)>"),
        (DEGENERATE, "<Result resnet18 layer4 unit 3,3: degenerate, the gradient is zero>"),
        (made_up.inner(), "<Report of 1 result: Result resnet18 layer4 unit 3,3: ok, r50 15.5 ± 0.2 cells>"),
        (made_up.stages(), "<Report of 7 results (7 ok): resnet18; vit_tiny>"),
        (made_up.report(made_up.broken("a"), made_up.result("b")), "<Report of 2 results (1 error, 1 ok): a; b>"),
        (made_up.report(*map(made_up.result, "abcde")), "<Report of 5 results (5 ok): a; b; c; d; ...>"),
        (Report(results=()), "<Report of 0 results>"),
    ],
)
def test_repr_is_one_line(shown, line):
    assert repr(shown) == line


def test_names_and_errors_from_outside_steer_no_terminal():
    hostile = replace(made_up.broken("a\x1b[2J\nb"), error="first\nsecond\x07 " + "word " * 200)
    for text in (repr(hostile), repr(made_up.report(hostile, hostile))):
        assert text.isprintable()
        assert len(text) < 200
    assert not {"\x1b", "\x07"} & set(str(hostile))


def test_results_are_compared_and_pickled_as_before():
    result = made_up.result(map=None)
    assert pickle.loads(pickle.dumps(result)) == result == made_up.result(map=None)
    assert result != replace(result, seed=1)
    assert "62.0" in result._repr_html_()


@pytest.mark.slow
def test_repr_needs_no_rich_and_print_does():
    code = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
import made_up
repr(made_up.four())
assert "rich" not in sys.modules
print(made_up.result())
assert "rich" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "62.0 ± 0.6 px" in done.stdout


def test_no_text_names_a_file_of_the_documentation():
    """Who has installed the package has no docs/: strings that are no docstrings name none."""
    named = []
    folder = Path(erfscope.__file__).parent
    # It follows the links to the commands and the adapters, as Path.rglob does not.
    files = glob.glob(f"{folder}/**/*.py", recursive=True)  # noqa: PTH207
    assert any(file.endswith("cli/main.py") for file in files)
    for file in map(Path, files):
        text = file.read_text(encoding="utf-8")
        if "docs/" not in text:
            continue
        tree = ast.parse(text)
        bodies = [node.body for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)]
        described = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                named += [f"{file.name}:{node.lineno}"] if re.search(r"\bdocs/", node.value) else []
    assert named == []
