"""``erfscope layers``: what can be measured of a model."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.show.command.console import Text
from erfscope.show.command.known_names import ModelName
from erfscope.show.command.options import BUILDING, by_source, keywords, options, table, with_verbose

#: Options of how a model is built; its weights do not matter.
ASKED = table(*(name for name in BUILDING if name != "checkpoint"))


@click.command()
@click.argument("model", type=ModelName())
@click.option("--layer", metavar="NAME", help="Show everything about this layer.")
@click.option(
    "--unit",
    default="centre",
    show_default=True,
    type=Text(words=("centre", "corner", "edge")),
    help="Units whose TRFs are shown: centre, corner, edge, grid:N, r,c or px:r,c.",
)
@click.option(
    "--wrt",
    default="image",
    show_default=True,
    help="Reference: image, the output of layer NAME, or its input, NAME:in.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--all", "everything", is_flag=True, help="List every layer, not only stages and blocks.")
@options(ASKED, in_panels=False)
@with_verbose
def layers(
    model: str, layer: str | None, unit: str, wrt: str, as_json: bool, everything: bool, verbose: bool, **given: Any
) -> int:
    """List layers that can be measured, each with its theoretical receptive field (TRF).

    Shows stages and blocks, or with --all every layer. Needs no weights and no images.
    """
    from erfscope.show.command.console import importing_torch

    with importing_torch():
        from erfscope.core.run.structure import layers as run

    found = run(model, layer=layer, unit=unit, wrt=wrt, **keywords(*by_source(given).values()))
    from erfscope.show.command.console import Screen, print_json

    if as_json:
        print_json(found.to_json())
        return 0
    from erfscope.show.view.terminal.layers import layer_view

    Screen().print(layer_view(found, one=layer is not None, everything=everything))
    return 0
