"""What a module holds at one moment: by that it is seen what a forward pass has changed, and put back."""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from erfscope.hosting.shared_tables import files_of

_CONTAINERS = (dict, list, deque, set)
_PLAIN = frozenset((dict, OrderedDict, list, set, tuple))


class Snapshot:
    """What a module holds at one moment, by which it is seen what a forward pass has changed, and put back.

    Numbers of tensors are copied, those of parameters only where they are small and need no gradient, as the state that some norms keep
    in them. Of other parameters changes in place are counted, and not undone: they are for the optimizer to change. Looked into are
    containers, arrays, generators of random numbers, modules that are held but no part, and objects of classes that stand beside the
    model's own. A part that has become another class, as a lazy one does, is not put back.

    Args:
        module: The module.
        parameters: What is kept of parameters that are not copied anyway: PyTorch's count of changes; sums of their numbers too, which
            show what is written past that count, through ``.data``; or the numbers, to be put back.
    """

    def __init__(self, module: nn.Module, *, parameters: Literal["counts", "sums", "numbers"] = "counts") -> None:
        self._tensors: dict[int, _KeptTensor] = {}
        self._within: set[int] = set()
        self._copies_parameters = parameters == "numbers"
        self._waiting = list(module.named_modules())
        self._modules, self._place = {id(part) for _, part in self._waiting}, ""
        self._homes = files_of(module)
        self._parts: list[tuple[str, nn.Module, type, _Kept]] = []
        self._marks: list[tuple[str, nn.Parameter, int, Tensor | None]] = []
        while self._waiting:
            path, part = self._waiting.pop(0)
            for name, p in part._parameters.items():
                if p is not None:
                    self._marks.append((f"{path}.{name}".strip("."), p, _version(p), _sums(p) if parameters == "sums" else None))
            if not isinstance(part, torch.jit.ScriptModule):  # its attributes are not Python's
                self._parts.append((path, part, type(part), _Kept(part, vars(part), self._items(vars(part), 0, f"{path}."))))

    def changed(self) -> list[str]:
        """Names of what is different now: buffers, attributes, and parameters that were written to.

        A tensor that was made anew with the same numbers has not changed.
        """
        found = []
        for path, part, kind, kept in self._parts:
            if type(part) is not kind:
                found.append(path)
                continue
            # What a dictionary of every module holds has names of its own there.
            held = ((kept.items[name].items, getattr(part, name)) for name in _DICTIONARIES)
            for was, now in ((kept.items, vars(part)), *held):
                names = [name for name in dict.fromkeys([*was, *now]) if now is not vars(part) or name not in _DICTIONARIES]
                found += [f"{path}.{name}".strip(".") for name in names if not self._same(was.get(name, _ABSENT), now.get(name, _ABSENT))]
        return list(dict.fromkeys([*found, *(name for name, _ in self._written())]))

    def lasting(self) -> list[str]:
        """Names of parameters that were written to and are not put back."""
        return [name for name, parameter in self._written() if id(parameter) not in self._tensors]

    def _written(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter, version, sums in self._marks:
            now = None if sums is None else _sums(parameter)
            if _version(parameter) != version or (sums is not None and (now is None or not _equal(sums, now))):
                yield name, parameter

    def put_back(self) -> None:
        """Make everything what it was; containers stay the same objects, since several modules may share one."""
        for tensor in self._tensors.values():
            tensor.put_back()
        for _, part, kind, kept in self._parts:
            if type(part) is kind:
                _restore(kept)

    def _kept(self, value: Any, depth: int = 0) -> Any:
        """A value with what is needed to make it again: the numbers of tensors are copied, and containers with what they hold."""
        if id(value) in self._modules:
            return value
        if type(value) in _PLAIN and not value:
            return _Kept(value, value, {})
        if isinstance(value, Tensor) and id(value) not in self._tensors and self._is_copied(value):
            with contextlib.suppress(RuntimeError, NotImplementedError):  # of a kind that cannot be copied
                self._tensors[id(value)] = _KeptTensor(value)
        if isinstance(value, nn.Module) and id(value) not in self._modules:
            # Held but not registered, as a teacher is that shall not be trained: its parts are looked at on their own.
            new = [(name, part) for name, part in value.named_modules(prefix=self._place) if id(part) not in self._modules]
            self._modules |= {id(part) for _, part in new}
            self._waiting += new
        for kind, read, write in _STATES:
            if type(value) is kind:
                return _KeptState(value, read, write)
        container = vars(value) if self._is_opened(value) else value
        if not isinstance(container, (*_CONTAINERS, tuple)) or depth == _DEPTH or id(value) in self._within:
            return value
        self._within.add(id(value))
        kept = _Kept(value, container, self._items(container, depth + 1))
        self._within.discard(id(value))
        return kept

    def _items(self, container: Any, depth: int, path: str = "") -> dict[Any, Any]:
        """By key or number what a container holds, with what is needed to make it again; ``path`` is that of a module's own attributes."""
        items = dict(container) if isinstance(container, dict) else dict(enumerate(container))
        for key, value in items.items():
            if type(value) not in _UNCHANGING:
                if path:
                    self._place = f"{path}{key}".strip(".")
                items[key] = self._kept(value, depth)
        return items

    def _is_copied(self, tensor: Tensor) -> bool:
        """Whether the numbers of a tensor are kept."""
        if is_lazy(tensor) or tensor.is_meta:
            return False
        return self._copies_parameters or not isinstance(tensor, nn.Parameter) or (not tensor.requires_grad and tensor.numel() <= _SMALL)

    def _is_opened(self, value: Any) -> bool:
        """Whether the attributes of an object are part of the model's state: it is of a class of the model's own code, or plain data."""
        if not hasattr(value, "__dict__") or isinstance(value, (type, nn.Module, Tensor, *_CONTAINERS, tuple)):
            return False
        return isinstance(value, SimpleNamespace | UserDict | UserList) or is_dataclass(value) or type(value).__module__ in self._homes

    def _same(self, before: Any, now: Any) -> bool:
        if isinstance(before, _KeptState):
            return type(before.value) is type(now) and _alike(before.state, before.read(now))
        if isinstance(before, _Kept):
            if type(before.value) is not type(now):
                return False
            now = now if before.value is before.container else vars(now)
            if len(before.items) != len(now):
                return False
            if isinstance(now, set):
                return set(before.items.values()) == now
            if isinstance(now, dict):
                return all(key in now and self._same(item, now[key]) for key, item in before.items.items())
            return all(self._same(item, other) for item, other in zip(before.items.values(), now, strict=True))
        if isinstance(before, Tensor) and isinstance(now, Tensor):
            return now is before if id(before) not in self._tensors else _equal(self._tensors[id(before)].numbers, now.detach())
        if before is now or not isinstance(before, int | float | str):
            return type(before) is type(now)
        return type(before) is type(now) and bool(before == now)


#: Classes of values that nothing can change.
_UNCHANGING = frozenset((bool, int, float, str, bytes, type(None), torch.Size, torch.dtype, torch.device))
#: Stands for a name that is not there, and how deep containers are looked into.
_ABSENT, _DEPTH = object(), 8
#: Dictionaries of a module whose entries can be had as its attributes.
_DICTIONARIES = ("_buffers", "_parameters")
#: Parameters without gradients that are no larger are a state: vectors of a spectral norm, scales, counters.
_SMALL = 2**16


class _KeptTensor:
    """A tensor, where its numbers lie and which they are."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.place, self.numbers = tensor, tensor.data, tensor.detach().clone()
        self.is_leaf, self.needs_gradient = tensor.is_leaf, tensor.requires_grad

    def put_back(self) -> None:
        """Let the tensor have its numbers again, in the same memory."""
        tensor, place = self.tensor, self.place
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if not _is_at(tensor, place):
                tensor.data = place
            if not _equal(tensor.detach(), self.numbers):
                # A parameter may wait in the graph of a training, which counts what is written to it but for this way.
                _write(tensor.data if isinstance(tensor, nn.Parameter) else tensor, self.numbers)
        with contextlib.suppress(RuntimeError):  # views stay what an operation in place has made of them
            if self.is_leaf and not tensor.is_leaf:
                tensor.detach_()
            if tensor.is_leaf and tensor.requires_grad != self.needs_gradient:
                tensor.requires_grad_(self.needs_gradient)


def _is_at(tensor: Tensor, place: Tensor) -> bool:
    """Whether a tensor is seen through the same window on its memory."""
    if tensor.layout != torch.strided or place.layout != torch.strided:
        return tensor.shape == place.shape and tensor.dtype == place.dtype
    seen, was = ((t.shape, t.dtype, t.device, t.stride(), t.data_ptr()) for t in (tensor, place))
    return seen == was


def _write(tensor: Tensor, numbers: Tensor) -> None:
    """Write numbers to a tensor, once where several of its entries are the same memory."""
    for dimension, stride in enumerate(tensor.stride() if tensor.layout == torch.strided else ()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor, numbers = tensor.narrow(dimension, 0, 1), numbers.narrow(dimension, 0, 1)
    tensor.copy_(numbers)


class _Kept:
    """A container, or an object with its dictionary, and what that held by key or number."""

    __slots__ = ("container", "items", "value")

    def __init__(self, value: Any, container: Any, items: dict[Any, Any]) -> None:
        self.value, self.container, self.items = value, container, items


class _KeptState:
    """An object whose state is read and written as a whole."""

    def __init__(self, value: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], object]) -> None:
        self.value, self.read, self.write = value, read, write
        self.state = read(value)


def _array(value: NDArray[Any]) -> tuple[Any, ...]:
    """Shape, type and bytes of an array; nothing of one that holds objects."""
    return () if value.dtype.hasobject else (value.shape, value.dtype, value.tobytes())


def _set_array(value: NDArray[Any], state: tuple[Any, ...]) -> None:
    shape, dtype, numbers = state
    if value.shape == shape:
        np.copyto(value, np.frombuffer(numbers, dtype).reshape(shape))


#: Kinds of objects, how their state is read, and how it is written.
_STATES: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], object]], ...] = (
    (np.ndarray, _array, _set_array),
    (torch.Generator, lambda g: bytes(g.get_state().numpy()), lambda g, s: g.set_state(torch.frombuffer(bytearray(s), dtype=torch.uint8))),
    (np.random.Generator, lambda g: g.bit_generator.state, lambda g, s: setattr(g.bit_generator, "state", s)),
    (np.random.RandomState, lambda g: g.get_state(legacy=False), lambda g, s: g.set_state(s)),
    (random.Random, lambda g: g.getstate(), lambda g, s: g.setstate(s)),
)


def _alike(one: Any, other: Any) -> bool:
    """Whether two states are one."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _restore(kept: Any) -> Any:
    """The value that was kept: a container is the same object, with what it held."""
    if isinstance(kept, _KeptState):
        if not _alike(kept.state, kept.read(kept.value)):
            kept.write(kept.value, kept.state)
        return kept.value
    if not isinstance(kept, _Kept):
        return kept
    container = kept.container
    if not kept.items and not container:
        return kept.value
    items = {key: _restore(item) if type(item) in (_Kept, _KeptState) else item for key, item in kept.items.items()}
    if isinstance(container, tuple):
        return kept.value
    held = container.values() if isinstance(container, dict) else container
    unlike = len(container) != len(items) or any(mine is not theirs for mine, theirs in zip(held, items.values(), strict=True))
    if unlike or (isinstance(container, dict) and list(container) != list(items)):
        container.clear()
        fill: Callable[[Any], Any] = container.extend if isinstance(container, list | deque) else container.update
        fill(items if isinstance(container, dict) else list(items.values()))
    return kept.value


def _version(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) or tensor.is_inference() else tensor._version


def _sums(tensor: Tensor) -> Tensor | None:
    """Sum and norm of a tensor's numbers; None of one that has none, or of a kind that is not summed."""
    if is_lazy(tensor) or tensor.is_meta:
        return None
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.no_grad():
        numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        dtype = torch.promote_types(numbers.dtype, torch.float32)
        return torch.stack([numbers.sum(dtype=dtype), torch.linalg.vector_norm(numbers, dtype=dtype)])
    return None


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN counting as itself; those without numbers or of kinds that cannot be compared do."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device or one.layout != other.layout:
        return False
    if one.is_meta:
        return True
    try:
        if one.layout != torch.strided:
            return all(map(_equal, _entries(one), _entries(other)))
        return torch.equal(one, other) or bool(
            torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    except (RuntimeError, NotImplementedError):
        return one is other


def _entries(tensor: Tensor) -> tuple[Tensor, ...]:
    """Where a sparse tensor has numbers, and which."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


@contextlib.contextmanager
def as_found(module: nn.Module) -> Iterator[None]:
    """Undo what a pass keeps in a module, such as a table made at the first call, so that the next one is the first again."""
    before = Snapshot(module)
    try:
        yield
    finally:
        before.put_back()
