"""One writer of files: whatever the content, the file is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erfscope.storage.writing import FORMATS, write_bytes
from erfscope.view.table import Table, format_table


def write(path: str | Path, content: bytes | str | Table | Mapping[str, Any], *, force: bool = False) -> None:
    """Write a file, and make the folders above it.

    Args:
        path: Its name; of a table the suffix is the format: .csv, .md or .tex.
        content: Bytes, a text, a table, or a mapping of JSON values.
        force: Whether to replace a file of that name.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, or it cannot be written.
    """
    target = Path(path)
    if isinstance(content, Table):
        content = format_table(content, FORMATS[target.suffix.lower()].table)
    elif isinstance(content, Mapping):
        content = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_bytes(target, content.encode() if isinstance(content, str) else content, force=force)
