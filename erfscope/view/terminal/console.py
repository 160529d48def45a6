"""The console that everything for a terminal is drawn on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from erfscope.printable import UNBROKEN, kept_together, printable


class PlainConsole(Console):
    """A console that shows text as it is: no markup, no emoji codes, no control characters; an option and its value
    stand on one line.

    Args:
        **options: Those of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; those that rich makes for itself, such as colours, stay as they are."""
        return self._printable(super().render(_kept_together(renderable), options))

    def _printable(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            text = segment.text.replace(UNBROKEN, " ")
            yield segment if segment.control else Segment(printable(text, keep="\n"), segment.style)


def _kept_together(renderable: RenderableType) -> RenderableType:
    """The renderable; text with its options beside their values."""
    if isinstance(renderable, str):
        return kept_together(renderable)
    if not isinstance(renderable, Text):
        return renderable
    text = renderable.copy()
    text.plain = kept_together(text.plain)
    return text
