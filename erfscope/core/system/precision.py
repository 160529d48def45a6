"""PyTorch's switches of precision and of kernels: float32 in full, and the same kernels at every run, while erfscope
measures, whatever the process has set."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

#: The precision of products, and whether convolutions may use TF32; None for what PyTorch refuses to read, since the
#: process has set the newer switches alone.
Older = tuple[str | None, bool | None]
_lock, _cudnn_lock = threading.Lock(), threading.RLock()
#: Thread -> for each of its open blocks, the innermost last, whether TF32 is allowed.
_blocks: dict[int, list[bool]] = {}
#: The switches as the first block found them: the older and newer ones of TF32, and ``deterministic`` and ``benchmark``
#: of cuDNN.
_found: tuple[Older, Sequence[str], tuple[bool, bool]]


@contextmanager
def float32_precision(*, tf32: bool) -> Iterator[None]:
    """Compute float32 products and convolutions in full precision, or allow TF32; put the switches back as found.

    Convolutions on a GPU take kernels that give the same numbers at every run (no slower on an H100). The switches are
    the process's. While threads differ, all compute in full precision.
    """
    global _found
    thread = threading.get_ident()
    with _lock:
        if not _blocks:
            cudnn = torch.backends.cudnn
            newer = [level.fp32_precision for level in _levels()]
            _found = _older_switches(), newer, (cudnn.deterministic, cudnn.benchmark)
        _blocks.setdefault(thread, []).append(tf32)
        _set_for_all_threads()
    try:
        yield
    finally:
        with _lock:
            _blocks[thread].pop()
            if not _blocks[thread]:
                del _blocks[thread]
            if _blocks:
                _set_for_all_threads()
            else:
                _set(*_found)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Compute what this thread computes inside the block by other kernels than cuDNN's."""
    with _cudnn_lock:
        before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        try:
            yield
        finally:
            torch.backends.cudnn.enabled = before


def _set_for_all_threads() -> None:
    is_allowed = all(allowed[-1] for allowed in _blocks.values())
    # PyTorch refuses to read the older switches once they and the newer ones disagree, so that both are set alike.
    products, convolutions = _found[0]
    older = (products and ("high" if is_allowed else "highest"), None if convolutions is None else is_allowed)
    _set(older, ["tf32" if is_allowed else "ieee"] * len(_levels()), (True, False))


def _set(older: Older, newer: Sequence[str], kernels: tuple[bool, bool]) -> None:
    products, convolutions = older
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = convolutions
    for level, precision in zip(_levels(), newer, strict=True):
        # A level that follows the one above it is left to do so.
        if level.fp32_precision != precision:
            level.fp32_precision = precision


def _older_switches() -> Older:
    products = convolutions = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(RuntimeError):
            products = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            convolutions = torch.backends.cudnn.allow_tf32
    return products, convolutions


def _levels() -> Sequence[Any]:
    """What has a switch of its own from PyTorch 2.9 on, from the general to the particular."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return ()
    cudnn, cublas, mkldnn = backends.cudnn, backends.cuda.matmul, backends.mkldnn
    return backends, cudnn, cublas, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn
