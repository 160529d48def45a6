"""Ctrl-C and what comes of it: a run that ends with what it has, and one that goes on with that."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from erfscope.cli.console.screen import complain
from erfscope.cli.console.streams import STDERR
from erfscope.cli.options import OutputOptions
from erfscope.errors import ErfscopeError

if TYPE_CHECKING:
    from erfscope.results.report import Report

#: What a shell sees of a program that a signal has ended.
SIGNALLED = 128
#: Seconds within which the same signal is one request: ``timeout`` and schedulers send it to a process and to its
#: group.
TWICE_S = 0.5


class Interrupted(KeyboardInterrupt):
    """A second signal has come."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Interruption:
    """Whether a signal has asked the run to end; called after every batch."""

    def __init__(self) -> None:
        self.signal = 0
        self._came_at = 0.0
        self._measuring = True

    def __call__(self) -> bool:
        """Whether it has."""
        return self.signal != 0

    def end_measuring(self) -> bool:
        """Whether a signal has ended the measuring; those that come later end nothing that is being written."""
        self._measuring = False
        return self.signal != 0

    @property
    def code(self) -> int:
        """The exit code of an interrupted run."""
        return SIGNALLED + self.signal

    def receive(self, number: int, _: FrameType | None) -> None:
        """Remember the first signal; the second one ends everything at once."""
        if number == self.signal and time.monotonic() - self._came_at < TWICE_S:
            return
        if self.signal:
            raise Interrupted(SIGNALLED + number)
        self.signal, self._came_at = number, time.monotonic()
        _complain_at_once(
            f"{'stopping after this batch, with what there is' if self._measuring else 'writing it down first'}; once"
            " more stops at once"
        )


def _complain_at_once(text: str) -> None:
    """Say something from within a signal handler, which may have come in the middle of a write to the same stream."""
    try:
        complain(text)
    except RuntimeError:  # a reentrant call, which would be taken for an error of the model that was writing
        with contextlib.suppress(OSError):
            os.write(STDERR, f"erfscope: {text}\n".encode())


@contextlib.contextmanager
def stoppable() -> Iterator[Interruption]:
    """Let Ctrl-C and SIGTERM end what is measured inside with a result of what was seen so far.

    A signal that is ignored, as Ctrl-C is by what a shell runs in the background, stays so.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interruption.receive) for number in handled}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def earlier(wanted: OutputOptions) -> dict[str, Any]:
    """The report that --resume goes on with, as an option; nothing where there is none yet.

    Raises:
        ErfscopeError: not one folder is named, or the report in it cannot be read.
    """
    if not wanted.resume:
        return {}
    from erfscope.storage.reports import read
    from erfscope.storage.rows import is_report

    found = wanted.folders
    if len(found) != 1:
        raise ErfscopeError("--resume goes on with what a folder holds; name it with -o DIR")
    return {"resume": read(found[0])} if is_report(Path(found[0])) else {}


def explain_interruption(report: Report, *, stored: bool) -> None:
    """Say how far an interrupted run has come, and how it goes on."""
    stopped = [result for result in report if result.part is not None and result.part.stopped]
    seen = "; ".join(f"{r.label}: {r.part.seen} of {r.part.wanted} images" for r in stopped if r.part is not None)
    done = f"{len(report) - len(stopped)} finished" + (f", {seen}" if seen else "")
    hint = (
        "run the same command with --resume to go on" if stored else "with -o DIR it could have gone on with --resume"
    )
    complain(f"interrupted: {done}; {hint}")
