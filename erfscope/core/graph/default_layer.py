"""Which layer is measured unless another is named: the deepest one whose positions are known."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import fx

from erfscope.core.graph.ends import FREE, LOCAL
from erfscope.core.graph.field import SOFTMAX
from erfscope.core.graph.graph import name_of
from erfscope.core.graph.main_stream import (
    Stream,
    is_live,
    is_output,
    is_usable,
    kept,
    main_stream,
    skip_moves,
    trunk_of,
)
from erfscope.core.graph.named import NamedTensor
from erfscope.core.graph.places import Place
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.rules.products import ATTENTION
from erfscope.core.graph.rules.reading import Dims, Step, Taps, Whole
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.names import INPUT, OUTPUT

#: Operations that multiply tensors.
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")


@kept
def default_layer(recording: Recording, spec: str) -> str:
    """The deepest layer of a model whose positions are known.

    It is the last module, in the order of execution, that runs once and gives a map of more than one position. A
    LayerNorm's output, whose channel sum has no gradient at all, stands back behind the layer that the norm was applied
    to, and keys, values and weights of attention are no layers. Where the model's first output has no positions, a
    layer beside the trunk, which everything passes through, counts only if it looks further than the last layer of the
    trunk; what mixes all positions counts where the trunk goes on behind it, as where blocks add their residuals in a
    ``forward``. Of several maps that the model returns in a container, the last counts where they come from one
    another, see :func:`~erfscope.core.graph.main_stream.separate_outputs`. It goes before the deepest module if it
    looks further, or if that is in a branch. :func:`deeper_map` tells what of the trunk is left out.

    Args:
        recording: One recorded pass of a model that declares no stages.
        spec: What to call the model in an error.

    Raises:
        MeasurementError: there is no such layer, or a deeper one on the trunk holds several vectors whose positions are
            not known.
    """
    seen = {name: each for name, each in recording.modules.items() if not name.endswith(INPUT)}
    usable = [name for name in seen if not name.startswith(f"{OUTPUT}[") and is_usable(recording, seen[name])]
    stream = main_stream(recording)
    # Of a container the only map counts; where there are several, none is the layer's.
    maps = Counter(name.partition("[")[0] for name in usable)
    named = [name for name in usable if "[" not in name or maps[name.partition("[")[0]] == 1]
    named = [name for name in named if seen[name].node in stream.reached] or named
    found = _without_parts_of_attention(recording, _without_final_norms(recording, named))
    chosen = _choose_layer(recording, found, stream)
    chosen = _item_beyond(recording, chosen, stream.items) or chosen
    unplaced = [
        name
        for name, each in seen.items()
        if recording.reading_of_tensor(each).layout is None and is_live(recording, each) and _looks_spatial(each.shape)
        if name == stream.output or (each.node in stream.trunk and each.node in stream.reached)
        if chosen is None or each.order > seen[chosen].order
    ]
    if unplaced:
        deepest = unplaced[-1]
        near = f"; the deepest layer before it whose positions are known is {chosen!r}" if chosen is not None else ""
        refusal = recording.reading(deepest).reason
        text = f"has no default layer: its deepest map-like layer, {deepest!r}, {refusal}{near}"
        raise MeasurementError(text, model=spec)
    if chosen is None:
        text = (
            "has no layer with a spatial map; erfscope needs a (B, C, h, w) or token output whose positions are known"
        )
        raise MeasurementError(text, model=spec)
    return chosen


#: What a default layer leaves out: see :func:`deeper_map`.
LeftOut = tuple[Literal["branch", "deeper", "several"], fx.Node | None]


def deeper_map(recording: Recording, chosen: str) -> LeftOut | None:
    """What of the main stream a default layer leaves out, for want of a name: None for nothing.

    Returns:
        "branch" and the map of the main stream that the layer is added to; "deeper" and a map of it that looks further
        than the layer; or "several" where the layer is one of several maps through none of which all paths lead.
    """
    last, stream = recording.modules.get(chosen), main_stream(recording)
    if last is None or stream.is_dense or is_output(chosen) or not is_live(recording, last):
        return None
    deepest = stream.deepest
    if deepest is not None and last.node in recording.positions.ancestors(deepest.node):
        if last.node in stream.trunk:
            return ("deeper", deepest.node) if _looks_further(recording, deepest, last, FREE) else None
        return "branch", deepest.node
    return None if last.node in stream.trunk else ("several", None)


def passed_over(recording: Recording, chosen: str) -> list[str]:
    """Modules that look further than the default layer, and are none since they run several times per forward pass."""
    last = recording.modules.get(chosen)
    if last is None or not is_live(recording, last):
        return []
    order = recording.positions.order
    return [
        name
        for name, each in recording.modules.items()
        if each.calls > 1 and not name.endswith(INPUT) and "[" not in name and is_live(recording, each)
        if recording.reading_of_tensor(each).layout is not None
        if order[each.node] > order[last.node] and _looks_further(recording, each, last)
    ]


def _without_final_norms(recording: Recording, names: Sequence[str]) -> list[str]:
    """The layers without outputs of a LayerNorm whose input is another layer's output."""
    seen = recording.modules
    bare = {skip_moves(recording, seen[name].node) for name in names}

    def has_other(name: str) -> bool:
        norm = skip_moves(recording, seen[name].node)
        edges = recording.positions.edges.get(norm, [])
        return "layer_norm" in name_of(norm) and bool(edges) and skip_moves(recording, edges[0].source) in bare

    return [name for name in names if not has_other(name)]


def _without_parts_of_attention(recording: Recording, names: Sequence[str]) -> list[str]:
    """The layers without keys, values and weights of attention: what only products of two tensors read, and a softmax
    made, or operations that leave every position where it is from another layer, maybe beside class tokens."""
    seen, readers = recording.modules, defaultdict[fx.Node, list[fx.Node]](list)
    for reader, edges in recording.positions.edges.items():
        for source in dict.fromkeys(edge.source for edge in edges):
            readers[source].append(reader)
    bare = {skip_moves(recording, seen[name].node): name for name in names}

    def is_part(name: str) -> bool:
        if not _feeds_attention_alone(recording, seen[name].node, readers):
            return False
        stack = [seen[name].node]
        while stack:
            node = stack.pop()
            sources = _sources_in_place(recording, node)
            if name_of(node) in SOFTMAX or any(bare.get(skip_moves(recording, each), name) != name for each in sources):
                return True
            stack += sources
        return False

    return [name for name in names if not is_part(name)]


def _sources_in_place(recording: Recording, node: fx.Node) -> list[fx.Node]:
    """What a tensor was made from alone, or from others put behind each other, if every position stays where it is."""
    positions = recording.positions
    edges = positions.edges.get(node, [])
    if len(edges) > 1 and name_of(node) != "cat":
        return []

    def moves(step: Step, places: Sequence[Place]) -> bool:
        reads = enumerate(step.reads if isinstance(step, Dims) else ())
        varying = [read for dim, read in reads if any(place.varies_along(dim) for place in places[:-1])]
        return any(
            read.unbounded.shape[1] > 1 if isinstance(read, Taps) else isinstance(read, Whole) and read.same is None
            for read in varying
        )

    pairs = zip(edges, positions.before.get(node, []), strict=True)
    return [edge.source for edge, before in pairs if not any(map(moves, edge.steps, before))]


def _feeds_attention_alone(recording: Recording, node: fx.Node, readers: Mapping[fx.Node, Sequence[fx.Node]]) -> bool:
    """Whether all operations on several tensors that a tensor, or what is made of it alone, goes into are products, and
    one of these is attention; it is not returned itself."""
    mixings, stack, returned = set[str](), [node], {*recording.graph.returned.values()}
    while stack:
        if (here := stack.pop()) in returned:
            return False
        for reader in readers.get(here, []):
            edges = recording.positions.edges[reader]
            found = {edge.mixing for edge in edges} & {ATTENTION}
            if found or name_of(reader) in PRODUCTS:
                mixings |= found
            elif len(edges) == 1:
                stack.append(reader)
            else:
                return False
    return ATTENTION in mixings


def _choose_layer(recording: Recording, found: Sequence[str], stream: Stream) -> str | None:
    """The deepest of some layers."""
    if not found:
        return None
    seen, last, deepest = recording.modules, found[-1], stream.deepest
    on_trunk = [name for name in found if seen[name].node in stream.trunk]
    if stream.is_dense or seen[last].node in stream.trunk or not on_trunk:
        return last
    trunk = on_trunk[-1]
    if _looks_further(recording, seen[last], seen[trunk]):
        return last
    if deepest is None or not _looks_further(recording, deepest, seen[trunk], FREE):
        return trunk
    below = recording.positions.ancestors(deepest.node)
    branches = [name for name in found[found.index(trunk) + 1 :] if seen[name].node in below]
    return next(
        (name for name in reversed(branches) if _looks_further(recording, seen[name], seen[trunk], FREE)), trunk
    )


def _item_beyond(recording: Recording, chosen: str | None, items: Sequence[str]) -> str | None:
    """The first map in a container that the model returns which looks further than the deepest module, or avoids it on
    some path."""
    seen: Mapping[str, NamedTensor] = recording.modules
    for name in items:
        if not is_usable(recording, seen[name]):
            continue
        if chosen is None or _looks_further(recording, seen[name], seen[chosen]):
            return name
        node, other = seen[chosen].node, seen[name].node
        if node in recording.positions.ancestors(other) and node not in trunk_of(recording, [other]):
            return name
    return None


def _looks_further(recording: Recording, seen: NamedTensor, other: NamedTensor, ends: slice = LOCAL) -> bool:
    """Whether a unit of a layer reads more than one cell of another layer, by default with what mixes all positions
    left out."""
    mine, theirs = recording.reading_of_tensor(seen).layout, recording.reading_of_tensor(other).layout
    if mine is None or theirs is None:
        return False
    unit = tuple(side // 2 for side in mine.space(seen.shape))
    fields = recording.fields(other.node, theirs, "a layer")
    if seen.node not in fields:
        return False
    found = [each[ends] for each in fields.ends(seen.node, mine.unit_box(seen.shape, unit))]
    return all(first < np.inf for first, _ in found) and any(first + last != 0 for first, last in found)


def _looks_spatial(shape: Sequence[int]) -> bool:
    """Whether a tensor could be a map by its shape: several vectors for each image."""
    return len(shape) >= 3 and math.prod(shape[2:]) > 1 and max(shape[1:-1]) > 1
