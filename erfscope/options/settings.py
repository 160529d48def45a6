"""Every option of the Python functions, declared once: its type, default and limits, its line of the help, and what it
means for two results to differ in it. Nothing heavy is imported here: ``--help`` must be quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.input_size import Size
from erfscope.geometry.layout import NAMES as LAYOUTS
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import is_every_unit
from erfscope.options.option import COMPUTATION, IMAGES, MODEL, WHAT, Option, declared
from erfscope.options.values import channels, draws, numbers, percent

#: Samples where none were asked for: synthetic stimuli and directories.
SAMPLES = 20
#: Images that --until-se may add up to, where there is no end to them.
UNTIL_SE_LIMIT = 1000
#: What PyTorch's generators take.
SEED_LIMIT = 2**63


class Choices(TypedDict, total=False):
    """Options of which weights and images are measured."""

    weights: Annotated[
        str | Sequence[str],
        Option(
            "{words}; a comma list sweeps.",
            MODEL,
            default="auto",
            words=("auto", "pretrained", "random", "random-raw"),
        ),
    ]
    images: Annotated[
        Any,
        Option(
            "Image, directory or quoted glob; repeatable.",
            IMAGES,
            metavar="PATH",
            flags=("--image", "--images"),
            is_file=True,
            is_repeatable=True,
            in_python="Also uint8 arrays (H, W, 3), PIL images, or a ready tensor (B, C_in, *space).",
        ),
    ]
    image: Annotated[Any, Option("Another name of images.")]
    synthetic: Annotated[
        str | None,
        Option(
            "Synthetic images, not files: {words}. Default without --image: leaves.",
            IMAGES,
            metavar="KIND",
            words=("leaves", "noise", "correlated", "constant", "impulse", "grating"),
        ),
    ]


class Building(TypedDict, total=False):
    """Options that say how a model is built."""

    checkpoint: Annotated[
        str | Path | None,
        Option(".safetensors or .pth file with the model's weights.", MODEL, metavar="FILE", is_file=True),
    ]
    unsafe_load: Annotated[
        bool, Option("Also read files that may run code, such as pickled weights, if you trust them.", MODEL)
    ]
    model_kwargs: Annotated[
        Mapping[str, object] | None,
        Option("Passed to whatever builds the model; repeatable.", MODEL, metavar="K=V", is_repeatable=True),
    ]
    input_size: Annotated[
        Size | Sequence[Size] | None,
        Option(
            "Input size; a comma list sweeps; auto: doubled until the ERF fits. Default: own.",
            MODEL,
            metavar="N|HxW",
            flags=("--input-size", "--img-size"),
        ),
    ]
    in_chans: Annotated[int | None, Option("Input channels. Default: the model's own.", MODEL, metavar="N", least=1)]
    mean: Annotated[
        float | Sequence[float] | None,
        Option("Mean per channel, for models without a timm configuration.", MODEL, metavar="A,B,C", read=numbers),
    ]
    std: Annotated[
        float | Sequence[float] | None,
        Option("Standard deviation per channel, likewise.", MODEL, metavar="A,B,C", read=numbers),
    ]
    layout: Annotated[
        str | None,
        Option(
            "Read every layer as NCHW, NHWC or NLC, whatever the operations say of its positions.",
            MODEL,
            metavar="NAME",
            words=tuple(LAYOUTS),
            is_closed=True,
        ),
    ]
    prefix_tokens: Annotated[
        int | None, Option("With --layout NLC: tokens before those of the map.", MODEL, metavar="N", least=0)
    ]
    insert: Annotated[
        Any,
        Option(
            "Insert a block, BLOCK@LAYER:k=v,k=v with options: {words}, or module:Class; repeatable.",
            MODEL,
            metavar="BLOCK@LAYER",
            words=(
                *("nonlocal", "attention", "gcn", "gat", "gatv2", "gin", "cheb", "chebygin", "gc", "large_kernel"),
                *("topk", "threshold"),
            ),
            is_repeatable=True,
            in_python="Also (block, layer), where the block is a module or what makes one; one or several.",
        ),
    ]
    alpha: Annotated[
        float | str | Sequence[float] | None,
        Option(
            "Share of what inserted blocks add, 0 to leave them out; a comma list sweeps. Default: 1.",
            MODEL,
            metavar="A",
        ),
    ]
    transform: Annotated[
        Callable[..., Any] | None, Option("Image -> tensor (C, H, W), instead of the model's own transform.")
    ]
    label: Annotated[str | None, Option("What tables and figures call the model.")]


class Running(TypedDict, total=False):
    """What a run goes on with, and what it calls; nothing of what was asked for."""

    resume: Annotated[Any, Option("What was measured before, to be added to: a report, or the folder of one.")]
    retry_failed: Annotated[
        bool, Option("With --resume: measure models that failed by themselves again, too.", COMPUTATION)
    ]
    keep_in: Annotated[
        str | Path | None,
        Option(
            "Folder in which each finished row is stored as it ends, so that a run that was killed can resume them."
            " What it holds of another run is replaced."
        ),
    ]
    stop: Annotated[Callable[[], bool] | None, Option("Called after every batch; true ends the run with what it has.")]
    tell: Annotated[
        Callable[[str], None] | None,
        Option("Called with a line about what each measurement will take, before it begins."),
    ]
    progress: Annotated[
        Callable[[str, int, int], None] | None, Option("Called with (description, images done, images in all).")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of one measurement, the same in Python and on the command line."""

    layer: Annotated[
        str | None,
        Option(
            "Layer, NAME[2] or NAME[key] inside a container; a comma list or `stages` sweeps.",
            WHAT,
            metavar="NAME",
            accepts="str | Sequence[str] | None",
        ),
    ] = None
    unit: Annotated[
        str | Sequence[Any],
        Option(
            "centre, corner, edge, grid:N or r,c; a comma list sweeps. all: each.",
            WHAT,
            words=("centre", "corner", "edge", "all"),
        ),
    ] = "centre"
    #: Ascending; None for all.
    channels: Annotated[
        tuple[int, ...] | None,
        Option(
            "Channels of the layer to read, together, from 0 on. Default: all.",
            WHAT,
            metavar="N,N",
            counts="recorded",
            accepts="int | str | Sequence[int] | None",
        ),
    ] = None
    #: Name, Convention or (readout, contribution) pair.
    convention: Annotated[
        Any,
        Option(
            "{words}; a comma list sweeps.",
            WHAT,
            words=("jacobian", "energy", "luo", "signed", "replknet", "kim"),
            in_python="Also a Convention or a pair (readout, contribution).",
        ),
    ] = "jacobian"
    wrt: Annotated[
        str,
        Option(
            "Reference: the image, NAME's output, or NAME:in; a comma list sweeps.",
            WHAT,
            accepts="str | Sequence[str]",
        ),
    ] = IMAGE
    #: Name, or a callable readout -> Captum attribution.
    method: Annotated[
        str | Callable[..., Any],
        Option(
            "{words}.",
            WHAT,
            words=(
                *("gradient", "input_x_gradient", "integrated_gradients", "guided_backprop", "smoothgrad"),
                "occlusion",
            ),
            in_python="Also a callable readout -> Captum attribution.",
        ),
    ] = "gradient"
    draws: Annotated[
        int | Literal["all"] | None,
        Option(
            "Random draws per image; `all` is exact. Default: 8 in all, at least one each.",
            WHAT,
            metavar="N|all",
            words=("all",),
            read=draws,
            least=1,
            most=100_000,
        ),
    ] = None
    measures: Annotated[str | Sequence[str], Option("Which measures to compute.", WHAT, metavar="all|NAME,...")] = "all"
    samples: Annotated[
        int | None,
        Option(
            "How many images. Default: 20; files named one by one are all used.",
            IMAGES,
            metavar="N",
            least=1,
            most=10_000_000,
        ),
    ] = None
    until_se: Annotated[
        float | None,
        Option(
            "Add images until the relative standard error of r50 is below this, e.g. 2%.",
            IMAGES,
            metavar="PERCENT",
            read=percent,
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option(
            "Measure the I-th of N equal parts of the images; `erfscope merge` puts them together.",
            IMAGES,
            metavar="I/N",
        ),
    ] = None
    squash: Annotated[
        bool,
        Option(
            "Resize images whole to the input size; else the model's resize and crop, which cuts borders off.",
            IMAGES,
        ),
    ] = False
    keep_going: Annotated[bool, Option("Name and skip images that cannot be read, instead of stopping.", IMAGES)] = (
        False
    )
    seed: Annotated[
        int,
        Option("Seed of stimuli, samples, random signs and random weights.", COMPUTATION, least=0, most=SEED_LIMIT - 1),
    ] = 0
    device: Annotated[
        str,
        Option("auto, cpu, cuda or mps.", COMPUTATION, words=("auto", "cpu", "cuda", "mps"), counts="free"),
    ] = "auto"
    dtype: Annotated[str, Option("float32 or float64.", COMPUTATION, words=("float32", "float64"), is_closed=True)] = (
        "float32"
    )
    amp_dtype: Annotated[
        str | None,
        Option(
            "Autocast to bfloat16 or float16.",
            COMPUTATION,
            metavar="NAME",
            words=("bfloat16", "float16"),
            is_closed=True,
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Option(
            "Images per forward pass.", COMPUTATION, metavar="N", flags=("-b", "--batch-size"), least=1, counts="free"
        ),
    ] = None
    workers: Annotated[
        int, Option("Processes that read images ahead.", COMPUTATION, metavar="N", least=0, most=1024, counts="free")
    ] = 0
    plain: Annotated[
        bool,
        Option(
            "Run the model itself, whole, in the place of the operations that the unit needs.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.results.result.Verification`.
    verify: Annotated[
        bool,
        Option(
            "Compare the first image with the plain model in float64; exit 1 where they differ.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.maps.trust.Trust`.
    trust: Annotated[
        bool,
        Option(
            "Compare the gradient with forward passes with noise, which share no backward code.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    accept: Annotated[
        str | None,
        Option(
            "Accept despite this finding: {words}.",
            COMPUTATION,
            metavar="CODE",
            words=("gradient_disagrees",),
            is_closed=True,
            counts="free",
        ),
    ] = None

    def __post_init__(self) -> None:
        from erfscope.attribution.convention import convention_of
        from erfscope.parallel.shard import parse

        object.__setattr__(self, "channels", channels(self.channels))
        for name, each in OPTIONS.items():
            if name in self.__dataclass_fields__:
                each.option.refuse(name, getattr(self, name))
        if self.until_se is not None and not 0 < self.until_se < 1:
            raise ErfscopeError(f"until-se must lie between 0 and 100 %, not {self.until_se:.3g}")
        if self.shard is not None:
            parse(self.shard)
        convention_of(self.convention)
        self.measure_names()
        _refuse_contradictions(self)

    def recorded(self) -> dict[str, Any]:
        """What results have to record of the settings beside their own fields: those that are not the default, by
        name."""
        asked = {name: getattr(self, name) for name, each in OPTIONS.items() if each.option.counts == "recorded"}
        return {name: value for name, value in asked.items() if value != OPTIONS[name].default}

    def measure_names(self) -> list[str]:
        """The measures to compute, in the table's order.

        Raises:
            ErfscopeError: an unknown name.
        """
        from erfscope.measures import MEASURES

        if self.measures == "all":
            return list(MEASURES)
        names = (
            [n.strip() for n in self.measures.split(",") if n.strip()]
            if isinstance(self.measures, str)
            else list(self.measures)
        )
        if not names:
            raise ErfscopeError("measures is empty; write all, or names such as r50,r90")
        for name in names:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES, limit=40)
        return names


def _refuse_contradictions(settings: Settings) -> None:
    """Refuse options that exclude each other."""
    method, is_gradient, every_unit = settings.method, settings.method == "gradient", is_every_unit(settings.unit)
    asked = "trust" if settings.trust else "verify"
    contradictions = {
        f"{asked} is a question about the gradient, and the method is {method}: leave --{asked} or --method out": (
            (settings.trust or settings.verify) and not is_gradient
        ),
        "verify compares with float64, which amp-dtype is not: leave --verify or --amp-dtype out": (
            settings.verify and settings.amp_dtype is not None
        ),
        "a shard cannot tell when all shards together have seen enough: give --samples instead of --until-se": (
            settings.shard is not None and settings.until_se is not None
        ),
        "draws 'all' is exact for the method gradient only; give a number of draws": (
            settings.draws == "all" and not is_gradient
        ),
        f"unit all is for the method gradient, not {method}; leave --method out, or name units": (
            every_unit and not is_gradient
        ),
        f"unit all cannot be put together from shards such as {settings.shard}; leave --shard out, or name units": (
            every_unit and settings.shard is not None
        ),
    }
    for text, is_asked in contradictions.items():
        if is_asked:
            raise ErfscopeError(text)


def by_removal(settings: Settings) -> bool:
    """Whether a measurement takes nodes of a feature map away one by one; on the image, occlusion is Captum's, by
    patches."""
    return settings.method == "occlusion" and settings.wrt != IMAGE


#: Every option that a command has or a Python function takes, by name.
OPTIONS = declared(Choices, Building, Settings, Running)
#: Settings that change nothing about what is measured.
FREE = tuple(name for name, each in OPTIONS.items() if each.option.counts == "free")


class Options(Choices, Building, Running, total=False):
    """Every option is the command line's of the same name, with underscores. ``erfscope analyze --help`` describes
    each.

    The fields of :class:`Settings`, written by ``pytest tests/options --update-golden``, so that type checkers see
    them.
    """

    layer: str | Sequence[str] | None
    unit: str | Sequence[Any]
    channels: int | str | Sequence[int] | None
    convention: Any
    wrt: str | Sequence[str]
    method: str | Callable[..., Any]
    draws: int | Literal["all"] | None
    measures: str | Sequence[str]
    samples: int | None
    until_se: float | None
    shard: str | None
    squash: bool
    keep_going: bool
    seed: int
    device: str
    dtype: str
    amp_dtype: str | None
    batch_size: int | None
    workers: int
    plain: bool
    verify: bool
    trust: bool
    accept: str | None
