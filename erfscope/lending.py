"""A live module during a measurement: one thread at a time, and what its forward passes change is put back."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.errors import MeasurementError

#: Parts of modules that are in use: by id the thread and how often it took them. What is in use is alive, so that its id is its own.
_in_use: dict[int, tuple[int, int]] = {}
_freed = threading.Condition()
_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)


@contextlib.contextmanager
def lent(*modules: nn.Module) -> Iterator[None]:
    """No other thread measures these modules, and afterwards their buffers and attributes are as they were, for the time of the block.

    A block inside a block of the same thread puts nothing back.

    Raises:
        MeasurementError: this thread has a part of the modules already, and another thread has the rest.
    """
    with alone(*modules) as is_first:
        snapshots = [Snapshot(module) for module in modules] if is_first else []
        try:
            yield
        finally:
            for snapshot in snapshots:
                snapshot.put_back()


@contextlib.contextmanager
def alone(*modules: nn.Module) -> Iterator[bool]:
    """No other thread is in such a block of these modules, or of one that shares parts, parameters or buffers with them.

    Other modules are measured side by side. A thread that trains a module meanwhile is not kept from it.

    Yields:
        Whether this is the outermost block of this thread.

    Raises:
        MeasurementError: this thread has a part of the modules already, and another thread has the rest: both would wait for ever.
    """
    me = threading.get_ident()
    parts = [part for module in modules for part in (*module.modules(), *module.parameters(), *module.buffers())]
    keys = list(dict.fromkeys(map(id, parts)))

    def taken() -> bool:
        return any(key in _in_use and _in_use[key][0] != me for key in keys)

    with _freed:
        is_first = not any(key in _in_use and _in_use[key][0] == me for key in keys)
        if not is_first and taken():
            raise MeasurementError(
                "parts of this model are being measured by another thread; measure models that share parts one at a time"
            )
        _freed.wait_for(lambda: not taken())
        for key in keys:
            _in_use[key] = me, _in_use[key][1] + 1 if key in _in_use else 1
    try:
        yield is_first
    finally:
        with _freed:
            for key in keys:
                count = _in_use[key][1] - 1
                if count:
                    _in_use[key] = me, count
                else:
                    del _in_use[key]
            _freed.notify_all()
        del parts


class Snapshot:
    """What a module holds at one moment, by which it is seen what a forward pass has changed, and put back.

    Numbers of tensors are copied, except those of parameters, whose changes in place are only counted. The inside of objects that are
    neither tensors nor containers is not looked into. A part that has become another class, as a lazy one does, is not put back.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._parts = {
            path: (part, type(part), {name: self._kept(value) for name, value in vars(part).items()})
            for path, part in module.named_modules()
            if not isinstance(part, torch.jit.ScriptModule)  # its attributes are not Python's
        }
        self._versions = {name: (p, _version(p)) for name, p in module.named_parameters()}

    def changed(self) -> list[str]:
        """Names of what is different now: buffers, attributes, and parameters that were written to.

        A tensor that was made anew with the same numbers has not changed.
        """
        found = []
        for path, (part, kind, before) in self._parts.items():
            if type(part) is not kind:
                found.append(path)
                continue
            # What a dictionary of every module holds has names of its own there.
            for was, now in ((before, vars(part)), (dict(before["_buffers"].items), part._buffers)):
                names = [name for name in dict.fromkeys([*was, *now]) if name != "_buffers"]
                found += [f"{path}.{name}".strip(".") for name in names if not self._same(was.get(name, _ABSENT), now.get(name, _ABSENT))]
        return found + [name for name, (parameter, version) in self._versions.items() if _version(parameter) != version]

    def put_back(self) -> None:
        """Make everything what it was; containers stay the same objects, since several modules may share one."""
        for tensor, numbers in self._tensors.values():
            if not tensor.is_inference() and not _equal(tensor.detach(), numbers):
                with torch.no_grad():
                    tensor.detach().copy_(numbers)
        for part, kind, before in self._parts.values():
            if type(part) is kind:
                restored = {name: _restored(kept) for name, kept in before.items()}
                vars(part).clear()
                vars(part).update(restored)

    def _kept(self, value: Any, depth: int = 0) -> Any:
        """A value with what is needed to make it again: the numbers of tensors are copied, and containers with what they hold."""
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and id(value) not in self._tensors and not value.is_meta:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # of a kind that cannot be copied
                self._tensors[id(value)] = value, value.detach().clone()
        if type(value) in (*_CONTAINERS, tuple) and depth < _DEPTH:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return _Kept(value, [(key, self._kept(item, depth + 1)) for key, item in items])
        return value

    def _same(self, before: Any, now: Any) -> bool:
        if isinstance(before, _Kept):
            if type(before.value) is not type(now) or len(before.items) != len(now):
                return False
            if isinstance(now, set):
                return {item for _, item in before.items} == now
            if isinstance(now, dict):
                return all(key in now and self._same(item, now[key]) for key, item in before.items)
            return all(self._same(item, other) for (_, item), other in zip(before.items, now, strict=True))
        if isinstance(before, Tensor) and isinstance(now, Tensor):
            return now is before if id(before) not in self._tensors else _equal(self._tensors[id(before)][1], now.detach())
        if before is now or not isinstance(before, int | float | str):
            return type(before) is type(now)
        return type(before) is type(now) and bool(before == now)


#: Stands for a name that is not there, and how deep containers are looked into.
_ABSENT, _DEPTH = object(), 8


class _Kept:
    """A container and what it held."""

    def __init__(self, value: Any, items: list[tuple[Any, Any]]) -> None:
        self.value, self.items = value, items


def _restored(kept: Any) -> Any:
    """The value that was kept: a container is the same object, with what it held."""
    if not isinstance(kept, _Kept):
        return kept
    value, items = kept.value, [(key, _restored(item)) for key, item in kept.items]
    if isinstance(value, tuple):
        return value
    unlike = len(value) != len(items) or any(
        mine is not theirs for mine, (_, theirs) in zip(value.values() if isinstance(value, dict) else value, items, strict=True)
    )
    if unlike or (isinstance(value, dict) and list(value) != [key for key, _ in items]):
        value.clear()
        fill: Callable[[Any], Any] = value.extend if isinstance(value, list | deque) else value.update
        fill(dict(items) if isinstance(value, dict) else [item for _, item in items])
    return value


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN counting as itself; those without numbers or of kinds that cannot be compared do."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:
        return True
    try:
        return torch.equal(one, other) or bool(
            torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    except (RuntimeError, NotImplementedError):
        return one is other
