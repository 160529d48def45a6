"""The theoretical receptive field (TRF) of every unit: the first and last cell of a reference that each element of each
tensor reads.

From the reference on, every element carries its first and last cell along each axis; an operation's output has the
least and the greatest of those that it reads. That is exact, whatever moved, for the box around a union is the one
around the boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import fx

from erfscope.core.graph.ends import (
    CLIPPED,
    FREE,
    LOCAL,
    ROWS,
    Join,
    Mixes,
    box_of,
    carry_ends,
    least,
    may_be_upper_bound,
)
from erfscope.core.graph.graph import name_of, shape_of
from erfscope.core.graph.places import describe, module_of
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.rules.products import ATTENTION
from erfscope.core.graph.rules.reading import Edge, FloatArray, IntArray, Shape
from erfscope.core.graph.units import UnitCenters
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit import Trf

SOFTMAX = ("softmax", "_softmax", "log_softmax", "_safe_softmax")
ATTENTIONS = ("scaled_dot_product", "_scaled_dot_product")


class PathOperations(NamedTuple):
    """Operations on the paths from a reference: along each axis the first that mixes all positions, and those that are
    not understood."""

    first: tuple[fx.Node | None, ...]
    inexact: tuple[str, ...] = ()


class Fields(UnitCenters):
    """The cells of a reference that every element of every tensor reads.

    Args:
        positions: Where the elements stand on the image.
        reference: The tensor that is read.
        layout: How it holds a map.
        name: What to call it.
        axes: The axes of the image that are followed; the last is the batch's.
        join: What counts of several inputs: all of them, or with :func:`~erfscope.core.graph.ends.narrowest` the path
            that reads least.
    """

    def __init__(
        self,
        positions: GraphPositions,
        reference: fx.Node,
        layout: Layout,
        *,
        name: str = "image",
        axes: Sequence[int] | None = None,
        join: Join = least,
    ) -> None:
        super().__init__(positions, reference, layout)
        self.name, self.join = name, join
        self.axes = tuple(range(len(positions.space)) if axes is None else axes)
        #: Pixels from one cell of the reference to the next along each axis, the batch's included.
        self.cells = {axis: (axis < len(self.sizes) and self.lines[axis].slope) or 1.0 for axis in self.axes}
        #: The ends of all elements of each tensor, for each axis.
        self.every_end: dict[fx.Node, tuple[FloatArray, ...]] = {}
        #: Of elements that stand on the image, and of all elements, tokens beside a map included.
        self._on_paths: dict[fx.Node, tuple[PathOperations, PathOperations]] = {}
        #: The operations that mix all positions along some axis, in words.
        self.mixing: dict[fx.Node, str] = {}
        self._number()
        for node in positions.graph.nodes[positions.order[reference] + 1 :]:
            if node in positions.edges:
                self._visit(node)

    def __contains__(self, node: fx.Node) -> bool:
        return node in self.every_end

    def _number(self) -> None:
        """Number the cells of the reference."""
        places = self.positions.places(self.reference) if self.reference in self.positions else ()
        known = self.reference is self.positions.image or (places and all(places[axis].exists for axis in self.axes))
        cells = [number_cells(shape_of(self.reference), self.layout, axis) for axis in self.axes]
        # Whole numbers of cells are exact in half the memory.
        found = [np.concatenate([each, np.where(np.isinf(each), np.inf, -each)] * (ROWS // 2)) for each in cells]
        self.every_end[self.reference] = tuple(each.astype(np.float32) for each in found)
        met = PathOperations((None,) * len(found), () if known else (f"layout of {self.name}",))
        self._on_paths[self.reference] = met, met

    def _visit(self, node: fx.Node) -> None:
        pairs = [
            (edge, before)
            for edge, before in zip(self.positions.edges[node], self.positions.before[node], strict=True)
            if edge.source in self.every_end
        ]
        if not pairs:
            return
        found, on_map, everywhere = list[list[FloatArray]](), list[PathOperations](), list[PathOperations]()
        for edge, before in pairs:
            arrays, mixes = list(self.every_end[edge.source]), list[Mixes]()
            for k, axis in enumerate(self.axes):
                secondary = edge.secondary and self.positions.has_leading_input[node][axis]
                places = [each[axis] for each in before]
                arrays[k], mixed = carry_ends(
                    arrays[k],
                    edge,
                    places,
                    self.cells[axis],
                    shape_of(edge.source),
                    secondary=secondary,
                    join=self.join,
                )
                mixes.append(mixed)
            found.append(arrays)
            here, there = self._added_by(node, edge, mixes), self._on_paths[edge.source]
            everywhere += [there[1], here]
            if self._reaches_map(node, arrays):
                on_map += [there[1] if any(mixes) else there[0], here]
        self.every_end[node] = tuple(self.join([each[k] for each in found]) for k in range(len(self.axes)))
        self._on_paths[node] = self._join(on_map or everywhere), self._join(everywhere)

    def _added_by(self, node: fx.Node, edge: Edge, mixes: Sequence[Mixes]) -> PathOperations:
        """The operations that one edge adds to those on the paths to its input."""
        first = tuple(node if each == "all" else None for each in mixes)
        if any(first):
            self.mixing.setdefault(node, edge.mixing)
        unsure = edge.inexact and ("upper bound" in mixes or not any(map(may_be_upper_bound, edge.steps)))
        return PathOperations(first, (edge.inexact,) if unsure else ())

    def _reaches_map(self, node: fx.Node, arrays: Sequence[FloatArray]) -> bool:
        """Whether an input is read where a tensor has positions, or anywhere if it has none. Tokens beside a map do not
        count.
        """
        for ends, axis in zip(arrays, self.axes, strict=True):
            there = np.isfinite(self.positions.places(node)[axis].spread(ends.ndim - 1))
            if there.any() and (ends[FREE] == np.inf).any() and not (there & (ends[0] < np.inf)).any():
                return False
        return True

    def _join(self, met: Sequence[PathOperations]) -> PathOperations:
        nodes = [filter(None, each) for each in zip(*(each.first for each in met), strict=True)]
        first = tuple(min(each, key=self.positions.order.__getitem__, default=None) for each in nodes)
        return PathOperations(first, tuple(dict.fromkeys(name for each in met for name in each.inexact)))

    def ends(self, node: fx.Node, unit: Sequence[IntArray]) -> list[FloatArray]:
        """The ends of some elements of a tensor together, for each axis."""
        rows, one = np.arange(ROWS), np.zeros(1, dtype=np.intp)
        # A dimension along which nothing varies has one index.
        picked = [
            ends[np.ix_(rows, *(spots if n > 1 else one for spots, n in zip(unit, ends.shape[1:], strict=True)))]
            for ends in self.every_end[node]
        ]
        return [each.reshape(ROWS, -1).min(1) for each in picked]

    def trf(self, node: fx.Node, layout: Layout, unit: Sequence[int]) -> Trf:
        """The field of one unit of the map that a tensor holds.

        Raises:
            ErfscopeError: nothing of the reference reaches this unit.
        """
        if node not in self.every_end:
            raise ErfscopeError(f"no path leads from {self.name!r} to unit {unit}")
        # Whether a path leads around an inner reference is each tensor's own.
        own = None if self.reference is self.positions.image else node
        asked = (
            tuple(map(id, self.every_end[node])),
            self._on_paths[node],
            self.positions.key(node),
            layout,
            tuple(unit),
            own,
        )
        return self._cached(asked, lambda: self._trf(node, layout, tuple(unit)))

    def _trf(self, node: fx.Node, layout: Layout, unit: tuple[int, ...]) -> Trf:
        found = self.ends(node, layout.unit_box(shape_of(node), unit))
        if any(np.isinf(ends[CLIPPED]).all() and (ends[FREE] == np.inf).all() for ends in found):
            raise ErfscopeError(f"no path leads from {self.name!r} to unit {unit}")
        # What wraps around lies beside what would be there without a border.
        boxes = [
            box_of(np.minimum(ends[FREE], ends[CLIPPED]), size) for ends, size in zip(found, self.sizes, strict=True)
        ]
        local = [box_of(ends[LOCAL], size) for ends, size in zip(found, self.sizes, strict=True)]
        nothing = any((ends[LOCAL] == np.inf).all() for ends in found)
        nothing |= all((ends[LOCAL] == ends[FREE]).all() for ends in found)
        local_boxes = [whole if each is None or nothing else each for whole, each in zip(boxes, local, strict=True)]
        met = self._on_paths[node][1 if layout.kind else 0]
        axes = range(0 if layout.kind else len(self.sizes))
        centers, reason = self.centers(node, layout, unit) if axes else (tuple[float, ...](), "")
        strides = [self.stride(node, layout, axis) for axis in axes]
        indices = unit if len(unit) == len(self.sizes) else (0,) * len(self.sizes)
        return Trf(
            size_px=_sizes(boxes),
            box_px=tuple(filter(None, boxes)),
            stride_px=tuple(strides),
            center_px=centers,
            offset_px=tuple(c - u * s for c, u, s in zip(centers, indices, strides, strict=False)),
            center_exact=not reason,
            center_inexact_reason=reason,
            global_by=self._global_by(node, found, met),
            local_size_px=_sizes(local_boxes),
            local_box_px=tuple(filter(None, local_boxes)),
            exact=not met.inexact,
            inexact_by=met.inexact,
            reference_px=self.sizes,
            clipped_box_px=tuple(
                box_of(ends[CLIPPED], size) or (0, -1) for ends, size in zip(found, self.sizes, strict=True)
            ),
            all_paths=self.reference is self.positions.image
            or self.positions.image not in self.positions.ancestors(node, (self.reference,)),
        )

    def _global_by(self, node: fx.Node, found: Sequence[FloatArray], met: PathOperations) -> str | None:
        """Name of the first operation behind which all positions are mixed; None unless they are along every axis of
        the reference.
        """
        needed = [k for k, axis in enumerate(self.axes) if self.sizes[axis] > 1]
        first = [each for k in needed if (each := met.first[k]) is not None]
        if not needed or len(first) < len(needed) or any(found[k][FREE][0] != -np.inf for k in needed):
            return None
        made = max(first, key=self.positions.order.__getitem__)
        words, module = self.mixing[made], module_of(made)
        if words == ATTENTION:
            near = name_of(made).startswith(ATTENTIONS) or any(
                name_of(each) in SOFTMAX and module_of(each).startswith(module) for each in self.positions.edges
            )
            words = "softmax attention" if near else "dot-product attention"
        return f"{words} ({module})" if module else words

    def mixes_batch(self, node: fx.Node) -> str:
        """The operation by which elements of a tensor read several cells along the first axis that is followed;
        "" for none.
        """
        return self._cached(("batch", node), lambda: self._mixes_batch(node))

    def _mixes_batch(self, node: fx.Node) -> str:
        found = []
        for each in self.positions.ancestors(node) & self.every_end.keys():
            ends = self.every_end[each][0][CLIPPED]
            if (np.isfinite(ends).all(0) & (ends[0] + ends[1] != 0)).any():
                found.append(each)
        first = min(found, key=self.positions.order.__getitem__, default=None)
        return "" if first is None else describe(first, self.mixing.get(first, ""))


def _sizes(boxes: Sequence[tuple[int, int] | None]) -> tuple[int, ...]:
    return tuple(last - first + 1 for first, last in filter(None, boxes))


def number_cells(shape: Shape, layout: Layout, axis: int) -> FloatArray:
    """(1, *dimensions): the cell of each element of a tensor along an axis, last the images; infinity for none."""
    dims = layout.space_dims(len(shape))
    is_batch = axis == len(layout.space(shape))
    dim = layout.batch_dim if is_batch else dims[0] if layout.grid else dims[axis]
    cells = np.arange(1 if dim is None else shape[dim], dtype=float)
    if layout.grid and not is_batch:
        cells[:] = np.inf
        cells[layout.prefix + layout.token_numbers()] = np.indices(layout.grid)[axis]
    return cells.reshape([1, *(-1 if i == dim else 1 for i in range(len(shape)))])
