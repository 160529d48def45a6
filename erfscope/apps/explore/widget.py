"""The explorer in a notebook; the one door to anywidget, which is not installed everywhere."""

from __future__ import annotations

from importlib.resources import files

import anywidget
import traitlets


class ExplorerWidget(anywidget.AnyWidget):
    """The page in a frame of its own, so that neither it nor the notebook changes the other's style."""

    _esm = (files("erfscope.apps.explore") / "templates" / "widget.js").read_text(encoding="utf-8")
    #: The page's text.
    page = traitlets.Unicode().tag(sync=True)
