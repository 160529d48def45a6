"""A graph by its adjacency matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from erfscope.adapters.blocks.graph_nets.graph import Graph, gathered
from erfscope.errors import ErfscopeError


class GivenGraph(Graph):
    """A graph by its adjacency matrix, held in buffers.

    Args:
        adjacency: (n, n), entries finite and not negative; A[p, i] is the weight with which p receives from i.
        self_loops: Whether a one is put wherever the diagonal is zero.

    Raises:
        ErfscopeError: another shape, or entries that are negative, infinite or NaN.
    """

    matrix: Tensor
    diagonal: Tensor
    index: Tensor
    mask: Tensor

    def __init__(self, adjacency: Any, self_loops: bool = False) -> None:
        super().__init__()
        # On the CPU even where the default device is another: the numbers are checked below.
        if hasattr(adjacency, "toarray"):  # scipy's sparse arrays
            adjacency = adjacency.toarray()
        if not isinstance(adjacency, Tensor) and np.asarray(adjacency).dtype.kind not in "biuf":
            raise ErfscopeError(f"an adjacency holds real numbers, not {np.asarray(adjacency).dtype}")
        given = (
            adjacency.detach() if isinstance(adjacency, Tensor) else torch.tensor(np.asarray(adjacency), device="cpu")
        )
        given = given.to_dense() if given.layout is not torch.strided else given
        given = given.clone() if given.is_floating_point() else given.to(torch.get_default_dtype())
        _check(given)
        diagonal = given.diagonal().clone()
        self.register_buffer("diagonal", torch.where(diagonal > 0, diagonal, 1) if self_loops else diagonal)
        self.register_buffer("matrix", given.fill_diagonal_(0))
        present = given > 0
        count = max(int(present.sum(1).max()), 1)
        # Neighbours first, in their order, then whatever fills the list up.
        order = present.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
        self.register_buffer("index", order.contiguous())
        self.register_buffer("mask", present.gather(1, order))

    def extra_repr(self) -> str:
        """For ``print``."""
        return f"n={len(self.diagonal)}"

    def loops(self, x: Tensor) -> Tensor:
        """The diagonal, (1, 1, H, W)."""
        return self._fitting(self.diagonal, x).to(x.dtype)[None, None]

    def summed(self, x: Tensor, loops: float | Tensor) -> Tensor:
        """A product with the matrix."""
        self._fitting(self.diagonal, x)
        # Contiguous: the gradient of a product with a channels-last tensor is forty times slower.
        total = torch.unflatten(x.flatten(2).contiguous() @ self.matrix.to(x.dtype).T, 2, x.shape[2:])
        return total + loops * x if isinstance(loops, Tensor) or loops else total

    def neighbours(self, x: Tensor, *, self_loops: bool | None = None) -> tuple[Tensor, Tensor]:
        """As many as the node with most has, and the node itself."""
        own = self._fitting(self.diagonal, x).unsqueeze(0) > 0
        mask = torch.cat([torch.unflatten(self.mask.T, 1, x.shape[2:]), torch.ones_like(own) if self_loops else own])
        values = torch.cat([gathered(x, self.index), x.unsqueeze(2)], 2)
        return (values, mask) if self_loops is not False else (values[:, :, :-1], mask[:-1])

    def adjacency(self, height: int, width: int) -> Tensor:
        """The matrix as it was given, with the self-loops."""
        if height * width != len(self.diagonal):
            raise self._misfit(height, width)
        return self.matrix + torch.diag(self.diagonal)

    def _fitting(self, values: Tensor, x: Tensor) -> Tensor:
        """One value per node, as (H, W).

        Raises:
            ErfscopeError: the map has another number of nodes.
        """
        height, width = x.shape[2:]
        if height * width != len(values):
            raise self._misfit(height, width)
        return values.view(height, width)

    def _misfit(self, height: int, width: int) -> ErfscopeError:
        n = len(self.diagonal)
        return ErfscopeError(f"the adjacency is {n}x{n}, and a map of {height}x{width} has {height * width} nodes")


def _check(given: Tensor) -> None:
    """Raises ErfscopeError where this is no adjacency."""
    if given.dim() != 2 or given.shape[0] != given.shape[1] or not len(given):
        raise ErfscopeError(f"an adjacency is square, (n, n); this one has shape {tuple(given.shape)}")
    if given.is_meta:
        raise ErfscopeError("an adjacency needs numbers; this one is on the meta device")
    # Written so that NaN is bad.
    bad = ~((given >= 0) & (given < torch.inf))
    if bool(bad.any()):
        p, i = (int(each) for each in bad.nonzero()[0])
        raise ErfscopeError(
            f"an adjacency has finite entries that are not negative; A[{p}, {i}] is {float(given[p, i])}"
            f" ({int(bad.sum())} such)"
        )
    if not bool(given.sum(1).isfinite().all()):
        raise ErfscopeError("an adjacency has finite degrees; the sum of a row is infinite")
