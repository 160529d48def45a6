"""Options of how a model is built, of its weights and of its images; see :mod:`erfscope.options.settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from erfscope.geometry.input_size import Size
from erfscope.geometry.layout import NAMES as LAYOUTS
from erfscope.options.option import IMAGES, MODEL, Option
from erfscope.options.values import numbers


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
            "Image file, folder or quoted pattern such as 'photos/*.jpg'; repeatable.",
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
            "Synthetic images in place of files: {words}. Default without --image: leaves.",
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
            "Insert a block after a layer, BLOCK@LAYER:k=v,k=v with options: {words}, or module:Class; repeatable.",
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
