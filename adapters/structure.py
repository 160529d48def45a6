"""What a module is made of, to see whether it was edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.torch_internals import version_of

#: Values that are compared themselves.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size)
#: Values of a module's attributes that are looked at, at most.
MOST = 200_000


def structure_of(module: nn.Module) -> object:
    """Return what stays equal until a module is edited: modules, hooks, shapes, dtypes, devices, flags, and how often
    indices and masks were written to; not the numbers of its weights, nor counts of batches.

    Args:
        module: Any module.

    Returns:
        What is compared by ``==``; None where the module holds too much to be looked at, as a whole dataset.
    """
    description = _Description()
    try:
        return tuple(
            # A method may be another one than its class had.
            (name, type(part), id(type(part).forward), description.of(vars(part)))
            for name, part in module.named_modules()
        )
    except (_TooLargeError, RecursionError):
        return None


class _TooLargeError(Exception):
    """A module holds more than is worth looking at."""


class _Description:
    """What values are, those that come again by when they came first."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self._looked_at = 0

    def of(self, value: Any) -> object:
        """Describe a value, and what it holds."""
        self._looked_at += 1
        if self._looked_at > MOST:
            raise _TooLargeError
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, Tensor):
            written = 0 if value.is_floating_point() or value.dim() == 0 else version_of(value)
            return tuple(value.shape), value.dtype, value.device, value.layout, written
        if id(value) in self._met:
            return self._met[id(value)]
        self._met[id(value)] = len(self._met)
        if isinstance(value, nn.Module) or callable(value):
            return type(value), id(value)
        if isinstance(value, Mapping):
            # A measurement sets the training flags itself.
            items = ((self.of(key), self.of(each)) for key, each in value.items() if key != "training")
            return type(value), tuple(items)
        if isinstance(value, list | tuple | set | frozenset):
            return type(value), tuple(map(self.of, value))
        return type(value), id(value), self.of(getattr(value, "__dict__", None))
