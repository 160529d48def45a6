"""What a command reads, which no output may replace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from erfscope.core.answer.storage.writing import refuse_input, refuse_inside
from erfscope.core.values.errors import ErfscopeError


def refuse_inputs(output: str, images: Any, read: Sequence[str | Path] = ()) -> None:
    """Refuse an output that is or holds one of the inputs, or lies in one that is zarr.

    Args:
        output: The output.
        images: Files, folders and patterns, as ``--image`` names them.
        read: Other files and folders that are read.

    Raises:
        ErfscopeError: it is.
    """
    from erfscope.core.images.files import by_input

    named = by_input(images)
    several = named.values() if isinstance(named, Mapping) else [named]
    inputs = [*read, *(path for paths in several for path in ([paths] if isinstance(paths, str) else paths or ()))]
    # A folder is no file of another folder.
    files = list(_files([each for each in inputs if Path(output).is_file() or not Path(each).exists()]))
    refuse_input(output, [*inputs, *files])
    refuse_inside(output, files)


def _files(inputs: Sequence[str | Path]) -> Iterator[str | Path]:
    """The files that inputs name, those in folders and of patterns among them."""
    from erfscope.core.answer.storage.files import is_report
    from erfscope.core.images.files import EVERY, find

    for each in inputs:
        if is_report(Path(each)):
            yield from Path(each).iterdir()
        # What is not there is refused where it is read.
        with contextlib.suppress(ErfscopeError):
            yield from find(each, EVERY).files
