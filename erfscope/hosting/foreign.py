"""Fixed seeds while other people's code builds a model."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from erfscope.hosting.random_states import same_random_numbers


@contextlib.contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and the standard library inside the block, and put them back after it."""
    with same_random_numbers():
        # Not torch.manual_seed: in a process that has not used its GPUs yet, that would seed them for good.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield
