"""How much memory operations take: the bytes that live at once, and what a run takes beside them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What a run takes for each byte that :func:`erfscope.graph.cost.pass_bytes` counts, at most. Measured on the CPU as
#: the growth of the anonymous resident memory over 224 x 224 and 512 x 512: resnet50 1.1 to 1.2, convnext_tiny 1.3 to
#: 1.45, vit_small 1.4 to 1.5; the first pass of a process 1.3 to 1.6. The rest is scratch memory of kernels and holes
#: between blocks of the heap.
OVERHEAD = 1.6


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
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()
