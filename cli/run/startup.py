"""A start without garbage collection: the imports of a command make 400,000 objects, and nearly all of them stay."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Switch the garbage collector off while modules that need torch are imported for the first time."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
