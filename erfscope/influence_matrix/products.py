"""Vector-Jacobian products of one forward pass, one by one or together, whichever was measured to be faster."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from erfscope.engine.batch_size import OVERHEAD
from erfscope.environment import available_bytes
from erfscope.influence_matrix.live_bytes import LiveBytes

#: Bytes that products taken together may use at once. Larger groups leave the processor's caches and are no faster.
BUDGET = 64 * 2**20
#: How many products at most are taken both ways, to see which way is faster.
PROBE = 16
#: Below this many seconds products taken together are timed a second time: the first may have been slow to start.
BRIEF = 0.5
#: Products that take fewer seconds than this in all are looped: only loading what counts memory takes longer.
TRIFLE = 0.2
#: What PyTorch says where it takes products one by one behind the scenes, which the stop-watch sees.
NOT_BATCHED = "There is a performance drop because we have not yet implemented the batching rule"


@dataclass(slots=True, eq=False)
class Products:
    """The products v^T J of one forward pass, J = dy/dx; product number j has its own v.

    Where channels are exact, v is one channel of one output: ``len(outputs) * c'`` products, the channels of an output
        in a row. Else v is
    one on all channels of one output: ``len(outputs)`` products.
    """

    #: The input, (n, c), a leaf.
    x: Tensor
    #: The output, (m, c'), computed from it.
    y: Tensor
    outputs: Sequence[int]
    exact: bool

    def __len__(self) -> int:
        return len(self.outputs) * (self.y.shape[1] if self.exact else 1)

    def owners(self, numbers: range) -> Tensor:
        """Position in ``outputs`` of the output that each product belongs to."""
        return torch.arange(numbers.start, numbers.stop) // (self.y.shape[1] if self.exact else 1)

    def looped(self, numbers: range) -> Tensor:
        """Products one by one, (k, n, c)."""
        return torch.cat([self._gradient(self._seeds(range(j, j + 1))[0])[None] for j in numbers])

    def together(self, numbers: range) -> Tensor:
        """The same products from one batched backward pass.

        Raises:
            Exception: of any kind, where the backward pass of some operation cannot be batched.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOT_BATCHED)
            return self._gradient(self._seeds(numbers), batched=True)

    def _gradient(self, seeds: Tensor, *, batched: bool = False) -> Tensor:
        g = torch.autograd.grad(self.y, self.x, seeds, retain_graph=True, allow_unused=True, is_grads_batched=batched)[
            0
        ]
        return self.x.new_zeros((*seeds.shape[:-2], *self.x.shape)) if g is None else g.detach()

    def _seeds(self, numbers: range) -> Tensor:
        """The vectors v, (k, m, c')."""
        seeds = torch.zeros((len(numbers), *self.y.shape), dtype=self.y.dtype, device=self.y.device)
        channels = self.y.shape[1]
        for row, j in enumerate(numbers):
            if self.exact:
                seeds[row, self.outputs[j // channels], j % channels] = 1
            else:
                seeds[row, self.outputs[j]] = 1
        return seeds


@dataclass(slots=True)
class Pace:
    """How many products are taken together; found out at the first forward pass, and kept for those of further
    samples."""

    #: Samples that the same function will be applied to.
    samples: int = 1
    #: 1 means one by one; None, not known yet.
    size: int | None = field(default=None, init=False)

    def run(self, products: Products) -> Iterator[tuple[Tensor, Tensor]]:
        """All products, piece by piece: (owners (k,), products (k, n, c))."""
        if self.size is None:
            self.size = fastest(products, self.samples)
        for start in range(0, len(products), self.size):
            numbers = range(start, min(start + self.size, len(products)))
            take = products.together if self.size > 1 else products.looped
            yield products.owners(numbers), take(numbers)


def fastest(products: Products, samples: int = 1) -> int:
    """How many products to take together: 1, or as many as fit into the memory there is for it where that was faster.

    A few products of this very function are taken both ways. They are looped where they are too few or too quick to
    repay that, where two do not fit into the memory, or where the batched backward pass fails, is slower, or gives
    other numbers.

    Args:
        products: Of the first sample.
        samples: How many samples there are in all.
    """
    total = len(products) * samples
    # Taken twice: not more than a quarter of all.
    probe = range(min(len(products), PROBE, total // 4))
    if len(probe) < 2:
        return 1
    products.looped(probe[:1])  # the first one is slower than the others
    one_by_one, slow = _timed(products.looped, probe)
    if slow * total < TRIFLE * len(probe):
        return 1
    most = min(len(products), _fitting(products))
    part = probe[:most]
    if len(part) < 2:
        return 1
    try:
        together, quick = _timed(products.together, part)
        if quick < BRIEF:
            _, quick = _timed(products.together, part)
    except Exception:  # the loop has just shown that the function itself can be differentiated: only batching it fails
        return 1
    return most if quick * len(probe) < slow * len(part) and _alike(one_by_one[:most], together) else 1


def _fitting(products: Products) -> int:
    """How many products fit into the memory there is for them."""
    live = LiveBytes()
    with live:
        products.looped(range(1))
    there = available_bytes(products.x.device)
    room = BUDGET if there is None else min(BUDGET, there // 4)
    return int(room // max(OVERHEAD * live.peak, 1))


def _timed(take: Callable[[range], Tensor], numbers: range) -> tuple[Tensor, float]:
    """Products, and the seconds they took. Adding them up waits for an accelerator."""
    start = time.perf_counter()
    found = take(numbers)
    float(found.sum())
    return found, time.perf_counter() - start


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two ways of computing the same products agree up to rounding; products that are not finite are left to
    the loop."""
    tolerance = 1e4 * torch.finfo(one.dtype).eps * float(one.abs().max())
    return bool(((one - other).abs() <= tolerance).all())
