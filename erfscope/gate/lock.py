"""A lock that keeps other processes from updating a baseline."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from erfscope.errors import ErfscopeError


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from updating a file, with a lock that the system takes back however this process ends: on a
    file among the temporary ones, so that none is left beside it."""
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"erfscope-{name}.lock")
    try:
        lock.acquire()
    except OSError as error:
        raise ErfscopeError(f"cannot lock {lock.lock_file} to update {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
