"""The command's own standard streams, which the code of a model cannot reach: what that prints goes to stderr, whatever it prints with."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

STDOUT, STDERR = 1, 2


class _Passing(io.RawIOBase):
    """Bytes that are written here go, as text, to another stream; closing this closes nothing else."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        """True: the stream takes text."""
        return True

    def write(self, data: Any, /) -> int:
        """Pass on bytes, as far as anybody reads them."""
        with contextlib.suppress(OSError, ValueError):
            if self._stream is None:
                return len(data)
            self._stream.write(bytes(data).decode(errors="replace"))
            self._stream.flush()
        return len(data)

    def fileno(self) -> int:
        """Descriptor of the other stream."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the other is a terminal."""
        return self._stream is not None and self._stream.isatty()


@contextlib.contextmanager
def _leading_to_stderr() -> Iterator[int]:
    """A descriptor of stderr, or of nothing where that is closed."""
    try:
        os.fstat(STDERR)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            yield nowhere
        finally:
            os.close(nowhere)
    else:
        yield STDERR


class Streams:
    """Where results and complaints go.

    From :meth:`take` on, ``sys.stdout`` and the descriptor 1 belong to other people's code and lead to stderr, and the command writes to
    streams of its own, which the closing of those does not close.
    """

    def __init__(self) -> None:
        self._out: TextIO | None = None
        self._err: TextIO | None = None
        self._before: tuple[Any, Any] | None = None
        #: Copies of the descriptors that lead elsewhere now.
        self._saved: dict[int, int] = {}

    @property
    def out(self) -> TextIO:
        """Where results go."""
        return self._out or sys.stdout

    @property
    def err(self) -> TextIO:
        """Where complaints go."""
        return self._err or sys.stderr

    @property
    def are_taken(self) -> bool:
        """Whether other people's code has streams of its own."""
        return self._before is not None

    def take(self) -> None:
        """Take the streams away from other people's code."""
        if self.are_taken or sys.stdout is None:
            return
        self._before = sys.stdout, sys.stderr
        for stream in self._before:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        self._out, self._err = self._own(sys.stdout, STDOUT), self._own(sys.stderr, STDERR)
        if STDOUT in self._saved:
            with _leading_to_stderr() as place:
                os.dup2(place, STDOUT)
        sys.stdout, sys.stderr = self._foreign(), self._foreign()

    def give_back(self) -> None:
        """Give the process its streams again."""
        if self._before is None:
            return
        for stream in (self._out, self._err):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        sys.stdout, sys.stderr = self._before
        for number, copy in self._saved.items():
            with contextlib.suppress(OSError):
                os.dup2(copy, number)
        for stream in (self._out, self._err):
            if stream is not None and stream not in self._before:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        self._out = self._err = self._before = None
        self._saved = {}

    def _foreign(self) -> TextIO:
        """A stream for other people's code; they may close it."""
        raw: Any = _Passing(self._err)
        return io.TextIOWrapper(raw, "utf-8", "replace", write_through=True)

    def _own(self, stream: Any, number: int) -> Any:
        """A stream to the same place through a descriptor of its own; the same stream where it has none, as in tests."""
        try:
            if stream.fileno() != number:
                return stream
            copy = os.dup(number)
        except (AttributeError, OSError, ValueError):
            return stream
        self._saved[number] = copy
        return io.TextIOWrapper(os.fdopen(copy, "wb"), stream.encoding, "replace", line_buffering=stream.isatty() or number == STDERR)


streams = Streams()
