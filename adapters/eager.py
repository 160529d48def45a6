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
    code runs again during the backward pass, when the model is the caller's again, or in a graph of its own that no
    hook sees. Blocks of several threads may overlap.

    What is not switched off: checkpointing by other code than ``torch.utils.checkpoint``.
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
    # Whatever is compiled has loaded Dynamo, which takes seconds.
    if "torch._dynamo" in sys.modules:
        _undo.enter_context(torch.compiler.set_stance("force_eager"))
    # Not checkpoint() itself, which other modules import by name, but what it calls.
    checkpoints: Any = torch.utils.checkpoint
    for name, plain in (
        ("CheckpointFunction", _Plain),
        ("_checkpoint_without_reentrant_generator_impl", _nothing_around),
    ):
        _undo.callback(setattr, checkpoints, name, getattr(checkpoints, name))
        setattr(checkpoints, name, plain)


class _Plain:
    """Stands in for the autograd function of reentrant checkpoints: the function, called as it is."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _nothing_around(*_args: Any, **_options: Any) -> Iterator[None]:
    """Stands in for what is done before and after the function of a non-reentrant checkpoint."""
    yield


#: What runs reentrant and non-reentrant checkpoints in PyTorch, and what runs here.
_INSTEAD = {"CheckpointFunction": _Plain, "_checkpoint_without_reentrant_generator_impl": _nothing_around}
