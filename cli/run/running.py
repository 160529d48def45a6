"""What ``analyze`` and ``compare`` share: measuring, alone or among ranks, until it is done or somebody stops it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erfscope.cli.console.screen import complain
from erfscope.cli.options import OutputOptions, keywords, named_measures
from erfscope.cli.run.interruption import earlier, explain_interruption, folders, stoppable
from erfscope.cli.run.startup import importing_torch

if TYPE_CHECKING:
    from erfscope.results.report import Report

#: Up to how many rows folders get a page and figures: beyond that nobody can look at them.
DRAWN = 60


def measured(
    call: Callable[..., Report],
    wanted: OutputOptions,
    options: dict[str, Any],
    *,
    models: Mapping[str, str] | Sequence[str] = (),
    sort: str | None = None,
) -> int:
    """Measure, write and print, and give the exit code.

    Args:
        call: Measures, given the options as keywords.
        wanted: What is to be printed and written.
        options: The others, as click has read them.
        models: What is measured; none where ``call`` finds that out.
        sort: The measure to sort rows by.
    """
    from erfscope.cli.run.output import check_figure, check_outputs, progress

    verbose = options.pop("verbose")
    with importing_torch():
        check_outputs(wanted)  # it imports the public functions, which import torch
        if models:
            check_figure(wanted, models, keywords(options))
        from erfscope.parallel import distributed

    # A run that goes on reads what there is before it is one of several.
    before = earlier(wanted)
    keep_in = folders(wanted)[:1]
    with stoppable() as stop:
        with (
            distributed() as process_group,
            progress(wanted.quiet or process_group.rank > 0) as bar,
            warnings.catch_warnings(),
        ):
            # Of rows that cannot be stored: writing the report at the end says it.
            warnings.filterwarnings("ignore", message="cannot write ")
            tell = complain if verbose and process_group.rank == 0 else None
            if keep_in and process_group.rank == 0:
                before["keep_in"] = keep_in[0]
            report = call(**keywords(options), **before, progress=bar, stop=stop, tell=tell)
            # What comes now is done to its end, whoever asks it to stop.
            stopped = stop.heeded()
        if process_group.rank > 0:
            return 0
        if stopped and not report.results:
            complain("interrupted before anything was measured")
            return stop.code
        # The folder holds the rows of this run by now.
        wanted = replace(wanted, resume=wanted.resume or bool(keep_in))
        return _delivered(report, wanted, options, sort=sort, verbose=verbose, stopped=stop.code if stopped else 0)


def _delivered(
    report: Report,
    wanted: OutputOptions,
    options: dict[str, Any],
    *,
    sort: str | None,
    verbose: bool,
    stopped: int,
) -> int:
    """Write and print a report, which is of an interrupted run where ``stopped`` is its exit code."""
    from erfscope.cli.run.output import deliver, explain_computing

    if sort is not None:
        report = replace(report, results=tuple(sorted(report.results, key=lambda r: _key(r, sort), reverse=True)))
    if verbose:
        explain_computing(report)
    drawn = not stopped and len(report) <= DRAWN
    status = deliver(report, wanted, measures=named_measures(options["measures"]), drawn=drawn)
    if not stopped:
        return status
    explain_interruption(report, stored=bool(folders(wanted)))
    return stopped


def _key(result: Any, name: str) -> float:
    measure = result.measures.get(name)
    return float(measure.value) if measure is not None and isinstance(measure.value, int | float) else float("-inf")
