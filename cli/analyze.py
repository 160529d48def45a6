"""``erfscope analyze``: one model."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.cli.options import Wanted, keywords, measuring, named_measures
from erfscope.errors import ErfscopeError


@click.command()
@click.argument("model", required=False)
@measuring
def analyze(model: str | None, **options: Any) -> int:
    """Measure how far one unit of MODEL looks.

    MODEL is a timm name (`resnet18`, `resnet18.a1_in1k`, `hf-hub:owner/name`), `torchvision:NAME`, `package.module:factory` or
    `path/file.py:factory`; `LABEL=MODEL` names it.
    """
    from erfscope.cli.output import check_outputs, deliver, explain_computing, progress

    wanted, verbose = Wanted.taken_from(options), options.pop("verbose")
    if model is None:
        if wanted.explain:
            from erfscope.cli.explain import guide

            return guide()
        raise ErfscopeError("no model was named; try `erfscope analyze resnet18`, and `erfscope models` lists the names")
    check_outputs(wanted)
    from erfscope.api import sweep

    with progress(wanted.quiet) as bar:
        report = sweep(model, **keywords(options), progress=bar)
    if verbose:
        explain_computing(report)
    return deliver(report, wanted, measures=named_measures(options["measures"]))
