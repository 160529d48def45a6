"""``erfscope analyze``: one model."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.cli.options import keywords, measuring, named_measures, outranks
from erfscope.errors import ErfscopeError


@click.command()
@click.argument("model", required=False)
@measuring
def analyze(
    model: str | None,
    format_: str,
    as_json: bool,
    output: tuple[str, ...],
    figure: str | None,
    scale: str,
    colours: str,
    force: bool,
    quiet: bool,
    explain: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Measure how far one unit of MODEL looks.

    MODEL is a timm name (`resnet18`, `resnet18.a1_in1k`, `hf-hub:owner/name`), `torchvision:NAME`, `package.module:factory` or
    `path/file.py:factory`; `LABEL=MODEL` names it.
    """
    from erfscope.cli.output import check_outputs, deliver, explain_computing, progress

    if model is None:
        if explain:
            from erfscope.cli.explain import guide

            return guide()
        raise ErfscopeError("no model was named; try `erfscope analyze resnet18`, and `erfscope models` lists the names")
    check_outputs(output, force=force, figure=figure, colours=colours)
    from erfscope.api import sweep

    given = keywords(options)
    with progress(quiet) as bar:
        report = sweep(model, **given, progress=bar)
    as_json = as_json and not outranks("format_", "as_json")
    names = named_measures(options["measures"])
    if verbose:
        explain_computing(report)
    return deliver(
        report,
        format_=format_,
        as_json=as_json,
        output=output,
        figure=figure,
        scale=scale,
        colours=colours,
        force=force,
        quiet=quiet,
        explain=explain,
        measures=names,
    )
