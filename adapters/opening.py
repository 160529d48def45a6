"""From a spec, or a live module, to an adapter: ``load`` and ``wrap``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from erfscope.adapters.live_objects import refuse_unmeasurable, unwrapped
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.preprocess import preprocess
from erfscope.adapters.several_inputs import ExampleInputs, example_inputs_of, time_first
from erfscope.adapters.sources import exported
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.sources.sources import build
from erfscope.adapters.timm_model import TimmAdapter
from erfscope.adapters.weights.checkpoint import load_checkpoint, needed_keys
from erfscope.adapters.weights.weights import NO_NUMBERS, sha256
from erfscope.core.request.settings import OPTIONS
from erfscope.core.system.copies import copy_module
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.values.axes import SEQUENCES, TIME_FIRST, asked_axes
from erfscope.core.values.errors import ErfscopeError, FallbackWarning, unknown
from erfscope.core.values.finding import Finding
from erfscope.core.values.input_size import Size, is_size
from erfscope.core.values.input_size import input_size as input_size_of
from erfscope.core.values.model_facts import Preprocess, Weights
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import size_text

Transform = Callable[[Any], Tensor]


class AxesOptions(TypedDict, total=False):
    """What the axes of an input are; see :func:`erfscope.core.values.axes.asked_axes`."""

    axes: str | None
    spacing: float | Sequence[float] | None
    unit_name: str | None
    fps: float | None
    sample_rate: float | None


#: Sources of weights that are drawn, or left out, by erfscope: only these depend on the seed.
DRAWN = ("random", "random-raw", NO_NUMBERS)
#: The finding of --unsafe-load.
UNSAFE = (
    "the files of the model were allowed to run code (--unsafe-load): trust the numbers only as far as you trust the"
    " files"
)


@torch.inference_mode(False)
def load(
    spec: str,
    *,
    weights: str = "auto",
    checkpoint: str | Path | None = None,
    seed: int = 0,
    input_size: Size | None = None,
    in_chans: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    model_kwargs: Mapping[str, object] | None = None,
    transform: Transform | None = None,
    layout: str | None = None,
    prefix_tokens: int | None = None,
    layer: str | None = None,
    unsafe_load: bool = False,
    **axes: Unpack[AxesOptions],
) -> ModuleAdapter:
    """Build the model that a spec names.

    Args:
        spec: Name of the model, such as ``resnet18``, ``torchvision:resnet50`` or ``path/file.py:factory``;
            ``erfscope analyze --help`` has every form.
        weights: ``"auto"`` (pretrained, else seeded random ones and a :class:`erfscope.FallbackWarning`),
            ``"pretrained"``, ``"random"`` or ``"random-raw"``.
        checkpoint: .safetensors or .pth file that replaces the weights.
        seed: Seed of random weights.
        input_size: Spatial size of the input: a number for every side, or one to three, or text such as "192x256"; the
            model's own if None.
        in_chans: Channels of the input; the model's own if None.
        mean: Mean per channel of the normalisation; the model's own, else ImageNet's.
        std: Standard deviation per channel, likewise.
        model_kwargs: Keywords for the function that builds the model.
        transform: Image -> tensor (C, H, W), instead of the model's own transform.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None follows the positions through the
            operations.
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map.
        layer: The layer to be measured; keys that it does not depend on may be missing from the checkpoint.
        unsafe_load: Also read files that may run code: pickled checkpoints and exported programs. The results say so.
        **axes: ``axes``, ``spacing``, ``unit_name``, ``fps`` and ``sample_rate``, as for :func:`wrap`.

    Returns:
        The adapter; its ``nn.Module`` is ``.module``.

    Raises:
        ErfscopeError: unknown model, weights that are not available, or a checkpoint that does not fit.
    """
    options: dict[str, Any] = {
        "weights": "random-raw" if checkpoint is not None and weights == "auto" else weights,
        "seed": seed,
        "input_size": _asked_size(input_size, axes),
        "in_chans": in_chans,
        "mean": mean,
        "std": std,
        "model_kwargs": model_kwargs or {},
        "unsafe_load": unsafe_load,
    }
    with errors_as_one_line("could not be built", model=spec):
        source = build(spec, **options)
    if weights == "pretrained" and checkpoint is None and source.weights.source == "factory":
        raise ErfscopeError(
            "has no weights='pretrained' (--weights pretrained): a factory makes its own weights; give"
            " checkpoint='FILE' (--checkpoint FILE)",
            model=spec,
        )
    adapter = _adapter(
        source, SourceOptions(**options), transform, axes=axes, layout=layout, prefix_tokens=prefix_tokens, owned=True
    )
    if source.weights.source in DRAWN:
        own = {name: value for name, value in options.items() if name not in ("weights", "seed")}
        adapter.structure = (spec, repr(own), repr(axes))
    if checkpoint is not None:
        _load_weights(adapter, checkpoint, layer, unsafe=unsafe_load)
    if unsafe_load:
        adapter.weights = replace(adapter.weights, unsafe_load=True)
        adapter.remarks = (*adapter.remarks, Finding(code="unsafe_load", text=UNSAFE))
    if adapter.weights.fallback:
        warnings.warn(
            f"{spec}: no pretrained weights ({adapter.weights.reason}); random ones stand in, which describe the"
            f" architecture only; erfscope doctor --fix-hint {adapter.spec} says how to get them",
            FallbackWarning,
            stacklevel=2,
        )
    return adapter


def _load_weights(adapter: ModuleAdapter, checkpoint: str | Path, layer: str | None, *, unsafe: bool) -> None:
    """Replace the weights of a model by those of a file. It must hold all that ``layer``, or the default layer,
    depends on."""
    needed = needed_keys(adapter, layer or adapter.default_layer)
    with errors_as_one_line(f"checkpoint {str(checkpoint)!r} cannot be loaded into {adapter.spec}"):
        adapter.weights = load_checkpoint(adapter.module, checkpoint, needed=needed.__contains__, unsafe=unsafe)
    if adapter.weights.origin != str(checkpoint):
        text = f"averaged weights (EMA) are measured: {adapter.weights.origin}"
        adapter.remarks = (*adapter.remarks, Finding(code="averaged", text=text))


@torch.inference_mode(False)
def wrap(
    module: nn.Module | ExportedProgram,
    *,
    forward: Callable[..., Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Tensor | None = None,
    transform: Transform | Mapping[str, Transform] | None = None,
    input_size: Size | None = None,
    in_chans: int | None = None,
    mean: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    std: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    layout: str | None = None,
    prefix_tokens: int | None = None,
    name: str | None = None,
    **axes: Unpack[AxesOptions],
) -> ModuleAdapter:
    """Make the adapter of a live module. A measurement hands the module back as it found it.

    Args:
        module: Any module, in training mode or not, on its own device, compiled or data-parallel, or what
            ``torch.export.export`` makes of one.
        forward: ``forward(module, x)`` for models with another calling convention than ``module(x)``; with example
            inputs ``forward(module, *inputs)``.
        inputs: Examples of the arguments of a model that takes several, by the names of its parameters. Each floating
            (B, C, *space) among them is an input of the size and the channels that it has, ``"input:NAME"``, in whose
            place images are put; all others are passed through as they are given, as are those with a side of at most
            four cells, matrices of cameras and coordinates of points, beside larger ones. Where none is floating, the
            input is the first (B, T) of token ids: measure with respect to their embedding, ``wrt=``.
        example_inputs: The same by position, as ``torch.export`` takes them.
        transform: Image -> tensor (C, H, W); otherwise images are resized, cropped and normalised. As ``mean`` and
            ``std``, a mapping by the names of several inputs.
        input_size: Spatial size of the input, as for :func:`load`; a timm model's own, else 224 x 224, and none for
            clips and volumes.
        in_chans: Channels of the input; otherwise as many as ``mean`` or ``std`` have numbers, else those of the first
            convolution, or, where the model fails on them, those that its error speaks of.
        mean: Mean per channel; a timm model's own, else ImageNet's.
        std: Standard deviation per channel, likewise.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None follows the positions through the
            operations.
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map.
        name: Name of the model in results; its class name if None.
        **axes: What the axes of the input are: ``axes`` ("thw" for a clip, "dhw" for a volume, "btchw" for a clip and
            "btc" for a sequence that the model takes with the channels behind the time), ``spacing`` (side of a cell
            along each axis of space, or along all) in ``unit_name``, ``fps`` of a clip, ``sample_rate`` of a sequence.
            Of three axes "thw" is assumed where there are three channels, else "dhw".

    Returns:
        The adapter; the plain module inside any wrapper is ``.module``.

    Raises:
        ErfscopeError: a module that cannot be measured, as :func:`refuse_unmeasurable` says, an invalid size, or no
            size for a model of clips or volumes.
    """
    numbers: dict[str, Any] = {"mean": mean, "std": std}
    options = SourceOptions(input_size=_asked_size(input_size, axes), in_chans=in_chans, **numbers)
    examples = _examples(inputs, example_inputs)
    if isinstance(module, ExportedProgram):
        source = exported.source_of(module, name or "ExportedProgram", options, example_inputs=examples)
    else:
        plain = unwrapped(module)
        name = name or type(plain).__name__
        refuse_unmeasurable(plain, name)
        source = Source(
            module=plain,
            spec=name,
            weights=Weights(source="given", sha256=sha256(plain)),
            config=_of_one_input(options, transform).input_config(plain, name) if examples is None else None,
            example_inputs=examples,
        )
    if forward is not None and examples is None:
        source = replace(source, adapter=partial(source.adapter or ModuleAdapter, forward=forward))
    return _adapter(source, options, transform, forward, axes=axes, layout=layout, prefix_tokens=prefix_tokens)


def _asked_size(input_size: Size | None, axes: AxesOptions) -> tuple[int, ...] | None:
    """The size of the input: one number is a length where the axes are said to be a sequence's."""
    size = input_size_of(input_size)
    is_line = axes.get("sample_rate") is not None or axes.get("axes") in SEQUENCES
    return tuple(size) if is_line and size is not None and len(size) == 1 else size


def _of_one_input(asked: SourceOptions, transform: Any) -> SourceOptions:
    """The options of a model that takes one image, which may be named too."""
    numbers = {"mean": asked.mean, "std": asked.std}
    _refuse_other_names({**numbers, "transform": transform}, [IMAGE])
    return replace(asked, **{option: _for(value, IMAGE) for option, value in numbers.items()})


def _examples(inputs: Mapping[str, Any] | None, example_inputs: Sequence[Any] | Tensor | None) -> Any:
    """The one set of arguments that is given."""
    if inputs is not None and example_inputs is not None:
        raise ErfscopeError("give either inputs by name or example_inputs by position, not both")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ErfscopeError(
            f"inputs are examples by name, as in inputs={{'left': tensor, 'right': tensor}}, not"
            f" {type(inputs).__name__}; example_inputs takes them by position"
        )
    return example_inputs if inputs is None else inputs


def _adapter(
    source: Source,
    asked: SourceOptions,
    transform: Transform | Mapping[str, Transform] | None,
    forward: Callable[..., Any] | None = None,
    *,
    axes: AxesOptions,
    **options: Any,
) -> ModuleAdapter:
    """Make the adapter of the class that a source names, or that fits its module; ``options`` are keywords of
    :class:`ModuleAdapter`."""
    for name, word in (("layout", options.get("layout")), ("axes", axes.get("axes"))):
        OPTIONS[name].option.refuse(name, word)
    module = source.module
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        # No gradient flows through tensors that were made in inference mode.
        module = copy_module(module)
    is_timm = hasattr(module, "forward_intermediates") and hasattr(module, "forward_head")
    made_by = source.adapter or (TimmAdapter if is_timm else ModuleAdapter)
    if source.example_inputs is not None:
        made_by = source.adapter or ModuleAdapter
        options["inputs"] = _example_inputs(source, asked, transform, forward or source.forward, axes.get("axes"))
        options["preprocess"] = options["inputs"].preprocess
        source = replace(source, notes=(*source.notes, *options["inputs"].notes))
    elif source.config is not None:
        options["preprocess"] = preprocess(source.config, _for(transform, IMAGE))
    adapter = made_by(module, spec=source.spec, weights=source.weights, notes=source.notes, **options)
    if axes.get("axes") in TIME_FIRST and source.example_inputs is None:
        adapter.forward = partial(_on_time_first, adapter.forward)
    if _given(axes):
        adapter.preprocess = _described(adapter.preprocess, axes)
    return adapter


def _on_time_first(forward: Callable[..., Any], module: nn.Module, x: Tensor) -> Any:
    """Call a model of (B, T, C, ...) on (B, C, T, ...)."""
    return forward(module, time_first(x))


#: Options that say what the axes are.
SAYING = ("axes", "spacing", "fps")


def _given(asked: AxesOptions) -> list[str]:
    return [name for name, value in asked.items() if value is not None]


def _described(steps: Preprocess, asked: AxesOptions) -> Preprocess:
    """The same preprocessing, of several inputs of each, with axes as they are described."""
    others, spacing = steps.with_channels, asked.get("spacing")
    is_one = spacing is not None and (not isinstance(spacing, Sequence) or len(spacing) == 1)
    says = {*SAYING} - ({"spacing"} if is_one else set())
    return replace(
        steps,
        axes=asked_axes(steps.axes, **asked),
        with_channels=None if others is None else lambda channels: _described(others(channels), asked),
        # A spacing for each axis of a volume, and frames in a second, say what the axes are too.
        assumed=tuple(name for name in steps.assumed if name != "axes" or not says & {*_given(asked)}),
        parts={name: _described(part, asked) for name, part in steps.parts.items()},
    )


def _example_inputs(
    source: Source,
    asked: SourceOptions,
    transform: Transform | Mapping[str, Transform] | None,
    forward: Callable[..., Any] | None,
    axes: str | None,
) -> ExampleInputs:
    """Read the arguments of a model that takes several, each map with its own size."""
    module, spec, named = source.module, source.spec, list[str]()

    def steps(name: str, shape: tuple[int, ...], *, is_only: bool) -> Preprocess:
        named.append(name)
        channels, *size = shape
        numbers = {"mean": _for(asked.mean, name), "std": _for(asked.std, name)}
        own = replace(asked, input_size=tuple(size), in_chans=channels, **numbers)
        try:
            # Of several images none is the one that the model's own configuration is about.
            config = own.input_config(module if is_only else nn.Identity(), spec)
        except ErfscopeError as error:
            raise ErfscopeError(f"the input {name}: {error.reason}") from error
        return preprocess(config, _for(transform, name))

    found = example_inputs_of(module, spec, source.example_inputs, forward=forward, steps=steps, axes=axes)
    _refuse_other_names({"mean": asked.mean, "std": asked.std, "transform": transform}, named)
    own = found.preprocess.size
    if asked.in_chans is not None or (asked.input_size is not None and not is_size(asked.input_size, own)):
        raise ErfscopeError(
            f"{spec} has the size and the channels of its example inputs, {size_text(own)}: leave input_size and"
            " in_chans out, or give other examples"
        )
    return found


def _refuse_other_names(asked: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse what is given for an input that the model has not."""
    for option, value in asked.items():
        for name in value if isinstance(value, Mapping) else ():
            if name not in names:
                raise unknown("input", str(name), names, where=option)


def _for(value: Any, name: str) -> Any:
    """The value for one input, of one for all or a mapping by their names."""
    return value.get(name) if isinstance(value, Mapping) else value
