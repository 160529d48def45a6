"""A start without looks for garbage: the imports of a command make four hundred thousand objects, and nearly all of them stay."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Import what brings torch, and have the garbage collector overlook for good what exists then; nothing where torch is there already.

    For a process that ends with its command: what is imported is looked through neither meanwhile nor later.

    Source: ``gc.freeze``, which is made for what stays.
    """
    if "torch" in sys.modules:
        yield
        return
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
    gc.freeze()
