"""What keeps a measurement apart from the training around it: random states, and whole numbers as they are given."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from erfscope.errors import ErfscopeError
from erfscope.hosting.random_states import same_random_numbers


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's inference mode is not seen inside, and random numbers go on afterwards as if nothing had been measured."""
    with torch.inference_mode(False), same_random_numbers():
        yield


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
