"""Memory that operations take, counted by the storages that live."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from erfscope.core.system.containers import tensors_in
from erfscope.core.system.torch_internals import TorchDispatchMode


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it the storages that operations make are counted for as long as they live; views and inputs add
    nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        #: The largest sum of bytes alive at once so far.
        self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            self._seen.setdefault(storage, None)
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage not in self._seen:
                self._seen[storage] = None
                size = storage.nbytes()
                self.now += size
                weakref.finalize(storage, self._free, size)
        self.peak = max(self.peak, self.now)
        return out

    def _free(self, size: int) -> None:
        self.now -= size


def _storages(values: object) -> Iterator[torch.UntypedStorage]:
    for _, value in tensors_in(values):
        if value.layout is torch.strided:
            yield value.untyped_storage()
