"""Running a model line by line: without compiled code, and without gradient checkpointing."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

_lock = threading.Lock()
_running = 0
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """No compiled code runs, nothing is compiled, and every activation is kept, for the time of the block.

    Compiled code shows hooks nothing or is compiled anew for them, and its backward pass runs only once. Checkpointed
    code runs again during the backward pass, after the model is handed back, or in a graph of its own that no hook
    sees. Blocks of several threads may overlap.

    Checkpoints of other code than ``torch.utils.checkpoint`` remain.
    """
    global _running
    with _lock:
        if not _running:
            _begin()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _undo.close()


def _begin() -> None:
    # Compiled code has loaded Dynamo; loading it here would take seconds.
    if "torch._dynamo" in sys.modules:
        _undo.enter_context(torch.compiler.set_stance("force_eager"))
    # Other modules import checkpoint() by name; what it calls for reentrant and other checkpoints is replaced.
    checkpoints: Any = torch.utils.checkpoint
    for name, plain in (
        ("CheckpointFunction", _Plain),
        ("_checkpoint_without_reentrant_generator_impl", _nothing_around),
    ):
        _undo.callback(setattr, checkpoints, name, getattr(checkpoints, name))
        setattr(checkpoints, name, plain)


class _Plain:
    """Replaces the autograd function of reentrant checkpoints, and calls the user's function directly."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _nothing_around(*_args: Any, **_options: Any) -> Iterator[None]:
    """Replaces the generator around the function of a non-reentrant checkpoint, and does nothing."""
    yield
