"""The common form of all operations that move along axes: convolution, pooling, padding, interpolation, slicing, rolling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from erfscope.trf.graph import Edge, Node, Step
from erfscope.trf.moves import Chain, Move, Regrid
from erfscope.trf.place import Axis, Dim, Factor, factors, other, settled, spatial
from erfscope.trf.relate import related
from erfscope.trf.rules.table import Made


class Along(NamedTuple):
    """What happens along one dimension."""

    #: Cells of the output.
    size: int
    #: From the number of input cells to the move.
    move: Callable[[int], Move]
    #: Input cells per output cell.
    scale: float = 1.0


def moved(node: Node, shape: Sequence[int], changes: Mapping[int, Along], *, mixed: Sequence[int] = (), words: str = "") -> Made | None:
    """Place and edge of an operation that moves along some dimensions and reads some others in full.

    Args:
        node: The input.
        shape: Shape of the output, as many dimensions as the input.
        changes: What happens along each dimension that positions move along.
        mixed: Dimensions that are read in full (channels).
        words: Name of the operation where it mixes.

    Returns:
        None if a dimension that positions move along is not one axis by itself.
    """
    moves: dict[int, tuple[int, Along, int]] = {}  # axis -> (lowest digit's step, change, cells of the input)
    dims: dict[int, Dim] = {dim: other(shape[dim]) for dim in mixed}
    for dim, change in changes.items():
        parts = node.place.dims[dim]
        if not spatial(parts):
            dims[dim] = other(change.size)
            continue
        factor = parts[0]
        if len(parts) != 1 or not isinstance(factor, Factor) or not _movable(node, factor, mixed) or factor.axis in moves:
            return None
        moves[factor.axis] = (factor.step, change, factor.size)
        dims[dim] = (Factor(factor.axis, 1, change.size),)
    axes = list(node.place.axes)
    for number, (step, change, _) in moves.items():
        axis = axes[number]
        assert axis is not None
        axes[number] = Axis(change.size, axis.scale * step * change.scale)
    place = settled(axes, node.place.with_dims(dims).dims)
    edge = related(place, node, [None if i in dims else i for i in range(len(shape))])
    steps: list[Step | None] = list(edge.steps) if edge.steps is not None else [None] * len(axes)
    for number, (step, change, size) in moves.items():
        move = change.move(size)
        steps[number] = Step(number, move if step == 1 else Chain(move, Regrid(node.place.size_of(number), 1, step)))
    return Made(place, (Edge(node, tuple(steps), edge.beside),), words)


def _movable(node: Node, factor: Factor, mixed: Sequence[int]) -> bool:
    """Whether positions along the axis are this digit alone, lower digits being read in full."""
    if factor.step * factor.size != node.place.size_of(factor.axis):
        return False
    digits = [(i, f) for i, dim in enumerate(node.place.dims) for f in factors(dim) if f.axis == factor.axis and f is not factor]
    return all(i in mixed for i, f in digits if f.step < factor.step)
