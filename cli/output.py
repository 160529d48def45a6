"""Printing a report and writing its files."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from erfscope.errors import ErfscopeError, FallbackWarning

if TYPE_CHECKING:
    from erfscope.report import Report

ProgressCall = Callable[[str, int, int], None]


def check_outputs(paths: Sequence[str], *, force: bool) -> None:
    """Refuse outputs that cannot be written, before anything is measured.

    Raises:
        ErfscopeError: a target exists, its folder does not, or its suffix is unknown.
    """
    from erfscope.report import SUFFIXES
    from erfscope.storage import check_target

    for text in paths:
        path = Path(text)
        suffix = path.suffix.lower()
        if suffix and suffix not in SUFFIXES and not path.is_dir():
            raise ErfscopeError(f"cannot write {path.name!r}; an output is a folder, or a file ending in {', '.join(SUFFIXES)}")
        check_target(path, force=force)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[ProgressCall | None]:
    """A progress bar per model on stderr, only where somebody watches; fallback warnings are left to the report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        console = Console(stderr=True)
        if quiet or not console.is_terminal:
            yield None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            tasks: dict[str, Any] = {}

            def show(text: str, done: int, total: int) -> None:
                if text not in tasks or bar.tasks[tasks[text]].finished:
                    tasks[text] = bar.add_task(text, total=total)
                bar.update(tasks[text], completed=done, total=total)

            yield show


def deliver(
    report: Report,
    *,
    format_: str,
    as_json: bool,
    output: Sequence[str],
    force: bool,
    quiet: bool,
    explain: bool,
    measures: Sequence[str] | None,
) -> int:
    """Write the files, print the report, and give the exit code: 0, or 3 if a result cannot be used."""
    if not quiet:
        for text in dict.fromkeys(_fallback(report)):
            print(f"erfscope: {text}", file=sys.stderr)
    for path in output:
        report.save(path, force=force)
    chosen = "json" if as_json else format_
    if chosen == "json":
        print(json.dumps(report.to_json(), indent=1, allow_nan=False))
    elif chosen in ("csv", "markdown", "latex"):
        print(report.table(measures, format=chosen), end="")
    else:
        _print_rich(report, plain=chosen == "plain", output=output, explain=explain)
    if chosen not in ("rich", "plain"):
        for result in report:
            if result.error:
                print(f"erfscope: {result.label}: {result.error}", file=sys.stderr)
    return 0 if report.ok else 3


def _fallback(report: Report) -> Iterator[str]:
    for result in report:
        weights = result.weights
        if weights.fallback:
            yield f"{result.label}: no pretrained weights ({weights.reason}); measured with random ones (seed {weights.seed})"


def _print_rich(report: Report, *, plain: bool, output: Sequence[str], explain: bool) -> None:
    from erfscope.cli.terminal import next_step, report_view

    console = Console(color_system=None, highlight=False) if plain else Console(highlight=False)
    console.print(report_view(report))
    if explain:
        from erfscope.cli.explain import explanation

        console.print(explanation(report))
    step = next_step(report)
    if step and not output:
        console.print(step, style="dim", soft_wrap=True)
    for path in output:
        console.print(f"wrote {path}", style="dim", soft_wrap=True, markup=False)
