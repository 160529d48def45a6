"""What a module is, apart from its numbers: two structures are equal where a forward pass computes the same operations."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _NormBase

from erfscope.hosting.copies import LARGEST
from erfscope.hosting.shared_tables import files_of

#: Values that are compared by themselves, their types included.
_ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
)
#: Most of what a module holds is empty.
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set, frozenset, deque))
#: What a class or a file may hold as a constant.
_DATA = _ATOMS | _CONTAINERS | {types.SimpleNamespace}
#: Folders that libraries are installed in.
_INSTALLED = frozenset(("site-packages", "dist-packages"))
#: More values than that are not walked through at every call.
_MOST = 200_000


class _TooLarge(Exception):
    """A module holds more than can be looked through in milliseconds."""


class _Same:
    """An object that is equal to itself alone, and kept alive only where nothing can tell that it has gone."""

    __slots__ = ("get",)

    def __init__(self, value: object) -> None:
        try:
            self.get: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self.get = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (mine := self.get()) is not None and mine is other.get()

    __hash__ = None  # type: ignore[assignment]


def structure_of(module: nn.Module, **beside: object) -> list[Any] | None:
    """Return what decides which operations a forward pass runs, as values that can be compared; None where that is too much.

    That is: the tree of modules with their classes, attributes, hooks and modes; shapes, types, layouts and sharing of tensors, and the
    numbers of small integer ones; code, closures and constants of the classes and of functions they call; the process's default dtype.
    Objects of libraries count by identity. Numbers of weights do not count.

    Args:
        module: The model.
        **beside: What else the pass depends on, such as the input size.
    """
    walk = _Walk(module, files_of(module))
    of_process = (torch.get_default_dtype(), dict(modules._global_forward_hooks), dict(modules._global_forward_pre_hooks))
    kinds = dict.fromkeys(each for part in module.modules() for each in type(part).__mro__)
    try:
        found = [walk.value(module), walk.value(beside), walk.value(of_process)]
        return found + [walk.code(kind) for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))]
    except _TooLarge:
        return None


class _Walk:
    """A walk through everything that a module holds, each object once."""

    def __init__(self, module: nn.Module, homes: set[str]) -> None:
        self._homes = homes
        self._packages = {home.partition(".")[0] for home in homes}
        norms = (part for part in module.modules() if isinstance(part, _NormBase))
        #: Norms count the batches of a training.
        self._counters = {id(part._buffers.get("num_batches_tracked")) for part in norms}
        self._numbers: dict[int, int] = {}
        self._held: list[object] = []
        self._count = 0

    def value(self, value: Any) -> Any:
        """One value, as something that can be compared."""
        self._count += 1
        if self._count > _MOST:
            raise _TooLarge
        kind = type(value)
        if kind in _ATOMS:
            return kind, repr(value) if kind is float else value
        if kind in _CONTAINERS and not value:
            return kind
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        # Nothing that was met may be freed, as its address stands for it.
        self._held.append(value)
        if kind is dict:
            return kind, [key if type(key) is str else self.value(key) for key in value], [self.value(item) for item in value.values()]
        return kind, *self._parts(value)

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Tensor):
            yield from _tensor(value, has_numbers=id(value) not in self._counters)
        elif isinstance(value, Mapping):
            yield from ([*map(self.value, value)], [*map(self.value, value.values())])
        elif isinstance(value, list | tuple | deque):
            yield from map(self.value, value)
        elif isinstance(value, set | frozenset):
            yield sorted(map(repr, map(self.value, value)))
        elif isinstance(value, np.ndarray):
            yield from (value.shape, str(value.dtype), _Same(value) if value.dtype.hasobject else value.tobytes())
        elif isinstance(value, functools.partial):
            yield from map(self.value, (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from map(self.value, (value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            yield self.code(value)
        elif isinstance(value, Enum):
            yield value
        elif is_dataclass(value) and not isinstance(value, type | nn.Module):
            yield self.value({field: getattr(value, field, None) for field in value.__dataclass_fields__})
        elif self._is_opened(value):
            yield self.value({name: getattr(value, name, None) for name in _attributes(value)})
        else:
            yield _Same(value)

    def _is_opened(self, value: object) -> bool:
        """Whether the attributes of an object count: it is a module, plain data, or of a class of the model's package or of no library."""
        if isinstance(value, type | types.ModuleType):
            return False
        home = type(value).__module__
        own = home.partition(".")[0] in self._packages or not _is_library(home)
        return isinstance(value, nn.Module | types.SimpleNamespace) or own

    def code(self, code: Any) -> Any:
        """A function or a class of the model's: its code, what it closes over, and the constants that it looks up."""
        if isinstance(code, type):
            held = {name: getattr(each, "__func__", getattr(each, "fget", each)) for name, each in vars(code).items() if name != "__doc__"}
            kept = {name: each for name, each in held.items() if type(each) in _DATA or isinstance(each, types.FunctionType)}
            return _Same(code), self.value(kept)
        cells = [cell.cell_contents for cell in code.__closure__ or () if _is_filled(cell)]
        looked_up = [code.__globals__[name] for name in _names(code.__code__) if name in code.__globals__]
        # Functions of the same library are called too; its modules, classes and everything foreign stay what they are.
        own = [each for each in looked_up if type(each) in _DATA or self._is_own_function(each)]
        return _Same(code.__code__), *map(self.value, (code.__defaults__, code.__kwdefaults__, cells, own))

    def _is_own_function(self, value: object) -> bool:
        return isinstance(value, types.FunctionType) and value.__module__ in self._homes


def _tensor(tensor: Tensor, *, has_numbers: bool) -> Iterator[Any]:
    """What counts of a tensor."""
    yield from (tuple(tensor.shape), tensor.dtype, str(tensor.device), tensor.layout, tensor.requires_grad, tensor.is_leaf)
    if tensor.layout is torch.strided:
        yield tensor.stride()
        if has_numbers and not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= LARGEST and not tensor.is_meta:
            yield _numbers(tensor)


def _numbers(tensor: Tensor) -> Any:
    try:
        return tensor.detach().cpu().numpy().tobytes()
    except (RuntimeError, TypeError):  # of a kind that NumPy does not know
        return _Same(tensor)


def _attributes(value: object) -> Iterator[str]:
    """The names of an object's own attributes, slots included."""
    yield from getattr(value, "__dict__", {})
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _is_library(module: str) -> bool:
    """Whether a module of Python is part of it, or was installed, so that its objects are no settings of the model's author."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_installed = file is not None and not _INSTALLED.isdisjoint(Path(file).parts)
    return is_installed or module.partition(".")[0] in {*sys.stdlib_module_names, "erfscope"}


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function looks up, those of the functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
