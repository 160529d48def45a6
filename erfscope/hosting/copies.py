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


def _on_copy(value: Any, made: dict[int, Any]) -> Any:
    """A function that holds in the original's place what was made for the copy; the function itself where it holds nothing of the original.

    Args:
        value: What a module or a function holds.
        made: By the ``id`` of objects of the original those of the copy, and of functions what stands for them.
    """
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, MethodType):
        subject = _on_copy(value.__self__, made)
        return value if subject is value.__self__ else MethodType(value.__func__, subject)
    if isinstance(value, partial):
        args, keywords = value.args, value.keywords
        parts: list[Any] = [value.func, *args, *keywords.values()]
        function, *given = (_on_copy(part, made) for part in parts)
        if all(a is b for a, b in zip(parts, (function, *given), strict=True)):
            return value
        return partial(function, *given[: len(args)], **dict(zip(keywords, given[len(args) :], strict=True)))
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    cells = tuple(CellType() for _ in value.__closure__)
    function = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    function.__kwdefaults__ = value.__kwdefaults__
    function.__dict__.update(value.__dict__)
    # Before its cells are filled: a function may hold itself.
    made[id(value)] = function
    filled = [(old, new) for old, new in zip(value.__closure__, cells, strict=True) if old != CellType()]
    for old, new in filled:
        new.cell_contents = _on_copy(old.cell_contents, made)
    if all(new.cell_contents is old.cell_contents or new.cell_contents is function for old, new in filled):
        made[id(value)] = value
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
