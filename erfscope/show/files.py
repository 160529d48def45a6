"""One writer of files: whatever the content, a file or a folder is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from erfscope.core.answer.storage.writing import FORMATS, new_directory, suffixes, write_bytes
from erfscope.core.values.errors import ErfscopeError
from erfscope.show.view.table import Table, format_table


def write(path: str | Path, content: Any, *, force: bool = False) -> None:
    """Write a file, and make the folders above it.

    Args:
        path: Its name; the suffix is the format of a table (.csv, .md or .tex) and of a figure (.png, .svg or .pdf).
        content: Bytes, a text, a table, a mapping or list of JSON values, or a figure of matplotlib.
        force: Whether to replace a file of that name.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, it cannot be written, or its suffix is of no format of the
            content.
        TypeError: other content.
    """
    write_bytes(Path(path), _as_bytes(content, Path(path)), force=force)


def write_folder(path: str | Path, files: Mapping[str, Any], *, force: bool = False) -> None:
    """Write a folder, all of its files or none, and make the folders above it.

    Args:
        path: Its name.
        files: The content of each file by its name, as for :func:`write`.
        force: Whether to replace a folder of that name that holds the first of the files.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, it holds other files, or it cannot be written.
        TypeError: other content.
    """
    with new_directory(Path(path), force=force, holding=next(iter(files))) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(_as_bytes(content, Path(name)))


def _as_bytes(content: Any, path: Path) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, Table):
        return format_table(content, FORMATS[_suffix(path, "table")].table).encode()
    if isinstance(content, (Mapping, list)):
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    if not hasattr(content, "savefig"):
        raise TypeError(f"cannot write a {type(content).__name__}: neither bytes, text, a table, JSON nor a figure")
    from erfscope.show.figures.canvas import figure_bytes

    return figure_bytes(content, _suffix(path, "figure"))


def _suffix(path: Path, kind: Literal["table", "figure"]) -> str:
    """The suffix of a file for one kind of content."""
    suffix, known = path.suffix.lower(), suffixes(kind)
    if suffix not in known:
        raise ErfscopeError(f"{path.name} is no file for a {kind}; it ends in {', '.join(known)}")
    return suffix
