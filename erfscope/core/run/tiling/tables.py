"""Numbers by position: tensors that do not depend on the image and differ from place to place on the map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import fx

from erfscope.core.graph.ends import CLIPPED
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import name_of, shape_of
from erfscope.core.graph.rules.products import ATTENTION
from erfscope.core.graph.rules.reading import ABSENT, COPIES, Dims, Edge, Taps, call_of, edges_of, groups_of

#: Indices of a dimension.
Spots = slice | NDArray[np.bool_]
#: What is added to a product of attention that is to count for nothing.
MASKED_BIAS = -50
#: Operations that fill a tensor with one number.
ONE_NUMBER = ("zeros_like", "ones_like", "full_like", "fill", "zero")


def tables_of(fields: Fields, node: fx.Node) -> list[Edge]:
    """Tensors that an operation reads and that do not depend on the image."""
    positions, graph = fields.positions, fields.positions.graph
    # What comes from another input is cut as this one is.
    others = frozenset() if positions.image in graph.inputs else graph.live
    return [
        edge for edge in edges_of(node, positions.numbers) if edge.source not in positions and edge.source not in others
    ]


def shuts_seam(fields: Fields, node: fx.Node, edge: Edge) -> bool:
    """Whether a table shuts attention in windows between cells from opposite sides of the image, and no other."""
    numbers, edges = fields.positions.numbers(edge.source), fields.positions.edges
    while (reads := edges.get(node)) and reads[0].mixing != ATTENTION:
        node = reads[0].source
    if numbers is None or numbers.ndim < 3 or numbers.shape[-1] != numbers.shape[-2] or not reads:
        return False
    table, side = numbers.detach().cpu().numpy(), numbers.shape[-1]
    table = table.reshape(-1, side, side)
    torn = np.zeros((1, 1, 1), dtype=bool)
    for ends, size in zip(fields.every_end[reads[0].source], fields.sizes, strict=True):
        # Of the queries: windows by their cells, those of the first image first.
        if ends.shape[-2] not in (1, side):
            return False
        first = np.broadcast_to(ends[CLIPPED][0][..., :1], (*ends.shape[1:-2], side, 1)).reshape(-1, side)
        first = first[: len(table)].astype(float)
        torn = torn | (np.abs(first[:, :, None] - first[:, None]) > size / 2)
    shut = table if table.dtype == bool else table <= MASKED_BIAS
    return bool(torn.any() and (shut == torn).all() and (table[shut == 0] == 0).all())


def is_table(fields: Fields, node: fx.Node, edge: Edge) -> bool:
    """Whether a tensor that does not depend on the image differs from position to position, all over the image."""
    source = edge.source
    while name_of(source) in COPIES or (len(source.all_input_nodes) == 1 and call_of(source).operation.moves):
        source = source.all_input_nodes[0]
    if name_of(source) in ONE_NUMBER:
        return False
    numbers, shape = fields.positions.numbers(edge.source), shape_of(edge.source)
    for dim in range(len(shape)):
        is_wide = shape[dim] > 1 and any(
            _is_wide(fields, node, goal, spots) for goal, spots in _goals(edge, dim).items()
        )
        if is_wide and (numbers is None or (numbers != numbers.narrow(dim, 0, 1)).any()):
            return True
    return False


def _is_wide(fields: Fields, node: fx.Node, dim: int, spots: Spots) -> bool:
    """Whether some indices of a dimension stand all over the image."""
    # In windows that were rolled over the border positions are far apart too: the others tell.
    places = zip(fields.positions.places(node), fields.sizes, strict=False)
    known = [(place.table[spots], size) for place, size in places if place.varies_along(dim)]
    return any(np.nanmax(table, initial=-1) - np.nanmin(table, initial=size) >= size / 2 for table, size in known)


def _goals(edge: Edge, dim: int) -> dict[int, Spots]:
    """The dimensions of an operation's output along which one of an input goes on, and at which indices."""
    goals: dict[int, Spots] = {dim: slice(None)}
    shape = shape_of(edge.source)
    for step in edge.steps:
        if isinstance(step, Dims):
            reads = [(step.reads[goal], spots) for goal, spots in goals.items()]
            goals = {read: spots for read, spots in reads if isinstance(read, int)}
            taps = [read for read, _ in reads if isinstance(read, Taps)]
            goals |= {read.dim: (read.unbounded != ABSENT).any(1) for read in taps if read.dim is not None}
        else:
            groups = [theirs for mine, theirs in groups_of(shape, step.shape) if goals.keys() & {*mine}]
            goals = {goal: slice(None) for theirs in groups for goal in theirs}
        shape = step.shape
    return goals
