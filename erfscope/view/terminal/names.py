"""Names in tables: a name that needs several lines is broken after its marks."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from erfscope.view.words import name_pieces


class Name:
    """A rich renderable: the name of a model or a layer."""

    def __init__(self, text: str) -> None:
        self.pieces = name_pieces(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(cell_len, self.pieces), default=0), cell_len("".join(self.pieces)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for piece in self.pieces:
            if lines[-1] and cell_len((lines[-1] + piece).rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(line.rstrip() for line in lines), overflow="fold")
