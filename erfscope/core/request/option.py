"""The record that declares an option, beside its name, type and default: the command line, settings files, checks and
the documentation follow from it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from erfscope.core.request.values import numbers
from erfscope.core.values.axes import NAMES as AXES
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.input_size import Size
from erfscope.core.values.layout import NAMES as LAYOUTS

#: Panels of the help, in order.
WHAT, IMAGES, MODEL, COMPUTATION, OUTPUT = "What is measured", "Images", "Model", "Computation", "Output"
PANELS = (WHAT, IMAGES, MODEL, COMPUTATION, OUTPUT)
#: Options that each of several models may have of its own, in a mapping by their labels.
OF_EACH = ("layer", "checkpoint")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the annotation of the field that declares it."""

    #: One sentence or two, for :attr:`text`; ``{words}`` and ``{several}`` stand for the fields of these names.
    help: str
    #: One of :data:`PANELS`; "" for what Python alone takes.
    panel: str = ""
    _: KW_ONLY
    #: The default of a keyword, whose field has none.
    default: Any = None
    #: What the help calls the value.
    metavar: str = ""
    #: Its names on the command line, where they are more than one.
    flags: tuple[str, ...] = ()
    #: Values that a shell offers at TAB.
    words: tuple[str, ...] = ()
    #: Whether there are no others.
    is_closed: bool = False
    is_file: bool = False
    is_repeatable: bool = False
    #: How several values are given, each of which is measured; "" for an option of one value.
    several: str = ""
    least: float = -math.inf
    most: float = math.inf
    #: Text of the command line -> the value; a ValueError says what can be read.
    read: Callable[[str], Any] | None = None
    #: "recorded": results that stand in one table, a run that goes on, and a check and its baseline share it, and
    #: :attr:`erfscope.Result.options` holds it where it is not the default. "free": it changes nothing about what is
    #: measured, so that a run may go on with another value. "": it decides which images or numbers there are.
    counts: Literal["", "recorded", "free"] = ""
    #: The type that the Python functions take, where it is wider than that of the field.
    accepts: str = ""
    #: What the keyword of Python takes besides.
    in_python: str = ""

    @property
    def text(self) -> str:
        """The help, which the documentation shows too."""
        several = self.several and f"; {self.several}"
        return self.help.replace("{words}", ", ".join(self.words)).replace("{several}", several)

    def refuse(self, name: str, value: Any) -> None:
        """Refuse a value that does not exist, or lies outside the limits.

        Raises:
            ErfscopeError: it does.
        """
        text = name.replace("_", "-")
        if self.is_closed and value is not None and value not in self.words:
            raise unknown(text.replace("-", " "), str(value), self.words)
        is_number = isinstance(value, Real)
        if is_number and not self.least <= value <= self.most:
            limit = f"most {self.most}" if value > self.most else f"least {self.least}"
            words = "".join(f" or {word!r}" for word in self.words)
            raise ErfscopeError(f"{text} must be at {limit}{words}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """An option with its type and its default."""

    type: Any
    default: Any
    option: Option
    #: The type that the Python functions take, as source code.
    accepts: str


def declared(*tables: type) -> dict[str, Declared]:
    """The options that the fields of some classes declare, by name."""
    found = {}
    for table in tables:
        defaults: dict[str, Any] = getattr(table, "__dataclass_fields__", {})
        for name, hint in get_type_hints(table, include_extras=True).items():
            if get_origin(hint) is Annotated:
                kind, option = get_args(hint)
                default = defaults[name].default if name in defaults else option.default
                accepts = option.accepts or _source(table.__annotations__[name])
                if option.is_closed:
                    accepts = accepts.replace("str", f"Literal[{', '.join(map(json.dumps, option.words))}]", 1)
                found[name] = Declared(type=kind, default=default, option=option, accepts=accepts)
    return found


def _source(annotation: Any) -> str:
    """The type in an ``Annotated[...]`` that is not evaluated."""
    tree: Any = ast.parse(getattr(annotation, "__forward_arg__", annotation), mode="eval")
    return ast.unparse(tree.body.slice.elts[0]).replace("'", '"')


class Choices(TypedDict, total=False):
    """Options of the weights and images that are measured."""

    weights: Annotated[
        str | Sequence[str],
        Option(
            "{words}{several}.",
            MODEL,
            several="a comma list measures each, auto takes pretrained if it can",
            default="auto",
            words=("auto", "pretrained", "random", "random-raw"),
        ),
    ]
    images: Annotated[
        Any,
        Option(
            "Image, volume, sound, folder, quoted '*.jpg'; INPUT=PATH; repeatable.",
            IMAGES,
            metavar="PATH",
            flags=("--image", "--images"),
            is_file=True,
            is_repeatable=True,
            in_python="Also uint8 arrays (H, W, 3), PIL images, or a ready tensor, such as (B, C, H, W).",
        ),
    ]
    image: Annotated[Any, Option("Another name of images.")]
    synthetic: Annotated[
        str | None,
        Option(
            "Synthetic images in place of files: {words}. Default without --image: leaves.",
            IMAGES,
            metavar="KIND",
            words=("leaves", "noise", "correlated", "constant", "impulse", "grating", "chirp"),
        ),
    ]


class Building(TypedDict, total=False):
    """Options that say how a model is built."""

    checkpoint: Annotated[
        str | Path | Sequence[str] | Mapping[str, str | Path] | None,
        Option(".safetensors or .pth file with the model's weights.", MODEL, metavar="FILE", is_file=True),
    ]
    unsafe_load: Annotated[
        bool, Option("Also read files that may run code, such as pickled weights, if you trust them.", MODEL)
    ]
    model_kwargs: Annotated[
        Mapping[str, object] | None,
        Option("Argument of the function that builds the model; repeatable.", MODEL, metavar="K=V", is_repeatable=True),
    ]
    input_size: Annotated[
        Size | Sequence[Size] | None,
        Option(
            "Input size{several}. Default: the model's own.",
            MODEL,
            several="a comma list measures each, auto doubles it until the ERF fits",
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
        Option("Standard deviation per channel, for the same models.", MODEL, metavar="A,B,C", read=numbers),
    ]
    axes: Annotated[
        str | None,
        Option(
            "What the axes of the input are: {words}; btc and btchw for steps and frames before channels. Default: by"
            " their number and the channels.",
            MODEL,
            metavar="NAME",
            words=tuple(AXES),
            is_closed=True,
        ),
    ]
    spacing: Annotated[
        float | Sequence[float] | None,
        Option("Side of a pixel, voxel or sample along each axis, or along all.", MODEL, metavar="A,B,C", read=numbers),
    ]
    unit_name: Annotated[
        str | None,
        Option("Unit of --spacing, such as mm; alone the name of a sequence's samples.", MODEL, metavar="NAME"),
    ]
    fps: Annotated[float | None, Option("Frames of a clip in a second: times in ms.", MODEL, metavar="N")]
    sample_rate: Annotated[float | None, Option("Samples of a sequence in a second: sizes in ms.", MODEL, metavar="N")]
    layout: Annotated[
        str | None,
        Option(
            "Read every layer as NCHW, NHWC or NLC, not as the recorded operations show.",
            MODEL,
            metavar="NAME",
            words=tuple(LAYOUTS),
            is_closed=True,
        ),
    ]
    prefix_tokens: Annotated[
        int | None, Option("With --layout NLC: number of tokens before those of the map.", MODEL, metavar="N", least=0)
    ]
    insert: Annotated[
        Any,
        Option(
            "Insert a block after a layer, BLOCK@LAYER:k=v,k=v with options: {words}, or module:Class; or edit a layer,"
            " 'LAYER: dilation=2', kernel=7, stride=1; repeatable.",
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
            "Share of what inserted blocks add, 0 for nothing{several}. Default: 1.",
            MODEL,
            several="a comma list measures each",
            metavar="A",
        ),
    ]
    transform: Annotated[
        Callable[..., Any] | None, Option("Function image -> tensor (C, H, W), in place of the model's own transform.")
    ]
    label: Annotated[str | None, Option("Name of the model in tables and figures.")]


class Running(TypedDict, total=False):
    """Options that do not change what is measured: what a run continues, and its callbacks."""

    resume: Annotated[Any, Option("The report, or its folder, that the run continues.")]
    keep_in: Annotated[
        str | Path | None,
        Option(
            "Folder that stores each finished row at once, so that a killed run can be resumed. Rows of another run"
            " there are replaced."
        ),
    ]
    stop: Annotated[Callable[[], bool] | None, Option("Called after every batch; true ends the run with what it has.")]
    tell: Annotated[
        Callable[[str], None] | None,
        Option("Called before each measurement, with a line about its cost."),
    ]
    progress: Annotated[
        Callable[[str, int, int], None] | bool | None,
        Option("True prints lines on stderr; a function is called with (description, steps done, steps in all)."),
    ]
