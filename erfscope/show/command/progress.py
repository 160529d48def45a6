"""What a terminal shows while something runs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from erfscope.core.system.progress import Progress, progress_lines
from erfscope.core.values.errors import FallbackWarning
from erfscope.core.values.printable import one_line
from erfscope.show.command.console import Screen


@contextlib.contextmanager
def progress(quiet: bool, *, in_lines: bool = False) -> Iterator[Progress | None]:
    """A progress bar per model on stderr, only in a terminal; the report shows the warnings of a fallback.

    Args:
        quiet: Whether to show nothing.
        in_lines: Whether to print a line for each step where there is no terminal, such as in the log of a long run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        console = Screen(stderr=True)
        if quiet or not console.is_terminal:
            yield progress_lines() if in_lines and not quiet else None
            return
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[steps]}"),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=console, transient=True) as bar:
            tasks: dict[str, Any] = {}

            def show(text: str, done: int, total: int) -> None:
                # What has no steps has no share that is done, and no time left; it goes when it is done.
                steps, of = (f"{done}/{total}", total) if total > 1 else ("", None)
                if total == 1 and done == 1 and text in tasks:
                    bar.remove_task(tasks.pop(text))
                    return
                if text not in tasks or bar.tasks[bar.task_ids.index(tasks[text])].finished:
                    # A resumed training begins after its first step: what is done already tells nothing of the speed.
                    tasks[text] = bar.add_task(one_line(text), total=of, completed=done, steps=steps)
                bar.update(tasks[text], completed=done, steps=steps)

            yield show
