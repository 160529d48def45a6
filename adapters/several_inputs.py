"""Models that take several arguments: which of them are maps, and all of these in one tensor, which the engine
differentiates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erfscope.core.system.containers import map_tensors, tensors_in
from erfscope.core.values.axes import NAMES, TIME_FIRST, TOKENS, Axes
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.model_facts import Preprocess
from erfscope.core.values.names import IMAGE, ONE_INPUT
from erfscope.core.values.unit import size_text

#: Arguments of a call by position and by keyword.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: A plane with a side of so many cells or fewer is taken for matrices of cameras or coordinates of points, if there are
#: larger planes.
MATRIX = 4


class Steps(Protocol):
    """How images become one of the maps of a model."""

    def __call__(self, name: str, shape: tuple[int, ...], *, is_only: bool) -> Preprocess:
        """Of the map of this name and shape (C, *space), the only one or not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleInputs:
    """One set of arguments of a model.

    A floating (B, C, *space) is a map: the model is differentiated with respect to it, and images take its place.
    Beside larger ones a (B, N, 4, 4) or (B, N, P, 2), as of cameras or points, is none. Where none is floating, the
    first (B, T) of integers is one of token ids, (B, 1, T). Everything else is passed through as it is given, its first
    row for each image where its rows are the batch's."""

    arguments: Arguments
    #: Maps by the name of the reference, (B, C, *space): "image" for the only one.
    maps: Mapping[str, Tensor]
    #: A map as the model takes it.
    taken: Callable[[Tensor], Tensor]
    #: What the others are, by name.
    passed: Mapping[str, str]
    #: How the model is called: (module, *arguments).
    forward: Callable[..., Any]
    #: How images become the tensor that holds all maps.
    preprocess: Preprocess
    #: Maps whose axes may be meant otherwise, each in a sentence.
    notes: tuple[str, ...] = ()

    @property
    def has_ids(self) -> bool:
        """Whether the input is one of token ids, which have no gradient."""
        return self.taken is _as_ids

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """The maps in the tensor that holds them all, (B, C, *space)."""
        places = {name: self.preprocess.place(name) for name in self.maps}
        # As the model gets them elsewhere: it may view them.
        return {name: x if place is None else x[:, *place].contiguous() for name, place in places.items()}

    def at_size(self, space: tuple[int, ...], name: str) -> ExampleInputs:
        """The same with one map of another size, and the others larger or smaller by as much.

        Raises:
            ErfscopeError: a side would be no whole number.
        """
        own = self.preprocess.of(name).size
        parts, new = dict(self.preprocess.parts), dict[int, Tensor]()
        for each, part in parts.items():
            sides = [Fraction(side * wanted, had) for side, wanted, had in zip(part.size, space, own, strict=True)]
            if any(side.denominator != 1 for side in sides):
                raise ErfscopeError(
                    f"{name} at {size_text(space)} leaves {each} no whole number of pixels; choose multiples of"
                    f" {size_text(own)}"
                )
            parts[each] = replace(part, size=tuple(map(int, sides)))
            tensor = self.maps[each]
            new[id(tensor)] = tensor.new_empty(()).expand(*tensor.shape[:2], *parts[each].size)
        return replace(
            self,
            arguments=map_tensors(self.arguments, lambda tensor: new.get(id(tensor), tensor)),
            maps={each: new[id(tensor)] for each, tensor in self.maps.items()},
            preprocess=_together(parts),
        )

    def __call__(self, module: nn.Module, x: Tensor | Mapping[str, Tensor]) -> Any:
        """Call the model on the tensor that holds all maps, or on the maps."""
        pieces = self.split(x) if isinstance(x, Tensor) else x
        like = next(iter(pieces.values()))
        given = {id(self.maps[name]): piece for name, piece in pieces.items()}
        batch = len(next(iter(self.maps.values())))

        def value(tensor: Tensor) -> Tensor:
            if id(tensor) in given:
                return self.taken(given[id(tensor)])
            if tensor.dim() and len(tensor) == batch:
                tensor = tensor[:1].expand(len(like), *tensor.shape[1:])
            return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device)

        args, keywords = map_tensors(self.arguments, value)
        return self.forward(module, *args, **keywords)


def example_inputs_of(
    module: nn.Module,
    name: str,
    given: Any,
    *,
    forward: Callable[..., Any] | None,
    steps: Steps,
    axes: str | None = None,
) -> ExampleInputs:
    """Read a set of example inputs of a model.

    Args:
        module: The model.
        name: What it is called.
        given: Its arguments, by keyword in a mapping, else by position.
        forward: How it is called: (module, *arguments); by default ``module(*arguments)``.
        steps: How images become a map.
        axes: What the user calls the axes of the maps.

    Raises:
        ErfscopeError: arguments that the model does not take, none of them a map, or maps of different batch sizes or
            numbers of axes.
    """
    own = dict(given) if isinstance(given, Mapping) else {}
    args = () if isinstance(given, Mapping) else (given,) if isinstance(given, Tensor) else tuple(given)
    for key, each in (*enumerate(args), *own.items()):
        if isinstance(each, np.ndarray):
            raise ErfscopeError(f"the example input {key} of {name} is an array: give torch.from_numpy(...) of it")
    # Copies: the same tensor may be given twice, and the caller's may change.
    arguments: Arguments = map_tensors((args, own), lambda tensor: tensor.detach().clone())
    named = dict(_named(module, name, arguments, forward))
    floating = {each: tensor for each, tensor in named.items() if tensor.is_floating_point()}
    planes = {each: tensor for each, tensor in floating.items() if tensor.dim() in (4, 5)}
    large = {each: tensor for each, tensor in planes.items() if min(tensor.shape[-2:]) > MATRIX}
    given_maps = large or planes or {each: tensor for each, tensor in floating.items() if tensor.dim() == 3}
    ids = {} if given_maps else _token_ids(module, named, forward)
    read, taken = TOKEN_IDS if ids else CHANNELS_LAST if axes in TIME_FIRST else AS_GIVEN
    found = {each: read(tensor) for each, tensor in (given_maps or ids).items()}
    _refuse_unlike(name, named, found)
    by_id = {id(named[each]): tensor for each, tensor in found.items()}
    whole = IMAGE if len(found) == 1 else ""
    parts = {
        whole or ONE_INPUT + each: steps(each, tuple(tensor.shape[1:]), is_only=bool(whole))
        for each, tensor in found.items()
    }
    if ids:
        parts = {whole: _of_ids(module, part) for whole, part in parts.items()}
    return ExampleInputs(
        arguments=map_tensors(arguments, lambda tensor: by_id.get(id(tensor), tensor)),
        taken=taken,
        maps={whole or ONE_INPUT + each: tensor for each, tensor in found.items()},
        passed={ONE_INPUT + each: _text(tensor) for each, tensor in named.items() if each not in found},
        forward=forward or _call,
        preprocess=parts[whole] if whole else _together(parts),
        notes=tuple(_turned(each, *tensor.shape[1:]) for each, tensor in found.items() if _may_be_turned(tensor))
        if axes is None and not ids
        else (),
    )


def time_first(tensor: Tensor) -> Tensor:
    """(B, C, T, ...) of (B, T, C, ...), and back."""
    return tensor.transpose(1, 2)


def _as_given(tensor: Tensor) -> Tensor:
    return tensor


def _one_channel(ids: Tensor) -> Tensor:
    return ids[:, None].to(torch.get_default_dtype())


def _as_ids(tensor: Tensor) -> Tensor:
    if tensor.dtype.itemsize < 4:
        raise ErfscopeError(f"{tensor.dtype} does not hold token ids: call .float() on the model")
    return tensor[:, 0].long()


#: A map (B, C, *space) of what the model takes, and back.
AS_GIVEN = (_as_given, _as_given)
CHANNELS_LAST = (time_first, time_first)
TOKEN_IDS = (_one_channel, _as_ids)


def _token_ids(module: nn.Module, named: Mapping[str, Tensor], forward: Callable[..., Any] | None) -> dict[str, Tensor]:
    """The first (B, T) of integers among the parameters of a model that embeds tokens."""
    order = [*inspect.signature(module.forward if forward is None else forward).parameters, *named]
    whole = (torch.int32, torch.int64)
    ids = [(each, tensor) for each, tensor in named.items() if tensor.dim() == 2 and tensor.dtype in whole]
    ids.sort(key=lambda pair: order.index(pair[0]))
    return dict(ids[:1]) if any(isinstance(each, nn.Embedding) for each in module.modules()) else {}


def _of_ids(module: nn.Module, part: Preprocess) -> Preprocess:
    """How synthetic grey levels become token ids: spread over the first embedding's rows."""
    rows = next(each for each in module.modules() if isinstance(each, nn.Embedding)).num_embeddings
    return replace(
        part,
        axes=Axes.named(NAMES["t"], TOKENS),
        normalise=partial(_spread, rows - 1),
        scale_text=f"spread over {rows} tokens",
        assumed=(),
    )


def _spread(last: int, pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 (B, T, 1) -> ids (B, 1, T) from 0 to ``last``."""
    return torch.from_numpy(np.array(pixels)).movedim(-1, 1).to(torch.float64).mul_(last / 255).round_()


def _may_be_turned(tensor: Tensor) -> bool:
    """Whether an image of a batch may be steps, frames or views by channels, (B, T, C, ...)."""
    return tensor.dim() == 3 or (tensor.dim() == 5 and tensor.shape[2] in (1, 3) and tensor.shape[1] not in (1, 3))


def _turned(name: str, channels: int, depth: int, *plane: int) -> str:
    if not plane:
        text = f"{name} is read as (B, C, T): {channels} channels of {depth} steps"
        return f"{text}; if it holds {channels} steps of {depth} channels, (B, T, C), add axes='btc' (--axes btc)"
    space = "x".join(map(str, (depth, *plane)))
    return (
        f"{name} is read as (B, C, T, H, W): {channels} channels of {space}. If these are {channels} frames or views of"
        f" {depth} channel{'s' * (depth > 1)}, (B, T, C, H, W), add axes='btchw' (--axes btchw)"
    )


def _call(module: nn.Module, *args: Any, **keywords: Any) -> Any:
    return module(*args, **keywords)


def _named(
    module: nn.Module, name: str, arguments: Arguments, forward: Callable[..., Any] | None
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by the parameter that takes it, in containers with the items on the way."""
    args, keywords = arguments
    signature = inspect.signature(module.forward if forward is None else forward)
    try:
        signature.bind(*(() if forward is None else (module,)), *args, **keywords)
    except TypeError as error:
        takes = ", ".join(list(signature.parameters)[forward is not None :])
        raise ErfscopeError(
            f"{name} takes ({takes}), which the example inputs do not fit: {error}; give one for each, by position or"
            " by name"
        ) from error
    parameters = list(signature.parameters.values())[forward is not None :]
    for (is_keyword, key, *path), tensor in tensors_in(arguments):
        called = str(key) if is_keyword else _parameter(parameters, int(key))
        yield called + "".join(f"[{each}]" for each in path), tensor


def _parameter(parameters: list[inspect.Parameter], number: int) -> str:
    """The name of the parameter that takes an argument by its position."""
    several = next((i for i, each in enumerate(parameters) if each.kind is each.VAR_POSITIONAL), len(parameters))
    return parameters[number].name if number < several else f"{parameters[several].name}[{number - several}]"


def _text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _refuse_unlike(name: str, named: Mapping[str, Tensor], maps: Mapping[str, Tensor]) -> None:
    """Refuse arguments without a map, and maps that do not go together."""
    if not maps:
        texts = ", ".join(f"{each} is {_text(tensor)}" for each, tensor in named.items()) or "there is no tensor"
        raise ErfscopeError(
            f"none of the example inputs of {name} is a floating tensor, such as (B, C, H, W), with one to"
            f" three axes behind the channels: {texts}"
        )
    batches = {each: len(tensor) for each, tensor in maps.items()}
    if len(set(batches.values())) > 1 or 0 in batches.values():
        texts = ", ".join(f"{each} {count}" for each, count in batches.items())
        raise ErfscopeError(f"the example inputs of {name} have different numbers of images, or none: {texts}")
    axes = {each: tensor.dim() - 2 for each, tensor in maps.items()}
    if len(set(axes.values())) > 1:
        texts = ", ".join(f"{each} has {count}" for each, count in axes.items())
        raise ErfscopeError(
            f"the example inputs of {name} have different numbers of spatial axes, {texts}; give the others to"
            " forward=lambda m, x: m(x, ...)"
        )


def _together(parts: Mapping[str, Preprocess]) -> Preprocess:
    """The tensor that holds several maps, which no image is made into."""
    first = next(iter(parts.values()))
    return replace(
        first,
        size=tuple(max(sides) for sides in zip(*(part.size for part in parts.values()), strict=True)),
        channels=sum(part.channels for part in parts.values()),
        pixelwise=all(part.pixelwise for part in parts.values()),
        resize_text="each input by itself",
        scale_text="",
        assumed=(),
        parts=dict(parts),
    )
