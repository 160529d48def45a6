"""Running a model line by line: without compiled code, and without gradient checkpointing."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

#: What runs a non-reentrant checkpoint; the name differs between versions of PyTorch.
_NON_REENTRANT = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")

_lock = threading.Lock()
_running = 0
_undo = contextlib.ExitStack()


class _Here(threading.local):
    """Of this thread: how many blocks it is in."""

    depth = 0


_here = _Here()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """No compiled code runs, nothing is compiled, and every activation is kept, for the time of the block and in this
    thread alone.

    Compiled code shows hooks nothing or is compiled anew for them, and its backward pass runs only once. Checkpointed
    code runs again during the backward pass, when the model is the caller's again, or in a graph of its own that no
    hook sees. The functions of PyTorch that are switched ask which thread calls them: what another one trains is
    compiled and checkpointed as before.

    What is not switched off: checkpointing by other code than ``torch.utils.checkpoint``.
    """
    global _running
    with _lock:
        if not _running:
            _begin()
        _running += 1
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _running -= 1
            if not _running:
                _undo.close()


def _begin() -> None:
    # Whatever is compiled has loaded Dynamo, which takes seconds.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        _switch(frames, "_stance", _Stance)
    # Not checkpoint() itself, which other modules import by name, but what it calls.
    _switch(torch.utils.checkpoint, "CheckpointFunction", _Reentrant)
    for name in _NON_REENTRANT:
        _switch(torch.utils.checkpoint, name, lambda usual: lambda *args, **options: _around(usual, *args, **options))


def _switch(module: Any, name: str, instead: Callable[[Any], Any]) -> None:
    """Put ``instead(usual)`` in the place of what is usual, where there is such a thing, until the last block ends."""
    if hasattr(module, name):
        usual = getattr(module, name)
        _undo.callback(setattr, module, name, usual)
        setattr(module, name, instead(usual))


class _Stance:
    """Stands in for what Dynamo looks up before it runs compiled code: ``torch.compiler.set_stance`` is the whole
    process's."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    @property
    def stance(self) -> str:
        return "force_eager" if _here.depth else str(self._usual.stance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class _Reentrant:
    """Stands in for the autograd function of reentrant checkpoints: here the function, called as it is."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def apply(self, function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args) if _here.depth else self._usual.apply(function, preserve_rng_state, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


def _around(usual: Callable[..., Iterator[None]], *args: Any, **options: Any) -> Iterator[None]:
    """Stands in for what is done before and after the function of a non-reentrant checkpoint: here nothing."""
    if _here.depth:
        yield
    else:
        yield from usual(*args, **options)
