"""Which layer is measured unless another is named: the deepest one whose positions are known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from erfscope.adapter import IMAGE, OUTPUT
from erfscope.errors import MeasurementError
from erfscope.geometry.layout import Layout
from erfscope.trf.graph import Node, ancestors, skip_pointwise, skip_views
from erfscope.trf.map_axes import unit_region
from erfscope.trf.positions import MIXING, InferredLayout, VisitedTensor, looks_spatial
from erfscope.trf.record import INPUT, Recording
from erfscope.trf.walk import trace_back


def default_layer(recording: Recording, spec: str) -> str:
    """The deepest layer of a model whose positions are known.

    It is the last module, in the order of execution, that runs once and gives a map of more than one position. A
    LayerNorm's output, whose channel sum has no gradient at all, stands back behind the layer that the norm was applied
    to. Where the model's output has no positions, a layer beside the trunk, which everything passes through, counts
    only if it looks further than the last layer of the trunk: the keys of a pooling attention do not. Of several maps
    that the model returns in a container, the last is meant where they come from one another, see
    :func:`separate_outputs`. It goes before the deepest module if it looks further, or if that is in a branch.

    Args:
        recording: One recorded pass of a model that declares no stages.
        spec: What to call the model in an error.

    Raises:
        MeasurementError: there is no such layer, or a deeper one on the trunk holds several vectors whose positions are
            not known.
    """
    seen = recording.modules
    readings = {name: recording.reading(name) for name in seen if name != IMAGE and not name.endswith(INPUT)}
    usable = [name for name in readings if not name.startswith(f"{OUTPUT}[") and _is_usable(seen[name], readings[name])]
    # Of a container the only map counts; where there are several, none is the layer's.
    maps = Counter(name.partition("[")[0] for name in usable)
    named = [name for name in usable if "[" not in name or maps[name.partition("[")[0]] == 1]
    outputs = {
        name: entry for name, entry in seen.items() if name.partition("[")[0] == OUTPUT and entry.tensor is not None
    }
    separate = separate_outputs(recording)
    meant = next(iter(separate or outputs), None)
    found = _below_output(_without_final_norms(named, seen), seen, meant)
    trunk = _trunk([entry.tensor.node for entry in outputs.values() if entry.tensor is not None])
    chosen = _choose_layer(
        found,
        seen,
        readings,
        trunk,
        dense=any(readings[n].layout is not None for n in seen if n.partition("[")[0] == OUTPUT),
    )
    items = [name for name in outputs if name.startswith(f"{OUTPUT}[")]
    chosen = _item_beyond(chosen, separate[:1] or items, seen, readings) or chosen
    unplaced = [
        name
        for name, entry in seen.items()
        if name in readings
        and readings[name].layout is None
        and entry.tensor is not None
        and looks_spatial(entry.shape)
        if (entry.tensor.node in trunk or name == meant) and (chosen is None or entry.order > seen[chosen].order)
    ]
    if unplaced:
        deepest = unplaced[-1]
        near = f"; the deepest layer before it whose positions are known is {chosen!r}" if chosen is not None else ""
        text = f"has no default layer: its deepest map-like layer, {deepest!r}, {readings[deepest].refusal}{near}"
        raise MeasurementError(text, model=spec)
    if chosen is None:
        text = (
            "has no layer with a spatial map; erfscope needs a (B, C, h, w) or token output whose positions are known"
        )
        raise MeasurementError(text, model=spec)
    return chosen


def separate_outputs(recording: Recording) -> list[str]:
    """The maps in a container that the model returns from which no other of them is computed, the one of fewest
    positions first.

    The stages of a feature extractor come from one another, so that the last is left alone; the levels of a pyramid of
    features do not. There are none where the first output is no map: it is meant then, and maps are returned beside it.
    """
    seen = recording.modules
    outputs = [name for name, entry in seen.items() if name.startswith(f"{OUTPUT}[") and entry.tensor is not None]
    maps = [name for name in outputs if _is_usable(seen[name], recording.module_reading(name))]
    if not maps or maps[0] != outputs[0]:
        return []
    nodes = {name: tensor.node for name in maps if (tensor := seen[name].tensor) is not None}
    # A stage may be returned through a norm or in another order of dimensions, which the next one does not see; of
    # those that are the same but for this, the first computed counts.
    values = {name: skip_views(skip_pointwise(skip_views(node))) for name, node in nodes.items()}
    first = {values[name]: name for name in sorted(maps, key=lambda name: -nodes[name].index)}
    alone = [
        name
        for value, name in first.items()
        if not any(value in ancestors(other) for other in first if other is not value)
    ]
    return sorted(alone, key=lambda name: (_positions(seen[name], recording.module_reading(name)), maps.index(name)))


def passed_over(recording: Recording, chosen: str) -> list[str]:
    """Modules that look further than the default layer, and are none since they run several times per forward pass."""
    seen, tensor = recording.modules, recording.modules[chosen].tensor if chosen in recording.modules else None
    if tensor is None:
        return []
    repeated = [
        name for name, entry in seen.items() if entry.calls > 1 and not name.endswith(INPUT) and "[" not in name
    ]
    return [
        name
        for name in repeated
        if (node := seen[name].tensor) is not None and (layout := recording.module_reading(name).layout) is not None
        if node.node.index > tensor.node.index and _looks_further(node.node, layout, seen[name].shape, tensor.node)
    ]


def _is_usable(seen: VisitedTensor, reading: InferredLayout) -> bool:
    """Whether a tensor is a map of more than one position, made once."""
    if reading.layout is None or seen.tensor is None or seen.calls > 1:
        return False
    # A clip may be down to one frame; a plane of one row is a line of text, say.
    return math.prod(reading.layout.space(seen.shape)[-2:]) > 1


def _positions(seen: VisitedTensor, reading: InferredLayout) -> int:
    return 0 if reading.layout is None else math.prod(reading.layout.space(seen.shape))


def _without_final_norms(names: Sequence[str], seen: dict[str, VisitedTensor]) -> list[str]:
    """The layers without outputs of a LayerNorm whose input is another layer's output."""
    bare = {skip_views(tensor.node) for name in names if (tensor := seen[name].tensor) is not None}

    def has_other(name: str) -> bool:
        tensor = seen[name].tensor
        assert tensor is not None
        norm = skip_views(tensor.node)
        return "layer_norm" in norm.name and skip_views(norm.edges[0].source) in bare

    return [name for name in names if not has_other(name)]


def _below_output(names: list[str], seen: dict[str, VisitedTensor], output: str | None) -> list[str]:
    """Those layers that one output of the model is computed from: others serve another output, such as an auxiliary
    classifier."""
    tensor = seen[output].tensor if output is not None else None
    if tensor is None:
        return names
    reached = set(ancestors(tensor.node))
    return [name for name in names if (entry := seen[name].tensor) is not None and entry.node in reached] or names


def _trunk(outputs: Sequence[Node]) -> set[Node]:
    """The nodes that every path from the image to one of these passes through."""
    if not outputs:
        return set()
    readers: dict[Node, int] = dict.fromkeys(outputs, max(node.index for node in outputs))
    stack = list(readers)
    while stack:
        node = stack.pop()
        for edge in node.edges:
            if edge.source not in readers:
                stack.append(edge.source)
            readers[edge.source] = max(readers.get(edge.source, 0), node.index)
    found, reach = set(), 0
    for node in sorted(readers, key=lambda each: each.index):
        if reach <= node.index:
            found.add(node)
        reach = max(reach, readers[node])
    return found


def _choose_layer(
    found: Sequence[str],
    seen: dict[str, VisitedTensor],
    readings: dict[str, InferredLayout],
    trunk: set[Node],
    *,
    dense: bool,
) -> str | None:
    """The deepest of some layers."""
    last = found[-1] if found else None
    tensor = seen[last].tensor if last is not None else None
    if last is None or tensor is None or dense or tensor.node in trunk:
        return last
    on_trunk = [name for name in found if (entry := seen[name].tensor) is not None and entry.node in trunk]
    layout = readings[last].layout
    if not on_trunk or layout is None:
        return last
    below = seen[on_trunk[-1]].tensor
    assert below is not None
    return last if _looks_further(tensor.node, layout, seen[last].shape, below.node) else on_trunk[-1]


def _item_beyond(
    chosen: str | None, items: Sequence[str], seen: dict[str, VisitedTensor], readings: dict[str, InferredLayout]
) -> str | None:
    """The first map in a container that the model returns which looks further than the deepest module, or avoids it on
    some path."""
    tensor = seen[chosen].tensor if chosen is not None else None
    for name in items:
        entry, layout = seen[name].tensor, readings[name].layout
        if entry is None or layout is None or not _is_usable(seen[name], readings[name]):
            continue
        if tensor is None or _looks_further(entry.node, layout, seen[name].shape, tensor.node):
            return name
        if tensor.node in ancestors(entry.node) and tensor.node not in _trunk([entry.node]):
            return name
    return None


def _looks_further(node: Node, layout: Layout, shape: Sequence[int], goal: Node) -> bool:
    """Whether a unit of a layer reads more than one cell of another layer, with all that mixes positions left out."""
    unit = tuple(side // 2 for side in layout.space(shape))
    region = trace_back(node, unit_region(node, layout, unit), goal, None, MIXING).region
    if region is None:
        return False
    return any(span is not None and (span.whole or span.in_bounds.size > 1) for span in region.spans)
