"""``erfscope merge``: shards of a run put together."""

from __future__ import annotations

import rich_click as click

from erfscope.cli.options import delivering, outranks


@click.command()
@click.argument("shards", nargs=-1, metavar="SHARD ...", required=True)
@delivering
def merge(
    shards: tuple[str, ...],
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
) -> int:
    """Put the shards of one run together, exactly.

    Each is a folder that `analyze` or `compare` wrote with `--shard i/n -o DIR`, in any order. A shard that is missing, there twice, or of
    another run is refused.
    """
    from erfscope.api import merge as run
    from erfscope.cli.output import check_outputs, deliver

    check_outputs(output, force=force, figure=figure, colours=colours)
    report = run(list(shards))
    as_json = as_json and not outranks("format_", "as_json")
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
        measures=None,
    )
