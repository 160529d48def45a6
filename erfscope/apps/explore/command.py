"""``erfscope explore``: a page on which units are pointed at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from erfscope.core import ErfscopeError
from erfscope.show import command

#: Options of the measurement, beside those of how the model is built.
TAKEN = (
    *("layer", "wrt", "channels", "convention", "draws", "images", "synthetic", "squash", "weights", "checkpoint"),
    *("unsafe_load", "model_kwargs", "input_size", "in_chans", "mean", "std", "axes", "spacing", "unit_name", "fps"),
    *("sample_rate", "layout", "prefix_tokens", "seed", "device", "dtype"),
)
ASKED = command.table(*TAKEN, layer="Layers, a comma list. Default: all stages.") | {"checkpoint": command.CHECKPOINTS}


def host_and_port(text: str) -> tuple[str, int]:
    """``8000``, ``127.0.0.1:8000`` or ``[::1]:8000`` as host and port."""
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:8000")
    return host.strip("[]") if colon else "127.0.0.1", int(port)


def _show_address(address: str) -> None:

    screen = command.Screen()
    screen.print_line(f"open {address} in a browser; Ctrl-C ends it")
    screen.file.flush()


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL [MODEL]", required=True, type=command.ModelName())
@click.option(
    "--grid",
    type=click.INT,
    metavar="N",
    help="Units along each axis, at most. Default: 14; 6 of volumes and clips, 196 of sequences.",
)
@click.option("-o", "--output", type=command.File(), metavar="FILE", help="The page, such as explorer.html.")
@click.option("--force", is_flag=True, help="Overwrite what -o names.")
@click.option("--serve", is_flag=True, help="Instead of -o: compute any unit when you point at it, until Ctrl-C.")
@click.option(
    "--address",
    type=command.Text(read=host_and_port),
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where --serve listens; port 0 is a free one.",
)
@command.options(ASKED, in_panels=False)
@command.with_verbose
def explore(
    models: tuple[str, ...],
    grid: int | None,
    output: str | None,
    force: bool,
    serve: bool,
    address: tuple[str, int],
    verbose: bool,
    **given: Any,
) -> int:
    """Make a page on which you point at a unit and see its effective receptive field (ERF).

    It shows every stage of MODEL on one image, volume, clip or sound, or of two models side by side, and also which
    units see a pixel. The page is one file that works without a network. With `--serve` it asks this process for any
    unit, layer, convention and picture.
    """

    if (output is None) is not serve:
        raise ErfscopeError("give either -o FILE, which writes a page, or --serve, which computes what you point at")
    if output is not None:
        command.check_file(output, (".html",), force=force)
    with command.importing_torch():
        from erfscope.apps.explore.exploration import explore as run
        from erfscope.apps.explore.exploration import serve as run_server

    asked = command.keywords(*command.by_source(given).values())
    if len(asked.get("images", ())) == 1:
        asked["images"] = asked["images"][0]
    if output is None:
        try:
            run_server(list(models), host=address[0], port=address[1], ready=_show_address, **asked)
        except KeyboardInterrupt as stop:
            # Ctrl-C is how it ends.
            return getattr(stop, "code", 0)
        return 0
    with command.progress(quiet=False) as bar:
        found = run(list(models), grid=grid, tell=command.complain, progress=bar, **asked)
    from erfscope.show import random_weights

    for model in found.models:
        if text := random_weights(model.conditions):
            command.complain(f"{model.conditions.label}: {text}")
    found.save(output, force=force)
    size = Path(output).stat().st_size / 1e6
    command.Screen().print_line(f"wrote {output} ({size:.1f} MB); open it in a browser", style="dim")
    return 0
