"""Names of layers: a dotted module name, then the item of a container output, then ``:in`` for a module's input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from erfscope.errors import ErfscopeError

_NAME = re.compile(r"^(?P<module>[^\[\]:]*)(?P<items>(\[[^\[\]]+\])*)(?P<side>:in)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerName:
    """A parsed layer name."""

    module: str
    #: Keys into a container output, outermost first.
    items: tuple[str, ...] = ()
    #: Whether the module's input is meant.
    is_input: bool = False


def parse(text: str) -> LayerName:
    """Parse ``"layer4"``, ``"fpn[2]"``, ``"output[out]"`` or ``"layer3:in"``.

    Raises:
        ErfscopeError: the text is no layer name.
    """
    match = _NAME.match(text.strip())
    if match is None or not match["module"]:
        raise ErfscopeError(
            f"cannot read the layer name {text!r}; write NAME, NAME[2], NAME[key] or, as a reference, NAME:in"
        )
    items = tuple(re.findall(r"\[([^\[\]]+)\]", match["items"]))
    return LayerName(module=match["module"], items=items, is_input=match["side"] is not None)


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a module's output with the name that addresses it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{name}[{key}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | torch.Size):
        for index, item in enumerate(value):
            yield from tensors(item, f"{name}[{index}]")


def pick(value: Any, layer: LayerName, text: str) -> Tensor:
    """The tensor that ``layer`` means in a module's output.

    Raises:
        ErfscopeError: no such item, or the output is a container and no item was named.
    """
    found = dict(tensors(value, layer.module))
    wanted = layer.module + "".join(f"[{item}]" for item in layer.items)
    if wanted in found:
        return found[wanted]
    if not found:
        raise ErfscopeError(f"{text!r} returns {type(value).__name__}, which holds no tensor; name a layer inside it")
    raise ErfscopeError(
        f"{text!r} returns {type(value).__name__}; ask for one of its tensors: {', '.join(list(found)[:8])}"
    )


def replaced(value: Any, layer: LayerName, text: str, by: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with another tensor in place of the one that ``layer`` means.

    Raises:
        ErfscopeError: as :func:`pick`.
    """
    old = pick(value, layer, text)
    leaves, form = tree_flatten(value)
    places = [number for number, leaf in enumerate(leaves) if leaf is old]
    if not places:
        raise ErfscopeError(
            f"{text!r} returns {type(value).__name__}, which cannot be made again with another tensor in it"
        )
    new = by(old)
    return tree_unflatten([new if number in places else leaf for number, leaf in enumerate(leaves)], form)
