"""Kinds of values that options of the command line take, and what a shell offers of them at TAB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import rich_click as click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from erfscope.errors import unknown


class File(StringParamType):
    """Any text; a shell offers files and folders."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Leave it to the shell."""
        return [CompletionItem(incomplete, type="file")]


class Text(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on, and not before
    """Text that a function may read, or one of some words."""

    name = "text"

    def __init__(
        self, *, read: Callable[[str], Any] | None = None, words: Sequence[str] = (), is_closed: bool = False
    ) -> None:
        """Make a kind.

        Args:
            read: Text -> the value; a ValueError says what can be read.
            words: What a shell offers.
            is_closed: Whether there is nothing else.
        """
        self.read, self.words, self.is_closed = read or str, words, is_closed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, read."""
        if self.is_closed and value not in self.words:
            self.fail(str(unknown("value", str(value), self.words, limit=len(self.words))), param, ctx)
        try:
            return self.read(str(value)) if isinstance(value, str | int | float) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """The words that begin as the value does."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def seconds(text: str) -> float:
    """``90``, ``90s``, ``10m`` or ``2h`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no time; write 90, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def n_bytes(text: str) -> int:
    """``8GiB``, ``8G`` or ``500MB`` in bytes; all units are powers of 1024."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no size; write 8GiB or 500M")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
