"""What applications print and write with: a class of a stranger's shows itself, and files are written whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from rich.console import Console

import erfscope
from erfscope import ErfscopeError
from erfscope.show import Column, Note, Shown, Table, rows_of, write

TABLE = Table(columns=(Column(name="side"), Column(name="share", kind="number")), rows=rows_of([["left <", "0.25"]]))


class Asymmetry(Shown):
    """A value of an application's."""

    def parts(self) -> Iterator[Table | Note]:
        """A line and a table."""
        yield Note(text="more on the left")
        yield TABLE


def test_a_class_with_parts_prints_and_is_drawn_and_shown_in_notebooks():
    text = str(Asymmetry())
    assert text.splitlines()[0] == "more on the left"
    assert text.splitlines()[-1].split() == ["left", "<", "0.25"]
    console = Console(width=60, color_system=None)
    with console.capture() as captured:
        console.print(Asymmetry())
    assert [line.rstrip() for line in captured.get().strip().splitlines()] == text.splitlines()
    assert "left &lt;" in Asymmetry()._repr_html_()
    with pytest.raises(NotImplementedError, match=r"Shown defines no parts\(\)"):
        str(Shown())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("text.txt", "ä\n", "ä\n"),
        ("bytes.bin", b"12", "12"),
        ("numbers.json", {"share": 0.25}, '{\n "share": 0.25\n}\n'),
        ("shares.json", [0.25], "[\n 0.25\n]\n"),
        ("table.csv", TABLE, "side,share\nleft <,0.25\n"),
        ("table.md", TABLE, "| side | share |\n| --- | --: |\n| left &lt; | 0.25 |\n"),
    ],
)
def test_files_are_written_as_their_content_is(tmp_path, name, content, expected):
    file = tmp_path / "new" / name
    write(file, content)
    assert file.read_text(encoding="utf-8") == expected
    with pytest.raises(ErfscopeError, match="exists already"):
        write(file, "other")
    write(file, "other", force=True)
    assert file.read_text(encoding="utf-8") == "other"


@pytest.mark.parametrize(
    ("name", "content", "error", "said"),
    [
        ("s.json", TABLE, ErfscopeError, r"s\.json is no file for a table; it ends in \.csv, \.md, \.tex"),
        ("s", Figure(), ErfscopeError, r"s is no file for a figure; it ends in \.png, \.svg, \.pdf"),
        ("s.json", {0.25}, TypeError, "cannot write a set"),
        # JSON has no number that is none.
        ("s.json", {"share": float("nan")}, ValueError, "JSON"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_reason(tmp_path, name, content, error, said):
    with pytest.raises(error, match=said):
        write(tmp_path / name, content)
    assert not [*tmp_path.iterdir()]


def test_show_is_a_public_module_and_no_import_of_the_package_is_a_public_name():
    assert erfscope.show.write is write
    names = {name for name in dir(erfscope) if not name.startswith("__")}
    assert names == {*erfscope.__all__, "adapters", "core", "gate", "show", "studies", "theory"}
    assert not hasattr(erfscope.Report, "parts")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("from erfscope.core.answer.report import Report; print(Report(results=()))", "no results"),
        ("import erfscope.show, sys; print({'torch', 'jinja2', 'matplotlib'} & set(sys.modules))", "set()"),
    ],
)
def test_a_value_prints_in_a_process_that_imported_its_own_module_alone_and_the_face_needs_no_torch(code, printed):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{printed}\n"


def test_numbers_are_written_as_they_are_and_formulas_as_text(tmp_path):
    numbers = ["-0.15 ± 0.02", "-7.2 px"]
    formulas = ["+3 %", "-2+3", "=1+1", "-cmd|' /C calc'!A0", "@SUM(A1)"]
    table = Table(columns=(Column(name="x"),), rows=rows_of([text] for text in (*numbers, *formulas)))
    write(tmp_path / "x.csv", table)
    _, *written = (tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()
    assert [text.strip('"') for text in written] == [*numbers, *(f"'{text}" for text in formulas)]
