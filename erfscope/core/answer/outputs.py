"""What people see and keep of results is made on the floor above, which is named once, in ``erfscope/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

_DOOR: list[Callable[[], Any]] = []


def made_by(door: Callable[[], Any]) -> None:
    """Say what makes outputs: a function that is called when the first one is wanted, since it imports much."""
    _DOOR[:] = [cache(door)]


def outputs() -> Any:
    """What makes outputs: an ``erfscope.show.outputs.ShownOutputs``."""
    return _DOOR[0]()


class Displayed:
    """A value that prints as text, and is drawn by rich and in notebooks."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(outputs().text(self))

    def __rich__(self) -> Any:
        return outputs().drawn(self)

    def _repr_html_(self) -> str:
        return str(outputs().fragment(self))
