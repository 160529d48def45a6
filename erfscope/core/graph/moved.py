"""The operations that one unit needs, moved to other units of its layer, which go through as a batch: each has its own
part of the image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.rules.mixing import run_batch_norm
from erfscope.core.graph.rules.moves import run_concatenation
from erfscope.core.graph.rules.parts import Part, PartStep, PartValues, Run, run_as_it_is, run_by_moves
from erfscope.core.graph.rules.reading import Edge, Reshape, Taps, Whole
from erfscope.core.graph.rules.resampling import run_padding
from erfscope.core.graph.rules.windows import run_average_pooling, run_convolution, run_max_pooling
from erfscope.core.graph.run import Crop, Forward


class Pace(NamedTuple):
    """How the part of a dimension that a unit needs moves along with the unit."""

    #: Axis of the layer's map; None for the dimension of the images.
    axis: int | None
    #: Cells from one unit to the next.
    cells: int = 0


#: Of every dimension of a tensor; None where all units need the same of it.
Paces = tuple[Pace | None, ...]
IMAGES = Pace(None)
#: Operations that do the same at every place, by how they run, and what they take the cells beyond a border for. Those
#: that read no other cells than they make, or none beyond a border, may take anything.
BEYOND = {
    run_as_it_is: 0.0,
    run_batch_norm: 0.0,
    run_by_moves: 0.0,
    run_concatenation: 0.0,
    run_convolution: 0.0,
    run_average_pooling: 0.0,
    run_max_pooling: -math.inf,
}


def paces_of(crop: Crop) -> dict[fx.Node, Paces] | None:
    """How the parts that a unit needs of all tensors move along with it; None where other units need more than these
    parts at other places: what an operation does depends on where it is, or the border cuts what the unit itself needs.

    Args:
        crop: Of one unit of one layer, which depends on the image.
    """
    (target,) = crop.targets
    layout, node = target.layer.layout, target.layer.node
    if layout.grid or layout.batch_dim is None or not crop.is_of_image:
        return None
    axes = {dim: axis for axis, dim in enumerate(layout.space_dims(len(shape_of(node))))}
    ends = [Pace(axes[dim], 1) if dim in axes else None for dim in range(len(shape_of(node)))]
    ends[layout.batch_dim] = IMAGES
    found = {node: tuple(ends)}
    for step in reversed(crop.steps):
        if not _is_same_everywhere(step):
            return None
        for edge, parts in zip(step.edges, step.paths, strict=True):
            paces = None if parts is None else _before(edge, parts[-1], found[step.node])
            if paces is None:
                return None
            if edge.source in crop.parts:
                if found.setdefault(edge.source, paces) != paces:
                    return None
            elif any(pace and side > 1 for pace, side in zip(paces, shape_of(edge.source), strict=True)):
                return None
    return found


def _is_same_everywhere(step: PartStep) -> bool:
    """Whether an operation does the same at all places, beside the border and far from it."""
    if len(step.paths) < len(step.edges):  # it needs its inputs whole
        return False
    if step.run is run_average_pooling:
        args = step.call.args
        return not args.get("ceil_mode") and (bool(args["count_include_pad"]) or not np.any(args["padding"]))
    return step.run is run_padding or step.run in BEYOND


def _before(edge: Edge, part: Part, paces: Paces) -> Paces | None:
    """The paces of an edge's source, from those of the output, of which ``part`` is made; None as for
    :func:`paces_of`."""
    if not edge.steps:
        return paces
    step, found = edge.steps[0], list[Pace | None]()
    if len(edge.steps) > 1 or isinstance(step, Reshape):
        return None
    for read, side in zip(step.reads, shape_of(edge.source), strict=True):
        goal = read.same if isinstance(read, Whole) else read.dim if isinstance(read, Taps) else read
        pace = None if goal is None else paces[goal]
        if isinstance(read, Taps) and goal is not None and pace is not None:
            stride = _stride(read, side, part[goal])
            pace = None if stride is None or pace is IMAGES else Pace(pace.axis, pace.cells * stride)
            if pace is None:
                return None
        if isinstance(read, Whole) and pace is not None:
            return None
        found.append(pace)
    return tuple(found)


def _stride(read: Taps, side: int, part: NDArray[np.intp]) -> int | None:
    """Cells of a dimension of ``side`` between what one output reads and what the next one does; None where that is not
    the same for all, where another thing than nothing is read beyond the borders, or where the outputs of a part read
    beyond them."""
    there, inside = read.unbounded, read.inside
    stride = int(there[1, 0] - there[0, 0]) if len(there) > 1 else 0
    is_even = (there == there[0] + stride * np.arange(len(there))[:, None]).all() and stride > 0
    is_cut = (inside == np.where((there >= 0) & (there < side), there, -1)).all()
    return stride if is_even and is_cut and (inside[part] >= 0).all() else None


class MovedForward:
    """The forward pass of some units of a layer, each with its own part of one image.

    Args:
        crop: Of one unit and one image.
        paces: What :func:`paces_of` returns for it.
        count: How many units go through together.
        tensors: As of :class:`erfscope.core.graph.run.Forward`.
    """

    def __init__(self, crop: Crop, paces: Mapping[fx.Node, Paces], count: int, tensors: Mapping[str, Tensor]) -> None:
        (target,) = crop.targets
        (unit,) = target.units
        #: Of the image.
        self.layout = target.reference.layout
        self._unit, self._image = np.array(unit), crop.image
        self._moves = np.zeros((count, len(unit)), dtype=np.intp)
        self._paces = paces[crop.graph.inputs[0]][2:]
        self._forward = Forward(_of_units(crop, paces, self._moves), tensors)

    @property
    def count(self) -> int:
        """How many units go through together."""
        return len(self._moves)

    def __call__(self, image: Tensor, units: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, NDArray[np.intp]]:
        """Run the pass.

        Args:
            image: (1, C_in, *space).
            units: Indices in the layer's map, as many as :attr:`count`.

        Returns:
            The units' channels (units, C, 1); the parts of the image (units, C_in, *part) that they are differentiated
            with respect to; and the first cell of each part (units, axes), which may lie beyond the image's border.
        """
        self._moves[:] = np.asarray(units) - self._unit
        spots, firsts = list[slice | Tensor]([slice(None)]), list[NDArray[np.intp]]()
        for axis, ((low, high), pace, side) in enumerate(zip(self._image, self._paces, image.shape[2:], strict=True)):
            first = low + _shift(self._moves, pace)
            cells = np.clip(first[:, None] + np.arange(high - low), 0, side - 1)
            shape = [-1 if dim == axis else 1 for dim in range(len(self._image))]
            spots.append(torch.as_tensor(cells, device=image.device).reshape(len(cells), *shape))
            firsts.append(first)
        parts = image[0][tuple(spots)].movedim(1, 0).contiguous().requires_grad_()
        ((values, _),) = self._forward(parts)
        return values, parts, np.stack(firsts, 1)


def _of_units(crop: Crop, paces: Mapping[fx.Node, Paces], moves: NDArray[np.intp]) -> Crop:
    """The crop of one unit and one image, for as many units as have moves."""
    images = np.arange(len(moves))

    def wide(node: fx.Node, part: Part) -> Part:
        own = paces.get(node, (None,) * len(part))
        return tuple(images if pace is IMAGES else each for each, pace in zip(part, own, strict=True))

    steps = list[PartStep]()
    for step in crop.steps:
        paths = list[list[Part] | None]()
        for edge, parts in zip(step.edges, step.paths, strict=True):
            assert parts is not None
            both = [wide(edge.source, parts[0]), wide(step.node, parts[-1])]
            paths.append(both[-len(parts) :])
        needed = {node: wide(node, part) for node, part in step.needed.items()}
        run = partial(_run_moved, step.run, paces, moves)
        steps.append(step._replace(part=wide(step.node, step.part), needed=needed, paths=paths, run=run))
    target = crop.targets[0]
    boxes = tuple(wide(target.layer.node, box) for box in target.boxes)
    return replace(
        crop,
        targets=(target._replace(boxes=boxes),),
        images=len(moves),
        steps=tuple(steps),
        parts={node: wide(node, part) for node, part in crop.parts.items()},
        asked={},
    )


def _shift(moves: NDArray[np.intp], pace: Pace | None) -> NDArray[np.intp]:
    """How many cells further the part of each unit begins along one dimension, (units,), from moves (units, axes)."""
    still = np.zeros(len(moves), dtype=np.intp)
    return still if pace is None or pace.axis is None else moves[:, pace.axis] * pace.cells


def _run_moved(
    run: Run, paces: Mapping[fx.Node, Paces], moves: NDArray[np.intp], step: PartStep, values: PartValues
) -> Tensor:
    """An operation of moved units. Beyond the border it reads what it would read there, and no gradient comes from
    there, even where its derivative is infinite."""
    beyond = float(step.call.args.get("value") or 0.0) if run is run_padding else BEYOND[run]

    def cut_off(node: fx.Node) -> Tensor:
        """The part that the units need of an input; numbers of the module as they are."""
        tensor, own = values.of(node), paces.get(node, ())
        gone = torch.zeros([1] * tensor.dim(), dtype=torch.bool)
        for dim, pace in enumerate(own):
            if pace is None or pace is IMAGES:
                continue
            cells = _shift(moves, pace)[:, None] + step.needed[node][dim]
            outside = torch.as_tensor((cells < 0) | (cells >= shape_of(node)[dim]))
            images, sides = own.index(IMAGES), [1] * tensor.dim()
            sides[images], sides[dim] = outside.shape
            gone = gone | (outside if images < dim else outside.T).reshape(sides)
        return tensor.masked_fill(gone.to(tensor.device), beyond) if gone.any() else tensor

    return run(step, values._replace(of=cut_off))
