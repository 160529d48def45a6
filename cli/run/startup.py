"""A start without looks for garbage: the imports of a command make four hundred thousand objects, and nearly all of
them stay."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Import what brings torch with the garbage collector switched off; nothing where torch is there already."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
