"""``erfscope compare``: several models in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.cli.config import asked_models
from erfscope.cli.console.short_help import ShortHelp
from erfscope.cli.options import OutputOptions, analysis_options, isolating
from erfscope.cli.run.known_names import ModelName
from erfscope.errors import ErfscopeError

if TYPE_CHECKING:
    from erfscope.results.report import Report


@click.command(cls=ShortHelp)
@click.argument("models", nargs=-1, metavar="MODEL|RESULT ...", type=ModelName())
@click.option(
    "--of",
    metavar="SPEC",
    type=ModelName(),
    help=(
        "Each MODEL is a checkpoint file of this model, or a pattern of such. Rows are in the order given; the files of"
        " a pattern, also of one that the shell wrote out, by the numbers in their names."
    ),
)
@click.option("--sort", metavar="MEASURE", help="Sort rows by a measure, largest first; larger is not better.")
@isolating
@analysis_options
def compare(models: tuple[str, ...], sort: str | None, **options: Any) -> int:
    """Measure several models on the same pixels, one row each.

    Each is a model as for `analyze`, or a stored result (a report's folder or .json file). Differences are to the first
    model under the same settings, with the standard error of the paired difference."""
    models = (*asked_models(models),)
    wanted = OutputOptions.from_options(options)
    if not models and wanted.explain:
        from erfscope.cli.views.explain import guide

        return guide()
    if not models:
        raise ErfscopeError("nothing to compare; try `erfscope compare resnet18 resnet50`")
    from erfscope.cli.run.running import measured
    from erfscope.measures import MEASURES

    if sort is not None and sort not in MEASURES:
        from erfscope.errors import unknown

        raise unknown("measure", sort, MEASURES, limit=40)

    limits = {name: options.pop(name) for name in ("time_limit", "memory_limit")}
    isolate = options.pop("isolate")
    for name, value in limits.items():
        if value is not None and not isolate:
            raise ErfscopeError(f"--{name.replace('_', '-')} works only with --isolate; add that, or leave it out")
    if isolate and options.pop("of") is not None:
        raise ErfscopeError("--isolate is for models by name, not for checkpoints --of one")

    def run(**given: Any) -> Report:
        from erfscope.api import compare, compare_isolated

        return compare_isolated(models, **limits, **given) if isolate else compare(models, **given)

    return measured(run, wanted, options, models=models, sort=sort)
