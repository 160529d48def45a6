"""``erfscope merge``: shards of a run put together."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.cli.console import File
from erfscope.cli.options import OUTPUT_OPTIONS, OutputOptions, options, with_verbose


@click.command()
@click.argument("shards", nargs=-1, metavar="SHARD ...", required=True, type=File())
@options({name: each for name, each in OUTPUT_OPTIONS.items() if name != "resume"}, in_panels=False)
@with_verbose
def merge(shards: tuple[str, ...], **given: Any) -> int:
    """Put the shards of one run together, exactly.

    Each SHARD is a folder that `analyze` or `compare` wrote with `--shard I/N -o DIR`, in any order. A shard that is
    missing, given twice or part of another run is refused."""
    from erfscope.api.save import merge as run
    from erfscope.cli.run.output import check_outputs, deliver

    wanted = OutputOptions.from_options(given)
    check_outputs(wanted, shards)
    report = run(list(shards))
    return deliver(report, wanted)
