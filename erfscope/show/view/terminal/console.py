"""The console that everything for a terminal is drawn on."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from erfscope.core.values.printable import UNBROKEN, kept_together, printable

#: Width of text outside a terminal, where COLUMNS is not set.
PLAIN_WIDTH = 110


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


def as_plain_text(shown: RenderableType) -> str:
    """What a terminal of :data:`PLAIN_WIDTH`, or of this one's width, shows, without colours."""
    screen = PlainConsole(color_system=None)
    if not screen.is_terminal and not os.environ.get("COLUMNS"):
        screen.width = PLAIN_WIDTH
    with screen.capture() as captured:
        screen.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def as_html(text: str) -> str:
    """Text whose columns are aligned, for a notebook."""
    return f'<pre style="line-height: 1.2">{html.escape(text)}</pre>'
