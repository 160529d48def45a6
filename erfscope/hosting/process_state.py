"""What a process has once for all its code: other people's code may change it while it runs, and it is put back afterwards."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from erfscope.hosting.random_states import States, put_back, read_states

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: Reads a piece of the state, and writes it back.
_Switch = tuple[Callable[[], Any], Callable[[Any], object]]
_UNREADABLE = object()
_SIGNALS = tuple(sorted(signal.valid_signals()))


class _Keeper:
    """Puts pieces of the process's state back when the last block that wants them kept has ended.

    With several threads it is the last one: what the first to end put back could be what another has changed for itself meanwhile.
    """

    def __init__(self, switches: Sequence[_Switch]) -> None:
        self._switches = switches
        self._lock = threading.Lock()
        self._running = 0
        self._before: list[Any] = []

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Nothing that is done inside changes the state for longer than the block."""
        with self._lock:
            if not self._running:
                self._before = [_read(read) for read, _ in self._switches]
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    for (read, write), before in zip(self._switches, self._before, strict=True):
                        _put_back(read, write, before)


def _read(read: Callable[[], Any]) -> Any:
    """A piece of the state; some cannot be read where a newer way of setting them was used, or where the working directory is gone."""
    try:
        return read()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return _UNREADABLE


def _put_back(read: Callable[[], Any], write: Callable[[Any], object], before: Any) -> None:
    now = _read(read)
    if before is not _UNREADABLE and (now is _UNREADABLE or now != before):
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            write(before)


@contextlib.contextmanager
def keep_switches() -> Iterator[None]:
    """Keep what steers a computation, and where files and words go, through a call of a model's code.

    The working directory, the standard streams, signal handlers, warnings' filters, PyTorch's default dtype and device, thread count,
    determinism and precision, numpy's error handling, the recursion limit, gradient, inference and autocast modes. Not the random numbers:
    two calls of a model may differ. Not ``sys.path`` and the environment, which its next call may need.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    depth = sys.getrecursionlimit()
    with keep_modules(), _SWITCHED.keeping(), torch.inference_mode(inference), torch.set_grad_enabled(grad), _keep_autocast():
        try:
            yield
        finally:
            # Before anything else: what follows calls functions.
            sys.setrecursionlimit(depth)


@contextlib.contextmanager
def keep_process() -> Iterator[None]:
    """Keep all that :func:`keep_switches` does, the environment, ``sys.path``, and the generators of random numbers.

    Modules that were imported stay; those that were taken out or replaced come back. The generators stay where they are while other
    threads run: those may be drawing from them.
    """
    with _WHOLE.keeping(), keep_switches():
        yield


def keeps_process(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function run within :func:`keep_process`."""

    @functools.wraps(function)
    def kept(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with keep_process():
            return function(*args, **kwargs)

    return kept


class _Collections:
    """How many blocks want no garbage collected, and whether it was before the first of them."""

    lock, paused, was = threading.Lock(), 0, False


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Look for no circles of objects meanwhile: a recording makes many objects, and each look goes through all that PyTorch is made of.

    For blocks that hold no numbers: what a circle keeps alive stays until the end.
    """
    with _Collections.lock:
        if not _Collections.paused:
            _Collections.was = gc.isenabled()
            gc.disable()
        _Collections.paused += 1
    try:
        yield
    finally:
        with _Collections.lock:
            _Collections.paused -= 1
            if not _Collections.paused and _Collections.was:
                gc.enable()


@contextlib.contextmanager
def keep_modules() -> Iterator[None]:
    """Put back what is taken out of ``sys.modules`` and ``sys.path`` inside, or replaced there; what is new stays."""
    modules, path = sys.modules.copy(), list(sys.path)
    try:
        yield
    finally:
        # Told in one step where nothing changed, as almost always: there are thousands of modules.
        if sys.modules != modules:
            sys.modules.update({name: module for name, module in modules.items() if sys.modules.get(name) is not module})
        if lost := [entry for entry in path if entry not in sys.path]:
            sys.path[:] = [*(entry for entry in sys.path if entry not in path), *(entry for entry in path if entry in (*sys.path, *lost))]


@contextlib.contextmanager
def _keep_autocast() -> Iterator[None]:
    kinds = ("cpu", "cuda")
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    try:
        yield
    finally:
        for kind, enabled, dtype in before:
            if (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) != (enabled, dtype):
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(before: Mapping[int, Any]) -> None:
    # Only the main thread may set handlers, so that no other can have changed them.
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in before.items():
        # None: not set from Python.
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _filters() -> tuple[Any, ...]:
    return warnings.filters, tuple(warnings.filters), warnings.showwarning


def _set_filters(before: tuple[Any, ...]) -> None:
    owner, entries, shown = before
    owner[:] = entries
    warnings.filters = owner
    warnings.showwarning = shown


def _default_device() -> Any:
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _set_default_device(before: Any) -> None:
    torch.set_default_device(None if before is None else before.device)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _attribute(owner: Any, name: str) -> _Switch:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


_CUDNN: Any = torch.backends.cudnn
_SWITCHED = _Keeper(
    (
        (os.getcwd, os.chdir),
        *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook")),
        (_handlers, _set_handlers),
        (_filters, _set_filters),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_default_device, _set_default_device),
        (torch.get_num_threads, torch.set_num_threads),
        (_determinism, lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1])),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        *(_attribute(_CUDNN, name) for name in ("enabled", "benchmark", "deterministic")),
        (np.geterr, lambda before: np.seterr(**before)),
        (gc.isenabled, lambda before: gc.enable() if before else gc.disable()),
    )
)


def _set_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _set_generators(before: States) -> None:
    if threading.active_count() == 1:
        put_back(before)


def _set_path(before: Sequence[str]) -> None:
    sys.path[:] = before


_WHOLE = _Keeper(
    (
        (lambda: dict(os.environ), _set_environment),
        (lambda: list(sys.path), _set_path),
        # Read without waiting for a thread that draws from seeded generators: its code may want this very lock.
        (read_states, _set_generators),
    )
)
