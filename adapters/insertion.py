"""Where a block can be inserted into a model: modules that run once and return a map."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.state import device_of, dtype_of, evaluation_mode, shared_copy
from erfscope.adapters.weights.reactivate import reactivate
from erfscope.adapters.weights.weights import sha256
from erfscope.core.request.values import alphas
from erfscope.core.system.copies import cast_module, copy_module
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.system.restore import seed_generators
from erfscope.core.system.torch_internals import forward_hooks
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.finding import Finding
from erfscope.core.values.input_size import Size
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import IMAGE, OUTPUT

_STAGE = re.compile(r"stages\[(-?\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertionPlace:
    """A module whose output a block can take."""

    layout: Layout
    channels: int
    space: tuple[int, ...]


def places(adapter: ModuleAdapter) -> dict[str, InsertionPlace]:
    """Every module whose output a block can take: it runs once per forward pass and returns a map of more than one
    position.

    Args:
        adapter: The model, at its input size.

    Returns:
        By name, in the order of execution; maps may be (B, C, h, w), (B, h, w, C) or tokens, and clips likewise.
    """
    return {name: found for name, found in _outputs(adapter).items() if isinstance(found, InsertionPlace)}


def place_called(adapter: ModuleAdapter, text: str) -> tuple[str, InsertionPlace]:
    """Find a place by name.

    Args:
        adapter: The model, at its input size.
        text: Name of a module, or ``stages[-2]``.

    Raises:
        ErfscopeError: no such place, or one that cannot take a block; the message says why, and names others.
    """
    at = place_name(adapter, text)
    outputs = _outputs(adapter)
    good = [name for name, found in outputs.items() if isinstance(found, InsertionPlace)]
    found = outputs.get(at)
    if isinstance(found, InsertionPlace):
        return at, found
    if at not in dict(adapter.module.named_modules()) or at == "":
        raise unknown(
            "insertion point", at, [*(s for s in adapter.stages if s in good), *good], where=adapter.spec, limit=12
        )
    reason = found or "does not run in a forward pass"
    near = [*(s for s in adapter.stages if s in good), *good][:12]
    raise ErfscopeError(
        f"no block can be inserted at {at!r} of {adapter.spec}: it {reason}; choose one of: {', '.join(near) or 'none'}"
    )


def place_name(adapter: ModuleAdapter, text: str) -> str:
    """A place's name, with ``stages[-2]`` resolved."""
    match = _STAGE.fullmatch(text)
    if match is None or text in dict(adapter.module.named_modules()):
        return text
    try:
        return adapter.stages[int(match[1])]
    except IndexError:
        found = (
            f"has {len(adapter.stages)} stages: {', '.join(adapter.stages)}" if adapter.stages else "declares no stages"
        )
        raise ErfscopeError(f"there is no {text}: {adapter.spec} {found}") from None


def _outputs(adapter: ModuleAdapter) -> dict[str, InsertionPlace | str]:
    """Find for every module that runs its place for a block, or why a block cannot take its output."""
    recording = adapter.recording
    found: dict[str, InsertionPlace | str] = {}
    for name, seen in recording.modules.items():
        if name.endswith(":in") or name == OUTPUT:
            continue
        module, bracket, _ = name.partition("[")
        if bracket:
            found[module] = "returns a container of tensors"
        elif seen.calls > 1:
            found[name] = f"runs {seen.calls} times per forward pass, so that the block would too"
        else:
            layout = recording.reading_of_tensor(seen).layout
            space = () if layout is None else layout.space(seen.shape)
            is_map = layout is not None and max(space) > 1
            found[name] = (
                InsertionPlace(layout=layout, channels=layout.map_shape(seen.shape)[1], space=space)
                if layout is not None and is_map
                else f"returns {tuple(seen.shape)}, which is no map of several positions"
            )
    for name, module in adapter.module.named_modules():
        if isinstance(module, nn.Sequential) and not len(module) and name in found:
            found[name] = "is empty"
    return found


#: A block: its name (see ``erfscope.adapters.blocks.BLOCKS``) or ``module:Class``, a module, or a callable that makes
#: one for a number of channels.
Block = str | nn.Module | Callable[[int], nn.Module]
#: Words for truth values and None; as text each of them would be true.
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block and where it is wanted."""

    block: Block
    #: Name of a module, or ``stages[-2]``.
    at: str
    #: Passed to the block, where it is named.
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the block is called as a part of the model."""
        if isinstance(self.block, str):
            text = self.block.rpartition(":")[2]
        else:
            text = (
                type(self.block).__name__
                if isinstance(self.block, nn.Module)
                else getattr(self.block, "__name__", "block")
            )
        return re.sub(r"\W+", "_", text).strip("_").lower() or "block"

    @property
    def text(self) -> str:
        """As on the command line: ``nonlocal@layer2:heads=4``."""
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        block = self.block if isinstance(self.block, str) else self.name
        return f"{block}@{self.at}" + (f":{options}" if options else "")


class Insertion(nn.Module):
    """A block between a module's output and whatever uses that output.

    Args:
        block: (B, C, *space) -> the same shape.
        layout: How the module holds its map. Prefix tokens pass by the block.
        space: The map's size, which a list of tokens does not show.
        alpha: Share of what the block adds: x + alpha (block(x) - x). 0 leaves the block out, None is 1.
    """

    def __init__(self, block: nn.Module, layout: Layout, space: tuple[int, ...], *, alpha: float | None = None) -> None:
        super().__init__()
        self.block, self.layout, self.space, self.alpha = block, layout, space, alpha

    def forward(self, tensor: Tensor) -> Tensor:
        """The same tensor after the block."""
        if self.alpha == 0:
            return tensor
        if self.layout.grid and tensor.shape[1] - self.layout.prefix - self.layout.suffix != math.prod(
            self.layout.grid
        ):
            grid = "x".join(map(str, self.layout.grid))
            raise MeasurementError(
                f"the block was inserted for {grid} tokens and got {tensor.shape[1]}; insert it again for this input"
                " size"
            )
        x = self.layout.to_map(tensor)
        blends = self.alpha is not None and self.alpha != 1
        # The block, or the module behind it, may begin with an in-place operation.
        y = self.block(x.clone() if blends else x)
        if y.shape != x.shape:
            text = (
                f"the block makes {tuple(y.shape)} of {tuple(x.shape)}; an inserted block must keep the shape of its"
                " input"
            )
            raise MeasurementError(text)
        y = x + self.alpha * (y - x) if blends else y.clone()
        return self.layout.from_map(y, tensor)

    def after(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        """The hook on the module whose output it takes. A method and not a closure, so that copies of the model have
        their own."""
        result: Tensor = self(output)
        return result


def parse(text: str) -> BlockRequest:
    """Read ``BLOCK@LAYER`` or ``BLOCK@LAYER:k=v,k=v``; values are Python literals where they look like some.

    Raises:
        ErfscopeError: the text has another form.
    """
    block, separator, rest = text.strip().partition("@")
    at, colon, options = rest.partition(":")
    if not (separator and block.strip() and at.strip()) or (colon and not options.strip()):
        raise ErfscopeError(
            f"cannot read --insert {text!r}; write BLOCK@LAYER or BLOCK@LAYER:NAME=VALUE,..., as in"
            " nonlocal@layer2:heads=4"
        )
    try:
        # Options are parsed as the keywords of a call; a word that is no literal stands for itself.
        source = f"f({options})"
        call = ast.parse(source, mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or not all(each.arg for each in call.keywords):
            raise SyntaxError
    except SyntaxError as error:
        raise ErfscopeError(
            f"cannot read the options in --insert {text!r}; they are NAME=VALUE, separated by commas"
        ) from error
    found = {str(each.arg): _value(each.value, source) for each in call.keywords}
    return BlockRequest(block=block.strip(), at=at.strip(), options=found)


def _value(node: ast.expr, source: str) -> object:
    """Read an option's value: a literal, a word for a truth value, or its own text."""
    text = ast.get_source_segment(source, node) or ""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return text


@overload
def insert(model: ModuleAdapter, block: Block, at: str | None = ..., **options: Any) -> ModuleAdapter: ...
@overload
def insert(model: nn.Module, block: Block, at: str | None = ..., **options: Any) -> nn.Module: ...
def insert(
    model: ModuleAdapter | nn.Module,
    block: Block,
    at: str | None = None,
    *,
    alpha: float | None = None,
    seed: int = 0,
    wake: bool | None = None,
    input_size: Size | None = None,
    **options: Any,
) -> ModuleAdapter | nn.Module:
    """A new model in which what ``at`` returns passes through a block; the host is untouched and shares its weights.

    The weights are the very same tensors: training one model trains the other, and converting one in place, as
    ``.double()`` does, breaks the other.

    Args:
        model: An adapter or a live module; the result is of the same kind. Insert again for several blocks.
        block: A name of ``erfscope.adapters.blocks.BLOCKS``, ``package.module:Class``, or ``BLOCK@LAYER:k=v`` in one; a
            module, which is used as it is; or a callable that makes one for a number of channels.
        at: Name of the module, one of :func:`erfscope.adapters.insertion.places`; ``stages[-2]`` counts the
            stages.
        alpha: Share of what the block adds, x + alpha (block(x) - x); 0 leaves it out, None is 1.
        seed: Seed of the block's weights.
        wake: Whether to switch on a block that is the identity by construction (a last norm or gain of zero): for None,
            unless the block was given as a module.
        input_size: Of a live module: spatial size of its input, on which a token grid depends.
        **options: Passed to a named block.

    Returns:
        The new model. The block is a module of its own, called as the block is, with ``_2`` and so on where that is
        taken; its input can be referred to as ``NAME:in``.

    Raises:
        ErfscopeError: unknown block, option or place; a place that runs several times, or returns no map; a block that
            changes the shape.
    """
    if isinstance(block, str) and at is None:
        request = parse(block)
        request = replace(request, options={**request.options, **options})
    elif at is None:
        raise ErfscopeError("name the place of the block: at=LAYER")
    else:
        request = BlockRequest(block=block, at=at, options=options)
    (share,) = alphas(alpha)
    if isinstance(model, ModuleAdapter):
        return inserted(model, request, alpha=share, seed=seed, wake=wake)
    from erfscope.adapters.opening import wrap

    return inserted(wrap(model, input_size=input_size), request, alpha=share, seed=seed, wake=wake).module


def inserted(
    adapter: ModuleAdapter,
    request: BlockRequest,
    *,
    alpha: float | None = None,
    seed: int = 0,
    wake: bool | None = None,
    in_place: bool = False,
) -> ModuleAdapter:
    """Insert a block into an adapter, or in place into its module, as a parsed request asks; see :func:`insert`."""
    at, place = place_called(adapter, request.at)
    block = _make_block(request, place, seed, adapter.device, adapter.dtype)
    given = isinstance(request.block, nn.Module)
    awake, remarks = 0, adapter.remarks
    if _changes_nothing(block, place, request):
        with seed_generators(seed):
            awake = _switch_on(block) if (wake if wake is not None else not given) else 0
        open_now = bool(awake) and not _changes_nothing(block, place, request)
        state = "re-initialised" if open_now else "it changes nothing"
        remarks = (*remarks, Finding(code="identity", text=f"{request.text} starts without effect; {state}"))
    insertion = Insertion(block, place.layout, place.space, alpha=alpha)
    insertion.training = adapter.module.training
    if not given:
        block.train(adapter.module.training)
    other = copy.copy(adapter)
    # The host shares the weights: they are copied before they are converted.
    other._owned = False
    other.structure = (
        (*adapter.structure, request.text, alpha)
        if adapter.structure and isinstance(request.block, str) and ":" not in request.block
        else ()
    )
    with errors_as_one_line("cannot be copied around a block", model=adapter.spec):
        other.module = adapter.module if in_place else shared_copy(adapter.module)
        name = _attach(other, at, request.name, insertion)
    other.inserted = {**adapter.inserted, name: at}
    other.weights = replace(
        adapter.weights, sha256=sha256(other.module), reactivated=adapter.weights.reactivated + awake
    )
    other.remarks = remarks
    with contextlib.suppress(MeasurementError):
        # A host that declares no stages is measured at the same layer with the block and without.
        other._declared_layer = adapter.default_layer
    return other


def _attach(adapter: ModuleAdapter, at: str, name: str, insertion: Insertion) -> str:
    """Make the block a part of the adapter's model, and return its dotted name."""
    module = adapter.module
    host = module.get_submodule(at)
    host.register_forward_hook(insertion.after)
    # The hooks of blocks come first, in their order, so that all other hooks see the output with the blocks.
    hooks = forward_hooks(host)
    for key, hook in list(hooks.items()):
        if not isinstance(getattr(hook, "__self__", None), Insertion):
            hooks.move_to_end(key)
    failure: ErfscopeError | None = None
    for owner in _owners(module, host):
        taken = {*dir(owner), *((IMAGE, OUTPUT) if owner is module else ())}
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        own = next(each for each in numbered if each not in taken)
        owner.add_module(own, insertion)
        path: str = next(path for path, each in module.named_modules() if each is insertion)
        try:
            # A copy, since an adapter is recorded once.
            if copy.copy(adapter).recording.calls(path) == 1:
                return path
            failure = None
        except ErfscopeError as error:
            failure = error
        delattr(owner, own)
    if failure is not None:
        raise ErfscopeError(f"with {name} at {at!r} the model does not run: {failure}") from failure
    raise ErfscopeError(
        f"the modules around {at!r} run whatever they hold, so that no block can be put beside it; choose another place"
    )


def _owners(module: nn.Module, host: nn.Module) -> Iterator[nn.Module]:
    """Find modules that may hold the block, so that it is saved and trained with them. A sequence would run it."""
    for owner in (module, host):
        while isinstance(owner, nn.Sequential):
            if owner is module or not len(owner):
                break
            owner = owner[-1]
        if not isinstance(owner, nn.Sequential):
            yield owner


def _make_block(
    request: BlockRequest, place: InsertionPlace, seed: int, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """Make the block on the host's device and in its dtype. A given module is copied if it must be moved."""
    if isinstance(request.block, nn.Module):
        if request.options:
            raise ErfscopeError(
                f"{request.name} is a module already and takes no options ({', '.join(request.options)})"
            )
        moved = device_of(request.block) == device and dtype_of(request.block) == dtype
        return request.block if moved else cast_module(copy_module(request.block), device=device, dtype=dtype)
    with seed_generators(seed), torch.device("cpu" if device.type != "meta" else "meta"):
        if isinstance(request.block, str):
            from erfscope.adapters.blocks import make

            return make(request.block, place.channels, **request.options).to(device=device, dtype=dtype)
        with errors_as_one_line(f"making {request.text} failed"):
            made = request.block(place.channels, **request.options)
    if not isinstance(made, nn.Module):
        raise ErfscopeError(f"{request.name} returned {type(made).__name__}; a block is an nn.Module")
    return cast_module(made, device=device, dtype=dtype)


def _changes_nothing(block: nn.Module, place: InsertionPlace, request: BlockRequest) -> bool:
    """Whether the block returns exactly its input. Also checks that it runs and keeps the shape.

    Raises:
        ErfscopeError: it fails, or changes the shape.
    """
    device = device_of(block)
    x = torch.zeros(1, place.channels, *place.space, dtype=dtype_of(block))
    x = x.normal_(generator=torch.Generator().manual_seed(0)).to(device)
    about = f"{request.text} fails on a map of {place.channels} channels at {'x'.join(map(str, place.space))}"
    with errors_as_one_line(about), evaluation_mode(block), torch.no_grad():
        y = block(x)
    if not isinstance(y, Tensor) or y.shape != x.shape:
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ErfscopeError(
            f"{request.text} makes {shape} of {tuple(x.shape)}; an inserted block must keep the shape of its input"
        )
    return device.type != "meta" and torch.equal(y, x)


def _switch_on(block: nn.Module) -> int:
    """Switch on norms and gains that are zero; where there are none, draw layers anew whose weights are all zero."""
    count = reactivate(block)
    for module in block.modules() if not count else ():
        weight, draw = getattr(module, "weight", None), getattr(module, "reset_parameters", None)
        if isinstance(weight, Tensor) and not weight.any() and callable(draw):
            draw()
            count += 1
    return count
