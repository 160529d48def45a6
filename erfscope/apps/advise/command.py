"""``erfscope advise``: which layers are wasted, and what would change the field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.core import ErfscopeError
from erfscope.show import command

if TYPE_CHECKING:
    from erfscope.apps.advise.advice import Advice

#: Options of how a model is built, and those of measuring.
ASKED = command.table(
    *(name for name in command.BUILDING if name != "label"),
    *("layer", "weights", "images", "synthetic", "samples", "seed", "device"),
    layer="Layer whose field a search is about.",
    samples="How many images, or images of each draw of a search. Default: 20, or 4.",
)
SEARCH = "Search"


@click.command()
@click.argument("model", type=command.ModelName())
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
    type=command.Text(read=command.seconds),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long the search may take from when the model is read, e.g. 90, 10m or 2h; more time tries more edits.",
    panel=SEARCH,
)
@click.option("--resume", is_flag=True, help="Go on with the search that -o holds.", panel=SEARCH)
@command.options(ASKED)
@command.outputs(
    "the advice",
    place="DIR",
    help="Folder for advice.txt, advice.json, the figure of the search, and with --measure the report in report/.",
)
@command.with_verbose
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
    json: bool,
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

    with command.importing_torch():
        from erfscope.apps.advise.advice import advise as run
    from erfscope.show import terminal

    asked = command.keywords(*command.by_source(given).values())
    kept: dict[str, Any] = {"keep_in": output if target is not None else None, "resume": output if resume else None}
    with command.progress(quiet=not (measure or target)) as show:
        advice = run(model, measure=measure, target=target, budget=budget, time=time, **asked, **kept, progress=show)
    if output is not None:
        _write(advice, Path(output))
    if command.chosen_format(format, json) == "json":
        command.print_json(advice.to_json())
    else:
        command.Screen(plain=format == "plain").print(terminal.draw_parts(advice.parts(everything=everything)))
    return 0


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.is_file() or folder.suffix:
        raise ErfscopeError(f"-o takes a folder, and {folder} is {'a file' if folder.is_file() else 'named as a file'}")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise ErfscopeError(
            f"{folder} is not empty; add --force, --resume to go on with its search, or name another folder"
        )


def _write(advice: Advice, folder: Path) -> None:
    from erfscope.show import write

    folder.mkdir(parents=True, exist_ok=True)
    if advice.depth is not None:
        advice.depth.save(folder / "report", force=True)
    write(folder / "advice.json", advice.to_json(), force=True)
    write(folder / "advice.txt", f"{advice}\n", force=True)
    if advice.search is not None:
        for suffix in (".png", ".pdf"):
            write(folder / f"front{suffix}", advice.figure(), force=True)
    command.complain(f"wrote {folder}")
