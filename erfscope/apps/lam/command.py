"""``erfscope lam``: local attribution maps of models that restore images."""

from __future__ import annotations

from typing import Any

import rich_click as click

from erfscope.show import command

#: Options of how a model is built and run.
ASKED = command.table(
    *command.BUILDING,
    *("weights", "layer", "images", "samples", "seed", "device", "dtype", "batch_size"),
    input_size="Size that bands, volumes and synthetic images are read at. Pictures are taken at their own.",
    layer="What the model returns, where it is several tensors: output[0], output[KEY].",
) | {"checkpoint": command.CHECKPOINTS}
#: The panel of the command's own options.
LAM = "Local attribution"


@click.command()
@click.argument("models", nargs=-1, required=True, type=command.ModelName(), metavar="MODEL|RESULT...")
@click.option_panel(LAM)
@click.option(
    "--window",
    "windows",
    multiple=True,
    default=("centre",),
    show_default=True,
    metavar="R,C,SIZE",
    help="Window of the output, in its pixels; grid:N; texture:K, the K with most edges; repeatable.",
    panel=LAM,
)
@click.option("--window-size", default=16, show_default=True, help="Side of windows without one.", panel=LAM)
@click.option(
    "--hr",
    multiple=True,
    type=command.File(),
    metavar="PATH",
    help="What each picture should become; without --image what the input is made of, with --scale.",
    panel=LAM,
)
@click.option("--scale", type=click.IntRange(1), metavar="N", help="By how much --hr is made smaller.", panel=LAM)
@click.option("--null", is_flag=True, help="Also measure each model with shuffled weights.", panel=LAM)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="End with 1 where DI or r90 of a model differ from the first one's of its name by more, e.g. 0.05, and by more"
    " than 1.64 errors; with 3 where that cannot be told.",
    panel=LAM,
)
@click.option("--steps", default=50, show_default=True, help="Steps of the path of blurred inputs.", panel=LAM)
@click.option("--sigma", default=1.2, show_default=True, help="Width of the first blur, px.", panel=LAM)
@click.option(
    "--gradient-at",
    type=command.Text(words=("end", "start", "middle"), is_closed=True),
    default="end",
    show_default=True,
    help="Which image of a step gives its gradient.",
    panel=LAM,
)
@click.option(
    "--map-of",
    type=command.Text(words=("sum", "channels", "root"), is_closed=True),
    default="sum",
    show_default=True,
    help="The map: of the sum over channels, the sum of each channel's size, or the root of the first.",
    panel=LAM,
)
@command.options(ASKED)
@command.outputs(
    "the answer",
    place="FILE",
    help="Write the numbers to .json, .csv, .md or .tex, the maps of the first window to .png, .svg or .pdf, or both to"
    " .html.",
)
@command.with_verbose
def lam(
    models: tuple[str, ...],
    windows: tuple[str, ...],
    window_size: int,
    hr: tuple[str, ...],
    scale: int | None,
    null: bool,
    tolerance: float | None,
    steps: int,
    sigma: float,
    gradient_at: str,
    map_of: str,
    output: str | None,
    force: bool,
    format: str,
    json: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """Where does the input give a window of a restored image its edges?

    Prints the diffusion index (DI) of the local attribution map (LAM), and sizes in pixels that do not depend on how
    large the image is. RESULT is a .json file that -o wrote, of the same windows of the same images: it comes first,
    and differences are to it."""
    if output is not None:
        command.check_file(output, (".json", ".csv", ".md", ".tex", ".html", ".png", ".svg", ".pdf"), force=force)
        stored = [each for each in models if each.endswith(".json")]
        command.refuse_inputs(output, given.get("images"), [*hr, *stored])
    with command.importing_torch():
        from erfscope.apps.lam.lam import lam as measure

    asked = command.keywords(*command.by_source(given).values())
    with command.progress(quiet=True):  # what is printed names models of random weights
        found = measure(
            list(models),
            asked.pop("images", None),
            list(windows),
            window_size=window_size,
            hr=list(hr) or None,
            scale=scale,
            null=null,
            tolerance=tolerance,
            path={"steps": steps, "sigma": sigma, "gradient_at": gradient_at, "map_of": map_of},
            **asked,
        )
    if command.chosen_format(format, json) == "json":
        command.print_json(found.to_json())
    else:
        command.Screen(plain=format == "plain").print(found)
    if output is not None:
        found.save(output, force=force)
        command.complain(f"wrote {output}")
    return found.exit_code
