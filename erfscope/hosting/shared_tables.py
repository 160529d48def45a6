"""Tensors that a forward pass leaves outside of its module: in tables of its files and classes, and in defaults of functions."""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

_TABLES = frozenset((dict, OrderedDict, defaultdict, list, set, deque))
#: How deep tables within tables are looked into.
_DEPTH = 4
_ABSENT = object()


def files_of(module: nn.Module) -> set[str]:
    """Return the names of the files that a model's classes are from, but for PyTorch's."""
    return {type(part).__module__ for part in module.modules() if not type(part).__module__.startswith("torch.")}


class SharedTables:
    """What the files and classes of a model's code hold, by which tensors that came there meanwhile are taken out again.

    A table that is made at the first call and kept for all models of a class is of the device and type of that call, and a pass without
    numbers must leave none. Only what holds tensors is put back.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen = set[int]()
        #: Files, classes, functions and objects, with what each name in them was.
        self._spaces: list[tuple[Any, dict[str, Any]]] = []
        self._tables: list[tuple[Any, Any]] = []
        self._homes = files_of(module)
        for home in self._homes & sys.modules.keys():
            self._add_space(sys.modules[home])
        for kind in dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__):
            if kind.__module__ in self._homes:  # classes inside functions, too
                self._add_space(kind)

    def _add_space(self, space: Any) -> None:
        if id(space) in self._seen:
            return
        self._seen.add(id(space))
        names = dict(vars(space))
        self._spaces.append((space, names))
        for value in (*names.values(), *_defaults(space)):
            self._add(value, 0)

    def _add(self, value: Any, depth: int) -> None:
        if type(value) in _TABLES:
            if id(value) not in self._seen and depth < _DEPTH:
                self._seen.add(id(value))
                self._tables.append((value, value.copy()))
                for entry in _entries(value):
                    self._add(entry, depth + 1)
        elif isinstance(value, staticmethod | classmethod):
            self._add(value.__func__, depth)
        elif self._is_own(value):
            self._add_space(value)

    def _is_own(self, value: Any) -> bool:
        """Whether a value is a class or a function of the model's files, or an object of such a class that is no part of a model."""
        if isinstance(value, type | types.FunctionType):
            return value.__module__ in self._homes
        return type(value).__module__ in self._homes and hasattr(value, "__dict__") and not isinstance(value, nn.Module | Tensor)

    def put_back(self) -> None:
        """Take out the tensors that came since, and put back those that they replaced."""
        for space, before in self._spaces:
            now = vars(space)
            for name in [name for name in {**before, **now} if before.get(name, _ABSENT) is not now.get(name, _ABSENT)]:
                if not _holds_tensor([before.get(name), now.get(name)]):
                    continue
                if name in before:
                    setattr(space, name, before[name])
                else:
                    delattr(space, name)
        for table, before in self._tables:
            if _is_other(table, before) and _holds_tensor([table, before]):
                table.clear()
                table.extend(before) if isinstance(table, list | deque) else table.update(before)


def _defaults(function: Any) -> Iterator[Any]:
    if isinstance(function, types.FunctionType):
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()


def _entries(table: Any) -> Iterable[Any]:
    return table.values() if isinstance(table, dict) else table


def _is_other(table: Any, before: Any) -> bool:
    if len(table) != len(before):
        return True
    if isinstance(table, set):
        return bool(table != before)
    if isinstance(table, dict) and list(table) != list(before):
        return True
    return any(one is not other for one, other in zip(_entries(table), _entries(before), strict=True))


def _holds_tensor(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return True
    return type(value) in _TABLES | {tuple} and depth <= _DEPTH and any(_holds_tensor(entry, depth + 1) for entry in _entries(value))
