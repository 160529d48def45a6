"""The options that commands share, as click decorators. Nothing heavy is imported here: ``--help`` must be quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import rich_click as click
from click.core import ParameterSource

from erfscope.cli import config
from erfscope.cli.console.param_types import Bytes, Draws, Duration, File, Numbers, Percent, Words
from erfscope.cli.console.short_help import help_all
from erfscope.errors import ErfscopeError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

CONVENTIONS = "jacobian, energy, luo, signed, replknet, kim"
METHODS = "gradient, input_x_gradient, integrated_gradients, guided_backprop, smoothgrad, occlusion"
BLOCKS = "nonlocal, attention, gcn, gat, gatv2, gin, cheb, chebygin, gc, large_kernel, topk, threshold"
KINDS = "leaves, noise, correlated, constant, impulse, grating"
WEIGHTS = "auto, pretrained, random, random-raw"
#: As in erfscope.studies, which takes long to import.
STUDY_NAMES = (
    "theorems, luo-gaussian, luo-growth, luo-subsample-dilation, luo-skip, luo-dropout, luo-nonlinearity, luo-init, "
    "luo-training, correlations, syncmnist, sort-of-clevr, padding, gatv2-gradients, attention-pooling, trust"
)
FORMATS = ("rich", "plain", "json", "csv", "markdown", "latex")
#: As in erfscope.figures, which takes long to import.
FIGURES = ("panel", "overlay", "strip", "profile", "depth", "alpha", "sizes", "training", "units", "positions")
SCALES = ("share", "linear", "log", "power")
COLOURS = ("shared", "own")
WIDTHS = ("column", "page")
#: Those of FIGURES that show maps.
MAPS = ("panel", "overlay", "strip", "units")
#: Where a value may come from; what comes first wins.
SOURCES = (
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.DEFAULT,
)


_MODEL: tuple[Decorator, ...] = (
    click.option(
        "--weights", type=Words(WEIGHTS), default="auto", show_default=True, help=f"{WEIGHTS}; a comma list sweeps."
    ),
    click.option(
        "--checkpoint", type=File(), metavar="FILE", help=".safetensors or .pth file with the model's weights."
    ),
    click.option(
        "--unsafe-load",
        is_flag=True,
        help="Also read files that may run code, such as pickled weights, if you trust them.",
    ),
    click.option(
        "--model-kwargs", multiple=True, metavar="K=V", help="Passed to whatever builds the model; repeatable."
    ),
    click.option(
        "--input-size",
        "--img-size",
        metavar="N|HxW",
        help="Input size; a comma list sweeps; auto: doubled until the ERF fits. Default: own.",
    ),
    click.option("--in-chans", type=int, metavar="N", help="Input channels. Default: the model's own."),
    click.option(
        "--mean", type=Numbers("0.5,0.5,0.5"), help="Mean per channel, for models without a timm configuration."
    ),
    click.option("--std", type=Numbers("0.5,0.5,0.5"), help="Standard deviation per channel, likewise."),
    click.option(
        "--layout",
        type=Words("NCHW, NHWC, NLC"),
        metavar="NAME",
        help="Read every layer as NCHW, NHWC or NLC, whatever the operations say of its positions.",
    ),
    click.option("--prefix-tokens", type=int, metavar="N", help="With --layout NLC: tokens before those of the map."),
    click.option(
        "--insert",
        multiple=True,
        metavar="BLOCK@LAYER",
        help=f"Insert a block, BLOCK@LAYER:k=v,k=v with options: {BLOCKS}, or module:Class; repeatable.",
    ),
)
_PICTURES: tuple[Decorator, ...] = (
    click.option(
        "--image",
        "--images",
        "images",
        type=File(),
        multiple=True,
        metavar="PATH",
        help="Image, directory or quoted glob; repeatable.",
    ),
    click.option(
        "--synthetic",
        type=Words(KINDS),
        metavar="KIND",
        help=f"Synthetic images, not files: {KINDS}. Default without --image: leaves.",
    ),
    click.option(
        "--samples", type=int, metavar="N", help="How many images. Default: 20; files named one by one are all used."
    ),
    click.option(
        "--until-se", type=Percent(), help="Add images until the relative standard error of r50 is below this, e.g. 2%."
    ),
    click.option("--keep-going", is_flag=True, help="Name and skip images that cannot be read, instead of stopping."),
)
_LASTING: tuple[Decorator, ...] = (
    click.option(
        "--shard",
        metavar="I/N",
        help="Measure the I-th of N equal parts of the images; `erfscope merge` puts them together.",
    ),
    click.option(
        "--config",
        type=File(),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=config.take_from,
        help="Take settings from a stored report (or .toml) where the command line has none; no other file is read.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Go on with what the folder that -o names has: repeat nothing, add what is missing.",
    ),
    click.option(
        "--retry-failed", is_flag=True, help="With --resume: measure models that failed by themselves again, too."
    ),
)
_WHAT: tuple[Decorator, ...] = (
    click.option(
        "--layer",
        metavar="NAME",
        help="Layer, NAME[2] or NAME[key] inside a container; a comma list or `stages` sweeps.",
    ),
    click.option(
        "--unit",
        type=Words("centre, corner, edge, all"),
        default="centre",
        show_default=True,
        help="centre, corner, edge, grid:N or r,c; a comma list sweeps. all: each.",
    ),
    click.option("--channels", metavar="N,N", help="Channels of the layer to read, together, from 0 on. Default: all."),
    click.option(
        "--wrt",
        default="image",
        show_default=True,
        help="Reference: the image, NAME's output, or NAME:in; a comma list sweeps.",
    ),
    click.option(
        "--alpha",
        metavar="A",
        help="Share of what inserted blocks add, 0 to leave them out; a comma list sweeps. Default: 1.",
    ),
    click.option(
        "--convention",
        type=Words(CONVENTIONS),
        default="jacobian",
        show_default=True,
        help=f"{CONVENTIONS}; a comma list sweeps.",
    ),
    click.option("--method", type=Words(METHODS), default="gradient", show_default=True, help=f"{METHODS}."),
    click.option(
        "--draws",
        type=Draws(),
        metavar="N|all",
        help="Random draws per image; `all` is exact. Default: 8 in all, at least one each.",
    ),
    click.option(
        "--measures", default="all", show_default=True, metavar="all|NAME,...", help="Which measures to compute."
    ),
)
_HOW: tuple[Decorator, ...] = (
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of stimuli, samples, random signs and random weights.",
    ),
    click.option(
        "--device",
        type=Words("auto, cpu, cuda, mps"),
        default="auto",
        show_default=True,
        help="auto, cpu, cuda or mps.",
    ),
    click.option(
        "--dtype", type=Words("float32, float64"), default="float32", show_default=True, help="float32 or float64."
    ),
    click.option(
        "--amp-dtype", type=Words("bfloat16, float16"), metavar="NAME", help="Autocast to bfloat16 or float16."
    ),
    click.option("-b", "--batch-size", type=int, metavar="N", help="Images per forward pass."),
    click.option(
        "--workers", type=int, default=0, show_default=True, metavar="N", help="Processes that read images ahead."
    ),
    click.option(
        "--plain",
        is_flag=True,
        help="Run the model itself, whole, in the place of the operations that the unit needs.",
    ),
    click.option(
        "--verify",
        is_flag=True,
        help="Compare the first image with the plain model in float64; exit 1 where they differ.",
    ),
    click.option(
        "--trust",
        is_flag=True,
        help="Compare the gradient with forward passes with noise, which share no backward code.",
    ),
    click.option(
        "--accept",
        type=Words("gradient_disagrees"),
        metavar="CODE",
        help="Accept despite this finding: gradient_disagrees.",
    ),
)
_ISOLATED: tuple[Decorator, ...] = (
    click.option(
        "--isolate",
        is_flag=True,
        help="Measure every model in a process of its own: one that fails is a row.",
    ),
    click.option("--time-limit", type=Duration(), help="With --isolate: seconds for each model, or 10m, 2h."),
    click.option("--memory-limit", type=Bytes(), help="With --isolate: memory for each model, e.g. 8GiB."),
)
_OUTPUT: tuple[Decorator, ...] = (
    click.option(
        "--format", "format_", type=click.Choice(FORMATS), metavar="NAME", default="rich", help=f"{', '.join(FORMATS)}."
    ),
    click.option("--json", "as_json", is_flag=True, help="Short for --format json."),
    click.option(
        "-o",
        "--output",
        type=File(),
        multiple=True,
        metavar="PATH",
        help="Folder, or .html .json .csv .md .tex .png .svg .pdf .npz; repeatable.",
    ),
    click.option(
        "--figure",
        type=click.Choice(FIGURES),
        metavar="KIND",
        help=f"What -o draws: {', '.join(FIGURES)}. Default: panel; positions of --unit all.",
    ),
    click.option(
        "--scale",
        type=click.Choice(SCALES),
        metavar="NAME",
        default=SCALES[0],
        help=f"Scale of figures: {', '.join(SCALES)}.",
    ),
    click.option(
        "--colours",
        type=click.Choice(COLOURS),
        metavar="NAME",
        default="shared",
        help=f"Range of maps' colours: {', '.join(COLOURS)}.",
    ),
    click.option(
        "--contours",
        type=Numbers("50,90"),
        metavar="P,P",
        help="Outline the regions that hold so many per cent of a map, e.g. 50,90.",
    ),
    click.option(
        "--width", type=click.Choice(WIDTHS), metavar="NAME", help="Width of figures: column (89 mm) or page (183 mm)."
    ),
    click.option("--force", is_flag=True, help="Overwrite what -o names."),
    click.option("-q", "--quiet", is_flag=True, help="Print one line for each result and nothing else."),
    click.option("--explain", is_flag=True, help="Print what each number means, with its formula and source."),
)
_VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="Say what was computed, and show the traceback of an error."
)


_PANELS = (
    (
        "What is measured",
        ("--layer", "--unit", "--channels", "--wrt", "--alpha", "--convention", "--method", "--draws", "--measures"),
    ),
    ("Images", ("--image", "--synthetic", "--samples", "--until-se", "--shard", "--keep-going")),
    (
        "Model",
        (
            *("--weights", "--checkpoint", "--unsafe-load", "--model-kwargs", "--input-size"),
            *("--in-chans", "--mean", "--std", "--layout", "--prefix-tokens", "--insert"),
        ),
    ),
    (
        "Computation",
        (
            *("--seed", "--device", "--dtype", "--amp-dtype", "--batch-size", "--workers"),
            *("--resume", "--retry-failed", "--config", "--plain", "--verify", "--trust", "--accept"),
        ),
    ),
    (
        "Output",
        (
            *("--sort", "--format", "--json", "--output", "--figure", "--scale", "--colours", "--contours", "--width"),
            *("--force", "--quiet", "--explain", "--verbose", "--help", "--help-all"),
        ),
    ),
)


def analysis_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of a measurement, in panels."""
    for title, names in reversed(_PANELS):
        function = click.option_panel(title, options=list(names))(function)
    return _with(function, (*_WHAT, *_PICTURES, *_LASTING, *_MODEL, *_HOW, *_OUTPUT, _VERBOSE, help_all))


def isolating(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of processes of their own."""
    function = click.option_panel("Many models", options=["--of", "--isolate", "--time-limit", "--memory-limit"])(
        function
    )
    return _with(function, _ISOLATED)


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of what is printed and written."""
    return _with(function, (*_OUTPUT, _VERBOSE))


def measurement(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every option of a measurement but those of its output, in panels."""
    for title, names in reversed(_PANELS[:-1]):
        function = click.option_panel(title, options=list(names))(function)
    return _with(function, (*_WHAT, *_PICTURES, *_MODEL, *_HOW))


def building(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a model is built."""
    return _with(function, (*_MODEL[2:], _VERBOSE))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is to be printed and written of a report: the options of one panel of the help."""

    #: One of FORMATS.
    format: str
    output: tuple[str, ...]
    figure: str | None
    scale: str
    colours: str
    contours: tuple[float, ...]
    width: str | None
    force: bool
    quiet: bool
    explain: bool
    #: Whether the folder among the outputs is to be added to.
    resume: bool = False

    @property
    def style(self) -> dict[str, Any]:
        """How figures are drawn, as :meth:`erfscope.Report.save` takes it."""
        return {"scale": self.scale, "colours": self.colours, "contours": self.contours, "width": self.width}

    def replaces(self, path: Path) -> bool:
        """Whether an output may take the place of what is there."""
        return self.force or (self.resume and (not path.suffix or path.is_dir()))

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Self:
        """Take these options out of those of the running command."""
        shown = chosen_format(options.pop("format_"), options.pop("as_json"))
        if options.get("retry_failed") and not options.get("resume"):
            raise ErfscopeError("--retry-failed works only with --resume; add --resume, or leave it out")
        names = ("output", "figure", "scale", "colours", "width", "force", "quiet", "explain")
        return cls(
            contours=tuple(options.pop("contours") or ()),
            format=shown,
            resume=options.pop("resume", False),
            **{name: options.pop(name) for name in names},
        )


def verbose(function: Callable[..., Any]) -> Callable[..., Any]:
    """Only -v."""
    return _with(function, (_VERBOSE,))


def keywords(given: dict[str, Any]) -> dict[str, Any]:
    """Command-line values as the keywords of :func:`erfscope.analyze`; options that were left out are left out.

    Raises:
        ErfscopeError: a --model-kwargs that is no K=V.
    """
    kept = {name: value for name, value in given.items() if value is not None and value != ()}
    if "images" in kept and "synthetic" in kept:
        # One of them on the command line and the other in a file is no contradiction.
        for name, other in (("images", "synthetic"), ("synthetic", "images")):
            if outranks(other, name):
                kept.pop(name)
                break
    if "model_kwargs" in kept:
        kept["model_kwargs"] = dict(_pair(text) for text in kept["model_kwargs"])
    for repeated in ("images", "insert"):
        if repeated in kept:
            kept[repeated] = list(kept[repeated])
    for flag, default in (
        ("keep_going", False),
        ("plain", False),
        ("verify", False),
        ("retry_failed", False),
        ("workers", 0),
        ("unsafe_load", False),
    ):
        if kept.get(flag) is default:
            kept.pop(flag)
    return kept


def source_of(name: str) -> ParameterSource:
    """Where the running command has a parameter from: one of ``SOURCES``."""
    context: Any = click.get_current_context()
    found: ParameterSource | None = context.get_parameter_source(name)
    return found or ParameterSource.DEFAULT


def outranks(name: str, other: str) -> bool:
    """Whether the running command had parameter ``name`` from a better source than ``other``: command line,
    environment, file, default."""
    return SOURCES.index(source_of(name)) < SOURCES.index(source_of(other))


def on_command_line(name: str) -> bool:
    """Whether the running command was given parameter ``name`` itself, rather than by a file or the environment."""
    return source_of(name) is ParameterSource.COMMANDLINE


def chosen_format(asked: str, as_json: bool) -> str:
    """What to print in: ``--json`` counts unless ``--format`` has a better source."""
    return "json" if as_json and not outranks("format_", "as_json") else asked


def named_measures(text: str) -> list[str] | None:
    """The measures that --measures names, None for all; the names are checked where they are used."""
    return None if text == "all" else [name.strip() for name in text.split(",") if name.strip()]


def _pair(text: str) -> tuple[str, Any]:
    """``k=v`` with v read as a Python literal where it is one."""
    import ast

    name, separator, value = text.partition("=")
    if not separator or not name.strip().isidentifier():
        raise ErfscopeError(f"cannot read --model-kwargs {text!r}; write NAME=VALUE, e.g. --model-kwargs depth=4")
    try:
        return name.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name.strip(), value


def _with(function: Callable[..., Any], options: tuple[Decorator, ...]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function
