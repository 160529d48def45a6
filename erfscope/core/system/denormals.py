"""Denormal numbers taken as zero: processors compute many times slower with them, and the gradient of one unit passes
through them where it dies away."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from erfscope.core.system.torch_internals import openmp_parallel

#: The smallest number above zero, which equals zero where denormal numbers are taken as that.
SMALLEST = 5e-324
# NumPy keeps what it finds at the first time, and before 2.3 warns where that is zero.
for _dtype in (np.float32, np.float64):
    np.finfo(_dtype)
_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Take numbers below 2^-126 (float32) or 2^-1022 (float64) as zero in this thread and in those that compute for it;
    put each thread's flag back as found.

    A processor without such a flag computes on. Where PyTorch's threads are not OpenMP's, as on Windows, the flag is
    this thread's alone.
    """
    found, own, threads = dict[int, bool](), SMALLEST == 0, torch.get_num_threads()

    def begin() -> None:
        found[threading.get_ident()] = SMALLEST == 0
        torch.set_flush_denormal(True)

    _in_threads(begin, threads)
    try:
        yield
    finally:
        # A thread that began inside has the flag of the one that began it.
        _in_threads(lambda: torch.set_flush_denormal(found.get(threading.get_ident(), own)), threads)
        torch.set_flush_denormal(own)


def _in_threads(work: Callable[[], object], threads: int) -> None:
    """Call in this thread and in those of OpenMP that compute for it."""
    parallel = openmp_parallel()
    if parallel is None:
        work()
    else:
        parallel(_Work(lambda _: work()), None, max(threads, torch.get_num_threads()), 0)
