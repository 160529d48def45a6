"""What a graph is to a layer: who is whose neighbour, weighted sums over neighbours, and the neighbours themselves."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erfscope.adapters.blocks.maps import one_of
from erfscope.core.values.errors import ErfscopeError

Normalisation = Literal["none", "row", "symmetric"]
NORMALISATIONS: tuple[str, ...] = ("none", "row", "symmetric")


class Graph(nn.Module):
    """A graph on the cells of a map (B, C, H, W), counted row by row.

    Its adjacency A is (n, n) with A[p, i] the weight with which p receives from i: rows are receivers, columns are
    sources. It need not be symmetric, its entries are not negative, and its diagonal holds the self-loops. A module, so
    that given numbers follow ``.to()`` and ``deepcopy``; layers call its methods, not the module."""

    self_loops: bool

    def on(self, x: Tensor) -> Graph:
        """The graph for this input (B, C, H, W): itself, unless it depends on the features."""
        return self

    def summed(self, x: Tensor, loops: float | Tensor) -> Tensor:
        """Sum over all neighbours but the node itself, plus ``loops`` times the node: (B, C, H, W) -> (B, C, H, W)."""
        raise NotImplementedError

    def loops(self, x: Tensor) -> float | Tensor:
        """Weights of the self-loops: a number, or one per cell (1, 1, H, W). 1 or 0 where ``self_loops`` says whether
        there are any."""
        return float(self.self_loops)

    def neighbours(self, x: Tensor, *, self_loops: bool | None = None) -> tuple[Tensor, Tensor]:
        """What every node's neighbours hold, for layers that weigh neighbours by themselves. Weights of the graph do
        not matter here.

        Args:
            x: Features (B, C, H, W).
            self_loops: True has every node among its own neighbours; None as the graph says.

        Returns:
            The features (B, C, K, H, W), or (B, C, K, 1, 1) where all nodes have the same neighbours; and a mask (K, H,
            W), (K, 1, 1) or (B, 1, K, H, W), False where a node has fewer than K. What is masked is finite.
        """
        raise NotImplementedError

    def mix(self, x: Tensor, normalisation: Normalisation = "row", *, self_loops: bool | None = None) -> Tensor:
        """Weighted sum over neighbours.

        Args:
            x: Features (B, C, H, W).
            normalisation: ``"none"``: A x. ``"row"``: D^-1 A x with D the row sums of A; zero for a node without
                neighbours. ``"symmetric"``: D~^-1/2 A~ D~^-1/2 x with A~ = A + I where the diagonal is zero, and D~ its
                row sums.
            self_loops: False takes A without its diagonal, True with ones where the diagonal is zero; None as the graph
                says, and True for ``"symmetric"``.

        Returns:
            (B, C, H, W).

        Raises:
            ErfscopeError: unknown normalisation, or a map that the graph does not fit.

        Source: Kipf & Welling 2017, arXiv:1609.02907, for ``"symmetric"``.
        """
        one_of("normalisation", normalisation, NORMALISATIONS)
        wanted = True if normalisation == "symmetric" and self_loops is None else self_loops
        if normalisation == "none":
            return self.summed(x, self._loops(x, wanted))
        degree = self.degree(x, self_loops=wanted)
        # Divided by something else than zero even where the result is not used: 0 * inf would be no 0 in the gradient.
        safe, known = torch.where(degree > 0, degree, 1), (degree > 0).to(x.dtype)
        if normalisation == "row":
            return self.summed(x, self._loops(x, wanted)) / safe * known
        scale = safe.rsqrt() * known
        return self.summed(x * scale, self._loops(x, wanted)) * scale

    def degree(self, x: Tensor, *, self_loops: bool | None = None) -> Tensor:
        """Row sums of A, (B, 1, H, W); ``self_loops`` as in :meth:`mix`."""
        ones = torch.ones((x.shape[0], 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
        return self.summed(ones, self._loops(x, self_loops))

    def adjacency(self, height: int, width: int) -> Tensor:
        """A as a dense matrix (n, n), float64 on the CPU unless it was given.

        Raises:
            ErfscopeError: the graph depends on the features, or does not fit the map.
        """
        n = height * width
        unit = torch.unflatten(torch.eye(n, dtype=torch.float64, device="cpu"), 1, (height, width)).unsqueeze(0)
        # Channel i is one at node i and zero elsewhere, so that its sum over the neighbours of p is A[p, i].
        return self.summed(unit, self.loops(unit)).flatten(2)[0].T.contiguous()

    @property
    def is_plain(self) -> bool:
        """Whether the links are those of the grid alone, so that hops say no more than cells do."""
        return False

    def hops_from(self, space: tuple[int, ...], node: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Hops from a node to all nodes, along rows: how many layers it takes until another node can move it.

        Args:
            space: (H, W).
            node: (row, col).

        Returns:
            (H, W), infinite where no path leads; None for a plain grid, for a graph that depends on the features, and
            for clips.
        """
        if self.is_plain or len(space) != 2:
            return None
        device = next((buffer.device for buffer in self.buffers()), None)
        with torch.enable_grad():
            v = torch.zeros((1, 1, *space), device=device, requires_grad=True)
            # Linear in v: its transpose carries a receiver to its sources.
            received = self.summed(v, self.loops(v))
        hops = torch.full_like(v, torch.inf, requires_grad=False)
        frontier = torch.zeros_like(hops)
        frontier[0, 0][node] = 1
        hop = 0
        while frontier.any():
            hops[frontier > 0] = hop
            (sources,) = torch.autograd.grad(received, v, frontier, retain_graph=True)
            frontier = ((sources > 0) & hops.isinf()).to(v.dtype)
            hop += 1
        return hops[0, 0].double().cpu().numpy()

    def _loops(self, x: Tensor, wanted: bool | None) -> float | Tensor:
        own = self.loops(x)
        if wanted is None:
            return own
        if not wanted:
            return 0.0
        return torch.where(own > 0, own, 1) if isinstance(own, Tensor) else own or 1.0


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """The features of listed nodes: x (B, C, H, W) and index (n, K) or (B, n, K) -> (B, C, K, H, W)."""
    nodes, count = x.flatten(2), index.shape[-1]
    if index.dim() == 2:
        found = nodes.index_select(2, index.flatten())
    else:
        found = nodes.gather(2, index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1))
    return torch.unflatten(found, 2, (x.shape[2], x.shape[3], count)).movedim(-1, 2)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Softmax over what the mask leaves open; all zero, and not NaN, where it leaves nothing.

    Args:
        scores: Any shape.
        mask: Bool, broadcast to it.
        dim: The dimension to normalise.
    """
    # The lowest finite number rather than -inf, which gives NaN where all is closed.
    return torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(dim) * mask


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Sum of neighbours' values with weights of their own for every node.

    Args:
        weights: (B, heads, K, H, W).
        values: (B, heads * d, K, H, W), or (B, heads * d, K, 1, 1) where all nodes have the same neighbours.

    Returns:
        (B, heads, d, H, W).
    """
    heads = torch.unflatten(values, 1, (weights.shape[1], -1))
    if heads.shape[-2:] == weights.shape[-2:]:
        return (weights.unsqueeze(2) * heads).sum(3)
    # A matrix product; written out it would hold n * n values of every channel.
    return torch.einsum("bhkyx,bhdk->bhdyx", weights, heads[..., 0, 0])


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
