"""A lock that keeps other processes from updating a baseline."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from erfscope.errors import ErfscopeError


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from updating a file, with a lock that the system takes back however this process ends.

    On the folder, so that no lock file is left in it; where folders cannot be locked, on a file among the temporary
    ones."""
    try:
        if sys.platform == "win32":
            import hashlib
            import msvcrt

            name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
            handle = os.open(Path(tempfile.gettempdir()) / f"erfscope-{name}.lock", os.O_RDWR | os.O_CREAT)
            msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path.parent, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise ErfscopeError(f"cannot lock {path.parent} to update {path.name}: {error.strerror or error}") from error
    try:
        yield
    finally:
        os.close(handle)
