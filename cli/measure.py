"""``erfscope analyze``, ``compare`` and ``merge``: one model, several in one table, shards of a run put together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.adapters.sources.kinds import SPECS
from erfscope.core.request.option import OUTPUT
from erfscope.core.request.settings import OPTIONS
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.show.command import config
from erfscope.show.command.console import File, ShortHelp, Text, help_all, n_bytes, seconds
from erfscope.show.command.known_names import ModelName
from erfscope.show.command.options import (
    CHECKPOINTS,
    OUTPUT_OPTIONS,
    OutputOptions,
    on_command_line,
    options,
    with_verbose,
)

if TYPE_CHECKING:
    from erfscope.core.answer.report import Report

#: The panel of options that are of several models.
MANY = "Many models"


@click.command(
    cls=ShortHelp,
    help=f"Measure how far one unit of MODEL looks.\n\nMODEL is {SPECS}; `LABEL=MODEL` names it, `MODEL@LAYER` its"
    " layer.",
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
            from erfscope.cli.explanation import guide

            return guide()
        raise ErfscopeError(
            "no model was named; try `erfscope analyze resnet18`, and `erfscope models` lists the names"
        )
    if len(models) > 1:
        raise ErfscopeError(f"the report has {len(models)} models; measure them with `erfscope compare --config`")
    from erfscope.cli.running import measured

    def sweep(**keywords: Any) -> Report:
        from erfscope.core.run.analysis import sweep

        return sweep(models[0], **keywords)

    return measured(sweep, wanted, given, models={models[0]: models[0]})


@click.command(cls=ShortHelp)
@click.argument("models", nargs=-1, metavar="MODEL|RESULT ...", type=ModelName())
@click.option_panel(MANY)
@click.option(
    "--of",
    metavar="SPEC",
    type=ModelName(),
    help=(
        "Model whose checkpoints are compared: each MODEL is then a checkpoint file, or a pattern of files, which are"
        " sorted by the numbers in their names."
    ),
    panel=MANY,
)
@click.option(
    "--atlas",
    multiple=True,
    metavar="NAME",
    type=ModelName(),
    help="Also a row of this model of timm as kept with erfscope, at random weights; repeatable.",
    panel=MANY,
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Measure each model in its own process; one that crashes is a row with the reason.",
    panel=MANY,
)
@click.option(
    "--time-limit",
    type=Text(read=seconds),
    metavar="TIME",
    help="With --isolate: seconds for each model, or 10m, 2h.",
    panel=MANY,
)
@click.option(
    "--memory-limit",
    type=Text(read=n_bytes),
    metavar="SIZE",
    help="With --isolate: memory for each model, e.g. 8GiB.",
    panel=MANY,
)
@options({**OPTIONS, "checkpoint": CHECKPOINTS, **OUTPUT_OPTIONS})
@config.option
@click.option(
    "--sort", metavar="MEASURE", help="Sort rows by a measure, largest first (larger is not better).", panel=OUTPUT
)
@with_verbose
@help_all
def compare(models: tuple[str, ...], sort: str | None, **given: Any) -> int:
    """Measure several models on the same pixels, one row each.

    MODEL is named as for `analyze`; `LABEL=MODEL@LAYER` has a layer of its own. RESULT is a stored report's folder.
    Differences are paired, and to the first model under the same settings."""
    kept = given.pop("atlas")
    models = (*config.asked_models(models),)
    wanted = OutputOptions.from_options(given)
    if not models and wanted.explain:
        from erfscope.cli.explanation import guide

        return guide()
    if not models and not kept:
        raise ErfscopeError("nothing to compare; try `erfscope compare resnet18 resnet50`")
    from erfscope.cli.running import measured
    from erfscope.core.answer.measures import MEASURES

    if sort is not None and sort not in MEASURES:
        raise unknown("measure", sort, MEASURES, limit=40)

    limits = {name: given.pop(name) for name in ("time_limit", "memory_limit")}
    isolate = given.pop("isolate")
    for name, value in limits.items():
        if value is not None and not isolate:
            raise ErfscopeError(f"--{name.replace('_', '-')} works only with --isolate; add that, or leave it out")
    if isolate and given.pop("of") is not None:
        raise ErfscopeError("--isolate is for models by name, not for checkpoints --of one")
    if kept and given.get("of") is not None:
        raise ErfscopeError("--of compares checkpoints of one model; leave out --atlas")
    if isolate and kept:
        raise ErfscopeError("--isolate is for models that are measured; name kept rows without it: --atlas")

    stored = _stored(models)
    are_stored = len(stored) == len(models)

    def run(**keywords: Any) -> Report:
        if isolate:
            from erfscope.core.run.isolated import compare_isolated

            return compare_isolated(models, **limits, **keywords)
        from erfscope.apps.atlas.atlas import erf_of
        from erfscope.core.run.comparison import compare

        if are_stored:
            # What settings files and variables say is for models that are measured.
            keywords = {name: value for name, value in keywords.items() if name not in given or on_command_line(name)}
        return compare([*models, *map(erf_of, kept)], **keywords)

    return measured(run, wanted, given, models=models, read=stored, sort=sort, hint=not are_stored)


def _stored(models: tuple[str, ...]) -> list[str]:
    """The stored results among models, of which nothing is measured."""
    files = [model for model in models if Path(model.rpartition("=")[2]).exists() or Path(model).exists()]
    if not files:
        return []
    from erfscope.adapters import split_label  # it imports torch
    from erfscope.core.run.entries import is_stored

    return [path for path in (split_label(file)[1] for file in files) if is_stored(path)]


@click.command()
@click.argument("shards", nargs=-1, metavar="SHARD ...", required=True, type=File())
@options({name: each for name, each in OUTPUT_OPTIONS.items() if name != "resume"}, in_panels=False)
@with_verbose
def merge(shards: tuple[str, ...], **given: Any) -> int:
    """Put the shards of one run together: the numbers of one run, up to rounding.

    Each SHARD is a folder that `analyze` or `compare` wrote with `--shard I/N -o DIR`, in any order. A shard that is
    missing, given twice or part of another run is refused."""
    from erfscope.cli.output import check_outputs, deliver
    from erfscope.core.run.shards import merge as run

    wanted = OutputOptions.from_options(given)
    check_outputs(wanted, read=shards)
    report = run(list(shards))
    return deliver(report, wanted)
