"""The run of ``analyze`` and ``compare``: it measures, alone or among ranks, until it is done or interrupted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erfscope.cli.interruption import earlier, explain_interruption, stoppable
from erfscope.core.request.values import words
from erfscope.core.values.unit import is_every_unit
from erfscope.show.command.console import complain, importing_torch
from erfscope.show.command.options import OutputOptions, by_source, keywords

if TYPE_CHECKING:
    from erfscope.core.answer.report import Report

#: Most rows with which folders get a page and figures; of more there are too many to look at.
DRAWN = 60


def measured(
    call: Callable[..., Report],
    wanted: OutputOptions,
    given: dict[str, Any],
    *,
    models: Mapping[str, str] | Sequence[str],
    read: Sequence[str] = (),
    sort: str | None = None,
    hint: bool = True,
) -> int:
    """Measure, write and print, and give the exit code.

    Args:
        call: The function that measures, given the options as keywords.
        wanted: The options of the output.
        given: The other options, as click read them.
        models: The models.
        read: Stored results that are read, beside the images.
        sort: The measure to sort rows by.
        hint: Whether to say what to try next.
    """
    from erfscope.cli.output import check_figure, check_outputs, deliver, explain_computing
    from erfscope.show.command.progress import progress

    verbose = given.pop("verbose")
    options = keywords(*by_source(given).values())
    with importing_torch(quiet=wanted.quiet):
        check_outputs(wanted, options.get("images"), read)  # it imports the public functions, which import torch
        check_figure(wanted, models, options)
        from erfscope.core.run.parallel import distributed

    # A run that continues reads its report before it becomes one of several ranks.
    options |= earlier(wanted)
    stored = wanted.folders
    with stoppable() as stop:
        with (
            distributed() as process_group,
            progress(wanted.quiet or process_group.rank > 0) as bar,
            warnings.catch_warnings(),
        ):
            # Rows that cannot be stored: writing the report at the end raises the same.
            warnings.filterwarnings("ignore", message="cannot write ")
            if process_group.rank == 0:
                # A run over all units is long: what it costs is said even where there is no progress bar.
                told = verbose or (is_every_unit(options.get("unit")) and not wanted.quiet)
                options |= {"keep_in": stored[0] if stored else None, "tell": complain if told else None}
            report = call(**options, progress=bar, stop=stop)
            # What follows is finished: one more signal does not stop it.
            stopped = stop.end_measuring()
        if process_group.rank > 0:
            return 0
        if stopped and not report.results:
            complain("interrupted before anything was measured")
            return stop.code
        if sort is not None:
            report = replace(report, results=tuple(sorted(report.results, key=lambda r: _key(r, sort), reverse=True)))
        if verbose:
            explain_computing(report)
        # The folder holds the rows of this run by now.
        wanted = replace(wanted, resume=wanted.resume or bool(stored))
        drawn = not stopped and len(report) <= DRAWN
        measures = None if given["measures"] in (None, "all") else words(given["measures"])
        status = deliver(report, wanted, measures=measures, drawn=drawn, hint=hint)
        if stopped:
            explain_interruption(report, stored=bool(stored))
        return stop.code if stopped else status


def _key(result: Any, name: str) -> float:
    measure = result.measures.get(name)
    return float(measure.value) if measure is not None and isinstance(measure.value, int | float) else float("-inf")
