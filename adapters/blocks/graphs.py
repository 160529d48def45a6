"""Graphs over the nodes of a map: grids, nearest neighbours and full ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from erfscope.adapters.blocks.graph import GivenGraph, Graph, gathered
from erfscope.adapters.blocks.maps import whole
from erfscope.core.values.errors import ErfscopeError, unknown

Offset = tuple[int, int]
_FOUR: tuple[Offset, ...] = ((-1, 0), (0, -1), (0, 1), (1, 0))
_EIGHT: tuple[Offset, ...] = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


class GridGraph(Graph):
    """Every cell and those beside it, and its point reflection where links are ``"opposite"``.

    Without links it is computed from shifted copies, nothing else, so that the theoretical receptive field of a layer
    on it is known and local. A link that is there already, as a neighbour or a self-loop, is not added a second time: A
    has entries 0 and 1.

    Args:
        neighbours: 4 or 8.
        self_loops: Whether a cell is its own neighbour. Without self-loops the 4-neighbour grid is bipartite, and a
            cell's influence on its neighbours vanishes after every even number of layers.
        links: ``"opposite"``: every cell receives from its point reflection too. Other links are those of an adjacency,
            :class:`erfscope.adapters.blocks.graph.GivenGraph`.

    Raises:
        ErfscopeError: another number of neighbours, or unknown links.
    """

    def __init__(self, neighbours: int = 4, self_loops: bool = True, links: str | None = None) -> None:
        super().__init__()
        if neighbours not in (4, 8):
            raise ErfscopeError(f"a grid has 4 or 8 neighbours, not {neighbours!r}")
        if links not in (None, "opposite"):
            raise ErfscopeError(f"links are 'opposite', and other graphs an adjacency; got {links!r}")
        self.offsets = _FOUR if neighbours == 4 else _EIGHT
        self.self_loops, self.links = self_loops, links

    def extra_repr(self) -> str:
        """For ``print``."""
        links = "" if self.links is None else f", links={self.links!r}"
        return f"neighbours={len(self.offsets)}, self_loops={self.self_loops}{links}"

    @property
    def is_plain(self) -> bool:
        """Without links."""
        return self.links is None

    def summed(self, x: Tensor, loops: float | Tensor) -> Tensor:
        """One convolution over the cells beside, then the reflected map."""
        kernel = torch.zeros(3, 3, dtype=x.dtype, device=x.device)
        for row, col in self.offsets:
            kernel[1 + row, 1 + col] = 1
        kernel[1, 1] = 0 if isinstance(loops, Tensor) else loops
        parts = [F.conv2d(x, kernel.expand(x.shape[1], 1, 3, 3), padding=1, groups=x.shape[1])]
        if isinstance(loops, Tensor):
            parts.append(x * loops)
        if self.links is not None:
            parts.append(x.flip(-2, -1) * self._far(x))
        return functools.reduce(torch.add, parts)

    def neighbours(self, x: Tensor, *, self_loops: bool | None = None) -> tuple[Tensor, Tensor]:
        """Shifted copies, the map itself among them, and the reflected one."""
        loops = self.self_loops if self_loops is None else self_loops
        offsets = (*self.offsets, (0, 0)) if loops else self.offsets
        values, mask = torch.stack(shifts(x, offsets), 2), inside(x, offsets)
        if self.links is not None:
            values = torch.cat([values, x.flip(-2, -1).unsqueeze(2)], 2)
            mask = torch.cat([mask, self._far(x).unsqueeze(0)])
        return values, mask

    def _far(self, x: Tensor) -> Tensor:
        """Where the point reflection is neither the cell nor one of its neighbours, bool (H, W)."""
        height, width = x.shape[-2:]
        rows = (2 * torch.arange(height, device=x.device) - (height - 1)).abs().unsqueeze(1)
        cols = (2 * torch.arange(width, device=x.device) - (width - 1)).abs().unsqueeze(0)
        return (rows + cols if len(self.offsets) == 4 else torch.maximum(rows, cols)) > 1


def shifts(x: Tensor, offsets: Sequence[Offset]) -> list[Tensor]:
    """Copies of a map (..., H, W) that hold at (r, c) what it holds at (r + dr, c + dc), zero beyond its border."""
    height, width = x.shape[-2:]
    reach = max((abs(step) for offset in offsets for step in offset), default=0)
    padded = F.pad(x, (reach, reach, reach, reach)) if reach else x
    return [padded[..., reach + dr : reach + dr + height, reach + dc : reach + dc + width] for dr, dc in offsets]


def inside(x: Tensor, offsets: Sequence[Offset]) -> Tensor:
    """Where the shifted copies of a map (..., H, W) show the map and not what is beyond its border, bool (K, H, W)."""
    return torch.stack(shifts(torch.ones(x.shape[-2:], device=x.device), offsets)) > 0


def window_offsets(size: int) -> tuple[Offset, ...]:
    """All cells of a window around a cell, the cell itself among them.

    Args:
        size: Side of the window, odd.

    Raises:
        ErfscopeError: an even or negative side.
    """
    if whole("window", size) % 2 == 0:
        raise ErfscopeError(f"a window around a cell has an odd side, not {size}")
    reach = range(-(size // 2), size // 2 + 1)
    return tuple((dr, dc) for dr in reach for dc in reach)


__all__ = ["FullGraph", "GivenGraph", "Graph", "GridGraph", "NearestGraph", "TableGraph", "as_graph"]
_WORDS = ("grid4", "grid8", "full", "knn")


class FullGraph(Graph):
    """Every node receives from every node.

    Args:
        self_loops: Whether from itself too.
    """

    def __init__(self, self_loops: bool = True) -> None:
        super().__init__()
        self.self_loops = self_loops

    def summed(self, x: Tensor, loops: float | Tensor) -> Tensor:
        """One sum over the map for all; nothing of size n x n."""
        total = x.sum((-2, -1), keepdim=True)
        if not isinstance(loops, Tensor) and loops == 1:
            return total.expand_as(x)
        return total + (loops - 1) * x

    def neighbours(self, x: Tensor, *, self_loops: bool | None = None) -> tuple[Tensor, Tensor]:
        """All nodes as one list, the same for every node."""
        values = x.flatten(2)[..., None, None]
        n = values.shape[2]
        if self.self_loops if self_loops is None else self_loops:
            return values, torch.ones((n, 1, 1), dtype=torch.bool, device=x.device)
        return values, ~torch.unflatten(torch.eye(n, dtype=torch.bool, device=x.device), 1, x.shape[2:])


class TableGraph(Graph):
    """Every node of every image has its own list of k neighbours; what :class:`NearestGraph` makes of an input.

    Args:
        index: The sources of each node, (B, n, k), the node itself not among them.
        self_loops: Whether a node is its own neighbour too.
    """

    def __init__(self, index: Tensor, self_loops: bool) -> None:
        super().__init__()
        self.index, self.self_loops = index, self_loops

    def summed(self, x: Tensor, loops: float | Tensor) -> Tensor:
        """Sum of the gathered neighbours."""
        total = gathered(x, self.index).sum(2)
        return total + loops * x if isinstance(loops, Tensor) or loops else total

    def neighbours(self, x: Tensor, *, self_loops: bool | None = None) -> tuple[Tensor, Tensor]:
        """The gathered neighbours, and the node itself."""
        values = gathered(x, self.index)
        if self.self_loops if self_loops is None else self_loops:
            values = torch.cat([values, x.unsqueeze(2)], 2)
        return values, torch.ones((values.shape[2], 1, 1), dtype=torch.bool, device=x.device)


class NearestGraph(Graph):
    """Every node receives from the k nodes whose features are nearest, in Euclidean distance, to its own.

    :meth:`on` makes the graph of an input.
    The neighbours are found for every image from the input of the layer, and are not differentiated: they are a choice.
    Of nodes that are equally near, those counted first are taken.

    Args:
        k: How many, the node itself not counted.
        self_loops: Whether a node is its own neighbour too.

    Raises:
        ErfscopeError: k is no positive whole number.
    """

    def __init__(self, k: int = 8, self_loops: bool = True) -> None:
        super().__init__()
        self.k, self.self_loops = whole("k", k), self_loops

    def on(self, x: Tensor) -> TableGraph:
        """The neighbours for this input (B, C, H, W).

        Raises:
            ErfscopeError: the map has no k other nodes.
        """
        nodes = x.detach().flatten(2).transpose(1, 2)
        n = nodes.shape[1]
        if self.k >= n:
            raise ErfscopeError(
                f"{self.k} nearest neighbours were asked for on a map of {n} nodes; ask for at most {n - 1}"
            )
        # Not by |a|^2 + |b|^2 - 2 ab, whose rounding would break ties by chance.
        distance = torch.cdist(nodes, nodes, compute_mode="donot_use_mm_for_euclid_dist")
        own = torch.eye(n, dtype=torch.bool, device=x.device)
        order = torch.where(own, torch.inf, distance).argsort(dim=2, stable=True)
        return TableGraph(order[..., : self.k], self.self_loops)

    def hops_from(self, space: tuple[int, ...], node: tuple[int, ...]) -> None:
        """Not known: every image has neighbours of its own."""

    def adjacency(self, height: int, width: int) -> Tensor:
        """Not known without an input: see :meth:`adjacency_of`.

        Raises:
            ErfscopeError: always.
        """
        raise ErfscopeError("the nearest nodes in feature space depend on the input; call adjacency_of(x)")

    def adjacency_of(self, x: Tensor) -> Tensor:
        """A for each image of an input (B, C, H, W): (B, n, n)."""
        table = self.on(x).index
        n = table.shape[1]
        found = torch.zeros((table.shape[0], n, n), dtype=torch.float64, device=x.device).scatter(2, table, 1.0)
        return found + torch.eye(n, dtype=torch.float64, device=x.device) * float(self.self_loops)


def as_graph(
    graph: Any = "grid4", *, k: int | None = None, links: str | None = None, self_loops: bool | None = None
) -> Graph:
    """A graph from a word, a matrix, or a graph.

    Args:
        graph: ``"grid4"``, ``"grid8"``, ``"full"`` (all with all), ``"knn"`` (k nearest in feature space); an adjacency
            (n, n); or a :class:`Graph`, which is used as it is.
        k: Of ``"knn"``: how many, 8 by default.
        links: Of a grid: ``"opposite"`` for links to the point reflection.
        self_loops: Whether nodes are their own neighbours; yes by default, and as the diagonal says for an adjacency.

    Returns:
        The graph.

    Raises:
        ErfscopeError: an unknown word, an argument that the graph does not have, or what its class raises.
    """
    if isinstance(graph, str) and graph not in _WORDS:
        raise unknown("graph", graph, _WORDS)
    is_grid = isinstance(graph, str) and graph.startswith("grid")
    if links is not None and not is_grid:
        raise ErfscopeError(f"links are those of a grid (graph='grid4' or 'grid8'), not of {_called(graph)}")
    is_nearest = isinstance(graph, str) and graph == "knn"
    if k is not None and not is_nearest:
        raise ErfscopeError(
            f"k is the number of nearest neighbours (graph='knn'), and means nothing for {_called(graph)}"
        )
    if isinstance(graph, Graph):
        if self_loops is not None:
            raise ErfscopeError(
                f"self_loops belong to the class of the graph; give them where {_called(graph)} is made"
            )
        return graph
    if not isinstance(graph, str):
        return GivenGraph(graph, bool(self_loops))
    loops = self_loops is not False
    if is_grid:
        return GridGraph(int(graph.removeprefix("grid")), loops, links)
    return FullGraph(loops) if graph == "full" else NearestGraph(8 if k is None else k, loops)


def _called(graph: object) -> str:
    return f"graph={graph!r}" if isinstance(graph, str) else f"this {type(graph).__name__}"
