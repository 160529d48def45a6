"""What keeps a measurement apart from the training around it: random states, and whether the model is still built as it was."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from erfscope.errors import ErfscopeError
from erfscope.hosting.random_states import same_random_numbers

#: What :func:`shape_of` gives; only equality means something.
Shape = tuple[object, ...]


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's inference mode is not seen inside, and random numbers go on afterwards as if nothing had been measured."""
    with torch.inference_mode(False), same_random_numbers():
        yield


def shape_of(module: nn.Module) -> Shape:
    """How a module is built, weights apart: its parts' kinds, their plain settings (strides, dilations), and its tensors' shapes.

    Not seen: a setting that is no number, word or tuple of such, and code that was exchanged.
    """
    parts = []
    for name, part in module.named_modules():
        settings = {key: repr(value) for key, value in vars(part).items() if key != "training" and _is_plain(value)}
        tensors = [
            (key, id(type(t)), t.shape, t.dtype, t.device)
            for key, t in (*part._parameters.items(), *part._buffers.items())
            if t is not None
        ]
        parts.append((name, id(type(part)), settings, tensors))
    return tuple(parts)


def _is_plain(value: object) -> bool:
    return isinstance(value, int | str | None) or (isinstance(value, tuple | list) and all(map(_is_plain, value)))


def whole(name: str, value: object, *, least: int | None = None) -> int:
    """A whole number, Python's or NumPy's.

    Raises:
        ErfscopeError: anything else, or less than the least.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise ErfscopeError(f"{name} is a whole number, not {value!r}")
    if least is not None and number < least:
        raise ErfscopeError(f"{name} must be at least {least}, not {number}")
    return number
