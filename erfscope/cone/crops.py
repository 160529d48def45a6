"""Where to crop, and to what: the boxes that one unit needs of the tensors that everything passes through."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from erfscope.cone.cone import InputCrop
from erfscope.cone.trace import Trace
from erfscope.geometry.box import Box
from erfscope.trf.axes.axis_layout import OTHER, factors_of
from erfscope.trf.axes.index_maps import IndexSet
from erfscope.trf.graph import Node, ancestors
from erfscope.trf.walk import Region, trace_back

#: A crop that leaves more than this share of the cells there are is not worth its copy.
WORTHWHILE = 0.95


@dataclass(frozen=True, slots=True)
class CropPlan:
    """Boxes in cells of the whole tensors, one entry per axis of the image."""

    image: Box
    #: By the node that is cropped, in the order of execution.
    boxes: Mapping[Node, Box]
    #: What is read of every node, alignment included.
    needs: Mapping[Node, Region]


def readers_of(start: Node) -> dict[Node, list[Node]]:
    """For the node and everything it was computed from, in the order of execution, who of these reads it."""
    readers: dict[Node, list[Node]] = {node: [] for node in ancestors(start)}
    for node in readers:
        for edge in node.edges:
            readers[edge.source].append(node)
    return readers


def candidates(whole: Trace, start: Node) -> dict[Node, str]:
    """Inputs of modules that every path from the image to ``start`` passes through, and that nobody outside the module
    reads.

    The other tensors of a module may be read beside it, as a block's input is by its shortcut; cropping one reader
    alone would be wrong."""
    readers = readers_of(start)
    nodes = list(readers)
    names: dict[Node, str] = {}
    for name, node in whole.inputs.items():
        inside = bool(readers.get(node)) and all(
            r.module == name or r.module.startswith(f"{name}.") for r in readers[node]
        )
        if inside and node not in names and _plain(node):
            names[node] = name
    found, reach = {}, 0
    for node in nodes:
        if reach <= node.index and node is not nodes[0] and node in names:
            found[node] = names[node]
        reach = max([reach, *(reader.index for reader in readers[node])])
    return found


def _plain(node: Node) -> bool:
    """Whether every axis of the image that a tensor has is one whole dimension of it."""
    axis_layout = node.layout
    if any(factor.axis != OTHER for factor in factors_of(axis_layout.dims[0])):
        return False  # positions beside the batch lie elsewhere in a batch of several images
    return bool(axis_layout.present) and set(axis_layout.present) == {
        axis_layout.full_axis(dim) for dim in range(len(node.shape))
    } - {None}


def plan_crops(
    start: Node, unit: Region, root: Node, at: Collection[Node], *, image: bool = True, anchor: int = -1
) -> CropPlan:
    """Boxes at the image, if that may be cropped, and at those of the nodes ``at`` where cropping pays.

    Boxes of nodes before ``anchor`` in the order of execution begin at the first cell of every axis.
    """
    chosen = set(at)
    while True:
        choice = _boxes(start, unit, root, chosen, anchor)
        if not image:
            full_edge = tuple((0, axis.size) for axis in root.layout.axes if axis is not None)
            choice = CropPlan(full_edge, choice.boxes, {**choice.needs, root: _filled(root, full_edge)})
        useful = _useful(choice, root)
        if useful == chosen:
            return choice
        chosen = useful


def _boxes(start: Node, unit: Region, root: Node, at: Collection[Node], anchor: int) -> CropPlan:
    boxes: dict[Node, Box] = {}
    needs: dict[Node, Region] = {}
    grains: dict[int, Fraction] = {}

    def settle(node: Node, region: Region) -> Region:
        for number in node.layout.present:
            grains[number] = _common(grains.get(number), _grain(node, number))
        if node in at:
            boxes[node] = _aligned(node, region, grains, anchored=node.index < anchor)
            region = _filled(node, boxes[node])
            grains.clear()
            grains.update({number: _grain(node, number) for number in node.layout.present})
        needs[node] = region
        return region

    found = trace_back(start, unit, root, None, settle=settle)
    if found.region is None:
        return CropPlan(tuple((0, 0) for _ in root.layout.axes), {}, {})
    region = found.region
    for number in root.layout.present:
        grains[number] = _common(grains.get(number), _grain(root, number))
    image = _aligned(root, region, grains, anchored=root.index < anchor)
    needs[root] = _filled(root, image)
    return CropPlan(image, dict(sorted(boxes.items(), key=lambda item: item[0].index)), needs)


def _grain(node: Node, number: int) -> Fraction:
    """The step, in cells of the image, to which a crop of this axis must keep: a cell, or a window where the axis is
    split into factors."""
    axis = node.layout.axis(number)
    steps = [f.step for dim in node.layout.dims for f in factors_of(dim) if f.axis == number]
    return Fraction(axis.scale).limit_denominator(1 << 12) * math.lcm(*steps)


def _common(one: Fraction | None, other: Fraction) -> Fraction:
    """Least common multiple."""
    if one is None or one == other:
        return other
    return Fraction(math.lcm(one.numerator, other.numerator), math.gcd(one.denominator, other.denominator))


def _aligned(node: Node, region: Region, grains: Mapping[int, Fraction], *, anchored: bool) -> Box:
    """The smallest box that holds the region, begins at a whole grain and leaves the rest modulo a grain as it was.

    So whatever a model derives from the size of a tensor, such as the padding of a last window, comes out the same.
    """
    box = []
    for number, axis in enumerate(node.layout.axes):
        span = region.spans[number]
        if axis is None or span is None:
            box.append((0, 0))
            continue
        ratio = grains[number] / Fraction(axis.scale).limit_denominator(1 << 12)
        if span.whole or not span.in_bounds.size or ratio.denominator != 1:
            box.append((0, axis.size))
            continue
        step, size = ratio.numerator, axis.size
        first = 0 if anchored else int(span.in_bounds[0]) // step * step
        over = int(span.in_bounds[-1]) + 1
        box.append((first, min(size, over + (size - over) % step)))
    return tuple(box)


def _filled(node: Node, box: Box) -> Region:
    """Every cell of a box."""
    spans: list[IndexSet | None] = []
    for axis, (first, stop) in zip(node.layout.axes, box, strict=True):
        cells = np.arange(first, stop, dtype=np.intp)
        spans.append(None if axis is None else IndexSet(cells, cells))
    return Region(tuple(spans))


def _useful(choice: CropPlan, root: Node) -> set[Node]:
    """The nodes where a box leaves clearly less than what the crop before it would let through."""
    useful = set()
    at, box = root, choice.image
    for node, wanted in choice.boxes.items():
        there = math.prod(
            _extent(b, at, number) / axis.scale
            for number, b in enumerate(box)
            if (axis := node.layout.axes[number]) is not None
        )
        left = math.prod(
            stop - first for (first, stop), axis in zip(wanted, node.layout.axes, strict=True) if axis is not None
        )
        if left < WORTHWHILE * there:
            useful.add(node)
            at, box = node, wanted
    return useful


def _extent(bounds: tuple[int, int], node: Node, number: int) -> float:
    """Cells of the image along an axis of a box."""
    axis = node.layout.axes[number]
    return (bounds[1] - bounds[0]) * axis.scale if axis is not None else 1.0


def input_crops_of(choice: CropPlan, names: Mapping[Node, str], root: Node) -> tuple[InputCrop, ...]:
    """The boxes as slices of the tensors as they arrive, each after the crops before it."""
    input_crops = []
    first = tuple(Fraction(low) for low, _ in choice.image)
    for node, box in choice.boxes.items():
        part: list[tuple[int, int] | None] = [None] * len(node.shape)
        begun = list(first)
        for dim in range(len(node.shape)):
            number = node.layout.full_axis(dim)
            if number is None:
                continue
            scale = Fraction(node.layout.axis(number).scale).limit_denominator(1 << 12)
            before = first[number] / scale
            low, stop = box[number]
            part[dim] = (int(low - before), int(stop - before))
            begun[number] = low * scale
        input_crops.append(InputCrop(names[node], tuple(part)))
        first = tuple(begun)
    return tuple(input_crops)
