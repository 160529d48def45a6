"""The stdout of a command, which is kept for results: text that a model's own code prints goes to stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO


class Streams:
    """The command's own stdout."""

    def __init__(self) -> None:
        self._out: TextIO | None = None

    @property
    def out(self) -> TextIO:
        """The stream for results."""
        return self._out or sys.stdout

    @contextlib.contextmanager
    def redirecting_prints(self) -> Iterator[None]:
        """Inside the block ``print`` writes to stderr, and :attr:`out` stays the stdout."""
        self._out = sys.stdout
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._out = None


streams = Streams()
