"""What many commands of a file do alike and none is tested for: models by name are opened once, and figures of folders
are empty."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from matplotlib.figure import Figure
from torch import Tensor

from erfscope import Result
from erfscope.adapters import ModuleAdapter
from erfscope.core.request.request import Request
from erfscope.core.run import models
from erfscope.show.figures import draw
from erfscope.show.figures.kinds import Drawn
from erfscope.show.figures.style import FigureStyle

#: Names of timm; a file, a folder or a hub can have changed since.
NAME = re.compile(r"(?:[^=]*=)?[a-z]\w*")


@pytest.fixture(scope="module")
def opened_once() -> Iterator[None]:
    """A model that is opened a second time is that of the first: for tests whose claim is not about opening it."""
    built, kept = models.open_adapter, {}

    def opened(model: Any, request: Request, **asked: Any) -> tuple[ModuleAdapter, str]:
        changes = [request.insert, *request.building.values()]
        known = isinstance(model, str) and NAME.fullmatch(model) and not isinstance(request.images, Tensor)
        if not known or any(change is not None for change in changes):
            return built(model, request, **asked)
        s = request.settings
        key = (model, s.seed, s.device, s.dtype, s.squash, *asked.items())
        if key not in kept:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                kept[key] = (built(model, request, **asked), said)
        found, said = kept[key]
        for each in said:
            warnings.warn(each.message, stacklevel=1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "open_adapter", opened)
        yield


@pytest.fixture(scope="module")
def figures_undrawn(figures_undrawn: None) -> Iterator[None]:
    """That of all tests, and the figures of folders are not laid out either."""
    of_folder = draw.folder_figures

    def empty(results: Sequence[Result], kind: str, style: FigureStyle) -> Drawn:
        style.check()
        draw.refuse_unfit(results, kind, width=style.width)
        return Drawn(figure=Figure(), words=())

    def files(results: Sequence[Result], **more: Any) -> Iterator[tuple[str, bytes]]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(draw, "_drawn", empty)
            return iter([*of_folder(results, **more)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "folder_figures", files)
        yield
