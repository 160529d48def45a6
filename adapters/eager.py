"""Running a model line by line: without compiled code, and without gradient checkpointing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks

from erfscope.core.system.torch_internals import compiler_is_loaded

_lock = threading.Lock()
#: Threads that are in a block, once for each.
_threads: list[int] = []
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """No compiled code runs, nothing is compiled, and every activation is kept, for the time of the block.

    Compiled code shows hooks nothing or is compiled anew for them, and its backward pass runs only once. Checkpointed
    code runs again during the backward pass, after the model is handed back, or in a graph of its own that no hook
    sees. Blocks of several threads may overlap.

    Checkpoints of other code than ``torch.utils.checkpoint`` remain.
    """
    with _lock:
        if not _threads:
            _begin()
        _threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _threads.remove(threading.get_ident())
            if not _threads:
                _undo.close()


def _begin() -> None:
    if compiler_is_loaded() and hasattr(torch.compiler, "set_stance"):  # from PyTorch 2.6 on
        _undo.enter_context(torch.compiler.set_stance("force_eager"))
    # Other modules import checkpoint() by name; what it calls is replaced: the function of reentrant checkpoints, and
    # the hooks by which the others drop activations.
    begin, end = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__
    unused: WeakSet[saved_tensors_hooks] = WeakSet()

    def begin_unless_kept(hooks: saved_tensors_hooks) -> None:
        if threading.get_ident() in _threads:
            unused.add(hooks)
        else:
            begin(hooks)

    def end_unless_kept(hooks: saved_tensors_hooks, *error: object) -> None:
        if hooks not in unused:
            end(hooks, *error)

    for owner, name, plain in (
        (torch.utils.checkpoint, "CheckpointFunction", _Plain),
        (saved_tensors_hooks, "__enter__", begin_unless_kept),
        (saved_tensors_hooks, "__exit__", end_unless_kept),
    ):
        if hasattr(owner, name):
            _undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, plain)


class _Plain:
    """Replaces the autograd function of reentrant checkpoints, and calls the user's function directly."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)
