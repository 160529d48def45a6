"""Let mkdocstrings read the ``#:`` comments above fields, and the Sphinx roles in docstrings, which griffe leaves as
they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|data|attr|mod|exc):`~?([^`]+)`")


class Comments(griffe.Extension):
    """Fields without a docstring get the comment above them; roles become code, linked where the site has the name."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Called for every module variable and every field."""
        if attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            text = comment_above(attr.lines_collection[attr.filepath], attr.lineno)
            attr.docstring = griffe.Docstring(text, parent=attr, lineno=attr.lineno) if text else None

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is found."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)


def comment_above(lines: list[str], lineno: int) -> str:
    """The ``#:`` comment that ends above line ``lineno`` (the first is 1); "" where there is none."""
    found: list[str] = []
    for line in reversed(lines[: lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        found.insert(0, line.strip().removeprefix("#:").strip())
    return without_roles(" ".join(found))


def without_roles(text: str) -> str:
    """Markdown for a docstring: ``:func:`f``` is code, and double backquotes are single ones."""
    return re.sub(r"``([^`\n]+)``", r"`\1`", ROLE.sub(lambda found: f"`{found[1].removeprefix('erfscope.')}`", text))
