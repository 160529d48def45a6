"""Names of layers: a dotted module name, then the item of a container output, then ``:in`` for a module's input."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from erfscope.core.system.containers import map_tensors, tensors_in
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit_kind import split_kind

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
    match = _NAME.match(split_kind(text.strip())[0])
    if match is None or not match["module"]:
        raise ErfscopeError(
            f"cannot read the layer name {text!r}; write NAME, NAME[2], NAME[key] or, as a reference, NAME:in"
        )
    items = tuple(re.findall(r"\[([^\[\]]+)\]", match["items"]))
    return LayerName(module=match["module"], items=items, is_input=match["side"] is not None)


def pick(value: Any, layer: LayerName, text: str) -> Tensor:
    """Return the tensor that ``layer`` means in a module's output.

    Raises:
        ErfscopeError: no such item, or the output is a container and no item was named.
    """
    found = {layer.module + "".join(f"[{key}]" for key in path): tensor for path, tensor in tensors_in(value)}
    wanted = layer.module + "".join(f"[{item}]" for item in layer.items)
    if wanted in found:
        return found[wanted]
    fix = f"ask for one of its tensors: {', '.join(list(found)[:8])}" if found else "name a layer inside it"
    raise ErfscopeError(f"{text!r} returns {type(value).__name__}; {fix}")


def replaced(value: Any, layer: LayerName, text: str, by: Callable[[Tensor], Tensor]) -> Any:
    """Replace the tensor that ``layer`` means in a module's output.

    Raises:
        ErfscopeError: as :func:`pick`.
    """
    old = pick(value, layer, text)
    new = by(old)
    return map_tensors(value, lambda each: new if each is old else each)
