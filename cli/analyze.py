"""``erfscope analyze``: one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.adapters.sources.kinds import SPECS
from erfscope.cli import config
from erfscope.cli.console import ShortHelp, help_all
from erfscope.cli.options import OUTPUT_OPTIONS, OutputOptions, options, with_verbose
from erfscope.cli.run.known_names import ModelName
from erfscope.errors import ErfscopeError
from erfscope.options.settings import OPTIONS

if TYPE_CHECKING:
    from erfscope.results.report import Report


@click.command(
    cls=ShortHelp,
    help=f"Measure how far one unit of MODEL looks.\n\nMODEL is {SPECS}; `LABEL=MODEL` names it.",
)
@click.argument("model", required=False, type=ModelName())
@options({**OPTIONS, **OUTPUT_OPTIONS})
@config.option
@with_verbose
@help_all
def analyze(model: str | None, **given: Any) -> int:  # noqa: D103
    models = config.asked_models([model] if model else [])
    wanted = OutputOptions.from_options(given)
    if not models:
        if wanted.explain:
            from erfscope.cli.views import guide

            return guide()
        raise ErfscopeError(
            "no model was named; try `erfscope analyze resnet18`, and `erfscope models` lists the names"
        )
    if len(models) > 1:
        raise ErfscopeError(f"the report has {len(models)} models; measure them with `erfscope compare --config`")
    from erfscope.cli.run.running import measured

    def sweep(**keywords: Any) -> Report:
        from erfscope.api.analysis import sweep

        return sweep(models[0], **keywords)

    return measured(sweep, wanted, given, models={models[0]: models[0]})
