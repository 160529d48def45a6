"""Copies of modules that hold what cannot be copied: locks, open files, generators, whole modules of Python."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

#: Under this attribute a tensor without numbers keeps the one that it stands for.
STANDS_FOR = "_erfscope_stands_for"
#: Larger tensors are not followed.
LARGEST = 1 << 16


def copy_module(module: nn.Module, memo: Mapping[int, object] | None = None) -> nn.Module:
    """Deep copy that shares with the original what cannot be copied.

    Functions that are kept in a module, such as a ``forward`` that was replaced or compiled and hooks, are closures as often as not. They
    are made anew where they hold parts of the original, which :func:`copy.deepcopy` would have the copy call.

    Args:
        module: Any module.
        memo: By the ``id`` of objects of the original what stands for them in the copy, as of :func:`copy.deepcopy`.

    Raises:
        Exception: the module itself refuses to be copied.
    """
    made = dict(memo or {})
    try:
        copied = copy.deepcopy(module, made)
    except Exception:  # what refuses to be copied says so in any way
        shared = {id(value): value for part in module.modules() for value in _uncopyable(vars(part), dict(memo or {}))}
        if not shared:
            raise
        made = {**shared, **(memo or {})}
        copied = copy.deepcopy(module, made)
    originals = {id(part) for part in module.modules()}
    for part in (part for part in copied.modules() if id(part) not in originals):
        for holder in (vars(part), *(value for value in vars(part).values() if isinstance(value, dict))):
            holder.update({name: _on_copy(value, made) for name, value in holder.items() if isinstance(value, FunctionType | partial)})
    return copied


def cast_module(module: nn.Module, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """Move a module in place to a device, and to a type of numbers: complex tensors to the complex type of that precision.

    ``Module.to`` gives complex tensors a real type, and so drops their imaginary parts.
    """
    if dtype is None or not any(t.is_complex() for t in (*module.parameters(), *module.buffers())):
        return module.to(device=device, dtype=dtype)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype if tensor.is_floating_point() else tensor.dtype)

    module.to(device=device)._apply(cast)  # type: ignore[no-untyped-call]
    return module


def _held(value: Any) -> Iterator[Any]:
    """What a function, a method, a partial function, a cell of a closure or a plain container holds."""
    if isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif isinstance(value, CellType):
        yield from () if value == CellType() else (value.cell_contents,)
    elif type(value) in (list, tuple, dict):
        yield from value.values() if isinstance(value, dict) else value


def _leads_to_copied(value: Any, made: Mapping[int, object]) -> bool:
    """Whether a value is, or holds however deep, something that the copy has its own of."""
    seen, waiting = set[int](), [value]
    while waiting:
        each = waiting.pop()
        if id(each) in made:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting += _held(each)
    return False


def _on_copy(value: Any, made: dict[int, Any]) -> Any:
    """What stands for a value in the copy: the value itself where it holds nothing of the original.

    Cells of closures that hold nothing of the original stay the original's: functions talk to each other through them.

    Args:
        value: What a module or a function holds.
        made: By the ``id`` of objects of the original those of the copy; what is made here is added.
    """
    if id(value) in made:
        return made[id(value)]
    if not _leads_to_copied(value, made):
        return value
    if isinstance(value, CellType):
        cell = made[id(value)] = CellType()
        cell.cell_contents = _on_copy(value.cell_contents, made)
    elif isinstance(value, MethodType):
        made[id(value)] = MethodType(value.__func__, _on_copy(value.__self__, made))
    elif isinstance(value, partial):
        keywords = {name: _on_copy(each, made) for name, each in value.keywords.items()}
        made[id(value)] = partial(_on_copy(value.func, made), *(_on_copy(each, made) for each in value.args), **keywords)
    elif isinstance(value, FunctionType):
        cells = [
            (old, CellType()) if id(old) not in made and _leads_to_copied(old, made) else (old, None) for old in value.__closure__ or ()
        ]
        # Before they are filled: a function may hold itself.
        made.update({id(old): new for old, new in cells if new is not None})
        closure = tuple(made.get(id(old), old) for old, _ in cells)
        function = made[id(value)] = FunctionType(value.__code__, value.__globals__, value.__name__, None, closure or None)
        function.__dict__.update(value.__dict__)
        for old, new in cells:
            if new is not None:
                new.cell_contents = _on_copy(old.cell_contents, made)
        function.__defaults__ = None if value.__defaults__ is None else tuple(_on_copy(each, made) for each in value.__defaults__)
        function.__kwdefaults__ = {name: _on_copy(each, made) for name, each in (value.__kwdefaults__ or {}).items()} or None
    elif isinstance(value, dict):
        made[id(value)] = {key: _on_copy(each, made) for key, each in value.items()}
    else:
        made[id(value)] = type(value)(_on_copy(each, made) for each in value)
    return made[id(value)]


def _uncopyable(value: Any, memo: dict[int, object]) -> Iterator[object]:
    """What of a value refuses to be copied, looked for in containers; the parts of a module are looked at on their own."""
    if isinstance(value, nn.Module) or id(value) in memo:
        return
    if isinstance(value, dict | list | tuple | set):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _uncopyable(item, memo)
        return
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:
        yield value


def empty_on_meta(tensor: Tensor) -> Tensor:
    """A tensor like this one without numbers.

    PyTorch's ``empty_like`` is written in Python on the meta device, and takes twenty times as long as ``empty``.
    """
    if type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided and tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta")


def keep_original(stand_in: Tensor, original: Tensor) -> Tensor:
    """``stand_in``, which has no numbers, with a small original of integers kept for whoever asks for them."""
    if not original.is_floating_point() and not original.is_complex() and original.numel() <= LARGEST and not original.is_meta:
        setattr(stand_in, STANDS_FOR, original)
    return stand_in
