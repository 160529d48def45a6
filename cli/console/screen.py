"""The output in the terminal: a console for results and one line for messages, neither with control characters."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from erfscope.cli.console.streams import streams
from erfscope.printable import one_line, printable

if TYPE_CHECKING:
    from typing import TextIO

#: Width of reports that go to a file or a pipe, unless COLUMNS says otherwise: wide enough for the first line of a
#: report.
PIPED_WIDTH = 110


class Screen(Console):
    """A console that shows text as it is: no markup, no emoji codes, no control characters."""

    def __init__(self, *, plain: bool = False, stderr: bool = False) -> None:
        super().__init__(
            file=sys.stderr if stderr else streams.out,
            highlight=False,
            markup=False,
            emoji=False,
            color_system=None if plain else "auto",
        )
        #: Whether the width is known: of a terminal, or from COLUMNS.
        self.is_bounded = self.is_terminal or bool(os.environ.get("COLUMNS"))
        if not self.is_bounded:
            self.width = PIPED_WIDTH

    def print_line(self, text: str, *, style: str | None = None) -> None:
        """Print one line; where the width is bounded it is broken between words, and a path that is too long stays
        whole."""
        self.print(between_words(text, self.width) if self.is_bounded else text, style=style, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command: rich would redirect ``sys.stdout``, stderr while a command runs."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; those that rich makes for itself, such as colours, stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)


def between_words(text: str, width: int) -> str:
    """Text on lines that are broken between words only."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def say(text: str) -> None:
    """Print a table or JSON as it is, but for control characters."""
    print(printable(text, keep="\n\t"), file=streams.out)


def print_json(document: object) -> None:
    """Print a document as JSON, and nothing else."""
    print(json.dumps(document, indent=1, allow_nan=False), file=streams.out)


def complain(text: str, stream: TextIO | None = None) -> None:
    """Print a message on stderr, one line, which a terminal breaks between words."""
    stream = stream or sys.stderr
    # Without stderr the exit code alone reports it.
    with contextlib.suppress(OSError, ValueError):
        line = f"erfscope: {one_line(text)}"
        if stream.isatty():
            line = between_words(line, shutil.get_terminal_size().columns)
        print(line, file=stream)


@contextlib.contextmanager
def ignoring_closed_pipe() -> Iterator[None]:
    """Continue if the reader of the output has closed it, as in ``erfscope ... | head``: click and rich raise
    SystemExit then."""
    try:
        yield
        streams.out.flush()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        discard_output()


def discard_output() -> None:
    """Discard what is still in the buffer: a closed output is no error."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), streams.out.fileno())
