"""Printing a report and writing its files."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erfscope.core.answer.storage.writing import TABLES, check_output, is_folder, suffixes
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link
from erfscope.show.command.console import Screen, complain, print_json, say, streams
from erfscope.show.command.inputs import refuse_inputs
from erfscope.show.command.options import MAPS, OutputOptions, on_command_line
from erfscope.show.figures.style import OF_MAPS

if TYPE_CHECKING:
    from erfscope.core.answer.report import Report
    from erfscope.core.answer.result import Computed


def check_outputs(wanted: OutputOptions, images: Any = (), read: Sequence[str | Path] = ()) -> None:
    """Refuse outputs that cannot be written, before anything is measured.

    Args:
        wanted: The options of the output.
        images: Files, folders and patterns that are read: ``--force`` replaces none of them.
        read: Other files and folders, likewise.

    Raises:
        ErfscopeError: a target exists, its folder does not, its suffix is unknown, it is named twice, or it is an
            input; a kind of figure without an output for it; or an option of maps with a kind of figure that shows
            none.
    """
    seen: set[Path] = set()
    for text in wanted.output:
        path = Path(text)
        if not text.strip():
            raise ErfscopeError("-o was given an empty name; give it a folder, or a file such as erf.json")
        refuse_broken_link(path)
        if path.resolve() in seen:
            raise ErfscopeError(f"-o {text} is given twice; name each output once")
        seen.add(path.resolve())
        check_output(text, force=wanted.replaces(text))
        refuse_inputs(text, images, read)
    figure = wanted.figure
    if figure is not None and on_command_line("figure") and not (wanted.folders or _figures(wanted)):
        raise ErfscopeError(
            f"--figure {figure} has no output; add -o {figure}.pdf (or .png, .svg), or -o with a folder"
        )
    for option in OF_MAPS:
        if figure not in (None, *MAPS) and on_command_line(option) and not wanted.folders:
            raise ErfscopeError(
                f"--{option} works only with figures that show maps ({', '.join(MAPS)}); --figure {figure} shows none"
            )


def check_figure(wanted: OutputOptions, models: Mapping[str, str] | Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse a kind of figure that these models and options do not allow.

    Args:
        wanted: The options of the output.
        models: The models.
        options: Keywords of :func:`erfscope.compare`.

    Raises:
        ErfscopeError: the kind needs more or other results, or a wider sheet.
    """
    # A folder gets the kind that is named, and of the others those that fit.
    if _figures(wanted) or (wanted.figure is not None and wanted.folders):
        from erfscope.show.figures.asked import check_figure

        check_figure(models, kind=wanted.figure, width=wanted.style.width, **options)


def _figures(wanted: OutputOptions) -> list[str]:
    """The figures' files among the outputs."""
    return [text for text in wanted.output if Path(text).suffix.lower() in suffixes("figure")]


def explain_computing(report: Report) -> None:
    """Print on stderr how every result was computed, and how much of the forward pass."""
    for result in report:
        if result.computed is not None:
            complain(f"{result.label} · {result.layer}: {computing_text(result.computed)}")


def computing_text(computed: Computed) -> str:
    """The path on which a result was computed, and its share of the forward pass."""
    from erfscope.core.values.unit import size_text

    if computed.path == "plain":
        return f"path: plain ({computed.because}); {computed.gmacs:.4g} GMACs up to the layer"
    share = f"{computed.share:.1%} of the multiply-adds, {computed.gmacs:.4g} GMACs"
    return f"path: graph; {share}, on {size_text(computed.input_size)} px"


def deliver(
    report: Report,
    wanted: OutputOptions,
    *,
    measures: Sequence[str] | None = None,
    drawn: bool = True,
    hint: bool = False,
) -> int:
    """Write the files, print the report, and give the exit code.

    It is 1 if ``--verify`` found a difference, 3 if a result cannot be used or a file could not be written, else 0.

    Args:
        report: The results.
        wanted: The options of the output.
        measures: Those that tables show; all if None.
        drawn: Whether folders get a page and figures; without, numbers and maps are there at once.
        hint: Whether a terminal shows what to try next.
    """
    from erfscope.show.view.sentences import quiet_line

    chosen = wanted.format
    # A report where stderr is seen too, and the lines of --quiet, show fallbacks and errors themselves.
    is_read = chosen in ("rich", "plain") and (wanted.quiet or streams.out.isatty() or _goes_where_stderr_goes())
    if not wanted.quiet and not is_read:
        for text in dict.fromkeys(_fallback(report)):
            complain(text)
    # Files come first: they must be written even if the reader of the output closes it.
    written, failures = _save(report, wanted, drawn=drawn)
    if chosen == "json":
        print_json(report.to_json())
    elif chosen in TABLES:
        say(report.table(measures, format=chosen).rstrip("\n"))  # type: ignore[arg-type]
    elif wanted.quiet and not wanted.explain:
        say("\n".join(map(quiet_line, report)))
    else:
        _print_rich(report, wanted, written=written, hint=hint)
    if not is_read:
        for result in report:
            if result.error:
                complain(f"{result.label}: {result.error}")
    for error in failures:
        complain(str(error))
    if not report.ok or failures:
        return 3
    return 0 if all(result.verification.holds for result in report if result.verification is not None) else 1


def _goes_where_stderr_goes() -> bool:
    """Whether results and messages are in one place, such as a log."""
    try:
        return os.path.sameopenfile(streams.out.fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


def _save(report: Report, wanted: OutputOptions, *, drawn: bool) -> tuple[list[str], list[ErfscopeError]]:
    """Write the outputs; return those that were written, and the errors of the others."""
    written: list[str] = []
    failures: list[ErfscopeError] = []
    # Folders come first: a run can be resumed from them.
    for path in sorted(wanted.output, key=lambda text: not is_folder(text)):
        force = wanted.replaces(path)
        try:
            report.save(path, force=force, figure=wanted.figure, drawn=drawn, **dataclasses.asdict(wanted.style))
            written.append(path)
        except ErfscopeError as error:
            if str(error) not in map(str, failures):
                failures.append(error)
    return written, failures


def _fallback(report: Report) -> Iterator[str]:
    for result in report:
        weights = result.weights
        if weights.fallback:
            text = f"no pretrained weights ({weights.reason}); measured with random ones (seed {weights.seed})"
            yield f"{result.label}: {text}; erfscope doctor --fix-hint {result.model} says how to get them"


def _print_rich(report: Report, wanted: OutputOptions, *, written: Sequence[str], hint: bool) -> None:
    from erfscope.show.view.terminal.report import draw_report, next_step

    screen = Screen(plain=wanted.format == "plain")
    screen.print(draw_report(report, zoom=wanted.style.zoom))
    for result in report:
        if result.verification is not None:
            screen.print(f"{result.label} · {result.layer}: {result.verification.text}", soft_wrap=True)
    if wanted.explain:
        from erfscope.cli.explanation import explanation

        screen.print(explanation(report))
    if hint and not wanted.explain and (step := next_step(report, written)):
        screen.print_line(step, style="dim")
    for path in written:
        page = Path(path) / "index.html"
        look = f"; look at {page}" if page.is_file() else ""
        screen.print_line(f"wrote {path}{look}", style="dim")
