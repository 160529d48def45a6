"""``erfscope explore``: a page on which units are pointed at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import rich_click as click

from erfscope.cli.console.param_types import File
from erfscope.cli.options import by_source, keywords, one_value, options, with_verbose
from erfscope.cli.run.known_names import ModelName
from erfscope.options.settings import OPTIONS

#: Options of the measurement, beside those of how the model is built.
TAKEN = (
    *("layer", "channels", "convention", "draws", "images", "synthetic", "squash", "weights", "checkpoint"),
    *("unsafe_load", "model_kwargs", "input_size", "in_chans", "mean", "std", "layout", "prefix_tokens", "seed"),
    *("device", "dtype"),
)
LAYERS = replace(
    OPTIONS["layer"], option=replace(OPTIONS["layer"].option, help="Layers, a comma list. Default: all stages.")
)


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL [MODEL]", required=True, type=ModelName())
@click.option(
    "--grid", type=click.INT, default=14, show_default=True, metavar="N", help="Units along each axis, at most."
)
@click.option("-o", "--output", required=True, type=File(), metavar="FILE", help="The page, such as explorer.html.")
@click.option("--force", is_flag=True, help="Overwrite what -o names.")
@options(one_value({name: OPTIONS[name] for name in TAKEN}) | {"layer": LAYERS}, in_panels=False)
@with_verbose
def explore(models: tuple[str, ...], grid: int, output: str, force: bool, verbose: bool, **given: Any) -> int:
    """Make a page on which you point at a unit and see its effective receptive field (ERF).

    It shows every stage of MODEL on one image, or of two models side by side, and also which units see a pixel. The
    page is one file that works without a network.
    """
    from erfscope.cli.console.screen import Screen, complain
    from erfscope.cli.run.output import progress
    from erfscope.cli.run.startup import importing_torch
    from erfscope.storage.writing import check_output

    check_output(output, (".html",), force=force)
    with importing_torch():
        from erfscope.api.exploration import explore as run

    asked = keywords(*by_source(given).values())
    if isinstance(asked.get("images"), list) and len(asked["images"]) == 1:
        asked["images"] = asked["images"][0]
    with progress(quiet=False) as bar:
        found = run(list(models), grid=grid, tell=complain, progress=bar, **asked)
    from erfscope.view.words import random_weights

    for model in found.models:
        if text := random_weights(model.conditions):
            complain(f"{model.conditions.label}: {text}")
    found.save(output, force=force)
    size = Path(output).stat().st_size / 1e6
    Screen().print_line(f"wrote {output} ({size:.1f} MB); open it in a browser", style="dim")
    return 0
