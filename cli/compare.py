"""``erfscope compare``: several models in one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import rich_click as click

from erfscope.cli.options import Wanted, keywords, measuring, named_measures
from erfscope.errors import ErfscopeError


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL|RESULT ...")
@click.option("--of", metavar="SPEC", help="Each MODEL is a checkpoint file of this model, or a quoted pattern of such files.")
@click.option("--sort", metavar="MEASURE", help="Sort rows by a measure, largest first; larger is not better.")
@measuring
def compare(models: tuple[str, ...], sort: str | None, **options: Any) -> int:
    """Measure several models on the same pixels, one row each.

    Each is a model as for `analyze`, or a stored result (a report's folder or .json file). Differences are to the first model under
    the same settings, with the standard error of the paired difference.
    """
    from erfscope.cli.output import check_outputs, deliver, explain_computing, progress

    wanted, verbose = Wanted.taken_from(options), options.pop("verbose")
    if not models and wanted.explain:
        from erfscope.cli.explain import guide

        return guide()
    if not models:
        raise ErfscopeError("nothing to compare; try `erfscope compare resnet18 resnet50`")
    check_outputs(wanted)
    from erfscope.api import compare as run
    from erfscope.measures import MEASURES

    if sort is not None and sort not in MEASURES:
        from erfscope.errors import unknown

        raise unknown("measure", sort, MEASURES, limit=40)
    with progress(wanted.quiet) as bar:
        report = run(models, **keywords(options), progress=bar)
    if sort is not None:
        report = replace(report, results=tuple(sorted(report.results, key=lambda r: _key(r, sort), reverse=True)))
    if verbose:
        explain_computing(report)
    return deliver(report, wanted, measures=named_measures(options["measures"]))


def _key(result: Any, name: str) -> float:
    measure = result.measures.get(name)
    return float(measure.value) if measure is not None and isinstance(measure.value, int | float) else float("-inf")
