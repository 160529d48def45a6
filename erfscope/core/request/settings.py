"""Options of a measurement, declared once: type, default and limits, the line of the help, and what it means for two
results to differ in one; and the table of these and all others. Imports nothing heavy: ``--help`` must be quick.

To add one: its field in :class:`Settings`, whose annotation holds help, panel, limits and words (``read=`` only for
values that are not text, a number, a file or a flag; ``several=`` where a list of values measures each; open intervals
in ``__post_init__``). ``pytest tests/options --update-golden`` writes its keyword further down; command line, settings
files, variables, completion and pages follow. With ``counts="recorded"`` results and runs that are put together must
agree in it, with ``"free"`` a resumed run may change it; without, it decides which images or numbers there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from erfscope.core.request.option import COMPUTATION, IMAGES, WHAT, Building, Choices, Option, Running, declared
from erfscope.core.request.values import channels, draws, percent
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import is_every_unit, unit_word
from erfscope.core.values.unit_kind import kind_of

#: Samples where none were asked for: synthetic stimuli and directories.
SAMPLES = 20
#: Images that --until-se may add up to, where there is no end to them.
UNTIL_SE_LIMIT = 1000
#: What PyTorch's generators take.
SEED_LIMIT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of one measurement, the same in Python and on the command line."""

    layer: Annotated[
        str | None,
        Option(
            "Layer, NAME[2] or NAME[key] for one of several outputs{several}.",
            WHAT,
            several="a comma list, `stages` (else the outermost modules) or a pattern such as 'dec*' measures each",
            metavar="NAME",
            accepts="str | Sequence[str] | Mapping[str, str | Sequence[str] | None] | None",
        ),
    ] = None
    unit: Annotated[
        str | Sequence[Any],
        Option(
            "centre, corner, edge, grid:N, r,c or px:r,c, the unit nearest to a pixel; token:N, query:N, row:N, class:N"
            " or vector, which have no place{several}.",
            WHAT,
            several="a comma list measures each, all takes every unit",
            words=("centre", "corner", "edge", "all", "vector"),
        ),
    ] = "centre"
    #: Ascending; None for all.
    channels: Annotated[
        tuple[int, ...] | None,
        Option(
            "Channels of the layer that are read together, counted from 0. Default: all.",
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
            "{words}{several}.",
            WHAT,
            several="a comma list measures each",
            words=("jacobian", "energy", "luo", "signed", "replknet", "kim"),
            in_python="Also a Convention or a pair (readout, contribution).",
        ),
    ] = "jacobian"
    wrt: Annotated[
        str,
        Option(
            "Reference: image, input:NAME of several, the output of layer NAME, or its input, NAME:in{several}.",
            WHAT,
            several="a comma list measures each",
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
            "Random draws per image; `all` is exact. Default: 8 over all images, at least one for each, or four for"
            " each of three.",
            WHAT,
            metavar="N|all",
            words=("all",),
            read=draws,
            least=1,
            most=100_000,
        ),
    ] = None
    measures: Annotated[
        str | Sequence[str] | None,
        Option("Which measures to compute. Default: those that tables show.", WHAT, metavar="all|NAME,..."),
    ] = None
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
            "Add images until the error of r50 is below this share of it, e.g. 2%; first look after 40.",
            IMAGES,
            metavar="PERCENT",
            read=percent,
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option(
            "Measure the I-th of N parts of the images; `erfscope merge` puts the parts together.",
            IMAGES,
            metavar="I/N",
        ),
    ] = None
    squash: Annotated[
        bool,
        Option(
            "Resize whole images to the input size; the model's own resize and crop cuts borders off.",
            IMAGES,
        ),
    ] = False
    keep_going: Annotated[bool, Option("Skip and name images that cannot be read, instead of stopping.", IMAGES)] = (
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
    tf32: Annotated[
        bool,
        Option(
            "Allow TF32, which NVIDIA GPUs compute faster and with three digits; by default float32 is full precision.",
            COMPUTATION,
            counts="recorded",
        ),
    ] = False
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
            "Run the whole model, instead of only the operations that the unit needs.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.core.answer.result.Verification`.
    verify: Annotated[
        bool,
        Option(
            "Compare the first image with the whole model in float64; exit with 1 if they differ.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.core.answer.result.Halo`.
    halo: Annotated[
        bool,
        Option(
            "Also find the overlap (halo) of tiles with which they give the layer's map of the whole image.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.core.answer.result.SamplingPoints`.
    show_samples: Annotated[
        bool,
        Option(
            "Also show where deformable convolutions and grid_sample read the first image for the unit.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    #: The result's :class:`erfscope.core.answer.maps.trust.Trust`.
    trust: Annotated[
        bool,
        Option(
            "Check the gradient by forward passes with noise, which share no code with it.",
            COMPUTATION,
            counts="free",
        ),
    ] = False
    accept: Annotated[
        str | None,
        Option(
            "Accept results in spite of this finding: {words}.",
            COMPUTATION,
            metavar="CODE",
            words=("gradient_disagrees",),
            is_closed=True,
            counts="free",
        ),
    ] = None

    def __post_init__(self) -> None:
        from erfscope.core.answer.convention import convention_of
        from erfscope.core.values.shard import parse

        object.__setattr__(self, "channels", channels(self.channels))
        for name, each in OPTIONS.items():
            if name in self.__dataclass_fields__ and getattr(self, name) is not each.default:
                each.option.refuse(name, getattr(self, name))
        if self.until_se is not None and not 0 < self.until_se < 1:
            share = self.until_se
            hint = f"; write until_se={share / 100:g} (--until-se {share:g}%)" if 1 <= share < 100 else ""
            raise ErfscopeError(f"until-se must lie between 0 and 100 %, not {share:.3g}{hint}")
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

    @property
    def unit_word(self) -> str:
        """The unit as it was asked for, in one spelling: ``"centre"``, ``"0,0"``."""
        return unit_word(self.unit)

    def measure_names(self, axes: Axes | None = None) -> list[str]:
        """The measures to compute: those that tables show, for references of these axes, unless others are asked for.

        Raises:
            ErfscopeError: an unknown name.
        """
        from erfscope.core.answer.measures import INPUT_SHARE, MEASURES, SHOWN, SHOWN_WITHOUT_PLACE, shown_of

        if self.measures is None:
            if kind_of(self.unit)[0]:
                return list(SHOWN_WITHOUT_PLACE)
            return [*SHOWN, *(shown_of(axes) if axes else ())]
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
            if name == INPUT_SHARE:
                raise ErfscopeError(f"{name} stands beside the measures of a model of several inputs; leave it out")
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
        f"{asked} needs full precision, which TF32 is not: leave --{asked} or --tf32 out": (
            (settings.trust or settings.verify) and settings.tf32
        ),
        "sampling points are points of the image: leave --show-samples or --wrt out": (
            settings.show_samples and settings.wrt != IMAGE
        ),
        "a shard cannot tell when all shards together have seen enough: give --samples instead of --until-se": (
            settings.shard is not None and settings.until_se is not None
        ),
        "a map of removed nodes stands beside the gradient's of the same images, all of them: leave --until-se out": (
            by_removal(settings) and settings.until_se is not None
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
Taker = TypeVar("Taker", bound=Callable[..., Any])


def lists_options(function: Taker) -> Taker:
    """Add the options that a function takes as keywords to its docstring, which ``help()`` shows, a line each."""
    is_building = "Unpack[Building]" in map(str, function.__annotations__.values())
    taken = declared(Building) if is_building else OPTIONS
    lines = []
    for name, each in taken.items():
        default = "" if each.default is None else f", default {each.default!r}"
        lines.append(f"    {name} ({each.accepts}{default}): {each.option.text} {each.option.in_python}".rstrip())
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
    return function


class Options(Choices, Building, Running, total=False):
    """Every option is the command line's of the same name, with underscores. The help of ``analyze`` describes
    each.

    The fields of :class:`Settings`, written by ``pytest tests/options --update-golden``, so that type checkers see
    them.
    """

    layer: str | Sequence[str] | Mapping[str, str | Sequence[str] | None] | None
    unit: str | Sequence[Any]
    channels: int | str | Sequence[int] | None
    convention: Any
    wrt: str | Sequence[str]
    method: str | Callable[..., Any]
    draws: int | Literal["all"] | None
    measures: str | Sequence[str] | None
    samples: int | None
    until_se: float | None
    shard: str | None
    squash: bool
    keep_going: bool
    seed: int
    device: str
    dtype: Literal["float32", "float64"]
    amp_dtype: Literal["bfloat16", "float16"] | None
    tf32: bool
    batch_size: int | None
    workers: int
    plain: bool
    verify: bool
    halo: bool
    show_samples: bool
    trust: bool
    accept: Literal["gradient_disagrees"] | None
