"""``erfscope models``: names that can be analysed."""

from __future__ import annotations

import rich_click as click

from erfscope.cli.console import say
from erfscope.cli.options import with_verbose
from erfscope.cli.run.known_names import ModelName


@click.command()
@click.argument("pattern", required=False, type=ModelName())
@click.option("--pretrained", is_flag=True, help="Only names that have pretrained weights, with their tags.")
@with_verbose
def models(pattern: str | None, pretrained: bool, verbose: bool) -> int:
    """List timm's model names that match PATTERN, e.g. `'*next*tiny*'`.

    A PATTERN without wildcards matches names that contain it.
    """
    from erfscope.cli.run.known_names import model_names
    from erfscope.errors import unknown

    names = model_names(pattern, pretrained=pretrained)
    if not names:
        raise unknown("model", pattern or "", model_names(None, pretrained=pretrained), where="timm")
    say("\n".join(names))
    return 0
