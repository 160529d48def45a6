"""The tensors in modules, and in containers that are passed to and from models."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from erfscope.core.system.torch_internals import TENSOR_TABLES

#: Where a tensor is in what a module takes or gives: () for a lone tensor, else the items of tuples, lists and
#: dictionaries on the way to it. In inputs the first item is the number of a positional argument, or a keyword.
Path = tuple[int | str, ...]


#: What holds no tensor.
_PLAIN = frozenset((type(None), bool, int, float, str))

#: Names of a module's tensors -> the part that holds each, and its path in that part's attributes.
Places = Mapping[str, tuple[nn.Module, Path]]


def places_of_tensors(module: nn.Module) -> Places:
    """Find every tensor that a module holds, also in lists and dictionaries, by name."""
    found = {}
    for prefix, part in module.named_modules():
        for path, _ in tensors_in(vars(part)):
            names = [str(each) for each in path if each not in TENSOR_TABLES]
            found[".".join([prefix, *names] if prefix else names)] = part, path
    return found


def tensors_at(places: Places) -> dict[str, Tensor]:
    """Return the tensors that are at these places now."""
    found = {}
    for name, (part, path) in places.items():
        held: Any = vars(part)
        for key in path:
            held = parts_of(held)[key]
        found[name] = held
    return found


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor that a module holds, also in lists and dictionaries, by name."""
    return tensors_at(places_of_tensors(module))


def tensors_in(given: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield every tensor in tuples, lists, mappings, dataclasses and objects like DETR's ``NestedTensor``, with the
    items and fields on the way to it."""
    if isinstance(given, Tensor):
        yield path, given
        return
    for key, each in parts_of(given).items():
        if type(each) not in _PLAIN and (not isinstance(each, dict) or each):
            yield from tensors_in(each, (*path, key))


def parts_of(given: Any) -> Mapping[Any, Any]:
    """The items of a container, and the fields of a dataclass or of an object whose ``tensors`` is a tensor; none of
    anything else."""
    if isinstance(given, dict) or isinstance(given, Mapping):  # noqa: SIM101 - the second takes long
        return given
    if isinstance(given, list | tuple):
        return dict(enumerate(given))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name, None) for field in dataclasses.fields(given)}
    own = getattr(given, "__dict__", {})
    return own if not isinstance(given, nn.Module) and isinstance(own.get("tensors"), Tensor) else {}


def map_tensors(given: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every tensor that :func:`tensors_in` finds, in containers of the same class; what holds none is handed on
    as it is."""
    if isinstance(given, Tensor):
        return change(given)
    if next(tensors_in(given), None) is None:
        return given
    if isinstance(given, tuple):
        items = [map_tensors(each, change) for each in given]
        return type(given)(*items) if hasattr(given, "_fields") else type(given)(items)
    changed = copy.copy(given)
    for key, each in parts_of(given).items():
        if isinstance(given, Mapping | list):
            changed[key] = map_tensors(each, change)
        else:  # frozen dataclasses, too
            object.__setattr__(changed, key, map_tensors(each, change))
    return changed
