"""Text on a terminal: an option stands on one line with its value, and what is pasted is never broken."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from erfscope.core.values.printable import between_words
from erfscope.show.view.terminal.console import PlainConsole

TEXT = (
    "Model sizes: try --input-size 448, or auto; `--weights random-raw` leaves them at zero (or --trust), -o DIR keeps"
    " maps; pip install '.[explore]' in a checkout; put what is there with --image YOUR.png, and a name - or none - as"
    " it is; --checkpoint /a/path/that/no/line/has/room/for/beside/its/option/since/it/is/far/too/long.pth"
)
WHOLE = ("--input-size 448,", "`--weights random-raw`", "--trust),", "-o DIR")
WHOLE += ("pip install '.[explore]'", "--image YOUR.png,")


def in_text(width: int) -> str:
    return drawn(Text(TEXT), width)


def in_table(width: int) -> str:
    grid = Table.grid()
    grid.add_column(overflow="fold")
    grid.add_row(TEXT)
    return drawn(Group(grid), width)


def in_message(width: int) -> str:
    return between_words(TEXT, width)


def drawn(shown: object, width: int) -> str:
    console = PlainConsole(width=width, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


@pytest.mark.parametrize("draw", [in_text, in_table, in_message])
def test_an_option_stands_beside_its_value_at_every_width(draw):
    for width in range(26, 130):
        lines = [line.rstrip() for line in draw(width).splitlines()]
        assert [words for words in WHOLE if not any(words in line for line in lines)] == [], width
        # Nothing else is changed: the same words, in the same order.
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", TEXT)
        assert not any(line.endswith(" --") or line.startswith("-input") for line in lines)
