"""What people see and keep of results is made on the floor above, which is named once, in ``erfscope/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol


class Outputs(Protocol):
    """The text, tables, figures and files of results, reports, and other values that are :class:`Shown`."""

    def line(self, shown: Any) -> str:
        """A result or a report in one line."""

    def text(self, shown: Any) -> str:
        """Any value as plain text."""

    def drawn(self, shown: Any) -> Any:
        """Any value as a renderable of rich."""

    def fragment(self, shown: Any) -> str:
        """Any value as HTML for a notebook."""

    def table(self, report: Any, measures: Sequence[str] | None, *, compared: Sequence[str], format: str) -> str:
        """A report as :meth:`erfscope.Report.table` gives it."""

    def frame(self, shown: Any, measures: Sequence[str] | None = None, *, index: str | None = None) -> Any:
        """A report, or the layers of a model, as a pandas data frame."""

    def figure(self, results: Sequence[Any], kind: str | None, *, path: str | Path | None, **style: Any) -> Any:
        """Results as a matplotlib figure."""

    def document(self, report: Any, maps: Any) -> dict[str, Any]:
        """A report as JSON values."""

    def save(self, shown: Any, path: str | Path, **options: Any) -> None:
        """Write a result or a report."""


_DOOR: list[Callable[[], Outputs]] = []


def made_by(door: Callable[[], Outputs]) -> None:
    """Say what makes outputs: a function that is called when the first one is wanted, since it imports much."""
    _DOOR[:] = [cache(door)]


def outputs() -> Outputs:
    """What makes outputs."""
    return _DOOR[0]()


class Shown:
    """A value that people look at: it prints as text, and is drawn by rich and in notebooks.

    A class of one's own derives from it and defines :meth:`parts`.
    """

    __slots__ = ()

    def parts(self) -> Iterable[Any]:
        """What is shown, one below the other: tables and lines, as ``erfscope.show.Table`` and ``Note``."""
        raise NotImplementedError

    def __str__(self) -> str:
        return outputs().text(self)

    def __rich__(self) -> Any:
        return outputs().drawn(self)

    def _repr_html_(self) -> str:
        return outputs().fragment(self)
