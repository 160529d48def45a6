"""``erfscope advise``: which layers are wasted, and what would change the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.cli.console import File, Text, seconds
from erfscope.cli.options import by_source, chosen_format, keywords, one_value, options, with_verbose
from erfscope.cli.run.known_names import ModelName
from erfscope.core.request.option import OUTPUT, Building, declared
from erfscope.core.request.settings import OPTIONS
from erfscope.core.values.errors import ErfscopeError

if TYPE_CHECKING:
    from erfscope.apps.advise import Advice

#: Options of how a model is built, and those of measuring.
BUILDING = one_value({name: each for name, each in declared(Building).items() if name not in ("alpha", "label")})
TAKEN = ("layer", "weights", "images", "synthetic", "samples", "seed", "device")
MEASURING = one_value({name: OPTIONS[name] for name in TAKEN})
MEASURING["layer"] = replace(
    MEASURING["layer"], option=replace(MEASURING["layer"].option, help="Layer whose field a search is about.")
)
MEASURING["samples"] = replace(
    MEASURING["samples"],
    option=replace(
        MEASURING["samples"].option, help="How many images, or images of each draw of a search. Default: 20, or 4."
    ),
)
SHOWN = ("rich", "plain", "json")
SEARCH = "Search"


@click.command()
@click.argument("model", type=ModelName())
@click.option("--measure", is_flag=True, help="Also measure the ERF of every stage and block.")
@click.option("--all", "everything", is_flag=True, help="List every layer and every candidate.")
@click.option_panel(SEARCH)
@click.option(
    "--target",
    metavar="BOUND",
    help="Search for edits that reach this, such as 'r50>=120' or, for tiles, 'halo<=64'.",
    panel=SEARCH,
)
@click.option(
    "--budget",
    multiple=True,
    metavar="BOUND",
    help="What they may cost: 'gmacs<=+10%', 'params<=2x' or 'memory<=+20%'; repeatable.",
    panel=SEARCH,
)
@click.option(
    "--time",
    type=Text(read=seconds),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long the search may take from when the model is read, e.g. 90, 10m or 2h; more time tries more edits.",
    panel=SEARCH,
)
@click.option("--resume", is_flag=True, help="Go on with the search that -o holds.", panel=SEARCH)
@options(BUILDING | MEASURING)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=File(),
    help="Folder for advice.txt, advice.json, the figure of the search, and with --measure the report in report/.",
    panel=OUTPUT,
)
@click.option("--force", is_flag=True, help="Overwrite what -o names.", panel=OUTPUT)
@click.option(
    "--format",
    type=Text(words=SHOWN, is_closed=True),
    metavar="NAME",
    default="rich",
    help=f"How the advice is printed: {', '.join(SHOWN)}.",
    panel=OUTPUT,
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.", panel=OUTPUT)
@with_verbose
def advise(
    model: str,
    *,
    measure: bool,
    everything: bool,
    target: str | None,
    budget: tuple[str, ...],
    time: float,
    resume: bool,
    output: str | None,
    force: bool,
    format: str,
    as_json: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """Which layers are wasted at this input size, and what would change the field?

    Prints from the operations alone which layers add no new pixels, and what inputs make sense. With --measure also
    where the ERF stops growing; with --target the edits that reach it at the least cost, on random weights."""
    if resume and (output is None or target is None):
        raise ErfscopeError("--resume goes on with a search: name its folder with -o DIR, and its --target")
    if output is not None:
        _check_folder(Path(output), force=force or resume)
    from erfscope.cli.run.interruption import importing_torch

    with importing_torch():
        from erfscope.apps.advise import advise as run
    from erfscope.cli.console import Screen, print_json
    from erfscope.cli.run.output import progress
    from erfscope.show.terminal import draw_parts

    asked = keywords(*by_source(given).values())
    kept: dict[str, Any] = {"keep_in": output if target is not None else None, "resume": output if resume else None}
    with progress(quiet=not (measure or target)) as show:
        advice = run(model, measure=measure, target=target, budget=budget, time=time, **asked, **kept, progress=show)
    if output is not None:
        _write(advice, Path(output))
    if chosen_format(format, as_json) == "json":
        print_json(advice.to_json())
    else:
        Screen(plain=format == "plain").print(draw_parts(advice.parts(everything=everything)))
    return 0


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.is_file() or folder.suffix:
        raise ErfscopeError(f"-o takes a folder, and {folder} is {'a file' if folder.is_file() else 'named as a file'}")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise ErfscopeError(
            f"{folder} is not empty; add --force, --resume to go on with its search, or name another folder"
        )


def _write(advice: Advice, folder: Path) -> None:
    from erfscope.cli.console import complain
    from erfscope.show import write

    folder.mkdir(parents=True, exist_ok=True)
    if advice.depth is not None:
        advice.depth.save(folder / "report", force=True)
    write(folder / "advice.json", advice.to_json(), force=True)
    write(folder / "advice.txt", f"{advice}\n", force=True)
    if advice.search is not None:
        for suffix in (".png", ".pdf"):
            write(folder / f"front{suffix}", advice.figure(), force=True)
    complain(f"wrote {folder}")
