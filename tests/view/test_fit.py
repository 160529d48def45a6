"""How tables fit into a terminal: columns go before anything in them is cut."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfscope.show import Column, Table, TableRow, aligned
from erfscope.show.view.fit import GAP, LONGEST_WORD, fit, text_width
from erfscope.show.view.terminal.console import PlainConsole
from erfscope.show.view.terminal.table import TerminalTable

NUMBER = st.floats(0, 1e9).map("{:.7g}".format)
WITH_ERROR = st.tuples(NUMBER, NUMBER).map(" ± ".join)
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=1, max_size=5).map(" ".join)


@st.composite
def tables(draw) -> Table:
    columns = [Column(name="name", folds=True)]
    for place in range(draw(st.integers(1, 9))):
        is_number = draw(st.booleans())
        kind, folds = ("number", draw(st.booleans())) if is_number else ("text", True)
        columns.append(Column(name=f"column {place}", kind=kind, folds=folds, rank=draw(st.integers(0, 2))))
    cells = [NUMBER | WITH_ERROR if column.kind == "number" else WORDS for column in columns]
    rows = draw(st.lists(st.tuples(*cells), min_size=1, max_size=4))
    return Table(columns=tuple(columns), rows=tuple(TableRow(cells=row) for row in rows))


@settings(deadline=None, max_examples=50)
@given(tables(), st.integers(60, 130))
def test_whatever_is_shown_is_whole_and_what_is_not_is_named(table, width):
    found, out = fit(table, width), io.StringIO()
    PlainConsole(file=out, width=width, color_system=None).print(TerminalTable(table))
    for text in (out.getvalue(), "\n".join(line for lines in aligned(table, width) for line in lines)):
        assert "…" not in text
        numbers = [n for n, column in enumerate(table.columns) if column.kind == "number"]
        for n in numbers:
            name = table.columns[n].name
            assert name in found.hidden or all(row.cells[n] in text for row in table.rows)
        shown = re.sub(r"\s+", " ", text)
        assert all(name in shown for name in found.hidden)
        assert max(map(text_width, text.replace(found.note, "").splitlines())) <= width


def test_the_least_important_columns_go_first_and_the_last_of_one_rank():
    columns = [Column(name=name * 10, rank=rank) for name, rank in zip("abcde", (1, 2, 1, 1, 0), strict=True)]
    table = Table(columns=tuple(columns), rows=(TableRow(cells=tuple("12345")),))
    hidden = [fit(table, width).hidden for width in (58, 57, 45, 33, 21)]
    assert ["".join(name[0] for name in names) for names in hidden] == ["", "b", "bd", "bcd", "bcde"]


def test_words_wrap_before_a_column_goes_and_numbers_with_their_errors_stay_together():
    columns = (Column(name="what"), Column(name="words", folds=True), Column(name="number", kind="number", folds=True))
    table = Table(columns=columns, rows=(TableRow(cells=("a", "one two three four", "12.5 ± 0.25")),))
    assert fit(table, 60).widths == (4, 18, 11)
    narrow = fit(table, 4 + 7 + 11 + 2 * GAP)
    assert (narrow.widths, narrow.hidden) == ((4, 7, 11), ())
    assert [line for lines in aligned(table, 26) for line in lines] == [
        "what  words    number",
        "a     one two  12.5 ± 0.25",
        "      three",
        "      four",
    ]
    assert fit(table, 20).hidden == ("number",)


@pytest.mark.parametrize("kind", ["name", "text"])
def test_a_name_without_marks_is_broken_at_its_longest(kind):
    columns = (Column(name="n", kind=kind, folds=True), Column(name="b"))
    table = Table(columns=columns, rows=(TableRow(cells=("x" * 90, "1")),))
    assert fit(table, 30).widths == (27, 1)
    assert fit(table, 10).widths[0] == LONGEST_WORD
    assert max(len(line) for lines in aligned(table, 30) for line in lines) == 30
