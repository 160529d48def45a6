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
    write(tmp_path / "new" / name, content)
    assert (tmp_path / "new" / name).read_text(encoding="utf-8") == expected
    with pytest.raises(ErfscopeError, match="exists already"):
        write(tmp_path / "new" / name, "other")
    write(tmp_path / "new" / name, "other", force=True)
    assert (tmp_path / "new" / name).read_text(encoding="utf-8") == "other"


def test_json_has_no_number_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path / "numbers.json", {"share": float("nan")})
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_written_is_refused_with_its_reason(tmp_path):
    with pytest.raises(ErfscopeError, match=r"sides\.json is no file for a table; it ends in \.csv, \.md, \.tex"):
        write(tmp_path / "sides.json", TABLE)
    with pytest.raises(ErfscopeError, match=r"sides is no file for a figure; it ends in \.png, \.svg, \.pdf"):
        write(tmp_path / "sides", Figure())
    with pytest.raises(TypeError, match="cannot write a set"):
        write(tmp_path / "sides.json", {0.25})
    with pytest.raises(NotImplementedError, match=r"Shown defines no parts\(\)"):
        str(Shown())
    assert not [*tmp_path.iterdir()]


def test_show_is_a_public_module_and_no_import_of_the_package_is_a_public_name():
    assert erfscope.show.write is write
    names = {name for name in dir(erfscope) if not name.startswith("__")}
    assert names == {*erfscope.__all__, "adapters", "core", "gate", "show", "studies", "theory"}
    assert not hasattr(erfscope.Report, "parts")


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_value_prints_in_a_process_that_imported_its_own_module_alone():
    made = "import sys; from erfscope.core.answer.report import Report; print(Report(results=()))"
    assert fresh(made) == "no results\n"


@pytest.mark.slow
def test_the_face_needs_no_torch():
    assert fresh("import erfscope.show, sys; print({'torch', 'jinja2', 'matplotlib'} & set(sys.modules))") == "set()\n"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("-0.15 ± 0.02", "-0.15 ± 0.02"),
        ("-7.2 px", "-7.2 px"),
        ("+3 %", "'+3 %"),
        ("-2+3", "'-2+3"),
        ("=1+1", "'=1+1"),
        ("-cmd|' /C calc'!A0", "\"'-cmd|' /C calc'!A0\""),
        ("@SUM(A1)", "'@SUM(A1)"),
    ],
)
def test_numbers_are_written_as_they_are_and_formulas_as_text(tmp_path, text, written):
    table = Table(columns=(Column(name="x"),), rows=rows_of([[text]]))
    write(tmp_path / "x.csv", table)
    assert (tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()[1].strip('"') == written.strip('"')
