"""Paths that lead nowhere, such as links back to themselves: no file can be read or written there."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from erfscope.errors import ErfscopeError


def refuse_loop(path: str | Path) -> None:
    """Refuse a path on which a link leads back to itself, and one that no file can have.

    Raises:
        ErfscopeError: it is such a path.
    """
    if "\0" in str(path):
        raise ErfscopeError(f"{str(path)!r} is no name of a file or folder: it holds a null character")
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        if text := loop_text(error, path):
            raise ErfscopeError(text) from error


def loop_text(error: BaseException, path: str | Path | None = None) -> str | None:
    """What to say of an error that a link which leads back to itself has caused; None of any other.

    Args:
        error: What the system or the standard library raised.
        path: What was asked for, where the error does not say.
    """
    said = re.fullmatch(r"Symlink loop from '(.*)'", str(error)) if isinstance(error, RuntimeError) else None
    if said is None and not (isinstance(error, OSError) and error.errno == errno.ELOOP):
        return None
    where = path or (said[1] if said else getattr(error, "filename", None))
    return f"{str(where)!r} is, or lies behind, a link that leads back to itself; remove the link, or let it lead to a file"
