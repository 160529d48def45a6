"""Which layer is measured unless another is named: the deepest one whose positions are known."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Literal, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from erfscope.errors import MeasurementError
from erfscope.geometry.names import INPUT, OUTPUT
from erfscope.graph.ends import FREE, LOCAL
from erfscope.graph.field import SOFTMAX
from erfscope.graph.graph import name_of, shape_of
from erfscope.graph.named import NamedTensor
from erfscope.graph.places import Place
from erfscope.graph.recording import Recording
from erfscope.graph.rules.products import ATTENTION
from erfscope.graph.rules.reading import COPIES, Dims, Step, Taps, Whole, call_of

P, T = ParamSpec("P"), TypeVar("T")
#: Operations that multiply tensors.
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")


def _kept(find: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Keep what a function finds of a recording as long as that."""
    found: WeakKeyDictionary[Recording, T] = WeakKeyDictionary()

    @functools.wraps(find)
    def look_up(recording: Recording, *args: P.args, **kwargs: P.kwargs) -> T:
        if recording not in found:
            found[recording] = find(recording, *args, **kwargs)
        return found[recording]

    return look_up


@_kept
def default_layer(recording: Recording, spec: str) -> str:
    """The deepest layer of a model whose positions are known.

    It is the last module, in the order of execution, that runs once and gives a map of more than one position. A
    LayerNorm's output, whose channel sum has no gradient at all, stands back behind the layer that the norm was applied
    to, and keys, values and weights of attention are no layers. Where the model's first output has no positions, a
    layer beside the trunk, which everything passes through, counts only if it looks further than the last layer of the
    trunk; what mixes all positions counts where the trunk goes on behind it, as where blocks add their residuals in a
    ``forward``. Of several maps that the model returns in a container, the last counts where they come from one
    another, see :func:`separate_outputs`. It goes before the deepest module if it looks further, or if that is in a
    branch. :func:`deeper_map` tells what of the trunk is left out.

    Args:
        recording: One recorded pass of a model that declares no stages.
        spec: What to call the model in an error.

    Raises:
        MeasurementError: there is no such layer, or a deeper one on the trunk holds several vectors whose positions are
            not known.
    """
    seen = {name: each for name, each in recording.modules.items() if not name.endswith(INPUT)}
    usable = [name for name in seen if not name.startswith(f"{OUTPUT}[") and _is_usable(recording, seen[name])]
    stream = _main_stream(recording)
    usable = [name for name in usable if seen[name].node in stream.reached] or usable
    # Of a container the only map counts; where there are several, none is the layer's.
    maps = Counter(name.partition("[")[0] for name in usable)
    named = [name for name in usable if "[" not in name or maps[name.partition("[")[0]] == 1]
    found = _without_parts_of_attention(recording, _without_final_norms(recording, named))
    chosen = _choose_layer(recording, found, stream)
    chosen = _item_beyond(recording, chosen, stream.items) or chosen
    unplaced = [
        name
        for name, each in seen.items()
        if recording.reading_of_tensor(each).layout is None and _is_live(recording, each) and _looks_spatial(each.shape)
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


class Stream(NamedTuple):
    """The main stream of a model: what its output is computed from."""

    #: Name of the output that counts; None where nothing is returned.
    output: str | None
    #: Whether that is a map.
    is_dense: bool
    #: Maps in a container that the model returns, the one that counts first.
    items: list[str]
    #: Every node that the output is computed from.
    reached: set[fx.Node]
    #: The nodes that every path from the image to an output passes through.
    trunk: set[fx.Node]
    #: The last map on the trunk before the output that counts, with a name or without.
    deepest: NamedTensor | None


@_kept
def _main_stream(recording: Recording) -> Stream:
    """The main stream of a model."""
    seen, positions = recording.modules, recording.positions
    returned = {name: each for name, each in seen.items() if _is_output(name) and _is_live(recording, each)}
    # A loss reads the image beside all layers, so that none of them would be on the trunk.
    outputs = {name: each.node for name, each in returned.items() if each.shape or len(returned) == 1}
    separate = separate_outputs(recording)
    output = next(iter(separate or outputs), None)
    trunk = _trunk(recording, list(outputs.values()))
    reached = positions.ancestors(outputs[output]) if output is not None else set(positions.edges)
    on_trunk = sorted((trunk & reached) - {positions.image}, key=positions.order.__getitem__, reverse=True)
    tensors = (NamedTensor(node=node, shape=shape_of(node), stage=False, order=0, calls=1) for node in on_trunk)
    return Stream(
        output=output,
        is_dense=output is not None and recording.reading_of_tensor(seen[output]).layout is not None,
        items=separate[:1] or [name for name in outputs if name.startswith(f"{OUTPUT}[")],
        reached=reached,
        trunk=trunk,
        deepest=next((each for each in tensors if _is_usable(recording, each)), None),
    )


def deeper_map(
    recording: Recording, chosen: str
) -> tuple[Literal["branch", "deeper", "several"], fx.Node | None] | None:
    """What of the main stream a default layer leaves out, for want of a name: None for nothing.

    Returns:
        "branch" and the map of the main stream that the layer is added to; "deeper" and a map of it that looks further
        than the layer; or "several" where the layer is one of several maps through none of which all paths lead.
    """
    last, stream = recording.modules.get(chosen), _main_stream(recording)
    if last is None or stream.is_dense or _is_output(chosen) or not _is_live(recording, last):
        return None
    deepest = stream.deepest
    if deepest is not None and last.node in recording.positions.ancestors(deepest.node):
        if last.node in stream.trunk:
            return ("deeper", deepest.node) if _looks_further(recording, deepest, last, FREE) else None
        return "branch", deepest.node
    return None if last.node in stream.trunk else ("several", None)


def separate_outputs(recording: Recording) -> list[str]:
    """The maps in a container that the model returns from which no other of them is computed, the one of fewest
    positions first.

    The stages of a feature extractor come from one another, so that the last is left alone, as of the results of a loop
    that uses the same weights again; the levels of a pyramid of features do not. There are none where the first output
    is no map: that output is the layer then, and maps are returned beside it.
    """
    seen = recording.modules
    outputs = [name for name, each in seen.items() if name.startswith(f"{OUTPUT}[") and _is_live(recording, each)]
    maps = [name for name in outputs if _is_usable(recording, seen[name])]
    if not maps or maps[0] != outputs[0]:
        return []
    spans = {name: _span(recording, seen[name]) for name in maps}
    # The state of a recurrence, which stands where the last steps do, is no level.
    maps = [name for name in maps if spans[name] >= max(spans.values()) / 2]
    order = recording.positions.order
    # A stage may be returned through a norm or in another order of dimensions, which the next one does not see; of
    # those that are the same but for this, the first computed counts.
    values = {name: _skip_moves(recording, _skip_pointwise(recording, seen[name].node)) for name in maps}
    first = {values[name]: name for name in sorted(maps, key=lambda name: -order[seen[name].node])}
    alone = [
        name
        for value, name in first.items()
        if not any(value in recording.positions.ancestors(other) for other in first if other is not value)
        and not any(_runs_again(recording, seen[name], seen[other]) for other in maps)
    ]

    def count_positions(name: str) -> int:
        layout = recording.reading_of_tensor(seen[name]).layout
        return 0 if layout is None else math.prod(layout.space(seen[name].shape))

    return sorted((name for name in maps if name in alone), key=count_positions)


def _runs_again(recording: Recording, seen: NamedTensor, other: NamedTensor) -> bool:
    """Whether another tensor of the same shape is made with all weights of a tensor, and some of them once more, as in
    a later pass of a loop."""
    if seen.shape != other.shape:
        return False
    mine, theirs = (_count_uses(recording, each.node) for each in (seen, other))
    return mine <= theirs and any(theirs[weight] > count for weight, count in mine.items())


def _count_uses(recording: Recording, node: fx.Node) -> Counter[fx.Node]:
    """How often each weight is used for a tensor together with what depends on the image."""
    above = recording.positions.ancestors(node)
    return Counter(
        given for each in above for given in each.all_input_nodes if given.op == "placeholder" and given not in above
    )


def passed_over(recording: Recording, chosen: str) -> list[str]:
    """Modules that look further than the default layer, and are none since they run several times per forward pass."""
    last = recording.modules.get(chosen)
    if last is None or not _is_live(recording, last):
        return []
    order = recording.positions.order
    return [
        name
        for name, each in recording.modules.items()
        if each.calls > 1 and not name.endswith(INPUT) and "[" not in name and _is_live(recording, each)
        if recording.reading_of_tensor(each).layout is not None
        if order[each.node] > order[last.node] and _looks_further(recording, each, last)
    ]


def _is_output(name: str) -> bool:
    return name.partition("[")[0] == OUTPUT


def _is_live(recording: Recording, seen: NamedTensor) -> bool:
    return seen.node in recording.graph.live


def _is_usable(recording: Recording, seen: NamedTensor) -> bool:
    """Whether a tensor is a map of more than one position, made once."""
    layout = recording.reading_of_tensor(seen).layout
    if layout is None or not _is_live(recording, seen) or seen.calls > 1:
        return False
    # A clip may be down to one frame; a plane of one row is a line of text, say.
    return math.prod(layout.space(seen.shape)[-2:]) > 1


def _skip_moves(recording: Recording, node: fx.Node) -> fx.Node:
    """The tensor of which another is a view or a copy."""
    edges = recording.positions.edges
    while len(found := edges.get(node, [])) == 1 and ((call := call_of(node)).operation.moves or call.name in COPIES):
        node = found[0].source
    return node


def _skip_pointwise(recording: Recording, node: fx.Node) -> fx.Node:
    """The value that a tensor was made from by operations that leave every position where it is, such as activations
    and norms of channels, and by moves around them."""
    edges = recording.positions.edges
    node = _skip_moves(recording, node)
    while len(found := edges.get(node, [])) == 1 and shape_of(found[0].source) == shape_of(node):
        places = recording.positions.places(found[0].source)
        for step in found[0].steps:
            for dim, read in enumerate(step.reads if isinstance(step, Dims) else ()):
                moves = any(place.varies_along(dim) for place in places)
                if read != dim and not (isinstance(read, Whole) and read.same == dim and not moves):
                    return node
        node = found[0].source
    return node


def _without_final_norms(recording: Recording, names: Sequence[str]) -> list[str]:
    """The layers without outputs of a LayerNorm whose input is another layer's output."""
    seen = recording.modules
    bare = {_skip_moves(recording, seen[name].node) for name in names}

    def has_other(name: str) -> bool:
        norm = _skip_moves(recording, seen[name].node)
        edges = recording.positions.edges.get(norm, [])
        return "layer_norm" in name_of(norm) and bool(edges) and _skip_moves(recording, edges[0].source) in bare

    return [name for name in names if not has_other(name)]


def _without_parts_of_attention(recording: Recording, names: Sequence[str]) -> list[str]:
    """The layers without keys, values and weights of attention: what only products of two tensors read, and a softmax
    made, or operations that leave every position where it is from another layer, maybe beside class tokens."""
    seen, readers = recording.modules, defaultdict[fx.Node, list[fx.Node]](list)
    for reader, edges in recording.positions.edges.items():
        for source in dict.fromkeys(edge.source for edge in edges):
            readers[source].append(reader)
    bare = {_skip_moves(recording, seen[name].node): name for name in names}

    def is_part(name: str) -> bool:
        if not _feeds_attention_alone(recording, seen[name].node, readers):
            return False
        stack = [seen[name].node]
        while stack:
            node = stack.pop()
            sources = _sources_in_place(recording, node)
            if name_of(node) in SOFTMAX or any(
                bare.get(_skip_moves(recording, each), name) != name for each in sources
            ):
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
    one of these is attention."""
    mixings, stack = set[str](), [node]
    while stack:
        for reader in readers.get(stack.pop(), []):
            edges = recording.positions.edges[reader]
            found = {edge.mixing for edge in edges} & {ATTENTION}
            if found or name_of(reader) in PRODUCTS:
                mixings |= found
            elif len(edges) == 1:
                stack.append(reader)
            else:
                return False
    return ATTENTION in mixings


def _trunk(recording: Recording, outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that every path from the image to one of these passes through."""
    if not outputs:
        return set()
    order, edges = recording.positions.order, recording.positions.edges
    readers: dict[fx.Node, int] = dict.fromkeys(outputs, max(order[node] for node in outputs))
    stack = list(readers)
    while stack:
        node = stack.pop()
        for edge in edges.get(node, []):
            if edge.source not in readers:
                stack.append(edge.source)
            readers[edge.source] = max(readers.get(edge.source, 0), order[node])
    found, reach = set(), 0
    for node in sorted(readers, key=order.__getitem__):
        if reach <= order[node]:
            found.add(node)
        reach = max(reach, readers[node])
    return found


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
        if not _is_usable(recording, seen[name]):
            continue
        if chosen is None or _looks_further(recording, seen[name], seen[chosen]):
            return name
        node, other = seen[chosen].node, seen[name].node
        if node in recording.positions.ancestors(other) and node not in _trunk(recording, [other]):
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


def _span(recording: Recording, seen: NamedTensor) -> float:
    """The share of the image, along all axes, that the units of a map stand in."""
    places = recording.positions.places(seen.node)[:-1]
    sides = zip(places, recording.positions.space, strict=True)
    return math.prod((np.ptp(place.table) + abs(place.slope)) / side for place, side in sides if len(place.table) > 1)


def _looks_spatial(shape: Sequence[int]) -> bool:
    """Whether a tensor could be a map by its shape: several vectors for each image."""
    return len(shape) >= 3 and math.prod(shape[2:]) > 1 and max(shape[1:-1]) > 1
