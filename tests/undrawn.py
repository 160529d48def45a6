"""Reports stored without drawing: a module that imports this fixture has it in place of ``figures_undrawn``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from matplotlib.figure import Figure

from erfscope import Result
from erfscope.show.figures import draw
from erfscope.show.figures.kinds import Drawn


@pytest.fixture(scope="module")
def undrawn(figures_undrawn: None) -> Iterator[None]:
    """Neither the figures of pages nor those of folders and files are drawn: each that fits the results is blank."""

    def blank(results: Sequence[Result], kind: str, style: object) -> Drawn:
        draw.refuse_unfit(results, kind)
        return Drawn(figure=Figure(), words=())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "_drawn", blank)
        yield
