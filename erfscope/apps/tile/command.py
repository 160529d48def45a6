"""``erfscope tile``: how large the overlap of tiles must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.core import ErfscopeError
from erfscope.show import command

if TYPE_CHECKING:
    from erfscope.apps.tile.budget import HaloBudget
    from erfscope.apps.tile.tile_plan import TilePlan
    from erfscope.core import RasterOutput

#: Options of how a model is built, and those of measuring that --tolerance needs.
ASKED = command.table(
    *command.BUILDING,
    *("weights", "images", "synthetic", "samples", "seed", "device"),
    input_size="Size that the model is built for, not that of the large images. Default: the model's own.",
)
#: Panels of the help, beside those of the options of measurements.
TILES, RUN = "Tiles", "Run on tiles"
#: Those of ``erfscope.apps.tile.recipes``.
TOOLS = ("monai", "nnunet", "careamics", "bioimageio", "diffusers", "torchio")


@click.command()
@click.argument("model", type=command.ModelName())
@click.option_panel(TILES)
@click.option(
    "--tile",
    default="256",
    show_default=True,
    metavar="N|HxW",
    help="Side of each tile's output, in pixels, voxels or samples of the input; what is cropped for it is larger by"
    " the halo.",
    panel=TILES,
)
@click.option(
    "--image-size",
    metavar="N|HxW",
    help="Size of the large images: the plan is for sides like theirs, and counts their tiles. Default: --input-size.",
    panel=TILES,
)
@click.option(
    "--layer",
    metavar="NAME",
    help="Layer whose map is put together. Default: what the model returns.",
    panel=TILES,
)
@click.option(
    "--wrt",
    metavar="NAME",
    default="image",
    help="Of several inputs the one that is cut, input:NAME. Default: each in turn.",
    panel=TILES,
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=command.Text(read=command.n_bytes),
    help="Also find tiles that fit this, e.g. 8GiB.",
    panel=TILES,
)
@click.option(
    "--tolerance",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True),
    help="Also measure the ERF: what shorter halos cut off, and the shortest that cuts off less than this share, e.g."
    " 1e-3.",
    panel=TILES,
)
@click.option(
    "--for",
    "tool",
    metavar="TOOL",
    type=command.Text(words=TOOLS, is_closed=True),
    help=f"Also print the settings of a tool, to paste: {', '.join(TOOLS)}.",
    panel=TILES,
)
@click.option_panel(RUN)
@click.option(
    "--run",
    "image",
    metavar="FILE",
    type=command.File(),
    help="Run the model on tiles of an image, normalised already: a .npy file (C, H, W), TIFF or zarr. The output goes"
    " to -o, a file of that kind with its georeferencing or OME metadata.",
    panel=RUN,
)
@click.option("--resume", is_flag=True, help="With --run: go on with what -o holds.", panel=RUN)
@command.options(ASKED)
@command.outputs(
    "the plan",
    place="FILE",
    help="Write the plan to a .json file, or a figure of it to .png, .svg or .pdf; with --run the output, and no plan.",
)
@command.with_verbose
def tile(
    model: str,
    tile: str,
    image_size: str | None,
    layer: str | None,
    wrt: str,
    memory: int | None,
    tolerance: float | None,
    tool: str | None,
    image: str | None,
    resume: bool,
    output: str | None,
    force: bool,
    format: str,
    json: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """How large must the overlap of tiles be?

    Prints the exact halo with which tiles give the output of the whole image, or what makes that impossible (exit
    code 3). That needs no weights and no images: they are for --tolerance and --run."""
    if image is not None and output is None:
        raise ErfscopeError("--run needs -o FILE, where the output goes")
    if resume and image is None:
        raise ErfscopeError("--resume goes on with a run on tiles; name its image with --run FILE")
    from erfscope.core import RasterOutput

    file = RasterOutput(image, output) if image is not None and output is not None else None
    if file is not None:
        file.check(resume=resume, force=force)
    elif output is not None:
        command.check_file(output, (".json", ".png", ".svg", ".pdf"), force=force)
    if output is not None:
        command.refuse_inputs(output, given.get("images"))

    with command.importing_torch():
        from erfscope.core import Request, find_tilings
    from erfscope.apps.tile.costs import tile_costs
    from erfscope.apps.tile.recipes import recipe
    from erfscope.apps.tile.shown import plan_json
    from erfscope.apps.tile.tile_plan import TilePlan
    from erfscope.show import terminal

    asked = command.keywords(*command.by_source(given).values())
    building = {name: value for name, value in asked.items() if name in command.BUILDING}
    request = Request.parse(building)
    found = find_tilings(model, request, tile=tile, layer=layer, image_size=image_size, wrt=wrt)
    plan, *others = plans = [TilePlan.of(each) for each in found]
    if others:
        if output is not None or memory is not None or tolerance is not None or tool is not None:
            names = ", ".join(each.wrt for each in plans)
            raise ErfscopeError(f"{model} takes several inputs ({names}): name the one that is cut with --wrt")
        return _show_each(plans, format, json=json)
    costs = tile_costs(plan, image_size, memory) if plan.possible else ()
    if memory is not None and plan.possible and len(costs) == 1:
        command.complain(f"no tile fits a memory of {memory:,} bytes")
    budget = _budget(model, plan, asked) if tolerance is not None and plan.axes else None
    text = recipe(plan, tool) if tool is not None else ""
    document = plan_json(plan, costs, budget=budget, tolerance=tolerance) | ({"settings": {tool: text}} if text else {})
    if output is not None and image is None:
        figure = None if output.lower().endswith(".json") else plan.figure(budget, tolerance)
        _write(output, document, figure, force=force)
    elif file is not None and plan.possible:
        _run(model, plan, file, resume, asked)
        command.complain(f"wrote {output}")
    if command.chosen_format(format, json) == "json":
        command.print_json(document)
    else:
        parts = plan.parts(costs, image_size, budget=budget, tolerance=tolerance)
        command.Screen(plain=format == "plain").print(terminal.draw_parts(parts))
        if text:
            command.say(f"\n{text}")
    return 0 if plan.possible else 3


def _show_each(plans: Sequence[TilePlan], format: str, *, json: bool) -> int:
    """Print the plan for each of several inputs."""
    from erfscope.apps.tile.shown import plan_json

    if command.chosen_format(format, json) == "json":
        command.print_json({"inputs": [plan_json(plan, (), budget=None, tolerance=None) for plan in plans]})
    else:
        screen = command.Screen(plain=format == "plain")
        for plan in plans:
            screen.print(plan)
        screen.print_line(
            "inputs are cut at the same places: on each side take the largest of their halos", style="dim"
        )
    return 0 if all(plan.possible for plan in plans) else 3


def _budget(model: str, plan: TilePlan, asked: dict[str, Any]) -> HaloBudget:
    from erfscope.apps.tile.halo import halo_budget

    measuring: Any = {name: value for name, value in asked.items() if name != "input_size"}
    with command.progress(quiet=False) as show:
        return halo_budget(model, plan, **measuring, progress=show)


def _write(output: str, document: dict[str, Any], figure: Any, *, force: bool) -> None:
    """Write the figure, or the plan as JSON where there is none."""
    from erfscope.show import write

    write(output, document if figure is None else figure, force=force)
    command.complain(f"wrote {output}")


def _run(model: str, plan: TilePlan, file: RasterOutput, resume: bool, asked: dict[str, Any]) -> None:
    from erfscope.apps.tile.files import tile_file

    with command.progress(quiet=False) as show:
        called = None if show is None else lambda done, of: show(model, done, of)
        try:
            tile_file(model, plan, file, goes_on=resume, called=called, tell=command.complain, **asked)
        except KeyboardInterrupt:
            if file.mark.exists():
                command.complain("the same command with --resume goes on")
            raise
