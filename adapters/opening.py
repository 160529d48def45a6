"""From a spec, or a live module, to an adapter: ``load`` and ``wrap``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapter import Weights
from erfscope.adapters.module import Forward, ModuleAdapter
from erfscope.adapters.preprocess import InputConfig, module_config, preprocess
from erfscope.adapters.sources.sources import build
from erfscope.adapters.state import unwrapped
from erfscope.adapters.timm_model import TimmAdapter
from erfscope.adapters.weights.checkpoint import load_checkpoint
from erfscope.adapters.weights.needed import needed_keys
from erfscope.adapters.weights.weights import sha256
from erfscope.errors import ErfscopeError, FallbackWarning
from erfscope.finding import Finding
from erfscope.geometry.input_size import Size
from erfscope.geometry.input_size import input_size as input_size_of
from erfscope.model_errors import errors_as_one_line

Transform = Callable[[Any], Tensor]
#: What the report says of --unsafe-load.
UNSAFE = (
    "code in the files that the model came from was allowed to run (--unsafe-load): the numbers are as trustworthy as"
    " they are"
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
) -> ModuleAdapter:
    """Build the model that a spec names.

    Args:
        spec: ``resnet18``, ``resnet18.a1_in1k``, ``hf-hub:owner/name``, ``local-dir:path``, ``torchvision:resnet50``,
            ``transformers:owner/name``, ``path/model.pt2``, ``package.module:factory`` or ``path/file.py:factory``.
        weights: ``"auto"`` (pretrained, else seeded random ones and a :class:`erfscope.FallbackWarning`),
            ``"pretrained"``, ``"random"`` or ``"random-raw"``.
        checkpoint: .safetensors or .pth file that replaces the weights.
        seed: Seed of random weights.
        input_size: Spatial size of the input: a number for every side, or one to three, or text such as "192x256"; the
            model's own if None.
        in_chans: Channels of the input; the model's own if None.
        mean: Mean per channel of the normalisation; the model's own, else ImageNet's.
        std: Standard deviation per channel, likewise.
        model_kwargs: Passed to whatever builds the model.
        transform: Image -> tensor (C, H, W), instead of the model's own transform.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None follows the positions through the
            operations.
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map.
        layer: The layer that will be measured: a checkpoint's missing keys matter only as far as it depends on them.
        unsafe_load: Read files that may run code as well: pickled checkpoints, exported programs as they are. The
            results say so.

    Returns:
        The adapter; its ``nn.Module`` is ``.module``.

    Raises:
        ErfscopeError: unknown model, weights that cannot be had, or a checkpoint that does not fit.
    """
    with errors_as_one_line("could not be built", model=spec):
        source = build(
            spec,
            weights="random-raw" if checkpoint is not None and weights == "auto" else weights,
            seed=seed,
            input_size=input_size_of(input_size),
            in_chans=in_chans,
            mean=mean,
            std=std,
            model_kwargs=model_kwargs or {},
            unsafe_load=unsafe_load,
        )
    adapter = _adapter(
        _differentiable(source.module),
        source.config,
        transform,
        source.adapter,
        spec=source.spec,
        weights=source.weights,
        layout=layout,
        prefix_tokens=prefix_tokens,
        owned=True,
        notes=source.notes,
    )
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
    """Replace the weights of a model by those of a file, which must hold all that ``layer``, or the default layer,
    depends on."""
    needed = needed_keys(adapter, layer or adapter.default_layer)
    with errors_as_one_line(f"checkpoint {str(checkpoint)!r} cannot be put into {adapter.spec}"):
        adapter.weights = load_checkpoint(adapter.module, checkpoint, needed=needed.__contains__, unsafe=unsafe)
    if adapter.weights.origin != str(checkpoint):
        text = f"averaged weights (EMA) are measured: {adapter.weights.origin}"
        adapter.remarks = (*adapter.remarks, Finding(code="averaged", text=text))


@torch.inference_mode(False)
def wrap(
    module: nn.Module,
    *,
    forward: Forward | None = None,
    transform: Transform | None = None,
    input_size: Size | None = None,
    in_chans: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: str | None = None,
    prefix_tokens: int | None = None,
    name: str | None = None,
) -> ModuleAdapter:
    """Adapter of a live module, which stays the caller's: it is never changed for longer than one call.

    Args:
        module: Any module, in training mode or not, on its own device, compiled or data-parallel.
        forward: ``forward(module, x)`` for models with another calling convention than ``module(x)``.
        transform: Image -> tensor (C, H, W); otherwise images are resized, cropped and normalised.
        input_size: Spatial size of the input, as for :func:`load`; a timm model's own, else 224 x 224, and none for
            clips and volumes.
        in_chans: Channels of the input; otherwise those of the first convolution.
        mean: Mean per channel; a timm model's own, else ImageNet's.
        std: Standard deviation per channel, likewise.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` to read every layer so; None follows the positions through the
            operations.
        prefix_tokens: With ``"NLC"``: how many tokens come before those of the map.
        name: What to call the model; its class name if None.

    Returns:
        The adapter; the plain module inside any wrapper is ``.module``.

    Raises:
        ErfscopeError: a module with lazy parameters that has not run yet, a size that is none, or none for a model of
            clips or volumes, or parameters that are sharded over processes.
    """
    plain = unwrapped(module)
    _refuse_sharded(plain)
    plain = _differentiable(plain)
    name, size = name or type(plain).__name__, input_size_of(input_size)
    config = module_config(plain, name, input_size=size, in_chans=in_chans, mean=mean, std=std)
    made_by = None if forward is None else partial(ModuleAdapter, forward=forward)
    weights = Weights(source="given", sha256=sha256(plain))
    return _adapter(
        plain, config, transform, made_by, spec=name, weights=weights, layout=layout, prefix_tokens=prefix_tokens
    )


def _refuse_sharded(module: nn.Module) -> None:
    """Refuse parameters of which each process has a part: a pass here would wait for the others, or see only that
    part."""
    wrapped = any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules())
    if wrapped or any(type(parameter).__name__ == "DTensor" for parameter in module.parameters()):
        raise ErfscopeError(
            f"the parameters of {type(module).__name__} are sharded over processes (FSDP or a tensor-parallel plan);"
            " gather them with get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of"
            " torch.distributed.checkpoint.state_dict, load them into an unsharded copy of the model, and measure that"
        )


def _differentiable(module: nn.Module) -> nn.Module:
    """The module; of one that was made in inference mode, whose tensors can never be differentiated through, a copy."""
    made_so = any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers()))
    return copy.deepcopy(module) if made_so else module


def _adapter(
    module: nn.Module,
    config: InputConfig,
    transform: Transform | None,
    made_by: Callable[..., ModuleAdapter] | None,
    **common: Any,
) -> ModuleAdapter:
    """An adapter of the class that fits the module, unless ``made_by`` makes it; ``common`` are keywords of
    :class:`ModuleAdapter`."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        text = "is TorchScript, whose layers cannot be seen while it runs"
        raise ErfscopeError(
            f"{text}; give the nn.Module that it was made of, or torch.export it and name the .pt2 file",
            model=common["spec"],
        )
    is_timm = hasattr(module, "forward_intermediates") and hasattr(module, "forward_head")
    kind = made_by or (TimmAdapter if is_timm else ModuleAdapter)
    return kind(module, preprocess=preprocess(config, transform), **common)
