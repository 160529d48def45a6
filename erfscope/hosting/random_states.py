"""The generators of random numbers that a process has once for all its code: PyTorch's, NumPy's and Python's."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

#: States by whose generator it is, in words; two are equal where the next numbers are.
States = Mapping[str, Any]
#: Held by the thread that draws from seeded generators: no other one seeds them, reads their states or puts them back meanwhile.
DRAWING = threading.RLock()


def random_states() -> States:
    """Return the state of every global generator once no other thread draws from seeded ones."""
    with DRAWING:
        return read_states()


def read_states() -> States:
    """Return the state of every global generator; those of graphics processors where PyTorch has begun to use them."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    cuda: Any = torch.cuda
    found = {
        "PyTorch's": bytes(torch.get_rng_state().numpy()),
        "NumPy's": (legacy[0], legacy[1].tobytes(), *legacy[2:]),
        "Python's": random.getstate(),
    }
    if cuda.is_initialized():
        found["CUDA's"] = tuple(bytes(state.numpy()) for state in cuda.get_rng_state_all())
    return found


def put_back(states: States) -> None:
    """Let every generator go on from a state that :func:`random_states` has given."""
    kind, keys, *rest = states["NumPy's"]
    with DRAWING:
        torch.set_rng_state(_tensor(states["PyTorch's"]))
        np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002
        random.setstate(states["Python's"])
        for number, state in enumerate(states.get("CUDA's", ())):
            torch.cuda.set_rng_state(_tensor(state), number)


def drawn_since(before: States) -> list[str]:
    """Return whose generators have been drawn from."""
    return [name for name, state in random_states().items() if state != before.get(name)]


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Let random numbers go on afterwards as if nothing had been run inside."""
    before = random_states()
    try:
        yield
    finally:
        put_back(before)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
