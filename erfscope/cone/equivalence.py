"""Whether a cropped pass computes the same as the whole one, decided by comparing the two recordings operation by
operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from erfscope.cone.constants import is_pointwise, same_constants
from erfscope.cone.crops import CropPlan
from erfscope.cone.trace import Trace
from erfscope.geometry.box import sides
from erfscope.trf.axes.axis_layout import AxisFactor, AxisLayout, Dim, TokenSequence
from erfscope.trf.axes.index_maps import IndexMap, IntArray
from erfscope.trf.graph import Edge, Node, ancestors

#: First cell of a cropped tensor in the whole one, per axis; 0 for axes that it does not have.
Offset = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first operation that is not shown to be equal."""

    #: Its position in the whole recording; every crop before it is in doubt.
    index: int
    #: "different": it does something else on the crop. "undecided": it uses numbers that may differ.
    kind: Literal["different", "undecided"]
    text: str


class _Different(Exception):
    """Two operations are not the same; the text says why."""


class EquivalenceCheck:
    """The comparison of a cropped pass with the whole one.

    Args:
        whole: The pass without crops.
        cropped: The pass with them.
        choice: What they leave.
        cropped_nodes: The nodes of the whole pass that are cropped, by the name of the module.
    """

    def __init__(self, whole: Trace, cropped: Trace, choice: CropPlan, cropped_nodes: Mapping[str, Node]) -> None:
        assert whole.map is not None
        self._choice = choice
        self._whole = ancestors(whole.map)
        self._cropped = [] if cropped.map is None else ancestors(cropped.map)
        #: Before it nothing is cropped: the model is given the same, and does the same.
        self._begin = (
            0
            if sides(choice.image) != whole.tape.nodes[0].shape[2:]
            else min((node.index for node in choice.boxes), default=0)
        )
        #: Nodes of the whole pass by the nodes that cutting them made.
        self._made = {i: node for name, node in cropped_nodes.items() for i in range(*cropped.made[name][0])}
        #: Nodes of the whole pass by those of the cropped one, and where the latter lie in the former.
        self.whole_of: dict[Node, Node] = {}
        self.offsets: dict[Node, Offset] = {}

    def run(self) -> Mismatch | None:
        """The first doubt in the order of execution; None if every operation that the unit depends on is the same."""
        partners = [node for node in self._cropped if node.index not in self._made]
        undecided: Mismatch | None = None
        for node, partner in zip(self._whole, partners, strict=False):
            self.whole_of[partner] = node
            try:
                self._compare(node, partner)
            except _Different as error:
                return Mismatch(node.index, "different", f"{node.name} in {node.module or 'the model'} {error}")
            if undecided is None and not self._same_constants(node, partner):
                text = f"{node.name} in {node.module or 'the model'} may depend on the position"
                undecided = Mismatch(node.index, "undecided", text)
        if len(partners) != len(self._whole):
            return Mismatch(self._whole[-1].index, "different", "the cropped pass runs other operations")
        return undecided

    def origin_of(self, node: Node) -> tuple[Node, Offset]:
        """For a node of the cropped pass the node of the whole one that it is a part of, and where.

        Raises:
            KeyError: the unit does not depend on it.
        """
        if node.index not in self._made:
            return self.whole_of[node], self.offsets[node]
        crop = self._made[node.index]
        box = self._choice.boxes[crop]
        return crop, tuple(0 if axis is None else first for axis, (first, _) in zip(crop.layout.axes, box, strict=True))

    def _compare(self, node: Node, partner: Node) -> None:
        """Raises _Different where the two do not do the same."""
        if (node.name, node.arguments, len(node.edges)) != (partner.name, partner.arguments, len(partner.edges)):
            raise _Different("is another operation on the crop")
        _alike(node.layout, partner.layout)
        pairs = []
        for edge, part in zip(node.edges, partner.edges, strict=True):
            try:
                source, offset = self.origin_of(part.source)
            except KeyError:
                raise _Different("reads another tensor on the crop") from None
            if source is not edge.source:
                raise _Different("reads another tensor on the crop")
            pairs.append((edge, part, offset))
        here = self._offset(node, pairs) if pairs else tuple(first for first, _ in self._choice.image)
        self.offsets[partner] = here
        if node not in self._choice.needs:
            return  # nothing of it is read
        self._contained(node, partner, here)
        if node.name == "expand" or is_pointwise(node.name):
            _broadcasts_alike(node, partner)
        for edge, part, offset in pairs:
            self._reads_the_same(node, here, edge, part, offset)

    def _same_constants(self, node: Node, partner: Node) -> bool:
        """Whether the numbers that an operation uses beside the image are those of the same positions."""
        if node not in self._choice.needs or node.index < self._begin:
            return True
        return same_constants(node, partner, self.offsets[partner])

    def _offset(self, node: Node, pairs: Sequence[tuple[Edge, Edge, Offset]]) -> Offset:
        """Where the output lies, from where the inputs lie: the same position in the image."""
        here = [0] * len(node.layout.axes)
        for edge, _, offset in reversed(pairs):
            for number, axis in enumerate(edge.source.layout.axes):
                read = None if edge.reads is None else edge.reads[number]
                target = number if edge.reads is None else None if read is None else read.axis
                found = None if target is None else node.layout.axes[target]
                if axis is None or target is None or found is None:
                    continue
                exact = offset[number] * axis.scale / found.scale
                if abs(exact - round(exact)) > 1e-6:
                    raise _Different("does not fit the grid of the crop")
                here[target] = round(exact)
        return tuple(here)

    def _contained(self, node: Node, partner: Node, here: Offset) -> None:
        """Every cell that is read must be there, and a whole axis must be whole."""
        for number, span in enumerate(self._choice.needs[node].spans):
            axis, part = node.layout.axes[number], partner.layout.axes[number]
            if span is None or axis is None or part is None:
                continue
            if span.whole:
                if (here[number], part.size) != (0, axis.size):
                    raise _Different("needs all positions")
            elif span.in_bounds.size and not (
                here[number] <= span.in_bounds[0] and span.in_bounds[-1] < here[number] + part.size
            ):
                raise _Different("needs positions outside the crop")

    def _reads_the_same(self, node: Node, here: Offset, edge: Edge, part: Edge, offset: Offset) -> None:
        if (
            (edge.extra_tokens, edge.extra_tokens_only) != (part.extra_tokens, part.extra_tokens_only)
            or edge.only_where is not None
            or part.only_where is not None
        ):
            raise _Different("deals with tokens beside the map or parts of it")
        if edge.reads is None or part.reads is None:
            moved = any(
                offset[number] != here[number]
                for number in edge.source.layout.present
                if node.layout.axes[number] is not None
            )
            if edge.reads is not part.reads or moved:
                raise _Different("reads other positions on the crop")
            return
        for number, (read, twin) in enumerate(zip(edge.reads, part.reads, strict=True)):
            if read is None or twin is None:
                if read is not twin:
                    raise _Different("reads another axis on the crop")
                continue
            if (read.axis, read.kind, read.keeps_positions) != (twin.axis, twin.kind, twin.keeps_positions):
                raise _Different("reads another axis on the crop")
            if read.index_map is None or twin.index_map is None:
                axis, short = edge.source.layout.axes[number], part.source.layout.axes[number]
                if read.index_map is not twin.index_map or axis is None or short is None or axis.size != short.size:
                    raise _Different("reads all positions")
                continue
            cells, start = self._cells(node, read.axis), 0 if read.axis is None else here[read.axis]
            if not _same_cells(read.index_map, twin.index_map, cells, start, offset[number]):
                raise _Different("reads other positions on the crop")

    def _cells(self, node: Node, number: int | None) -> IntArray:
        """The cells of the output that are read."""
        if number is None:
            return np.zeros(1, dtype=np.intp)
        span, axis = self._choice.needs[node].spans[number], node.layout.axes[number]
        assert span is not None
        assert axis is not None
        return np.arange(axis.size, dtype=np.intp) if span.whole else span.in_bounds


def _broadcasts_alike(node: Node, partner: Node) -> None:
    """Raises _Different unless the inputs of both are repeated along the same dimensions: a crop of one cell would be,
    where none was."""
    for edge, part in zip(node.edges, partner.edges, strict=True):
        lead = len(node.shape) - len(edge.source.shape)
        if lead < 0 or len(edge.source.shape) != len(part.source.shape):
            raise _Different("has another shape on the crop")
        for dim, (size, short) in enumerate(zip(edge.source.shape, part.source.shape, strict=True)):
            if short != (partner.shape[lead + dim] if size == node.shape[lead + dim] else 1):
                raise _Different("is repeated along other dimensions on the crop")


def _same_cells(index_map: IndexMap, twin: IndexMap, cells: IntArray, start: int, offset: int) -> bool:
    """Whether output cells read the same input cells in the same order, with and without borders."""
    same = np.array_equal(index_map(cells), twin(cells - start) + offset)
    return same and np.array_equal(index_map.in_bounds(cells), twin.in_bounds(cells - start) + offset)


def _alike(one: AxisLayout, other: AxisLayout) -> None:
    """Raises _Different unless two layouts are the same up to the sizes of the axes."""
    for axis, part in zip(one.axes, other.axes, strict=True):
        if (axis is None) != (part is None) or (
            axis is not None and part is not None and abs(axis.scale - part.scale) > 1e-9 * axis.scale
        ):
            raise _Different("gives a map of another scale on the crop")
    if len(one.dims) != len(other.dims):
        raise _Different("has another shape on the crop")
    for dim, part_dim in zip(one.dims, other.dims, strict=True):
        _alike_dims(dim, part_dim, one, other)


def _alike_dims(one: Dim, other: Dim, axis_layout: AxisLayout, part: AxisLayout) -> None:
    if len(one) != len(other):
        raise _Different("has another shape on the crop")
    for a, b in zip(one, other, strict=True):
        if isinstance(a, TokenSequence) or isinstance(b, TokenSequence):
            if not isinstance(a, TokenSequence) or not isinstance(b, TokenSequence) or not a.is_arranged_as(b):
                raise _Different("has another shape on the crop")
            _alike_dims(a.inner, b.inner, axis_layout, part)
        elif (a.axis, a.step) != (b.axis, b.step) or (
            a.size != b.size and not (_top(a, axis_layout) and _top(b, part))
        ):
            raise _Different("has another shape on the crop")


def _top(factor: AxisFactor, axis_layout: AxisLayout) -> bool:
    """Whether a factor is the outermost one of its axis, which is the one that a crop shortens."""
    return factor.axis != -1 and factor.step * factor.size == axis_layout.size_of(factor.axis)
