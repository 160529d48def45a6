"""Modules that work on each cell by itself need only be run on the cells that the unit needs; their output is put back
in its place.

So the last block of a transformer runs its feed-forward net on the unit's token alone, though every token takes part in
its attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from erfscope.cone.cone import CellwiseCrop
from erfscope.cone.crops import readers_of
from erfscope.cone.trace import Trace
from erfscope.trf.axes.axis_layout import OTHER, Dim, TokenSequence, factors_of
from erfscope.trf.axes.factor_maps import Regrid
from erfscope.trf.axes.index_maps import IndexSet, IntArray, Window
from erfscope.trf.graph import Node
from erfscope.trf.tapes.fingerprint import PartArgument
from erfscope.trf.walk import Region, trace_back

#: A crop must save this share of all multiply-adds, and leave at most this share of the module's cells: else its copies
#: cost more.
WORTHWHILE, SMALL = 0.002, 0.5


@dataclass(frozen=True, slots=True)
class CellwiseModule:
    """A module that works on each cell by itself."""

    module: str
    source: Node
    output: Node


def find_cellwise_crops(trace: Trace, unit: Region, wrt: str, left_out: Sequence[str] = ()) -> tuple[CellwiseCrop, ...]:
    """The crops of cellwise modules that pay, outermost modules first.

    Args:
        trace: A pass, cropped or whole.
        unit: The unit in its map.
        wrt: Reference of the gradient; what lies inside a cropped module would not be whole.
        left_out: Modules that may not be cropped.
    """
    assert trace.map is not None
    needs: dict[Node, Region] = {}

    def settle(node: Node, region: Region) -> Region:
        needs[node] = region
        return region

    trace_back(trace.map, unit, trace.tape.nodes[0], None, settle=settle)
    readers = readers_of(trace.map)
    found: list[CellwiseCrop] = []
    for name in trace.inputs:
        flops = trace.flops.get(name, 0)
        inside = any(name.startswith(f"{crop.module}.") for crop in found)
        holds = wrt == f"{name}:in" or wrt.startswith(f"{name}.")
        if name in left_out or inside or holds or flops < WORTHWHILE * trace.tape.flops:
            continue
        module = _cellwise_module(trace, name, readers)
        if module is None or module.output not in needs:
            continue
        crop, share = _cellwise_crop(module, needs[module.output])
        if crop is not None and share <= SMALL and (1 - share) * flops >= WORTHWHILE * trace.tape.flops:
            found.append(crop)
    return tuple(found)


def _cellwise_module(trace: Trace, name: str, readers: Mapping[Node, Sequence[Node]]) -> CellwiseModule | None:
    """The module, if all it does between its only input and its only output keeps to each cell, and nobody reads what
    lies between."""
    source, output = trace.inputs.get(name), trace.outputs.get(name)
    if source is None or output is None or source is output or output not in readers:
        return None
    inner, stack = {output}, [output]
    while stack:
        node = stack.pop()
        if node.index < source.index or not _keeps(node):
            return None
        for edge in node.edges:
            if edge.source is not source and edge.source not in inner:
                inner.add(edge.source)
                stack.append(edge.source)
    if any(reader not in inner for node in inner - {output} for reader in readers[node]):
        return None
    return CellwiseModule(name, source, output)


def _keeps(node: Node) -> bool:
    """Whether every cell of a node is made of the same cells of its inputs."""
    for edge in node.edges:
        if edge.extra_tokens_only or edge.only_where is not None or edge.extra_tokens:
            return False
        for number, read in enumerate(edge.reads or ()):
            if read is None:
                continue
            index_map = read.index_map
            one = isinstance(index_map, Regrid) and index_map.over == index_map.under == 1
            one = one or (
                isinstance(index_map, Window) and (index_map.kernel, index_map.stride, index_map.padding) == (1, 1, 0)
            )
            if read.axis != number or read.kind != "local" or not one:
                return False
    return True


def _cellwise_crop(module: CellwiseModule, region: Region) -> tuple[CellwiseCrop | None, float]:
    """The crop, and the share of the cells that it leaves."""
    # Positions that lie beside the batch, as windows do, lie elsewhere in a batch of several images.
    if region.extra_tokens or not (_batched(module.source) and _batched(module.output)):
        return None, 1.0
    into = tuple(
        _hull(dim, region, size) for dim, size in zip(module.source.layout.dims, module.source.shape, strict=True)
    )
    back = tuple(
        _hull(dim, region, size) for dim, size in zip(module.output.layout.dims, module.output.shape, strict=True)
    )
    share = 1.0
    for side, size in zip(back, module.output.shape, strict=True):
        share *= 1.0 if side is None else (side[1] - side[0]) / size
    sizes = [[stop - first for side in sides if side is not None for first, stop in (side,)] for sides in (into, back)]
    if share == 1.0 or sizes[0] != sizes[1]:
        return None, 1.0
    return CellwiseCrop(module.module, into, back, module.output.shape), share


def _batched(node: Node) -> bool:
    """Whether the first dimension holds no positions."""
    return not any(factor.axis != OTHER for factor in factors_of(node.layout.dims[0]))


def _hull(dim: Dim, region: Region, size: int) -> tuple[int, int] | None:
    """The smallest range of a dimension that holds the region; None for all of it."""
    before = 0
    parts = dim
    if len(dim) == 1 and isinstance(dim[0], TokenSequence):
        if dim[0].cells:
            return None
        before, parts = dim[0].before, dim[0].inner
    low = high = 0
    for part in parts:
        if isinstance(part, TokenSequence) or (part.axis == OTHER and part.size > 1):
            return None  # a part of images or heads is no part of the map
        first, last = 0, part.size - 1
        span = region.spans[part.axis] if part.axis != OTHER else None
        if span is not None and not span.whole:
            first, last = _factors(span, part.step, part.size)
        low, high = low * part.size + first, high * part.size + last
    return None if (low, high) == (0, size - 1) else (before + low, before + high + 1)


def _factors(span: IndexSet, step: int, size: int) -> tuple[int, int]:
    """Smallest and largest value of one factor of the cells that are read."""
    values: IntArray = span.in_bounds // step % size
    return (int(values.min()), int(values.max())) if values.size else (0, size - 1)


def disagreement(plain: Trace, cropped: Trace, made: Sequence[CellwiseCrop]) -> str | None:
    """Name of the first module whose crop changes what is run; "" where that is not known, None where nothing is
    changed.

    Outside the cropped modules every tensor must keep its shape, inside them the operations must be the same.
    """
    skip = {i for crop in made for first, stop in cropped.made.get(crop.module, ()) for i in range(first, stop)}
    after = [node for node in cropped.tape.nodes if node.index not in skip]
    modules = [crop.module for crop in made]
    shares = {crop.module: _share(crop, plain.inputs[crop.module].shape) for crop in made}
    for node, twin in zip(plain.tape.nodes, after, strict=False):
        inside = next((name for name in modules if _within(node.module, name)), None)
        same = (node.name, node.constants, node.module) == (twin.name, twin.constants, twin.module) and _told_the_same(
            node, twin
        )
        if not same or (node.shape != twin.shape if inside is None else not _cut_down(node, twin, shares[inside])):
            return inside or next((name for name in reversed(modules) if _before(plain, name, node)), "")
    return None if len(after) == len(plain.tape.nodes) else ""


def _told_the_same(node: Node, twin: Node) -> bool:
    """Whether two operations were told the same; what is a matter of positions is not known of both where one has lost
    them."""
    plain, cropped = (
        [each.text if isinstance(each, PartArgument) else each for each in found.arguments] for found in (node, twin)
    )
    return node.arguments == twin.arguments or plain == cropped


def _share(crop: CellwiseCrop, shape: Sequence[int]) -> Fraction:
    """Share of the cells of a module's input that are used."""
    share = Fraction(1)
    for side, size in zip(crop.part, shape, strict=True):
        share *= 1 if side is None else Fraction(side[1] - side[0], size)
    return share


def _cut_down(node: Node, twin: Node, share: Fraction) -> bool:
    """Whether a tensor has lost cells as the module's input has, along dimensions of positions only.

    A table that fits all cells would be repeated over a single one, or lie along another dimension.
    """
    if len(node.shape) != len(twin.shape) or math.prod(node.shape) * share != math.prod(twin.shape):
        return False
    sizes = zip(node.shape, twin.shape, node.layout.dims, strict=True)
    return all(a == b or any(factor.axis != OTHER for factor in factors_of(dim)) for a, b, dim in sizes)


def _within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _before(trace: Trace, name: str, node: Node) -> bool:
    return trace.inputs[name].index < node.index
