"""Ctrl-C: a run that ends with the images seen so far, and one that continues from there."""

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

from erfscope.core.values.errors import ErfscopeError
from erfscope.show.command.console import complain
from erfscope.show.command.options import OutputOptions

if TYPE_CHECKING:
    from erfscope.core.answer.report import Report

#: Added to the number of a signal: the exit code of a program that it has ended.
SIGNALLED = 128
#: Seconds within which the same signal is one request: ``timeout`` and schedulers send it to a process and to its
#: group.
TWICE_S = 0.5


class Interrupted(KeyboardInterrupt):
    """A second signal arrived."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Interruption:
    """Whether a signal asks the run to end; called after every batch."""

    def __init__(self) -> None:
        self.signal = 0
        self._came_at = 0.0
        self._measuring = True
        #: Whether the loop over models, or over batches, has begun.
        self._has_begun = False

    def __call__(self) -> bool:
        """Whether a signal asks the run to end."""
        self._has_begun = True
        return self.signal != 0

    def end_measuring(self) -> bool:
        """Return whether a signal ended the measuring; later signals end nothing that is being written."""
        self._measuring = False
        return self.signal != 0

    @property
    def code(self) -> int:
        """The exit code of an interrupted run."""
        return SIGNALLED + self.signal

    def receive(self, number: int, _: FrameType | None) -> None:
        """Note the first signal; the second one ends everything at once."""
        if number == self.signal and time.monotonic() - self._came_at < TWICE_S:
            return
        if self.signal:
            raise Interrupted(SIGNALLED + number)
        self.signal, self._came_at = number, time.monotonic()
        _complain_at_once(
            (
                "finishing the output"
                if not self._measuring
                else "stopping after this batch; the report shows what is measured"
                if self._has_begun
                else "stopping before anything is measured"
            )
            + "; a second signal stops at once"
        )


def _complain_at_once(text: str) -> None:
    """Print a message from a signal handler, which may interrupt a write to the same stream."""
    try:
        complain(text)
    except RuntimeError:  # a reentrant call; it must not pass for an error of the model that was writing
        with contextlib.suppress(OSError):
            os.write(2, f"erfscope: {text}\n".encode())  # stderr


@contextlib.contextmanager
def stoppable() -> Iterator[Interruption]:
    """Inside, Ctrl-C and SIGTERM end a measurement with a result of the images seen so far.

    A signal that the process ignores, as a shell's background jobs ignore Ctrl-C, stays ignored.
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
    """The report that --resume continues, as an option; none if the folder holds none yet.

    Raises:
        ErfscopeError: not exactly one folder is named, or the report in it cannot be read.
    """
    if not wanted.resume:
        return {}
    from erfscope.core.answer.storage.files import is_report, read_begun

    found = wanted.folders
    if len(found) != 1:
        raise ErfscopeError("--resume continues the run in one folder; name it with -o DIR")
    return {"resume": read_begun(found[0])} if is_report(Path(found[0])) else {}


def explain_interruption(report: Report, *, stored: bool) -> None:
    """Print how far an interrupted run got, and how to continue it."""
    stopped = [result for result in report if any(each.code == "stopped" for each in result.findings)]
    seen = "; ".join(
        f"{r.label}: {f'{r.part.seen} of {r.part.wanted} images' if r.part is not None else 'not all units'}"
        for r in stopped
    )
    finished = len(report) - len(stopped)
    done = f"{finished} result{'s' * (finished != 1)} finished" + (f", {seen}" if seen else "")
    hint = "run the same command with --resume to continue" if stored else "only a run with -o DIR can be continued"
    complain(f"interrupted: {done}; {hint}")
