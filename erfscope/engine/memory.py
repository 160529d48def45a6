"""How much memory one picture takes, and how much there is: planned before anything large is allocated.

On Linux an allocation that is too large does not raise: the kernel kills the process once the memory is used.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from erfscope.adapter import IMAGE, Adapter
from erfscope.attribution.gradient import guarded, in_double
from erfscope.attribution.readout import as_leaf
from erfscope.cone.cone import Cone, cropped
from erfscope.geometry.box import sides
from erfscope.geometry.layout import Layout
from erfscope.hosting.copies import copied

#: What a run takes for each byte that :func:`sample_bytes` counts, at most. Measured on the CPU as the growth of the anonymous resident
#: memory over 224 x 224 and 512 x 512: resnet50 1.1 to 1.2, convnext_tiny 1.3 to 1.45, vit_small 1.4 to 1.5; the first pass of a process
#: 1.3 to 1.6. The rest is scratch memory of kernels and holes between blocks of the heap.
OVERHEAD = 1.6


def sample_bytes(
    adapter: Adapter,
    layer: str,
    wrt: str = IMAGE,
    *,
    device: torch.device,
    dtype: torch.dtype,
    amp_dtype: torch.dtype | None = None,
    cone: Cone | None = None,
    known: Mapping[str, Layout] | None = None,
) -> int | None:
    """Bytes alive at once, at the worst moment of one picture's forward pass, with what is saved for the gradient, and one backward pass.

    The pass is run on tensors without numbers that count as lying on ``device``, so that fused attention is counted as what it is.
    Kernels' own scratch memory and the holes in the allocator's heap are not counted, see :data:`OVERHEAD`.

    Args:
        adapter: The model; a copy without numbers is run.
        layer: Layer name.
        wrt: Reference of the gradient.
        device: Where the model lies.
        dtype: Of the input.
        amp_dtype: Autocast dtype of the forward pass.
        cone: What of the pass is computed; all of it if None.
        known: How the layer and the reference hold their maps. Where neither this nor a cone says it, a recorded pass does, uncounted.

    Returns:
        Bytes; None for a model that cannot be run without numbers.
    """
    # Plain tensors on the meta device would save a third to a half of the time (resnet50 0.16 s instead of 0.25 s), but attention falls
    # back to its table there, whatever is run in truth (vit_small 53 MiB instead of 39).
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    live = LiveBytes()
    misses = {found: found.cache_info().misses for found in _caches(adapter.module)}
    try:
        stand_in = copy.copy(adapter)
        with FakeCopyMode(mode):
            stand_in.module = copied(adapter.module)
        layouts = _layouts(adapter, layer, wrt, known) if cone is None else cone.layouts
        with mode, live:
            space = adapter.preprocess.size if cone is None else sides(cone.image)
            x = torch.empty((1, adapter.preprocess.channels, *space), device=device, dtype=dtype)
            with cropped(stand_in.module, *((), ()) if cone is None else (cone.cuts, cone.patches)):
                _pass(stand_in, x, layer, wrt, amp_dtype, layouts)
    except Exception:  # a data-dependent model may fail in any way, and fails again, with its own message, where it is measured
        return None
    finally:
        # A copy shares them, and tensors without numbers must not come out of them again.
        for found, before in misses.items():
            if found.cache_info().misses > before:
                found.cache_clear()
    return live.peak


def _caches(module: nn.Module) -> Iterator[functools._lru_cache_wrapper[Any]]:
    """The cached functions that a model may call: its own, and those of its classes and of the files that these stand in."""
    kinds = {type(part) for part in module.modules() if not type(part).__module__.startswith("torch.")}
    sources = {sys.modules[kind.__module__] for kind in kinds if kind.__module__ in sys.modules}
    for place in (*(vars(part) for part in module.modules()), *map(vars, kinds), *map(vars, sources)):
        for value in tuple(place.values()):
            cells = value.__closure__ or () if isinstance(value, FunctionType | MethodType) else ()
            for found in (value, *(cell.cell_contents for cell in cells if _is_filled(cell))):
                if isinstance(found, functools._lru_cache_wrapper):
                    yield found


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def measured_bytes(
    adapter: Adapter,
    layer: str,
    wrt: str = IMAGE,
    *,
    device: torch.device,
    dtype: torch.dtype,
    known: Mapping[str, Layout] | None = None,
) -> int | None:
    """The same for a model that cannot be run without numbers, by running it on one picture of noise.

    Args:
        adapter: The model.
        layer: Layer name.
        wrt: Reference of the gradient.
        device: Where the model lies.
        dtype: Of the input.
        known: How the layer and the reference hold their maps; a recorded pass tells, uncounted, if None.

    Returns:
        Bytes; None if the model fails.
    """
    shape = (1, adapter.preprocess.channels, *adapter.preprocess.size)
    live = LiveBytes()
    try:
        layouts = _layouts(adapter, layer, wrt, known)
        with live:
            noise = torch.empty(shape, device=device, dtype=dtype).normal_(generator=torch.Generator(device).manual_seed(0))
            _pass(adapter, noise, layer, wrt, None, layouts)
    except Exception:  # it may fail in any way, and fails again, with its own message, where it is measured
        return None
    return live.peak


def _layouts(adapter: Adapter, layer: str, wrt: str, known: Mapping[str, Layout] | None) -> Mapping[str, Layout] | None:
    """How the layer and the reference hold their maps."""
    if known is not None:
        return known
    return adapter.layouts(torch.empty((1, adapter.preprocess.channels, *adapter.preprocess.size), device="meta"), layer, wrt)


def _pass(adapter: Adapter, x: Tensor, layer: str, wrt: str, amp_dtype: torch.dtype | None, known: Mapping[str, Layout] | None) -> None:
    """What the engine does with one picture, unit and draw. The graph is kept during the backward pass, as for several draws."""
    with guarded(x.device, amp_dtype):
        features = adapter.features(as_leaf(x), layer, wrt, known=known)
    with guarded(x.device):
        scalar = features.map.flatten(2)[..., 0].sum()
        if not scalar.requires_grad:
            return
        reference = features.reference
        g = torch.autograd.grad(scalar, reference.edge, retain_graph=True, allow_unused=True)[0]
        if g is not None:
            in_double(reference.layout.to_map(g)).square().sum(1)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it the storages that operations make are counted for as long as they live; views and inputs add nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        #: The largest sum of bytes alive at once so far.
        self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
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
