"""``erfscope models``: timm's models and what is known of them."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.show import command


@click.command()
@click.argument("pattern", required=False, type=command.ModelName())
@click.option("--pretrained", is_flag=True, help="Only names that the installed timm has weights for, with their tags.")
@command.options({name: command.OUTPUT_OPTIONS[name] for name in ("format", "json")}, in_panels=False)
@command.with_verbose
def models(pattern: str | None, pretrained: bool, verbose: bool, **given: Any) -> int:
    """List timm's models that match PATTERN, e.g. `'*next*tiny*'`, with what is known of each.

    A PATTERN without wildcards matches names that contain it. The numbers are kept with erfscope: nothing is run. ERFs
    are of random weights; models without one were not measured.
    """
    chosen = command.chosen_format(given["format"], given["json"])
    if pretrained:
        from erfscope import adapters
        from erfscope.core import unknown

        with command.importing_torch():
            found = adapters.model_names(pattern, pretrained=True)
        if not found:
            raise unknown("model", pattern or "", adapters.model_names(None, pretrained=True), where="timm")
        command.print_json(found) if chosen == "json" else command.say("\n".join(found))
        return 0
    from erfscope.apps.atlas.atlas import models as known_models

    known = known_models(pattern)
    if chosen == "json":
        command.print_json(known.to_json())
    elif chosen == "rich":
        command.Screen().print(known)
    else:
        command.say(known.table(chosen).rstrip("\n"))
    return 0
