"""One writer of files: whatever the content, the file is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erfscope.storage.writing import FORMATS, write_bytes
from erfscope.view.table import Table, format_table


def write(path: str | Path, content: Any, *, force: bool = False) -> None:
    """Write a file, and make the folders above it.

    Args:
        path: Its name; the suffix is the format of a table (.csv, .md or .tex) and of a figure (.png, .svg or .pdf).
        content: Bytes, a text, a table, a mapping of JSON values, or a figure of matplotlib.
        force: Whether to replace a file of that name.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, or it cannot be written.
    """
    write_bytes(Path(path), _as_bytes(content, Path(path).suffix.lower()), force=force)


def _as_bytes(content: Any, suffix: str) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, Table):
        return format_table(content, FORMATS[suffix].table).encode()
    if isinstance(content, Mapping):
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    from erfscope.figures.canvas import figure_bytes

    return figure_bytes(content, suffix)
