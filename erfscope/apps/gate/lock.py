"""A lock that keeps other processes from updating a baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from erfscope.core import ErfscopeError

#: The name of the lock in a folder of baselines.
NAME = ".erfscope.lock"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from updating a file, with a lock that the system takes back however this process ends: a
    hidden file, one for each folder. It stays, since another process may wait for it."""
    lock = FileLock(path.parent / NAME)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ErfscopeError(f"cannot lock {lock.lock_file} to update {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
