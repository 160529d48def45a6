"""Options of what a run goes on with, and what it calls; see :mod:`erfscope.options.settings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from erfscope.options.option import COMPUTATION, Option


class Running(TypedDict, total=False):
    """What a run goes on with, and what it calls; nothing of what was asked for."""

    resume: Annotated[Any, Option("What was measured before, to be added to: a report, or the folder of one.")]
    retry_failed: Annotated[
        bool, Option("With --resume: measure models that failed by themselves again, too.", COMPUTATION)
    ]
    keep_in: Annotated[
        str | Path | None,
        Option(
            "Folder in which each finished row is stored as it ends, so that a run that was killed can resume them."
            " What it holds of another run is replaced."
        ),
    ]
    stop: Annotated[Callable[[], bool] | None, Option("Called after every batch; true ends the run with what it has.")]
    tell: Annotated[
        Callable[[str], None] | None,
        Option("Called with a line about what each measurement will take, before it begins."),
    ]
    progress: Annotated[
        Callable[[str, int, int], None] | None, Option("Called with (description, images done, images in all).")
    ]
