"""Edits of a model's convolutions and pools, in place until a ``with`` block ends, or in a copy around its weights."""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import nn

from erfscope.adapters.insertion import BlockRequest, Insertion, inserted, parse, place_name
from erfscope.adapters.live_objects import refuse_unmeasurable, unwrapped
from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.state import shared_copy
from erfscope.adapters.weights.weights import sha256
from erfscope.core.request.settings import SEED_LIMIT
from erfscope.core.system.model_errors import errors_as_one_line, first_line
from erfscope.core.system.torch_internals import PADDED_BY, forward_hooks
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.input_size import Size

SETTINGS = ("dilation", "kernel", "stride")
#: Transposed convolutions are none of these.
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_STRIDED = (*_CONVS, *_AVERAGES, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
#: Drawn weights, by those whose place they take: several convolutions may share one.
_Drawn = dict[nn.Parameter, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRequest:
    """Settings for the convolutions and pools of one module."""

    #: Name of a module, or ``stages[-2]``.
    at: str
    settings: Mapping[str, int]

    @property
    def text(self) -> str:
        """As on the command line: ``layer4: stride=1,dilation=2``."""
        return f"{self.at}: {','.join(f'{name}={value}' for name, value in self.settings.items())}"


def parse_edits(*texts: str) -> list[EditRequest | BlockRequest]:
    """Read ``LAYER: dilation=2,kernel=7`` and ``BLOCK@LAYER:k=v``, several in one text with ";" between them.

    Raises:
        ErfscopeError: a text of another form, an unknown setting, or a value that is no whole number from 1 to 999.
    """
    if not all(isinstance(text, str) for text in texts):
        raise ErfscopeError(f"an edit is a text such as 'layer3: dilation=2', not {texts!r}")
    pieces = [piece.strip() for text in texts for piece in text.split(";") if piece.strip()]
    if not pieces:
        raise ErfscopeError("there is no edit and no block in the text; write LAYER: dilation=2, or BLOCK@LAYER")
    # Names of modules have no "@", and all blocks have one.
    return [parse(piece) if "@" in piece else _parse_edit(piece) for piece in pieces]


def _parse_edit(text: str) -> EditRequest:
    at, _, rest = (part.strip() for part in text.partition(":"))
    settings: dict[str, int] = {}
    for part in rest.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (at and equals) or name in settings:
            raise ErfscopeError(
                f"cannot read {text!r}; write an edit, LAYER: dilation=2, or a block, BLOCK@LAYER or"
                " BLOCK@LAYER:NAME=VALUE,..."
            )
        if name not in SETTINGS:
            raise unknown("setting", name, SETTINGS, where=repr(text))
        if not re.fullmatch(r"[1-9][0-9]{0,2}", value):
            raise ErfscopeError(f"{name} is a whole number from 1 to 999, not {value!r}")
        settings[name] = int(value)
    return EditRequest(at=at, settings=settings)


@contextlib.contextmanager
def edit(model: nn.Module, *edits: str, seed: int = 0, input_size: Size | None = None) -> Iterator[nn.Module]:
    """Edit a live module in place for the time of a ``with`` block, and leave it as it was found.

    Args:
        model: The module. Measure it itself inside the block, not an adapter that was made of it before.
        *edits: ``"LAYER: dilation=2"``, ``kernel=7``, ``stride=1``, several settings with "," and several edits with
            ";" between them; or blocks, ``"BLOCK@LAYER:k=v"``. LAYER is any submodule, or ``stages[-1]``. They are
            made one after the other. ``dilation`` and ``kernel`` are of the convolutions in LAYER whose kernel is
            larger than 1, along the axes along which it is; padding that is not zero grows with the extent, so that
            maps keep their size. A convolution is left out where this is no whole number, and where it cuts patches
            (stride of the kernel, no padding). ``stride`` is of the convolutions and the maximum and average pools
            whose stride is larger than 1; an average pool whose window is its stride remains one. Transposed
            convolutions stay.
        seed: Of the weights of other kernels, whose variance is that of the old ones times old positions by new ones,
            and of blocks.
        input_size: Spatial size of the input, on which the grid of a block depends.

    Yields:
        The same module.

    Raises:
        ErfscopeError: an edit that cannot be read, is of an unknown layer, or changes nothing there; a kernel whose
            weight is computed; a module that cannot be measured.
    """
    plain = _plain(model)
    if plain not in {*model.modules()}:
        raise ErfscopeError("parts are wrapped for parallel training; edit the model without these wrappers")
    with contextlib.ExitStack() as undo:
        _apply(plain, parse_edits(*edits), undo, seed=seed, input_size=input_size)
        yield model


@overload
def edited(model: ModuleAdapter, *edits: str, seed: int = ..., input_size: Size | None = ...) -> ModuleAdapter: ...
@overload
def edited(model: nn.Module, *edits: str, seed: int = ..., input_size: Size | None = ...) -> nn.Module: ...
def edited(
    model: ModuleAdapter | nn.Module, *edits: str, seed: int = 0, input_size: Size | None = None
) -> ModuleAdapter | nn.Module:
    """A new model with edits; the host is untouched, and shares with it the weights that are not drawn anew.

    Args:
        model: A live module, or an adapter of :func:`erfscope.wrap`; the result is of the same kind.
        *edits: As for :func:`edit`.
        seed: As for :func:`edit`.
        input_size: As for :func:`edit`; an adapter has its own.

    Returns:
        The new model, which can be saved and loaded as any other.

    Raises:
        ErfscopeError: as for :func:`edit`.
        MeasurementError: an adapter's model does not run with the edits.
    """
    requests = parse_edits(*edits)
    if isinstance(model, ModuleAdapter):
        return edited_adapter(model, requests, seed=seed)
    plain = _plain(model)
    with errors_as_one_line("cannot be copied", model=type(plain).__name__):
        module = shared_copy(plain)
    _apply(module, requests, contextlib.ExitStack(), seed=seed, input_size=input_size)
    return module


def _plain(model: object) -> nn.Module:
    """The module inside its wrappers, if it is one that has a gradient."""
    if not isinstance(model, nn.Module):
        raise ErfscopeError(
            f"edits are of an nn.Module, not of {type(model).__name__}; erfscope.adapters.load(spec).module is one,"
            " and erfscope.edited takes adapters too"
        )
    plain = unwrapped(model)
    refuse_unmeasurable(plain, type(plain).__name__)
    return plain


def edited_adapter(
    adapter: ModuleAdapter,
    requests: Sequence[EditRequest | BlockRequest],
    *,
    alpha: float | None = None,
    seed: int = 0,
    wake: bool | None = None,
) -> ModuleAdapter:
    """Make the edits, and insert the blocks, that parsed requests ask for; see :func:`edited` and
    :func:`erfscope.adapters.insertion.insert`.

    Raises:
        MeasurementError: the model does not run with the edits.
    """
    edits = [request.text for request in requests if isinstance(request, EditRequest)]
    host = adapter
    try:
        for number, request in enumerate(requests):
            # Two blocks of one kind are not one and the same.
            own_seed = (seed + number) % SEED_LIMIT
            if isinstance(request, BlockRequest):
                adapter = inserted(adapter, request, alpha=alpha, seed=own_seed, wake=wake)
            else:
                adapter = _with_edit(adapter, request, own_seed)
        if edits:
            adapter.recording  # noqa: B018 - it is kept
    except MeasurementError as error:
        if not edits:
            raise
        raise MeasurementError(
            f"does not run with {'; '.join(edits)}: {first_line(error.__cause__ or error)}", model=host.spec
        ) from error
    return adapter


def _with_edit(adapter: ModuleAdapter, request: EditRequest, seed: int) -> ModuleAdapter:
    other = copy.copy(adapter)
    # The host shares the weights: they are copied before they are converted.
    other._owned = False
    with errors_as_one_line("cannot be copied", model=adapter.spec):
        other.module = shared_copy(adapter.module)
    request = replace(request, at=place_name(adapter, request.at))
    other.structure = adapter.structure and (*adapter.structure, request.text)
    _set(other.module, request, contextlib.ExitStack(), seed=seed, spec=adapter.spec)
    if "kernel" in request.settings:
        other.weights = replace(adapter.weights, sha256=sha256(other.module))
    with contextlib.suppress(MeasurementError):
        # A host that declares no stages is measured at the same layer with the edit and without.
        other._declared_layer = adapter.default_layer
    return other


def _apply(
    module: nn.Module,
    requests: Sequence[EditRequest | BlockRequest],
    undo: contextlib.ExitStack,
    *,
    seed: int,
    input_size: Size | None,
) -> None:
    """Change a live module in place, and let ``undo`` hold what puts it back."""
    from erfscope.adapters.opening import wrap

    spec = type(module).__name__
    for number, request in enumerate(requests):
        own_seed = (seed + number) % SEED_LIMIT
        if isinstance(request, BlockRequest):
            adapter = wrap(module, input_size=input_size)
            if adapter.module is not module:
                raise ErfscopeError("has weights made in inference mode; edit a copy of it", model=spec)
            undo.callback(_remove_blocks, module, {part for part in module.modules() if isinstance(part, Insertion)})
            inserted(adapter, request, seed=own_seed, in_place=True)
            continue
        if request.at.startswith("stages["):
            request = replace(request, at=place_name(wrap(module, input_size=input_size), request.at))
        _set(module, request, undo, seed=own_seed, spec=spec)


def _remove_blocks(module: nn.Module, kept: set[Insertion]) -> None:
    """Take out all blocks but those that were there before."""
    for part in [*module.modules()]:
        hooks = forward_hooks(part)
        for key, hook in [*hooks.items()]:
            block = getattr(hook, "__self__", None)
            if isinstance(block, Insertion) and block not in kept:
                del hooks[key]
        for name, child in [*part.named_children()]:
            if isinstance(child, Insertion) and child not in kept:
                delattr(part, name)


def _set(module: nn.Module, request: EditRequest, undo: contextlib.ExitStack, *, seed: int, spec: str) -> None:
    """Set attributes of the parts of one module."""
    parts = {name: part for name, part in module.named_modules() if name}
    if request.at not in parts:
        raise unknown("layer", request.at, parts, where=spec, limit=12)
    generator = torch.Generator().manual_seed(seed)
    for setting, value in request.settings.items():
        drawn: _Drawn = {}
        is_changed = False
        for name, part in parts[request.at].named_modules():
            with errors_as_one_line(f"{setting}={value} cannot be set for {name or request.at!r}", model=spec):
                change = _change(part, setting, value, drawn, generator)
            for attribute, new in change.items():
                undo.callback(setattr, part, attribute, getattr(part, attribute))
                setattr(part, attribute, new)
                is_changed = True
        if not is_changed:
            raise ErfscopeError(
                f"{setting}={value} changes nothing in {request.at!r} of {spec}; {_editable(module, request.at)}"
            )


def _editable(module: nn.Module, at: str) -> str:
    """What can be edited in a layer; where nothing can, in which layers something can."""
    found = [
        f"{name or at} ({_facts(part)})" for name, part in module.get_submodule(at).named_modules() if _facts(part)
    ]
    if found:
        more = f", ... ({len(found)} in all)" if len(found) > 6 else ""
        return (
            f"there is: {', '.join(found[:6])}{more}; a kernel must be above 1, cut no patches and keep the map's size"
        )
    others = [name for name, part in module.named_children() if any(map(_facts, part.modules()))]
    text = "no convolution or pool in it is a module, and functions such as F.conv2d cannot be edited"
    return f"{text}; choose one of: {', '.join(others[:12]) or 'none'}"


def _facts(part: nn.Module) -> str:
    """Kernel, stride and dilation of what can be edited; "" of anything else."""
    names = ("kernel_size", "stride", *["dilation"] * isinstance(part, _CONVS)) if isinstance(part, _STRIDED) else ()
    sides = {name.removesuffix("_size"): getattr(part, name) for name in names}
    return ", ".join(f"{name} {'x'.join(map(str, _per_axis(value)))}" for name, value in sides.items())


def _per_axis(value: Any, axes: int = 1) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * axes


def _change(part: nn.Module, setting: str, value: int, drawn: _Drawn, generator: torch.Generator) -> dict[str, Any]:
    """Find the attributes of one module that a setting changes, with their new values; none where it changes none."""
    if setting == "stride" and isinstance(part, _STRIDED):
        stride = part.stride
        new = tuple(value if side > 1 else side for side in _per_axis(stride))
        change: dict[str, Any] = {"stride": new if isinstance(stride, tuple | list) else new[0]}
        # A mean over its own stride only makes the map smaller, as beside a residual branch.
        if isinstance(part, _AVERAGES) and part.kernel_size == stride and not any(_per_axis(part.padding)):
            change["kernel_size"] = change["stride"]
        return change if new != _per_axis(stride) else {}
    return _new_window(part, setting, value, drawn, generator) if isinstance(part, _CONVS) else {}


def _new_window(conv: Any, setting: str, value: int, drawn: _Drawn, generator: torch.Generator) -> dict[str, Any]:
    """The same of a convolution's kernel or dilation, with the padding that keeps the size of maps."""
    kernel = conv.kernel_size
    stride, dilation = (_per_axis(each, len(kernel)) for each in (conv.stride, conv.dilation))
    # Text is "same", which PyTorch computes at every call, or "valid".
    pads = (0,) * len(kernel) if isinstance(conv.padding, str) else _per_axis(conv.padding, len(kernel))
    old = {"kernel": kernel, "dilation": dilation}
    new = {**old, setting: tuple(value if k > 1 else each for k, each in zip(kernel, old[setting], strict=True))}
    extents, new_extents = ([d * (k - 1) for k, d in zip(*each.values(), strict=True)] for each in (old, new))
    growths = [after - before for before, after in zip(extents, new_extents, strict=True)]
    cuts_patches = kernel == stride and not any(pads)
    keeps_no_size = any(p and (g % 2 or p + g // 2 < 0) for p, g in zip(pads, growths, strict=True))
    if new == old or cuts_patches or keeps_no_size:
        return {}
    change: dict[str, Any] = {"kernel_size": new["kernel"], "dilation": new["dilation"]}
    padding = tuple(p and p + g // 2 for p, g in zip(pads, growths, strict=True))
    if not isinstance(conv.padding, str):
        change["padding"] = padding
    is_same = conv.padding == "same"
    both = [(e // 2, e - e // 2) if is_same else (p, p) for e, p in zip(new_extents, padding, strict=True)]
    if hasattr(conv, PADDED_BY):
        change[PADDED_BY] = tuple(side for pair in reversed(both) for side in pair)
    elif conv.padding_mode != "zeros":
        raise ErfscopeError(f"this version of PyTorch hides how {conv.padding_mode} padding is made")
    return change | (_weight(conv, new["kernel"], drawn, generator) if new["kernel"] != kernel else {})


def _weight(conv: Any, kernel: tuple[int, ...], drawn: _Drawn, generator: torch.Generator) -> dict[str, Any]:
    """The weight of another kernel: normal, with a mean square for each output channel that keeps its sum over all
    inputs."""
    old = dict(conv.named_parameters(recurse=False)).get("weight")
    if old is None:
        raise ErfscopeError("its weight is computed, by weight norm or the like; dilation and stride can be set")
    ratio = math.sqrt(math.prod(conv.kernel_size) / math.prod(kernel))
    if old not in drawn:
        shape, kind = (*old.shape[:2], *kernel), torch.complex64 if old.is_complex() else torch.float32
        with torch.no_grad():
            size = old.abs().square().flatten(1).mean(1).sqrt().reshape(-1, *(1,) * (old.dim() - 1))
            weight = torch.randn(shape, generator=generator, dtype=kind).to(old.device, old.dtype) * size * ratio
        drawn[old] = nn.Parameter(weight, requires_grad=old.requires_grad)
    # timm's ScaledStdConv2d holds the root of the number of its inputs.
    scale = getattr(conv, "scale", None)
    return {"weight": drawn[old]} | ({"scale": scale * ratio} if isinstance(scale, float) else {})
