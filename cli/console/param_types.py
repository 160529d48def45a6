"""Kinds of values that options of the command line take."""

from __future__ import annotations

import re
from typing import Any

import rich_click as click
from click.shell_completion import CompletionItem
from click.types import StringParamType


#: As in erfscope.options.settings, which takes long to import.
class Words(StringParamType):
    """Any text; a shell offers some words at TAB."""

    def __init__(self, words: str) -> None:
        self.words = words.split(", ")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the words that begin as the value does."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class File(StringParamType):
    """Any text; a shell offers files and folders at TAB."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Leave it to the shell."""
        return [CompletionItem(incomplete, type="file")]


class Percent(click.ParamType[Any]):
    """``2%`` or ``0.02``."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a number."""
        try:
            text = str(value).strip()
            return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"{value!r} is no percentage; write 2% or 0.02", param, ctx)


class Draws(click.ParamType[Any]):
    """A number, or ``all``."""

    name = "N|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """The number of draws."""
        if value == "all" or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor 'all'", param, ctx)


class Duration(click.ParamType[Any]):
    """``90``, ``90s``, ``10m`` or ``2h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no time; write 90, 10m or 2h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class Bytes(click.ParamType[Any]):
    """``8GiB``, ``8G`` or ``500MB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; all units are powers of 1024."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", str(value), re.IGNORECASE)
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no size; write 8GiB or 500M", param, ctx)
        return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


class Numbers(click.ParamType[Any]):
    """Comma-separated numbers."""

    name = "a,b,c"

    def __init__(self, example: str) -> None:
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers."""
        if isinstance(value, tuple | list):
            return tuple(float(v) for v in value)
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers; write {self.example}", param, ctx)
