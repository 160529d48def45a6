"""The progress of a run: what is done at the moment, how many of its steps are done, and the time that is left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from erfscope.core.values.printable import one_line

#: Called with what is done, and how many of its steps are done, of how many.
Progress = Callable[[str, int, int], None]
#: Seconds between two lines about the same work.
BETWEEN_S = 1.0


def no_progress(_text: str, _done: int, _total: int) -> None:
    """Report nothing."""


def progress_of(asked: Progress | bool | None) -> Progress:
    """Return the function that an option asks for: its own, or lines on stderr where it is True."""
    if asked is None or asked is False:
        return no_progress
    return progress_lines() if asked is True else asked


@contextlib.contextmanager
def stage(progress: Progress, text: str) -> Iterator[None]:
    """Report work that has no steps, such as loading a model, when it begins and when it ends."""
    progress(text, 0, 1)
    try:
        yield
    finally:
        progress(text, 1, 1)


def progress_lines() -> Progress:
    """Return a function that prints lines on stderr, at most one a second about the same work, with the time that its
    other steps will take."""
    started: dict[str, tuple[float, int]] = {}
    printed: dict[str, float] = {}

    def show(text: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_new = text not in started
        start, first = started.setdefault(text, (now, done))
        if done == total:
            # The same work may be done again, of another layer.
            del started[text]
        if not is_new and (total == 1 or (done < total and now - printed[text] < BETWEEN_S)):
            return
        printed[text] = now
        left = ""
        if first < done < total:
            left = f", {timedelta(seconds=round((now - start) * (total - done) / (done - first)))} left"
        count = f": {done} of {total}{left}" if total > 1 else ""
        # Without stderr there is nobody to tell.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"erfscope: {one_line(text)}{count}", file=sys.stderr, flush=True)

    return show
