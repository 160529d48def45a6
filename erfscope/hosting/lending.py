"""A live module during a measurement: one thread at a time, and what its forward passes change is put back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch import nn

from erfscope.errors import MeasurementError
from erfscope.hosting.snapshot import Snapshot

#: Parts of modules that are in use: by id the thread and how often it took them. What is in use is alive, so that its id is its own.
_in_use: dict[int, tuple[int, int]] = {}
#: By thread the parts that it waits for.
_awaited: dict[int, list[int]] = {}
_freed = threading.Condition()


@contextlib.contextmanager
def lend_modules(*modules: nn.Module) -> Iterator[None]:
    """No other thread measures these modules, and afterwards their buffers and attributes are as they were, for the time of the block.

    A block inside a block of the same thread puts nothing back.

    Raises:
        MeasurementError: this thread has a part of the modules already, and another thread has the rest.
    """
    with lock_modules(*modules) as is_first, contextlib.ExitStack() as undone:
        for module in modules if is_first else ():
            undone.enter_context(_keep_conversion(module))
            undone.callback(Snapshot(module).put_back)
        yield


@contextlib.contextmanager
def _keep_conversion(module: nn.Module) -> Iterator[None]:
    """Evaluation mode from the first to the last pass where a ``train`` of the model's own converts weights for it, which are put back.

    As some merge what they learn into their weights. Put back between two passes would be the mark that it is done, and not the weights.
    """
    training = [(m, m.training) for m in module.modules()]
    converts = any(flag and type(m).train is not nn.Module.train for m, flag in training)
    before = Snapshot(module, parameters="numbers") if converts else None
    try:
        if before is not None:
            module.eval()
            if all(name.rpartition(".")[2] == "training" for name in before.changed()):
                before = None
        yield
    finally:
        if before is not None:
            before.put_back()
        for m, flag in training if converts else ():
            m.training = flag


@contextlib.contextmanager
def lock_modules(*modules: nn.Module) -> Iterator[bool]:
    """No other thread is in such a block of these modules, or of one that shares parts, parameters or buffers with them.

    Other modules are measured side by side. A thread that trains a module meanwhile is not kept from it.

    Yields:
        Whether this is the outermost block of this thread.

    Raises:
        MeasurementError: this thread has a part of the modules already, and another thread has the rest; or that waits for what this one
            has. Both would wait for ever.
    """
    me = threading.get_ident()
    parts = [part for module in modules for part in (*module.modules(), *module.parameters(), *module.buffers())]
    keys = list(dict.fromkeys(map(id, parts)))

    def taken() -> bool:
        return any(key in _in_use and _in_use[key][0] != me for key in keys)

    with _freed:
        is_first = not any(key in _in_use and _in_use[key][0] == me for key in keys)
        if not is_first and taken():
            raise MeasurementError(
                "parts of this model are being measured by another thread; measure models that share parts one at a time"
            )
        if _waits_for(keys, me):
            raise MeasurementError(
                "this model is being measured by a thread that waits for a model of this thread; measure them in the same order in both"
            )
        _awaited[me] = keys
        try:
            _freed.wait_for(lambda: not taken())
        finally:
            del _awaited[me]
        for key in keys:
            _in_use[key] = me, _in_use[key][1] + 1 if key in _in_use else 1
    try:
        yield is_first
    finally:
        with _freed:
            for key in keys:
                count = _in_use[key][1] - 1
                if count:
                    _in_use[key] = me, count
                else:
                    del _in_use[key]
            _freed.notify_all()
        del parts


def _waits_for(keys: list[int], thread: int) -> bool:
    """Whether those who have these parts wait, in the end, for parts that a thread has."""
    owners = {_in_use[key][0] for key in keys if key in _in_use}
    seen: set[int] = set()
    while owners - seen:
        owner = (owners - seen).pop()
        seen.add(owner)
        owners |= {_in_use[key][0] for key in _awaited.get(owner, ()) if key in _in_use}
    return any(_in_use[key][0] == thread for owner in seen for key in _awaited.get(owner, ()) if key in _in_use)
