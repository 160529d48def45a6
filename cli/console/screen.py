"""What reaches the terminal: one console for results, one line for complaints, and nothing in either that could steer the terminal."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from erfscope.cli.console.streams import streams
from erfscope.printable import one_line, printable

if TYPE_CHECKING:
    from typing import TextIO

#: Width of reports that go to a file or a pipe, unless COLUMNS says otherwise: wide enough for the first line of a report.
PIPED_WIDTH = 110


class Screen(Console):
    """A console that shows text as it is: no markup, no emoji codes, no control characters."""

    def __init__(self, *, plain: bool = False, stderr: bool = False) -> None:
        super().__init__(
            file=streams.err if stderr else streams.out, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto"
        )
        if not self.is_terminal and not os.environ.get("COLUMNS"):
            self.width = PIPED_WIDTH

    def on_broken_pipe(self) -> None:
        """Leave it to the command; rich would redirect ``sys.stdout``, which leads to stderr while a command runs."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; those that rich makes for itself, such as colours, stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)


def say(text: str) -> None:
    """Print a table or JSON as it is, but for control characters."""
    print(printable(text, keep="\n\t"), file=streams.out)


def print_json(document: object) -> None:
    """Print a document as JSON, and nothing else."""
    print(json.dumps(document, indent=1, allow_nan=False), file=streams.out)


def complain(text: str, stream: TextIO | None = None) -> None:
    """One line on stderr."""
    # Where stderr is gone, the exit code says it.
    with contextlib.suppress(OSError, ValueError):
        print(f"erfscope: {one_line(text)}", file=stream or streams.err)


@contextlib.contextmanager
def whoever_reads() -> Iterator[None]:
    """Go on where the reader of our output has gone, as in ``erfscope ... | head``; click and rich make a SystemExit of that."""
    try:
        yield
        streams.out.flush()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        reader_gone()


def reader_gone() -> None:
    """Nothing is wrong; what is still in the buffer goes nowhere."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), streams.out.fileno())
