"""Options of a run that is continued, and its callbacks; see :mod:`erfscope.options.settings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from erfscope.options.option import Option


class Running(TypedDict, total=False):
    """Options that do not change what is measured: what a run continues, and its callbacks."""

    resume: Annotated[Any, Option("The report, or its folder, that the run continues.")]
    keep_in: Annotated[
        str | Path | None,
        Option(
            "Folder that stores each finished row at once, so that a killed run can be resumed. Rows of another run"
            " there are replaced."
        ),
    ]
    stop: Annotated[Callable[[], bool] | None, Option("Called after every batch; true ends the run with what it has.")]
    tell: Annotated[
        Callable[[str], None] | None,
        Option("Called before each measurement, with a line about its cost."),
    ]
    progress: Annotated[
        Callable[[str, int, int], None] | None, Option("Called with (description, images done, images in all).")
    ]
