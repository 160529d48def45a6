"""Where results and complaints go: a command keeps its stdout for results, and what the code of a model prints goes to
stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO

STDERR = 2


class Streams:
    """The command's own streams."""

    def __init__(self) -> None:
        self._out: TextIO | None = None

    @property
    def out(self) -> TextIO:
        """Where results go."""
        return self._out or sys.stdout

    @property
    def err(self) -> TextIO:
        """Where complaints go."""
        return sys.stderr

    @contextlib.contextmanager
    def redirecting_prints(self) -> Iterator[None]:
        """Let ``print`` lead to stderr inside the block, and results to the stdout of before."""
        self._out = sys.stdout
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._out = None


streams = Streams()
