"""The grid as a graph: neighbours are shifted copies of the map, so that a layer on it stays local, and links to far
cells can be added."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from erfscope.adapters.blocks.graph_nets.graph import Graph
from erfscope.adapters.blocks.maps import whole
from erfscope.errors import ErfscopeError

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
            :class:`erfscope.adapters.blocks.graph_nets.given.GivenGraph`.

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
